"""How good a pairwise judge's predictions are: accuracy, Brier score, calibration, and all of them against others.

Intervals are 95 % and over queries: pairs of one query share its difficulty. Most are bootstraps of sums by query, with
the same resampled queries for all models, so that differences are paired. Letters: P pairs, Q queries, B buckets,
R rounds, K sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core import scale
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.pairwise import Pairs, buckets, read
from anmi_ray.evaluation.significance import Estimate, blocks

BUCKETS = 20
ROUNDS = 2000
_KEPT = 64  # blocks kept between statistics of the same queries, a megabyte each
NOTHING = Estimate(None, None, None, 0)


@dataclass(frozen=True)
class Draws:
    """R bootstrap samples of Q queries, drawn with replacement; equal fields give equal draws."""

    queries: int
    rounds: int = ROUNDS
    seed: int = 0

    def blocks(self) -> Iterator[Reals]:
        """How often each query was drawn, float[rounds of a block, Q]."""
        sizes = blocks(self.rounds, self.queries)
        draw = _kept if len(sizes) <= _KEPT else _drawn
        for number, rows in enumerate(sizes):
            yield draw(self.queries, rows, self.seed, number).astype(np.float64)

    def sums(self, sums_QK: Reals) -> Reals:
        """The sums of every sample, float[R, K]."""
        return np.concatenate([counts @ sums_QK for counts in self.blocks()])


def _drawn(queries: int, rows: int, seed: int, number: int) -> NDArray[np.uint8]:
    """Counts as bytes: one above 255 would need 256 equal draws of 256 queries or more, which does not happen."""
    picked = rng("pairs-bootstrap", seed, number).integers(0, queries, (rows, queries))
    picked += queries * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * queries).reshape(rows, queries).astype(np.uint8)


_kept = lru_cache(maxsize=_KEPT)(_drawn)


def by_query(pairs: Pairs, values_PK: Reals) -> Reals:
    """Sums by query, float[Q, K], of values float[P, K]."""
    total = np.zeros((pairs.queries, values_PK.shape[1]))
    np.add.at(total, pairs.query_P, values_PK)
    return total


def bootstrap(
    pairs: Pairs, values_PK: Reals, statistic: Callable[[Reals], Reals], draws: Draws | None = None
) -> Estimate:
    """`statistic` of the sums of values_PK ([..., K] -> [...]), with its percentile interval (Efron 1979).

    None where the statistic is not finite; no interval with one query alone, or where a sample has no value.
    """
    sums = by_query(pairs, values_PK)
    value = float(statistic(sums.sum(axis=0)))
    if not math.isfinite(value):
        return NOTHING
    low, high = (
        percentiles(statistic((draws or Draws(pairs.queries)).sums(sums))) if pairs.queries > 1 else (None, None)
    )
    return Estimate(value, low, high, len(pairs))


def percentiles(drawn_R: Reals) -> tuple[float | None, float | None]:
    """The 2.5 and 97.5 % quantiles; samples without a value are left out, None if more than one in twenty are."""
    known = drawn_R[np.isfinite(drawn_R)]
    if len(known) < 0.95 * len(drawn_R):
        return None, None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def ratio(sums: Reals) -> Reals:
    """Sum 0 over sum 1; NaN where that is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / np.maximum(sums[..., 1], 1e-300), np.nan)


def hits(pairs: Pairs) -> tuple[Reals, NDArray[np.bool_]]:
    """Whether each prediction names the side that the judges agree on (½ where it names none), and where they do."""
    consensus = np.abs(2 * pairs.score_P - 1) >= 1.0 - 1e-9
    lean = pairs.mean_P - 0.5
    right = np.where(np.abs(lean) < 1e-12, 0.5, (lean > 0) == (pairs.score_P > 0.5))
    return right.astype(np.float64), consensus


def accuracy(pairs: Pairs) -> Estimate:
    """The share of full-consensus pairs on whose side the prediction is, with `wilson`'s interval over queries."""
    right, consensus = hits(pairs)
    return wilson(right[consensus], pairs.query_P[consensus])


def wilson(values_P: Reals, query_P: Ints) -> Estimate:
    """Mean of values in [0, 1] with Wilson's interval (1927) at the effective size n/deff, as surveys use it.

    deff, at least 1, is the variance of the mean with whole queries as the unit over p(1 − p)/(n − 1). Where all values
    are alike there is nothing to estimate it from, and a query counts once.
    """
    n = len(values_P)
    if not n:
        return NOTHING
    p = float(values_P.mean())
    error_Q = np.bincount(query_P, values_P - p)
    drawn = len(np.unique(query_P))
    if p in (0.0, 1.0):
        size = float(drawn)
    else:
        variance = float((error_Q**2).sum()) / n**2 * drawn / max(drawn - 1, 1)
        size = n / max(variance * (n - 1) / (p * (1 - p)), 1.0)
    return Estimate(p, *scale.wilson(p, size), n)


