"""Predictions of a pairwise judge on held-out pairs.

The judge gives three probabilities: P_A that the first document is better, P_B that the second is, and P(tie), which is
the rest. Its predicted mean score is μ = P_B + P(tie)/2. The ensemble's score C is 0 if all its judges prefer the first
document and 1 if all prefer the second.
Letters: P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix

JUDGE = "the distilled judge"  # its name as a model in the predictions of the stage distill


@dataclass(frozen=True)
class Pairs:
    """One model's predictions at one step.

    first_P: float[P], P_A.
    second_P: float[P], P_B.
    score_P: float[P] in [0, 1], the ensemble's mean score.
    query_P: int[P], the query's number, 0..Q-1.
    """

    first_P: Reals
    second_P: Reals
    score_P: Reals
    query_P: Ints

    def __len__(self) -> int:
        return len(self.score_P)

    @property
    def mean_P(self) -> Reals:
        """μ = E[C] = P_B + P(tie)/2, computed so that swapped documents give exactly 1 − μ where floats can."""
        return 0.5 + 0.5 * (self.second_P - self.first_P)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return int(self.query_P.max()) + 1 if len(self) else 0


def read(table: pa.Table, model: str, step: int | None = None) -> Pairs:
    """Read the predictions of `model` at `step` (default: its last one) from a Prediction table.

    Rows are sorted by comparison_id, so that two models' predictions of the same pairs agree row by row. A two-head
    prediction with E|2C − 1| < |2μ − 1|, which no distribution has, moves to the nearest possible point.
    Raises DataError if there are none.
    """
    steps = steps_of(table, model)
    step = steps[-1] if step is None else step
    rows = table.filter(pc.and_(pc.equal(table["model"], model), pc.equal(table["step"], step)))
    if not rows.num_rows:
        known = ", ".join(map(str, steps))
        raise DataError(f"{model!r} has no predictions at step {step}; there are {known}", "predictions", "name one")
    rows = rows.sort_by([("comparison_id", "ascending")])
    queries = np.unique(id_matrix(rows["query_id"]), axis=0, return_inverse=True)[1].reshape(-1)
    score = rows["score"].to_numpy()
    if rows["target"][0].as_py() == "two-head":
        lean = 2 * rows["mean"].to_numpy() - 1
        size = np.maximum(rows["decided"].to_numpy(), np.abs(lean))
        return Pairs((size - lean) / 2, (size + lean) / 2, score, queries)
    return Pairs(rows["p_a"].to_numpy(), rows["p_b"].to_numpy(), score, queries)


def steps_of(table: pa.Table, model: str) -> list[int]:
    """Steps at which `model` predicted, ascending; raises DataError if it did not."""
    steps = sorted(pc.unique(table.filter(pc.equal(table["model"], model))["step"]).to_pylist())
    if not steps:
        known = ", ".join(sorted(pc.unique(table["model"]).to_pylist())) or "none"
        raise DataError(f"no predictions of {model!r}; there are {known}", "predictions", "name one of them")
    return steps


def buckets(values_P: Reals, count: int) -> Ints:
    """The bucket of every value, int[P] in 0..count-1, ascending, of equal populations (to one); ties by row.

    >>> buckets(np.array([0.3, 0.1, 0.2, 0.9]), 2).tolist()
    [1, 0, 0, 1]
    """
    rank = np.empty(len(values_P), dtype=np.int64)
    rank[np.argsort(values_P, kind="stable")] = np.arange(len(values_P))
    return rank * count // max(len(values_P), 1)
