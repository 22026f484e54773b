"""Do balances of the two terms undo a term's scale, and does a learned alpha need its prior?

    python -m jobs.studies.balance [--root results] [--steps 100]

Sentences tested. The report's remedy for choosing alpha by hand is to learn the weights: then the terms' shares of the
gradient must not depend on a term's unit. With the regression term times 100 the ranking term's share of the gradient
on the last layer's weights must come back to within 20 % of the unscaled run's (fixed weights must fail that, else the
test shows nothing). A learned alpha must run to an end without its prior (above .95 or below .05) and not with it.
Theorem 7 says that both terms' gradients are opposed, Theorem 8 that they are unrelated: their cosine on the last layer
is printed with its interval over steps.

Trains the quickstart's examples, all that comes before being made once under ROOT, for some steps a setting, without
Ray. Shares are means over the last half of the steps.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from anmi_ray import environment
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.training.batching import TrainingSet, prepare
from anmi_ray.training.loop import Row, train
from jobs.studies.small_trainings import quickstart

SCALES = (1.0, 100.0)
WITHIN = 0.2
ENDS = (0.05, 0.95)
BALANCES: dict[str, dict[str, Any]] = {
    "fixed": {"rule": "fixed"},
    "uncertainty": {"rule": "uncertainty"},
    "gradnorm": {"rule": "gradnorm"},
    "learned, with its prior": {"rule": "learned", "learning_rate": 0.1},
    "learned, without": {"rule": "learned", "learning_rate": 0.1, "prior_strength": 0.0},
}


@dataclass(frozen=True)
class Outcome:
    """The ranking term's share of the gradient and alpha over the last half, and the cosine of every step."""

    share: float
    alpha: float
    cosine: np.ndarray


def made(root: str, console: Any) -> list[Any]:
    """Example, Text and Query tables of the quickstart, made as far as they are missing."""
    found = quickstart(root, console)
    return [[found.examples], [found.texts], [found.queries]]


def trained(tables: list[Any], config: TrainConfig) -> list[Row]:
    """The log of one training."""
    model = CrossEncoder.load(config.model, max_tokens=config.max_tokens, seed=config.seed)
    examples, texts, queries = tables
    data: TrainingSet = prepare(examples, texts, queries, model.pairs)
    return train(model, data, None, config, TrainExecution(threads=environment.cores())).rows


def outcome(rows: list[Row]) -> Outcome:
    """What is measured of a log."""
    late = rows[len(rows) // 2 :]
    share, alpha = (float(np.mean([row[name] or 0.0 for row in late])) for name in ("gradient_share", "alpha"))
    return Outcome(share, alpha, np.array([row["gradient_cosine"] for row in rows if row["gradient_cosine"]]))


def main() -> None:
    """Print the table and the verdicts."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="results", help="folder of artifacts")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    tables = made(given.root, Console(stderr=True))
    found: dict[tuple[str, float], Outcome] = {}
    print("| balance | regression times | ranking's share of the gradient | alpha | cosine, mean [5 %, 95 %] |\n"
          "|---|---|---|---|---|")  # fmt: skip
    for name, balance in BALANCES.items():
        for scale in SCALES:
            content = {"balance": balance, "loss": {"regression_scale": scale}, "max_steps": given.steps}
            small = {"lists_per_step": 4, "list_size": 7, "max_tokens": 80, "freeze_layers": 4, "engine": "ddp"}
            one = outcome(trained(tables, TrainConfig.model_validate({**content, **small, "dev_points": ()})))
            found[name, scale] = one
            low, high = np.quantile(one.cosine, [0.05, 0.95])
            print(f"| {name} | {scale:g} | {one.share:.3f} | {one.alpha:.3f} | "
                  f"{one.cosine.mean():+.2f} [{low:+.2f}, {high:+.2f}] |", flush=True)  # fmt: skip
    print()
    for name in BALANCES:
        plain, scaled = (found[name, scale].share for scale in SCALES)
        held = abs(scaled / plain - 1.0) <= WITHIN
        print(f"{name}: share {plain:.3f} and {scaled:.3f}, {'within' if held else 'NOT within'} {WITHIN:.0%}")
    for name in ("learned, with its prior", "learned, without"):
        alpha = found[name, 1.0].alpha
        print(f"{name}: alpha {alpha:.3f}, {'stays inside' if ENDS[0] <= alpha <= ENDS[1] else 'has run to an end'}")


if __name__ == "__main__":
    main()
