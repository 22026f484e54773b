"""Does a curriculum change anything here, does EXP3.S leave uniform, does a learned temperature move and matter?

    python -m jobs.studies.curricula [--root results] [--seeds 3] [--workers 2]

Claims tested. The report: schedules from easy to hard (Table 3, Algorithm 3) train the better model. Graves et al.:
bands chosen by learning progress (EXP3.S, `progress`) do, so the bandit must come to prefer some band. CLIP: a
temperature is best learned. Each is held against the plain training of the same seed: nDCG@10 of the hybrid's top ten,
reranked alone, on the dev queries and 120 train queries that nothing is trained on.

How far the bandit leaves uniform is the total variation of its probabilities from 1/K, beside its largest value
(1 - ε)(1 - 1/K), ε the exploration. A reward means something only if the bands' rewards differ: the rewards of the run
are read back from its log, compared between bands by Kruskal and Wallis's test, and dealt anew at random to the same
bandit 500 times, which says how far it goes by chance. What advantage of one band it would need is simulated.

Trains the quickstart's examples with its own settings, all that comes before being made once under ROOT.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from anmi_ray.config.objective import CurriculumConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.evaluation.replicates import contrast, family, markdown, smallest_difference
from anmi_ray.identity import rng
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.store import Store
from anmi_ray.training.bandit import Exp3S
from anmi_ray.training.batching import prepare
from anmi_ray.training.loop import train
from jobs.studies.small_trainings import (
    cores,
    heading,
    kept_out,
    of_process,
    quickstart,
    side_by_side,
    stacked,
    without,
)

Reals = NDArray[np.float64]
BOUNDED = {"bound": 3.0}
ARMS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "table3": {"curriculum": {"rule": "table3"}},
    "algorithm3": {"curriculum": {"rule": "algorithm3"}},
    "progress": {"curriculum": {"rule": "progress"}},
    "temperature .07": {"loss": BOUNDED},
    "temperature learned": {"loss": {**BOUNDED, "learn_temperature": True}},
}
REFERENCES = {"fixed": ("table3", "algorithm3", "progress"), "temperature .07": ("temperature learned",)}
SMALL = {"lists_per_step": 8, "max_tokens": 80, "freeze_layers": 4, "engine": "ddp", "dev_points": []}
DEALS = 500  # times that rewards are dealt anew
ADVANTAGES = (0.0, 0.25, 0.5, 1.0)  # of one band, in standard deviations of a reward


def tasks(root: str, mined: str, seeds: int, steps: int) -> dict[str, dict[str, Any]]:
    """Every training by name."""
    return {
        f"{arm.replace(' ', '-')}-s{seed}": {
            "root": root,
            "mined": mined,
            "arm": arm,
            "config": {**SMALL, **own, "max_steps": steps, "seed": seed},
        }
        for seed in range(seeds)
        for arm, own in ARMS.items()
    }


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """One training: nDCG@10 by query, and of its log what curricula and temperatures left there."""
    quick, held = of_process(task["root"])
    config = TrainConfig.model_validate(task["config"])
    model = CrossEncoder.load(config.model, max_tokens=config.max_tokens, seed=config.seed)
    examples = without(quick.examples, kept_out(quick.examples))
    data = prepare([examples], [quick.texts], [quick.queries], model.pairs)
    trained = train(model, data, None, config, TrainExecution(threads=1))
    names = [name for name in trained.rows[0] if name.startswith("band_") or name in ("temperature", "minimum_gap_elo")]
    return {"ndcg": held.ndcg(trained.model), "rows": [{name: row[name] for name in names} for row in trained.rows]}


def variation(probability_TK: Reals) -> Reals:
    """Total variation from uniform, float64[T].

    >>> variation(np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])).tolist()
    [0.0, 0.75]
    """
    return np.abs(probability_TK - 1.0 / probability_TK.shape[1]).sum(1) / 2


def rewards(probability_TK: Reals, arm_T: NDArray[np.int64], exploration: float) -> Reals:
    """The scaled rewards in [-1, 1] that made a bandit's probabilities, float64[T]; row t of them is after play t.

    The inverse of `Exp3S.update`: its mixing is linear, and a reward moved the logarithm of one weight alone.
    """
    plays, arms = probability_TK.shape
    rate = math.sqrt(math.log(arms) / (arms * plays))
    before, found = np.full(arms, 1.0 / arms), np.zeros(plays)
    for t in range(plays):
        old, new = ((p - exploration / arms) / (1 - exploration) for p in (before, probability_TK[t]))
        share = 1.0 / (t + 2)
        # mixed = (1 - a) w + a/(K - 1) (Σ - w), which keeps the sum: 1
        if (kept := 1 - share - share / (arms - 1)) <= 0:  # two arms' first play: its reward, which is 0, is mixed away
            continue
        unmixed = (new - share / (arms - 1)) / kept
        moved = np.log(unmixed) - np.log(old)
        others = np.delete(moved, arm_T[t])
        found[t] = (moved[arm_T[t]] - others.mean()) * before[arm_T[t]] / rate
        before = probability_TK[t]
    return found


def dealt(reward_T: Reals, arms: int, exploration: float, rounds: int, seed: int) -> Reals:
    """Mean total variation of bandits that get these rewards in random order, whatever they play, float64[rounds]."""
    generator = rng("dealt", seed)
    return np.array([_played(generator.permutation(reward_T), arms, exploration, generator) for _ in range(rounds)])


def _played(reward_T: Reals, arms: int, exploration: float, generator: np.random.Generator) -> float:
    """Mean total variation over the plays of a bandit that gets `reward_T` one after the other."""
    bandit, seen = Exp3S(arms, len(reward_T), exploration), []
    for reward, uniform in zip(reward_T.tolist(), generator.random(len(reward_T)).tolist(), strict=True):
        bandit.update(bandit.draw(uniform), reward)
        seen.append(bandit.probabilities())
    return float(variation(np.array(seen)).mean())


def with_advantage(advantage: float, plays: int, arms: int, exploration: float, rounds: int) -> tuple[float, float]:
    """Mean total variation, and the last probability of the best arm, where one arm's rewards are N(advantage, 1)."""
    generator, found = rng("advantage", plays, str(advantage)), []
    for _ in range(rounds):
        bandit, seen = Exp3S(arms, plays, exploration), []
        for uniform, noise in zip(generator.random(plays).tolist(), generator.normal(size=plays).tolist(), strict=True):
            arm = bandit.draw(uniform)
            bandit.update(arm, noise + advantage * (arm == 0))
            seen.append(bandit.probabilities())
        found.append((variation(np.array(seen)).mean(), seen[-1][0]))
    mean = np.mean(found, axis=0)
    return float(mean[0]), float(mean[1])


