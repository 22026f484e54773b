"""What does a judge at the wrong temperature do to ratings, to negatives and their weights, and to the trained model?

    python -m jobs.studies.miscalibration [--root results] [--dry-run] [--workers N] [--seeds N]

The plan is miscalibrated.yaml, trained and tested by trainings.py. Ratings are held against the truth that the
simulated panel perceives (its ratings are among the rows): `slope` of the true gap on the estimated one over random
pairs of a query (1: gaps are what they say; below: they are too wide), τ-b with the truth, and how many true gaps lie
within the 95 % interval. Of the negatives: how many of the documents that could be one were let through, how heavy they
are, and how many of them are in truth at least as good as the anchor. Intervals are over queries.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats

from anmi_ray import environment, experiment
from anmi_ray.config.experiment import Experiment
from anmi_ray.evaluation.significance import bootstrap_interval
from anmi_ray.identity import rng
from anmi_ray.records import EXAMPLE, RATING, TRUTH
from anmi_ray.scale import ELO_PER_PROBIT
from anmi_ray.schema import Record
from anmi_ray.store import Artifact, Store
from jobs.studies import trainings
from jobs.studies.ending import ending
from jobs.studies.small_trainings import heading

PLAN, PANEL, PAIRS = Path(__file__).with_name("miscalibrated.yaml"), "panel", 40
Reals = NDArray[np.float64]


def part(one: Experiment, stage: str, name: str, record: Record) -> pa.Table:
    """A part of a stage of an experiment, all buckets."""
    store = Store(one.execution.root)
    found = Artifact(store, stage, experiment.resolve(one)[stage].fingerprint)
    buckets = range(store.buckets(one.execution.buckets))
    return pa.concat_tables([found.read_part(name, bucket, record) for bucket in buckets])


def truths(panel: Experiment) -> dict[tuple[bytes, bytes], float]:
    """True Elo by (query, document)."""
    rows = part(panel, "judge", "truth", TRUTH)
    keys = zip(rows["query_id"].to_pylist(), rows["doc_id"].to_pylist(), strict=True)
    return dict(zip(keys, (ELO_PER_PROBIT * rows["latent"].to_numpy()).tolist(), strict=True))


def by_query(one: Experiment, truth: dict[tuple[bytes, bytes], float]) -> list[Reals]:
    """(rating, standard error, truth)[3, D] of every query, Elo; queries in the order of their ids."""
    rows = part(one, "rate", "ratings", RATING).sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    query, doc = rows["query_id"].to_pylist(), rows["doc_id"].to_pylist()
    known = np.array([truth[key] for key in zip(query, doc, strict=True)])
    stacked = np.stack([rows["rating_elo"].to_numpy(), rows["std_err_elo"].to_numpy(), known])
    cuts = [row for row in range(1, len(query)) if query[row] != query[row - 1]]
    return np.split(stacked, cuts, axis=1)


def rating_figures(queries: list[Reals]) -> dict[str, Reals]:
    """By query: spread of ratings, τ-b with the truth; products of gaps over random pairs, for slopes."""
    found: dict[str, list[Any]] = {name: [] for name in ("spread", "tau", "product", "square", "error")}
    for number, (rating, error, truth) in enumerate(queries):
        a, b = rng("miscalibration", number).integers(len(rating), size=(2, PAIRS))
        gap, true = rating[a] - rating[b], truth[a] - truth[b]
        found["spread"].append(rating.std())
        found["tau"].append(stats.kendalltau(rating, truth)[0])
        found["product"].append(gap @ true)
        found["square"].append(gap @ gap)
        found["error"].append(error.mean())
    return {name: np.array(values) for name, values in found.items()}


def negative_figures(one: Experiment, truth: dict[tuple[bytes, bytes], float]) -> dict[str, Reals]:
    """By list: rated negatives, their mean weight and gap, and the share that is truly as good as the anchor."""
    found: dict[str, list[float]] = {name: [] for name in ("negatives", "weight", "gap", "false")}
    for row in part(one, "mine", "examples", EXAMPLE).to_pylist():
        anchor, *others = zip(row["doc_ids"], row["ratings"], row["weights"], row["gaps"], strict=True)
        rated = [other for other in others if other[1] is not None]
        found["negatives"].append(len(rated))
        best = truth.get((row["query_id"], anchor[0]))
        if rated and best is not None:
            found["weight"].append(float(np.mean([weight for _, _, weight, _ in rated])))
            found["gap"].append(float(np.mean([gap for *_, gap in rated])))
            found["false"].append(float(np.mean([truth[row["query_id"], doc] >= best for doc, *_ in rated])))
    return {name: np.array(values) for name, values in found.items()}


def print_figures(of: trainings.Plan) -> None:
    """Ratings, then negatives, of every variant."""
    ones = {name: of.experiments[trainings.Key(of.collections[0], name, 0)] for name in of.variants}
    truth = truths(ones[PANEL])
    print("\n" + heading("judge", "spread, points", "standard error", "true gap per estimated", "τ-b with the truth"))
    for name, one in ones.items():
        found = rating_figures(by_query(one, truth))
        slope = _ratio(found["product"], found["square"])
        print(f"| {name} | {found['spread'].mean():.0f} | {found['error'].mean():.0f} | {slope} | "
              f"{_mean(found['tau'])} |")  # fmt: skip
    print("\n" + heading("judge", "rated negatives a list", "mean weight", "mean gap, points", "truly no worse, %"))
    for name, one in ones.items():
        found = negative_figures(one, truth)
        print(f"| {name} | {_mean(found['negatives'], 2)} | {_mean(found['weight'])} | {found['gap'].mean():.0f} | "
              f"{_mean(100.0 * found['false'], 2)} |")  # fmt: skip


def _mean(values: Reals, digits: int = 3) -> str:
    low, high = bootstrap_interval(values)
    return f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _ratio(top: Reals, bottom: Reals) -> str:
    """Σ top / Σ bottom with a 95 % bootstrap interval over queries."""
    draws = rng("miscalibration").multinomial(len(top), np.full(len(top), 1.0 / len(top)), 2000)
    low, high = np.quantile((draws @ top) / (draws @ bottom), [0.025, 0.975])
    return f"{top.sum() / bottom.sum():.3f} [{low:.3f}, {high:.3f}]"


@ending("miscalibration")
def main() -> None:
    """Train what is missing, print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="results", help="folder of artifacts and runs")
    parser.add_argument("--seeds", type=int, help="so many seeds")
    parser.add_argument("--workers", type=int, default=environment.cores(), help="trainings at once, a core each")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it can detect; train nothing")
    given = parser.parse_args()
    given.scifact = given.collections = given.variants = given.out = None
    of = trainings.plan(trainings.read(PLAN), given)
    trainings.print_plan(of, trainings.count_test_queries(of), given.workers)
    if not given.dry_run:
        record = trainings.train(of, Console(), given.workers)
        print_figures(of)
        trainings.finish(of, record)


if __name__ == "__main__":
    main()
