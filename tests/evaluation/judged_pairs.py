"""Predictions of pairwise judges that are calibrated by construction: judges vote by the predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.records import PREDICTION

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """ternary float[P, 3]: P(A), P(B), P(tie) of a vote; score_P: the mean of three votes."""

    ternary: Reals
    score_P: Reals
    query_P: NDArray[np.int64]

    @property
    def mean_P(self) -> Reals:
        return self.ternary[:, 1] + self.ternary[:, 2] / 2


def world(pairs: int = 1200, queries: int | None = None, seed: int = 0) -> World:
    random = identity.rng("judged-pairs", seed)
    weight = np.exp(1.5 * random.normal(size=(pairs, 3)) - (0.0, 0.0, 1.0))
    ternary = weight / weight.sum(axis=1, keepdims=True)
    votes = random.multinomial(3, ternary)
    query = np.arange(pairs) % (queries or max(pairs // 2, 1))
    return World(ternary, (votes[:, 1] + votes[:, 2] / 2) / 3, query)


def an_id(kind: str, number: int) -> bytes:
    return identity.digest(kind, number)


def table(of: World, model: str, target: str, step: int, forecast: Reals) -> pa.Table:
    """Prediction rows: `forecast` is float[P] of P(B) for binary, [P, 3] (A, B, tie), or [P, 2] (mean, decided)."""
    count = len(of.score_P)
    columns: dict[str, Any] = dict.fromkeys(("p_a", "p_b", "p_tie", "mean", "decided"), [None] * count)
    if target == "binary":
        columns |= {"p_a": 1 - forecast, "p_b": forecast, "p_tie": np.zeros(count)}
    elif target == "ternary":
        columns |= dict(zip(("p_a", "p_b", "p_tie"), forecast.T, strict=True))
    else:
        columns |= dict(zip(("mean", "decided"), forecast.T, strict=True))
    return PREDICTION.check(
        PREDICTION.table(
            {
                "model": [model] * count,
                "target": [target] * count,
                "step": [step] * count,
                "comparison_id": [an_id("judged-pair", i) for i in range(count)],
                "query_id": [an_id("query", int(q)) for q in of.query_P],
                "score": of.score_P,
                **columns,
            }
        ),
        "judged pairs",
    )


def learning(
    of: World, model: str = "ternary", steps: tuple[int, ...] = (50, 100, 200, 400), seed: int = 0
) -> pa.Table:
    """A ternary model that learns: from the base rates to the truth, its share of ties swinging on the way."""
    random = identity.rng("learning", seed)
    base = of.ternary.mean(axis=0)
    tables = []
    for number, step in enumerate(steps):
        known = 1 - 0.75 * np.exp(-3 * (number + 1) / len(steps)) if number + 1 < len(steps) else 1.0
        swing = (0.35 * (-1) ** number) * (1 - (number + 1) / len(steps))
        logits = known * np.log(of.ternary + 1e-4) + (1 - known) * (np.log(base) + 0.4 * random.normal(size=(1, 1)))
        logits = logits + (1 - known) * random.normal(size=logits.shape) + np.array([0, 0, swing])
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        tables.append(table(of, model, "ternary", step, weight / weight.sum(axis=1, keepdims=True)))
    return pa.concat_tables(tables)
