"""Predictions of pairwise judges with known parameters: how wide ties are, and which pairs are hard for the model.

A pair has a gap x ~ N(0, 1.3²); each of J judges sees x + noise and ties within `tie_width`, so its votes are 1 (the
second document wins), ½ or 0 with probabilities that are known. Of a hard pair the model sees the size of the gap, but
hardly its sign: only r in (0.3, 0.7), the chance that the second document is the better one. Its probabilities are
exact given what it sees, so it is calibrated by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import norm

from anmi_ray.core import identity
from anmi_ray.core.records import PREDICTION

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """ternary float[P, 3]: P(A), P(B), P(tie) of the mean of J votes, given what the model sees; score_P that mean."""

    ternary: Reals
    score_P: Reals
    hard_P: NDArray[np.bool_]
    query_P: NDArray[np.int64]

    @property
    def mean_P(self) -> Reals:
        return self.ternary[:, 1] + self.ternary[:, 2] / 2


def world(
    pairs: int = 1200,
    queries: int | None = None,
    judges: int = 3,
    tie_width: float = 0.35,
    hard: float = 0.25,
    noise: float = 0.45,
    seed: int = 0,
) -> World:
    random = identity.rng("judged-pairs", seed)
    gap = 1.3 * random.normal(size=pairs)
    is_hard = random.random(pairs) < hard
    sign_known = random.uniform(0.3, 0.7, pairs)
    gap = np.where(is_hard, np.abs(gap) * np.where(random.random(pairs) < sign_known, 1.0, -1.0), gap)
    p_second, p_tie = _vote(gap, tie_width, noise)
    draw = random.random((pairs, judges))
    votes = np.where(draw < p_second[:, None], 1.0, np.where(draw < (p_second + p_tie)[:, None], 0.5, 0.0))
    ways, size = _ways(judges)  # [W, 3] counts of (A, B, tie), multinomial coefficients
    p = np.stack([1 - p_second - p_tie, p_second, p_tie], axis=1)
    chance = size * np.prod(np.maximum(p[:, None, :], 1e-300) ** ways, axis=2)
    score_W = (ways[:, 1] + ways[:, 2] / 2) / judges
    decided, mean = chance @ np.abs(2 * score_W - 1), chance @ score_W
    lean = np.where(is_hard, (2 * sign_known - 1) * np.abs(2 * mean - 1), 2 * mean - 1)
    ternary = np.stack([(decided - lean) / 2, (decided + lean) / 2, 1 - decided], axis=1)
    query = np.arange(pairs) % (queries or max(pairs // 2, 1))
    return World(np.clip(ternary, 0.0, 1.0), votes.mean(axis=1), is_hard, query)


def _vote(gap: Reals, width: float, noise: float) -> tuple[Reals, Reals]:
    second = norm.sf((width - gap) / noise)
    return second, norm.cdf((width - gap) / noise) - norm.cdf((-width - gap) / noise)


def _ways(judges: int) -> tuple[Reals, Reals]:
    from math import comb

    rows = [(a, b, judges - a - b) for a in range(judges + 1) for b in range(judges + 1 - a)]
    size = [comb(judges, a) * comb(judges - a, b) for a, b, _ in rows]
    return np.array(rows, dtype=float), np.array(size, dtype=float)


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
