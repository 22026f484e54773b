"""What stored predictions of a distilled pairwise judge say: every number behind the charts of its page.

Scores are between 0 and 1 (C = 1: the second document wins); folded ones are of pairs turned so that the model prefers
the first document. Intervals are 95 %, over queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.evaluation import pairwise
from anmi_ray.evaluation.pairwise import Pairs, folded, kind_shares
from anmi_ray.evaluation.pairwise_measures import (
    Bucket,
    Draws,
    Predictor,
    accuracy,
    bootstrap,
    brier,
    calibration,
    confidence_of_agreement,
    constant,
    hits,
    mean_buckets,
    predictor,
    radius_buckets,
    ratio,
)
from anmi_ray.evaluation.significance import Estimate

PANELS = 6  # triangles of figure 2
PANEL_POINTS = 400
POINTS = 1500
RADII = (0.25, 0.5, 0.75)
# figure 8: the note's 0.55, folded, and its nearest tenth of the pairs
STRIP_MEAN = 0.45
STRIP_SHARE = 0.1
# figure 10
COLUMNS = 5
ROWS = 4


@dataclass(frozen=True)
class Checkpoint:
    """The model at one step; tie is its mean P(tie), moved the mean absolute change of a pair's P(tie) since the
    checkpoint before."""

    step: int
    accuracy: Estimate
    brier: Estimate
    rms: Estimate
    slope: Estimate
    tie: float
    moved: float | None


@dataclass(frozen=True)
class PointSample:
    """Predictions as they are drawn, an even choice of all: P_A, P_B and the ensemble's score."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    score: tuple[float, ...]


@dataclass(frozen=True)
class Circle:
    """The folded points within `radius` of (1, 0): how many, and the share of each kind of score."""

    radius: float
    n: int
    kinds: tuple[float, ...]


@dataclass(frozen=True)
class Segment:
    """Folded pairs of like E[C] and E|C|: the bounds and means of what was predicted, and the means observed.

    column counts from low E[C], row in it from low E|C|. observed_decided is the mean of |2C − 1|, observed_mean of C;
    kinds are the shares of each kind of score.
    """

    column: int
    row: int
    n: int
    mean_low: float
    mean_high: float
    decided_low: float
    decided_high: float
    predicted_mean: float
    predicted_decided: float
    observed_mean: Estimate
    observed_decided: Estimate
    kinds: tuple[float, ...]


