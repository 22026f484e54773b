"""Predictions of a pairwise judge on held-out pairs, and their accuracy, Brier score and calibration.

The judge gives three probabilities: P_A that the first document is better, P_B that the second is, and P(tie), which is
the rest. Its predicted mean score is μ = P_B + P(tie)/2. The ensemble's score is 0 if all its judges prefer the first
document and 1 if all prefer the second.
Intervals are 95 % and over queries: most are bootstraps of sums by query, with the same resampled queries for all
models of the same pairs, so that differences are paired.
Letters: P pairs, Q queries, B buckets, R rounds, K sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import scale
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix, rng
from anmi_ray.evaluation.significance import Estimate, blocks

JUDGE = "the distilled judge"  # its name as a model in the predictions of the stage distill
BUCKETS = 20
ROUNDS = 2000
NOTHING = Estimate(None, None, None, 0)


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
        """μ = P_B + P(tie)/2, computed so that swapped documents give exactly 1 − μ where floats can."""
        return 0.5 + 0.5 * (self.second_P - self.first_P)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return int(self.query_P.max()) + 1 if len(self) else 0


def read(table: pa.Table, model: str, step: int | None = None) -> Pairs:
    """Read the predictions of `model` at `step` (default: its last one) from a Prediction table.

    Rows are sorted by comparison_id, so that two models' predictions of the same pairs agree row by row. A two-head
    prediction with E|2C − 1| < |2μ − 1|, which no distribution has, moves to the nearest possible point.
    Raises DataError if the model has none.
    """
    steps = steps_of(table, model)
    step = steps[-1] if step is None else step
    rows = table.filter(pc.and_(pc.equal(table["model"], model), pc.equal(table["step"], step)))
    if not rows.num_rows:
        names = ", ".join(map(str, steps))
        raise DataError(f"{model!r} has no predictions at step {step}; there are {names}", "predictions", "name one")
    rows = rows.sort_by([("comparison_id", "ascending")])
    queries = np.unique(id_matrix(rows["query_id"]), axis=0, return_inverse=True)[1].reshape(-1)
    score = rows["score"].to_numpy()
    if rows["target"][0].as_py() == "two-head":
        lean = 2 * rows["mean"].to_numpy() - 1
        size = np.maximum(rows["decided"].to_numpy(), np.abs(lean))
        return Pairs((size - lean) / 2, (size + lean) / 2, score, queries)
    return Pairs(rows["p_a"].to_numpy(), rows["p_b"].to_numpy(), score, queries)


def steps_of(table: pa.Table, model: str) -> list[int]:
    """Steps with predictions of `model`, ascending. Raises DataError without any."""
    steps = sorted(pc.unique(table.filter(pc.equal(table["model"], model))["step"]).to_pylist())
    if not steps:
        models = ", ".join(sorted(pc.unique(table["model"]).to_pylist())) or "none"
        raise DataError(f"no predictions of {model!r}; there are {models}", "predictions", "name one of them")
    return steps


def buckets(values_P: Reals, count: int) -> Ints:
    """The bucket of every value, int[P] in 0..count-1, ascending, of equal populations (to one); ties by row.

    >>> buckets(np.array([0.3, 0.1, 0.2, 0.9]), 2).tolist()
    [1, 0, 0, 1]
    """
    rank = np.empty(len(values_P), dtype=np.int64)
    rank[np.argsort(values_P, kind="stable")] = np.arange(len(values_P))
    return rank * count // max(len(values_P), 1)


def resample(sums_QK: Reals, rounds: int = ROUNDS, seed: int = 0) -> Reals:
    """Sums of bootstrap samples of the queries, float[R, K]; equal Q, rounds and seed give equal samples."""
    queries = len(sums_QK)
    parts: list[Reals] = []
    for number, rows in enumerate(blocks(rounds, queries)):
        picked = rng("pairs-bootstrap", seed, number).integers(0, queries, (rows, queries))
        picked += queries * np.arange(rows)[:, None]
        counts = np.bincount(picked.ravel(), minlength=rows * queries).reshape(rows, queries)
        parts.append(counts.astype(np.float64) @ sums_QK)
    return np.concatenate(parts)


def _by_query(pairs: Pairs, values_PK: Reals) -> Reals:
    """Sums by query, float[Q, K], of values float[P, K]."""
    total = np.zeros((pairs.queries, values_PK.shape[1]))
    np.add.at(total, pairs.query_P, values_PK)
    return total


def bootstrap(pairs: Pairs, values_PK: Reals, statistic: Callable[[Reals], Reals]) -> Estimate:
    """`statistic` of the sums of values_PK ([..., K] -> [...]), with its percentile interval (Efron 1979).

    None if the statistic is not finite. No interval for a single query, or if more than one sample in twenty has no
    value.
    """
    sums = _by_query(pairs, values_PK)
    value = float(statistic(sums.sum(axis=0)))
    if not math.isfinite(value):
        return NOTHING
    low, high = _percentiles(statistic(resample(sums))) if pairs.queries > 1 else (None, None)
    return Estimate(value, low, high, len(pairs))


def _percentiles(drawn_R: Reals) -> tuple[float | None, float | None]:
    """The 2.5 and 97.5 % quantiles of finite samples; None if more than one in twenty are not finite."""
    finite_R = drawn_R[np.isfinite(drawn_R)]
    if len(finite_R) < 0.95 * len(drawn_R):
        return None, None
    low, high = np.quantile(finite_R, [0.025, 0.975])
    return float(low), float(high)


def ratio(sums: Reals) -> Reals:
    """Sum 0 over sum 1; NaN where that is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / np.maximum(sums[..., 1], 1e-300), np.nan)