def played(rows: Sequence[Mapping[str, Any]]) -> tuple[Reals, NDArray[np.int64]]:
    """A run's probabilities after every step, and the bands it played, told by their least gaps."""
    names = sorted((name for name in rows[0] if name.startswith("band_")), key=lambda name: int(name[5:]))
    probability_TK = np.array([[row[name] for name in names] for row in rows])
    least = [-math.inf if row["minimum_gap_elo"] is None else row["minimum_gap_elo"] for row in rows]
    edges = sorted(set(least))
    if len(edges) != len(names):
        raise AssertionError("a band was never played: bands cannot be told by their edges")
    return probability_TK, np.array([edges.index(one) for one in least])


def show_bandit(runs: Sequence[Mapping[str, Any]], exploration: float) -> None:
    """How far it left uniform, and what its rewards were."""
    columns = ("seed", "at last", "variation: mean", "largest", "by chance, mean [5 %, 95 %]", "reward of each band")
    print(f"\nProbabilities of bands, small gaps first (`progress`)\n\n{heading(*columns, 'bands alike: p')}")
    above, arms, plays = [], 0, 0
    for seed, run in enumerate(runs):
        probability_TK, arm_T = played(run["rows"])
        plays, arms = probability_TK.shape
        distance, reward_T = variation(probability_TK), rewards(probability_TK, arm_T, exploration)
        chance = dealt(reward_T, arms, exploration, DEALS, seed)
        by_band = [reward_T[arm_T == k] for k in range(arms)]
        p = float(stats.kruskal(*by_band)[1])
        above.append(float((chance >= distance.mean()).mean()))
        last = " ".join(f"{one:.2f}" for one in probability_TK[-1])
        low, high = np.quantile(chance, [0.05, 0.95])
        said = " ".join(f"{one.mean():+.2f} ± {one.std(ddof=1) / math.sqrt(len(one)):.2f}" for one in by_band)
        print(f"| {seed} | {last} | {distance.mean():.3f} | {distance.max():.3f} | {chance.mean():.3f} "
              f"[{low:.3f}, {high:.3f}] | {said} | {p:.2f} |")  # fmt: skip
    most = (1 - exploration) * (1 - 1 / arms)
    combined: Any = stats.combine_pvalues([max(one, 1 / DEALS) for one in above])
    together = combined.pvalue
    print(f"\nThe largest possible variation is {most:.3f} (a share of {exploration:g} of the steps goes to any band). "
          f"It goes as far by chance in {', '.join(f'{one:.0%}' for one in above)} of the deals: p = {together:.2f}, "
          f"{'further than by chance' if together < 0.05 else 'no further than by chance'}.")  # fmt: skip
    for steps in (plays, 10 * plays):
        parts = [with_advantage(one, steps, arms, exploration, 100) for one in ADVANTAGES]
        said = "; ".join(
            f"{one:g} sd: variation {part[0]:.2f}, {part[1]:.2f} on it at last"
            for one, part in zip(ADVANTAGES, parts, strict=True)
        )
        print(f"Simulated, {steps} steps, one band's reward larger by {said}.")