@dataclass(frozen=True)
class DistilledData:
    """Everything that the page says. strip and segments are empty where E|C| does not vary (binary targets).

    base_rate is the mean score of these pairs: the best constant, known only afterwards. ties says whether E|C| tells
    ties from hard pairs (`confidence_of_agreement`).
    """

    model: str
    target: str
    step: int
    pairs: int
    queries: int
    consensus: int
    mended: int
    base_rate: float
    decided: tuple[float, float]  # means of E|C| predicted and of |2C − 1| observed
    kinds: tuple[float, ...]
    checkpoints: tuple[Checkpoint, ...]
    triangles: tuple[tuple[int, PointSample], ...]
    points: PointSample
    circles: tuple[Circle, ...]
    cumulative: pairwise.Cumulative
    radius_buckets: tuple[Bucket, ...]
    mean_buckets: tuple[Bucket, ...]
    other_buckets: Mapping[str, tuple[Bucket, ...]]
    strip: tuple[Segment, ...]
    segments: tuple[Segment, ...]
    predictors: tuple[Predictor, ...]
    ties: Estimate
    run: str = ""
    collection: str = ""
    true_known: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def analyse(
    predictions: pa.Table,
    model: str,
    others: Sequence[str] = (),
    run: str = "",
    collection: str = "",
    true_known: bool = False,
    environment: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> DistilledData:
    """The numbers of `model` at its last step, beside `others` (further models of the table) on the same pairs.

    predictions: a Prediction table.
    Raises DataError if a model is missing, there are fewer than two queries, or two models predicted different pairs.
    """
    steps = pairwise.steps_of(predictions, model)
    checkpoints = [(step, pairwise.read(predictions, model, step)) for step in steps]
    for step in steps[:-1]:
        pairwise.same_pairs(predictions, model, steps[-1], model, step)
    now = checkpoints[-1][1]
    if now.queries < 2:
        raise DataError(f"pairs of {now.queries} query", "predictions", "predict held-out pairs of two queries or more")
    draws = Draws(now.queries)
    beside = {name: _beside(predictions, model, steps[-1], name) for name in others}
    fold = folded(now)
    return DistilledData(
        model=model,
        target=now.target,
        step=steps[-1],
        pairs=len(now),
        queries=now.queries,
        consensus=int(hits(now)[1].sum()),
        mended=now.mended,
        base_rate=float(now.score_P.mean()),
        decided=(float(now.decided_P.mean()), float(np.abs(2 * now.score_P - 1).mean())),
        kinds=kind_shares(now.score_P),
        checkpoints=_checkpoints(checkpoints, draws),
        triangles=_triangles(checkpoints),
        points=_points(now, POINTS),
        circles=tuple(Circle(limit, *pairwise.within(now, limit)) for limit in RADII),
        cumulative=pairwise.cumulative(now),
        radius_buckets=radius_buckets(now, draws=draws),
        mean_buckets=mean_buckets(now, draws=draws),
        other_buckets={name: mean_buckets(pairs, draws=draws) for name, pairs in beside.items()},
        strip=_strip(fold, draws) if now.two_dimensional else (),
        segments=_segments(fold, draws) if now.two_dimensional else (),
        predictors=_predictors(model, now, beside, draws),
        ties=confidence_of_agreement(now, draws=draws),
        run=run,
        collection=collection,
        true_known=true_known,
        environment=environment or {},
        notes=tuple(notes),
    )


def _beside(predictions: pa.Table, model: str, step: int, name: str) -> Pairs:
    other = pairwise.steps_of(predictions, name)[-1]
    pairwise.same_pairs(predictions, model, step, name, other)
    return pairwise.read(predictions, name, other)


def _checkpoints(checkpoints: Sequence[tuple[int, Pairs]], draws: Draws) -> tuple[Checkpoint, ...]:
    rows: list[Checkpoint] = []
    before: Pairs | None = None
    for step, pairs in checkpoints:
        fit = calibration(pairs, draws=draws)
        moved = None if before is None else float(np.mean(np.abs(pairs.tie_P - before.tie_P)))
        tie = float(pairs.tie_P.mean())
        rows.append(Checkpoint(step, accuracy(pairs), brier(pairs, draws), fit.rms, fit.slope, tie, moved))
        before = pairs
    return tuple(rows)


def _triangles(checkpoints: Sequence[tuple[int, Pairs]]) -> tuple[tuple[int, PointSample], ...]:
    """At most PANELS checkpoints, evenly chosen, the first and the last among them."""
    picked = (checkpoints[k] for k in pairwise.evenly(len(checkpoints), PANELS))
    return tuple((step, _points(pairs, PANEL_POINTS)) for step, pairs in picked)


def _points(pairs: Pairs, limit: int) -> PointSample:
    """Rows are in order of hashed ids, so that an even choice is a fair one."""
    picked = pairwise.evenly(len(pairs), limit)
    columns = (pairs.first_P[picked], pairs.second_P[picked], pairs.score_P[picked])
    return PointSample(*(tuple(column.round(4).tolist()) for column in columns))


def _segments(fold: Pairs, draws: Draws) -> tuple[Segment, ...]:
    """Figure 10: the segments of folded predictions, column by column."""
    found = pairwise.segments(fold, COLUMNS, ROWS)
    return tuple(
        _segment(fold, found == k, divmod(k, ROWS), draws) for k in range(COLUMNS * ROWS) if np.any(found == k)
    )


def _strip(fold: Pairs, draws: Draws) -> tuple[Segment, ...]:
    """Figure 8: of the tenth of the pairs whose μ is nearest to STRIP_MEAN, the half with the lower and higher E|C|."""
    distance = np.abs(fold.mean_P - STRIP_MEAN)
    nearest = np.argsort(distance, kind="stable")[: max(2, round(STRIP_SHARE * len(fold)))]
    half = pairwise.buckets(fold.decided_P[nearest], 2)
    rows = []
    for k in range(2):
        mask = np.zeros(len(fold), dtype=bool)
        mask[nearest[half == k]] = True
        rows.append(_segment(fold, mask, (0, k), draws))
    return tuple(rows)


def _segment(fold: Pairs, inside: NDArray[np.bool_], place: tuple[int, int], draws: Draws) -> Segment:
    mean = fold.mean_P[inside]
    decided = fold.decided_P[inside]
    score = fold.score_P[inside]
    weight = inside.astype(np.float64)
    observed_mean, observed_decided = (
        replace(bootstrap(fold, np.stack([weight * values, weight], axis=1), ratio, draws), n=len(score))
        for values in (fold.score_P, np.abs(2 * fold.score_P - 1))
    )
    return Segment(
        column=place[0],
        row=place[1],
        n=len(score),
        mean_low=float(mean.min()),
        mean_high=float(mean.max()),
        decided_low=float(decided.min()),
        decided_high=float(decided.max()),
        predicted_mean=float(mean.mean()),
        predicted_decided=float(decided.mean()),
        observed_mean=observed_mean,
        observed_decided=observed_decided,
        kinds=kind_shares(score),
    )


def _predictors(model: str, now: Pairs, beside: Mapping[str, Pairs], draws: Draws) -> tuple[Predictor, ...]:
    """The model, the further models, the constant ½, and the best constant in hindsight."""
    rows = [predictor(model, now, draws=draws)]
    rows += [predictor(name, pairs, now, draws) for name, pairs in beside.items()]
    rows.append(predictor("always ½", constant(now, 0.5), now, draws))
    rows.append(predictor("base rate of these pairs", constant(now, float(now.score_P.mean())), now, draws))
    return tuple(rows)