def brier(pairs: Pairs, draws: Draws | None = None) -> Estimate:
    """Mean squared difference of μ and the ensemble's score (Brier 1950); the score's own noise is part of it."""
    return bootstrap(pairs, _columns((pairs.mean_P - pairs.score_P) ** 2), ratio, draws)


def _columns(values_P: Reals) -> Reals:
    return np.stack([values_P, np.ones(len(values_P))], axis=1)


@dataclass(frozen=True)
class Calibration:
    """How far μ is from the mean score within equal-population buckets of μ, and the line through the buckets.

    ece: mean absolute difference, as published (Naeini et al. 2015, equal populations: Nguyen and O'Connor 2015). It is
    biased upwards: ece_if_calibrated is about what a calibrated model would show on as many pairs. rms: the root of
    the mean squared difference with that bias removed (Kumar, Liang and Ma 2019, with each bucket's own variance of
    score − μ, which fits scores of any kind); 0 where the estimate of the square is negative. slope and at_half: the
    line of observed on predicted bucket means, and its height at μ = ½; 1 and ½ when calibrated. intercept: at μ = 0.
    """

    ece: float | None
    ece_if_calibrated: float | None
    rms: Estimate
    slope: Estimate
    at_half: Estimate
    intercept: Estimate


def calibration(pairs: Pairs, count: int = BUCKETS, draws: Draws | None = None) -> Calibration:
    """Calibration over `count` equal-population buckets, with intervals over queries."""
    draws = draws or Draws(pairs.queries)
    values = bucket_values(pairs.mean_P, pairs.score_P, buckets(pairs.mean_P, count), count)
    sums = by_query(pairs, values)
    total = sums.sum(axis=0)
    drawn = draws.sums(sums)
    parts = line(total), line(drawn)
    found = [_estimate(parts[0][k], parts[1][..., k], len(pairs)) for k in range(3)]
    n, gap, variance = _gaps(total)
    weight = n / n.sum()
    plain = float((weight * np.abs(gap)).sum())
    chance = float((weight * np.sqrt(2 / np.pi * variance / np.maximum(n, 1))).sum())
    found.insert(0, _rms(total, drawn, len(pairs)))
    if pairs.queries < 2:  # an interval over queries is of several
        found = [replace(one, low=None, high=None) for one in found]
    return Calibration(plain, chance, *found)


def bucket_values(predicted_P: Reals, observed_P: Reals, bucket_P: Ints, count: int) -> Reals:
    """Per pair what its bucket sums up: [P, 4B] of count, predicted, observed and squared difference."""
    values = np.zeros((len(predicted_P), count, 4))
    row = np.stack([np.ones(len(predicted_P)), predicted_P, observed_P, (observed_P - predicted_P) ** 2], axis=1)
    values[np.arange(len(predicted_P)), bucket_P] = row
    return values.reshape(len(predicted_P), 4 * count)


def _parts(sums: Reals) -> tuple[Reals, Reals, Reals, Reals]:
    """Bucket sums [..., 4B] apart: four of [..., B]."""
    n, predicted, observed, squares = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 4), -1, 0)
    return n, predicted, observed, squares


def _gaps(sums: Reals) -> tuple[Reals, Reals, Reals]:
    """Return, per bucket, the number of pairs, the mean of score − μ, and its sample variance."""
    n, predicted, observed, squares = _parts(sums)
    gap = (observed - predicted) / np.maximum(n, 1)
    variance = np.maximum(squares - n * gap**2, 0.0) / np.maximum(n - 1, 1)
    return n, gap, variance


def _squared(sums: Reals) -> tuple[Reals, Reals]:
    """Mean squared gap of the buckets: as it is, and less what chance adds to it."""
    n, gap, variance = _gaps(sums)
    weight = n / n.sum(axis=-1, keepdims=True)
    plain = (weight * gap**2).sum(axis=-1)
    return plain, plain - (weight * variance / np.maximum(n, 1)).sum(axis=-1)


def _rms(total: Reals, drawn: Reals, pairs: int) -> Estimate:
    """Basic bootstrap of the squared error: for a resample the truth is the *plain* square of the sample."""
    plain, value = (float(part) for part in _squared(total))
    low, high = np.quantile(_squared(drawn)[1] - plain, [0.025, 0.975])
    root, least, most = (math.sqrt(max(float(end), 0.0)) for end in (value, value - high, value - low))
    return Estimate(root, least, most, pairs)


