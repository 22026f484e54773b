"""Summaries of the rounds of an adaptive design, from their artifacts, one bucket at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.comparisons.adaptive import TOP
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.records import COMPARISON, JUDGMENT, RATING
from anmi_ray.reports.data import DesignRound, Rounds, uniform_pairs
from anmi_ray.stages.rate import prior_elo
from anmi_ray.stages.rounds import names
from anmi_ray.store import Artifact


def design_rounds(artifacts: Mapping[str, Artifact], experiment: Experiment, buckets: Iterable[int]) -> Rounds | None:
    """Return the figures of a complete run; None if the design asks once."""
    if not experiment.in_rounds:
        return None
    found = tuple(
        _round(number, artifacts[compared], artifacts[judged], artifacts[rated], buckets)
        for number, (compared, judged, rated) in enumerate(names(experiment.compare), start=1)
    )
    return Rounds(found, TOP, uniform_pairs(found))


def _round(number: int, compared: Artifact, judged: Artifact, rated: Artifact, buckets: Iterable[int]) -> DesignRound:
    pairs, errors, top_errors = np.zeros((3, 2))  # sum and number of values
    answers: Counter[str] = Counter()
    queries = 0
    for bucket in buckets:
        comparisons = compared.read_part("comparisons", bucket, COMPARISON, columns=["query_id", "round"])
        mine = comparisons.filter(pc.equal(comparisons["round"], number - 1))
        queries += len(pc.unique(mine["query_id"]))
        counts = pc.value_counts(comparisons["query_id"]).field("counts").to_numpy()
        pairs += counts.sum(), len(counts)
        judgments = judged.read_part("judgments", bucket, JUDGMENT, columns=["judge", "p_a"])
        counted = judgments.group_by("judge").aggregate([("p_a", "count")])  # failures have no p_a
        answers.update(dict(zip(counted["judge"].to_pylist(), counted["p_a_count"].to_pylist(), strict=True)))
        ratings = rated.read_part("ratings", bucket, RATING, columns=["query_id", "rating_elo", "std_err_elo"])
        std_err = ratings["std_err_elo"].to_numpy()
        errors += std_err.sum(), len(std_err)
        top = std_err[_best(ratings)]
        top_errors += top.sum(), len(top)
    return DesignRound(
        number=number,
        queries=queries,
        pairs=_mean(pairs) or 0.0,
        answers=answers.total() / len(answers) if answers else 0.0,
        std_err_elo=_mean(errors),
        top_std_err_elo=_mean(top_errors),
        prior_elo=prior_elo(rated),
    )


def _mean(total: NDArray[np.float64]) -> float | None:
    return float(total[0] / total[1]) if total[1] else None


def _best(ratings: pa.Table) -> NDArray[np.int64]:
    """Return the rows of every query's TOP documents by rating."""
    query = ratings["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((-ratings["rating_elo"].to_numpy(), query))
    first = np.searchsorted(query[order], query[order])
    return order[np.arange(len(order)) - first < TOP]