def show_temperature(runs: Sequence[Mapping[str, Any]], rate: float) -> None:
    """Where learned temperatures go."""
    columns = heading("seed", "start", "a quarter", "half", "end", "least", "largest")
    print(f"\nThe learned temperature\n\n{columns}")
    for seed, run in enumerate(runs):
        seen = [row["temperature"] for row in run["rows"]]
        at = [0.07, *(seen[len(seen) * part // 4 - 1] for part in (1, 2, 4)), min(seen), max(seen)]
        print(f"| {seed} | {' | '.join(f'{one:.4f}' for one in at)} |")
    steps = len(runs[0]["rows"])
    most = math.exp(rate * steps)
    print(f"\nAll steps one way, each of {rate:g} in the logarithm, would lead as far as {most:.1f} times.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables and verdicts."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="results", help="folder of artifacts")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of every arm")
    parser.add_argument("--steps", type=int, default=98, help="of a training; the quickstart's own number")
    parser.add_argument("--workers", type=int, default=cores(), help="trainings at once, a core each")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    quick = quickstart(given.root, console)
    wanted = tasks(given.root, quick.artifacts["mine"].fingerprint, given.seeds, given.steps)
    out = Store(str(Path(given.root) / "studies" / "curricula"))
    found = side_by_side(wanted, work, out, given.workers, lambda text: console.print(text, highlight=False))
    runs = {arm: [found[name] for name, task in wanted.items() if task["arm"] == arm] for arm in ARMS}
    values = {arm: stacked([one["ndcg"] for one in of_arm]) for arm, of_arm in runs.items()}
    print(f"nDCG@10, the hybrid's top ten reranked alone\n\n{heading('arm', 'nDCG@10', 'by seed')}")
    for arm, value_SQ in values.items():
        level = contrast(arm, "", [value_SQ])
        by_seed = " ".join(f"{one:.3f}" for one in value_SQ.mean(1))
        print(f"| {arm} | {level.difference:.3f} [{level.low:.3f}, {level.high:.3f}] | {by_seed} |")
    for reference, arms in REFERENCES.items():
        rows = family([contrast(arm, reference, [values[arm] - values[reference]]) for arm in arms])
        print(f"\nAgainst {reference}: {rows[0].queries} queries, {rows[0].seeds} seeds\n\n{markdown(rows)}")
        sd = max(one.query_sd for one in rows)
        smallest = smallest_difference({"": sd}, {"": rows[0].queries}, len(rows))
        print(f"\nThe smallest difference to be detected (power .8, queries alone) is {smallest:.3f}.")
    show_bandit(runs["progress"], CurriculumConfig().exploration)
    show_temperature(runs["temperature learned"], TrainConfig().balance.learning_rate)


if __name__ == "__main__":
    main()