def line(sums: Reals) -> Reals:
    """Least squares of observed on predicted bucket means, by population: [..., (slope, height at ½, at 0)].

    NaN where the predictions do not differ.
    """
    n, predicted, observed, _ = _parts(sums)
    size = np.maximum(n, 1)
    x = predicted / size
    y = observed / size
    total = n.sum(axis=-1, keepdims=True)
    x0, y0 = ((n * part).sum(axis=-1, keepdims=True) / total for part in (x, y))
    spread = (n * (x - x0) ** 2).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(spread > 1e-9 * total[..., 0], (n * (x - x0) * (y - y0)).sum(axis=-1) / spread, np.nan)
    return np.stack([slope, y0[..., 0] + slope * (0.5 - x0[..., 0]), y0[..., 0] - slope * x0[..., 0]], axis=-1)


def _estimate(value: float, drawn: Reals, n: int) -> Estimate:
    return Estimate(float(value), *percentiles(drawn), n) if math.isfinite(value) else NOTHING


@dataclass(frozen=True)
class Bucket:
    """Pairs of neighbouring μ: how many, the predicted mean score and the observed one."""

    n: int
    predicted: float
    observed: Estimate


def mean_buckets(pairs: Pairs, count: int = BUCKETS, draws: Draws | None = None) -> tuple[Bucket, ...]:
    """Equal-population buckets of μ: the reliability curve."""
    count = min(count, len(pairs))
    sums = by_query(pairs, bucket_values(pairs.mean_P, pairs.score_P, buckets(pairs.mean_P, count), count))
    n, predicted, observed, _ = _parts(sums.sum(axis=0))
    drawn_n, _, drawn, _ = _parts((draws or Draws(pairs.queries)).sums(sums))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(drawn_n > 0, drawn / np.maximum(drawn_n, 1), np.nan)
    return tuple(
        Bucket(
            int(n[b]),
            float(predicted[b] / n[b]),
            Estimate(float(observed[b] / n[b]), *percentiles(means[:, b]), int(n[b])),
        )
        for b in range(count)
    )


@dataclass(frozen=True)
class Predictor:
    """One column of the comparison: its measures, and how its Brier score and accuracy differ from the model's.

    Differences are the predictor's less the model's, on the same pairs and the same resampled queries.
    """

    name: str
    accuracy: Estimate
    brier: Estimate
    calibration: Calibration
    brier_difference: Estimate | None = None
    accuracy_difference: Estimate | None = None


def predictor(name: str, pairs: Pairs, model: Pairs | None = None, draws: Draws | None = None) -> Predictor:
    """Measure `pairs`, against the model's predictions of the same pairs where these are given, row by row."""
    draws = draws or Draws(pairs.queries)
    found = Predictor(name, accuracy(pairs), brier(pairs, draws), calibration(pairs, draws=draws))
    if model is None:
        return found
    squares = (pairs.mean_P - pairs.score_P) ** 2 - (model.mean_P - model.score_P) ** 2
    right, consensus = hits(pairs)
    change = np.stack([(right - hits(model)[0]) * consensus, consensus], axis=1).astype(np.float64)
    return replace(
        found,
        brier_difference=bootstrap(pairs, _columns(squares), ratio, draws),
        accuracy_difference=bootstrap(pairs, change, ratio, draws),
    )


def constant(pairs: Pairs, mean: float) -> Pairs:
    """The same pairs under a predictor that says `mean` of every one."""
    return Pairs(np.full(len(pairs), 1.0 - mean), np.full(len(pairs), mean), pairs.score_P, pairs.query_P)


def compare(predictions: pa.Table, model: str, others: Sequence[str] = ()) -> tuple[Predictor, ...]:
    """Measure `model` at its last step; compare `others` on the same pairs, the constant ½, and the best constant.

    predictions: a Prediction table in which all of them predicted the same pairs. The best constant is the mean score
    of these pairs, known only afterwards. Raises DataError if a model is missing or there are fewer than two queries.
    """
    pairs = read(predictions, model)
    if pairs.queries < 2:
        raise DataError(
            f"pairs of {pairs.queries} query", "predictions", "predict held-out pairs of two queries or more"
        )
    draws = Draws(pairs.queries)
    beside = {name: read(predictions, name) for name in others}
    beside |= {
        "always ½": constant(pairs, 0.5),
        "base rate of these pairs": constant(pairs, float(pairs.score_P.mean())),
    }
    compared = (predictor(name, other, pairs, draws) for name, other in beside.items())
    return (predictor(model, pairs, draws=draws), *compared)