def hits(pairs: Pairs) -> tuple[Reals, Flags]:
    """Whether each prediction names the side that the judges agree on (½ if it names none), and where they agree."""
    consensus = np.abs(2 * pairs.score_P - 1) >= 1.0 - 1e-9
    lean = pairs.mean_P - 0.5
    right = np.where(np.abs(lean) < 1e-12, 0.5, (lean > 0) == (pairs.score_P > 0.5))
    return right.astype(np.float64), consensus


def accuracy(pairs: Pairs) -> Estimate:
    """Share of full-consensus pairs whose side is predicted, with `wilson`'s interval over queries."""
    right, consensus = hits(pairs)
    return wilson(right[consensus], pairs.query_P[consensus])


def wilson(values_P: Reals, query_P: Ints) -> Estimate:
    """Mean of values in [0, 1] with Wilson's interval (1927) at the effective size n/deff, as surveys use it.

    deff, at least 1, is the variance of the mean with whole queries as the unit over p(1 − p)/(n − 1). If all values
    are alike it cannot be estimated, and a query counts once.
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


def brier(pairs: Pairs) -> Estimate:
    """Mean squared difference of μ and the ensemble's score (Brier 1950), the score's own noise included."""
    return mean((pairs.mean_P - pairs.score_P) ** 2, pairs)


def mean(values_P: Reals, pairs: Pairs) -> Estimate:
    """Mean of values float[P] with its bootstrap interval."""
    return bootstrap(pairs, np.stack([values_P, np.ones(len(values_P))], axis=1), ratio)


@dataclass(frozen=True)
class Calibration:
    """Differences of μ and the mean score within equal-population buckets of μ, and the line through the buckets.

    ece: mean absolute difference, as published (Naeini et al. 2015, equal populations: Nguyen and O'Connor 2015);
        biased upwards.
    ece_if_calibrated: approximate ece of a calibrated model on as many pairs.
    rms: root of the mean squared difference without that bias (Kumar, Liang and Ma 2019, with each bucket's own
        variance of score − μ, which fits scores of any kind); 0 if the estimate of the square is negative.
    slope, at_half, intercept: least squares of observed on predicted bucket means, and its height at μ = ½ and μ = 0;
        1, ½ and 0 when calibrated.
    """

    ece: float | None
    ece_if_calibrated: float | None
    rms: Estimate
    slope: Estimate
    at_half: Estimate
    intercept: Estimate


def calibration(pairs: Pairs, count: int = BUCKETS) -> Calibration:
    """Calibration over `count` equal-population buckets, with intervals over queries."""
    values = bucket_values(pairs.mean_P, pairs.score_P, buckets(pairs.mean_P, count), count)
    sums = _by_query(pairs, values)
    total = sums.sum(axis=0)
    drawn = resample(sums)
    value, lines = line(total), line(drawn)
    estimates = [
        Estimate(float(value[k]), *_percentiles(lines[..., k]), len(pairs)) if math.isfinite(value[k]) else NOTHING
        for k in range(3)
    ]
    n, gap, variance = _gaps(total)
    weight = n / n.sum()
    plain = float((weight * np.abs(gap)).sum())
    chance = float((weight * np.sqrt(2 / np.pi * variance / np.maximum(n, 1))).sum())
    estimates.insert(0, _rms(total, drawn, len(pairs)))
    if pairs.queries < 2:  # an interval over queries needs several
        estimates = [replace(one, low=None, high=None) for one in estimates]
    return Calibration(plain, chance, *estimates)


def bucket_values(predicted_P: Reals, observed_P: Reals, bucket_P: Ints, count: int) -> Reals:
    """Per pair, in its bucket: [P, 4B] of count, predicted, observed and squared difference."""
    values = np.zeros((len(predicted_P), count, 4))
    row = np.stack([np.ones(len(predicted_P)), predicted_P, observed_P, (observed_P - predicted_P) ** 2], axis=1)
    values[np.arange(len(predicted_P)), bucket_P] = row
    return values.reshape(len(predicted_P), 4 * count)


def _parts(sums: Reals) -> tuple[Reals, Reals, Reals, Reals]:
    """Bucket sums [..., 4B] as four of [..., B]."""
    n, predicted, observed, squares = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 4), -1, 0)
    return n, predicted, observed, squares


def _gaps(sums: Reals) -> tuple[Reals, Reals, Reals]:
    """Number of pairs per bucket, the mean of score − μ, and its sample variance."""
    n, predicted, observed, squares = _parts(sums)
    gap = (observed - predicted) / np.maximum(n, 1)
    variance = np.maximum(squares - n * gap**2, 0.0) / np.maximum(n - 1, 1)
    return n, gap, variance


def _squared(sums: Reals) -> tuple[Reals, Reals]:
    """Mean squared gap of the buckets, and the same without its bias."""
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


def reliability(pairs: Pairs, count: int = BUCKETS) -> tuple[tuple[float, Estimate], ...]:
    """(mean prediction, observed mean with its interval) of equal-population buckets of μ."""
    count = min(count, len(pairs))
    sums = _by_query(pairs, bucket_values(pairs.mean_P, pairs.score_P, buckets(pairs.mean_P, count), count))
    n, predicted, observed, _ = _parts(sums.sum(axis=0))
    drawn_n, _, drawn, _ = _parts(resample(sums))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(drawn_n > 0, drawn / np.maximum(drawn_n, 1), np.nan)
    return tuple(
        (float(predicted[b] / n[b]), Estimate(float(observed[b] / n[b]), *_percentiles(means[:, b]), int(n[b])))
        for b in range(count)
    )


@dataclass(frozen=True)
class Predictor:
    """Measures of a model's predictions."""

    name: str
    pairs: Pairs
    accuracy: Estimate
    brier: Estimate
    calibration: Calibration


def constant(pairs: Pairs, value: float) -> Pairs:
    """The same pairs under a predictor that gives `value` for every one."""
    return Pairs(np.full(len(pairs), 1.0 - value), np.full(len(pairs), value), pairs.score_P, pairs.query_P)


def compare(predictions: pa.Table, model: str, others: Sequence[str] = ()) -> tuple[Predictor, ...]:
    """Measure `model` at its last step, `others` on the same pairs, the constant ½, and the best constant.

    predictions: a Prediction table in which all of them predicted the same pairs. The best constant is the mean score
    of these pairs, known only afterwards. Raises DataError if a model is missing or there are fewer than two queries.
    """
    pairs = read(predictions, model)
    if pairs.queries < 2:
        raise DataError(
            f"pairs of {pairs.queries} query", "predictions", "predict held-out pairs of two queries or more"
        )
    compared = {name: pairs if name == model else read(predictions, name) for name in (model, *others)}
    compared |= {
        "always ½": constant(pairs, 0.5),
        "base rate of these pairs": constant(pairs, float(pairs.score_P.mean())),
    }
    return tuple(Predictor(name, one, accuracy(one), brier(one), calibration(one)) for name, one in compared.items())
