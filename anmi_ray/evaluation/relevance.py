"""P(relevant) of a reranker's score: a curve fitted on dev queries, and the file relevance.json next to the model.

The file holds the curve, the number of documents it was fitted to, and its checks on other queries. The curve never
falls, so it changes no order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import TypeAdapter, ValidationError
from scipy import special

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.judged import ENOUGH, logistic
from anmi_ray.evaluation.pairwise import Calibration, Pairs, calibration, reliability, wilson
from anmi_ray.evaluation.significance import Estimate

FILE = "relevance.json"
ANEW = "export the model anew"
PRECISIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LIKELY = 0.1  # P(relevant) from which a threshold may keep a document
_FOLDS = 5
_BUCKETS = 10
_FEWEST = 20  # documents needed to report a figure
_GROUP = 20  # neighbouring documents that the isotonic curve pools, as a single one is 0 or 1
_GRID = np.arange(1, 100) / 100.0
Truth = Literal["labels", "judges"]
T = TypeVar("T")


@dataclass(frozen=True)
class RelevanceCurve:
    """P(relevant) of a score.

    logistic: 1 / (1 + exp(-(intercept + slope · score))), slope above 0.
    isotonic: straight lines between `points`, (score, probability) by rising score; constant beyond them.
    """

    kind: Literal["logistic", "isotonic"]
    intercept: float = 0.0
    slope: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def of(self, score: ArrayLike) -> Reals:
        """P(relevant) of scores, float64 of their shape.

        >>> RelevanceCurve("isotonic", points=((0.0, 0.2), (1.0, 0.6))).of([-1.0, 0.5, 2.0]).tolist()
        [0.2, 0.4, 0.6]
        """
        values = np.asarray(score, dtype=np.float64)
        if self.kind == "logistic":
            return np.asarray(special.expit(self.intercept + self.slope * values))
        scores, probabilities = np.array(self.points).T
        return np.asarray(np.interp(values, scores, probabilities))

    @property
    def is_sound(self) -> bool:
        """True if it maps every score to a probability and never falls."""
        if self.kind == "logistic":
            return math.isfinite(self.intercept) and math.isfinite(self.slope) and self.slope > 0
        finite = all(math.isfinite(score) and 0 <= probability <= 1 for score, probability in self.points)
        rises = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        return bool(self.points) and finite and rises


@dataclass(frozen=True)
class RelevanceThreshold:
    """The lowest P(relevant) from which dev queries reach the precision `wanted`.

    probability: in hundredths; None if not reached.
    precision, recall: of the documents from there on, among the candidates.
    documents: their number per query.
    """

    wanted: float
    probability: float | None = None
    precision: Estimate | None = None
    recall: float = 0.0
    documents: float = 0.0

    def said(self) -> str:
        """Threshold and precision, if reached."""
        return (
            f"{self.probability:.2f} or more: precision {interval(self.precision)}, {self.recall:.0%} of what is "
            f"relevant, {self.documents:.1f} documents a query"
        )


@dataclass(frozen=True)
class RelevanceCheck:
    """Agreement of probabilities with the truth on queries that their curve was not fitted to.

    truth: source of relevance.
    relevant, expected: number of relevant `pairs` by the truth, and by the probabilities.
    error: over all candidates, most of which are near 0.
    likely: over those of LIKELY or more; None if too few.
    curve: (mean probability, relevant share) of the others, and of the likely ones in equal parts.
    """

    truth: Truth
    queries: int
    pairs: int
    relevant: float
    expected: float
    error: Calibration
    likely: Calibration | None
    curve: tuple[tuple[float, Estimate], ...]
    thresholds: tuple[RelevanceThreshold, ...]

    def said(self) -> str:
        """Calibration error, of likely documents if there are enough."""
        one, which = (self.likely, "likely documents") if self.likely else (self.error, "all documents")
        plain, chance = one.ece or 0.0, one.ece_if_calibrated or 0.0
        return f"calibration error {plain:.3f} over {which}, by chance {chance:.3f}, beyond it {interval(one.rms)}"


@dataclass(frozen=True)
class Relevance:
    """A curve, and its checks: on dev queries out of fold, and on test queries (None without a truth).

    It holds for candidates like those it was fitted to: the top `depth` of the run's first stage.
    """

    curve: RelevanceCurve
    depth: int
    dev: RelevanceCheck
    test: RelevanceCheck | None = None

    def said(self) -> Iterator[str]:
        """Lines that describe the curve and its checks."""
        yield (
            f"P(relevant): {self.curve.kind}, fitted to {self.dev.pairs:,} documents of {self.dev.queries:,} dev "
            f"queries, by {self.dev.truth}"
        )
        for name, one in (("dev, out of fold", self.dev), ("test", self.test)):
            if one is None:
                continue
            yield f"  {name}, by {one.truth}: {one.said()}"
            yield from (f"    {each.said()}" for each in one.thresholds if each.probability is not None)

    def write(self, folder: Path) -> None:
        """Write the file."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def interval(estimate: Estimate | None) -> str:
    """An estimate with its interval, as text."""
    if estimate is None or estimate.mean is None:
        return "unknown"
    ends = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.mean:.3f}{ends}"


def from_json(content: Mapping[str, Any]) -> Relevance:
    """Read a curve with its checks from JSON."""
    return TypeAdapter(Relevance).validate_python(content)


def find(folder: Path) -> Relevance | None:
    """Read the file of an exported folder; None if absent. Raises DataError if it is damaged."""
    path = folder / FILE
    relevance = read_exported(path, Relevance)
    if relevance is not None and not relevance.curve.is_sound:
        raise DataError("is damaged: its curve is not increasing", str(path), ANEW)
    return relevance


def read_exported(path: Path, kind: type[T]) -> T | None:
    """Read a dataclass from JSON next to an exported model; None if absent. Raises DataError if it is damaged."""
    if not path.is_file():
        return None
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"is damaged: {place} {first['msg']}".replace(":  ", ": "), str(path), ANEW) from None


def missing(place: str) -> ConfigError:
    """Error if P(relevant) is requested from a model without a curve."""
    return ConfigError(
        "the model has no calibrated P(relevant)",
        place,
        "export it from a run with dev queries that have labels or judges' answers (`anmi show RUN` says why it has "
        "none), or ask for no least relevance",
    )


@dataclass(frozen=True)
class ScoredPairs:
    """N scored pairs: query numbers 0..Q-1; truth float[N] in [0, 1], relevance or its probability."""

    query: Ints
    score: Reals
    truth: Reals

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class FittedRelevance:
    """A curve and out-of-fold probabilities of all pairs, or the reason for having no curve."""

    curve: RelevanceCurve | None
    out_of_fold: Reals
    why_not: str = ""


def fit(pairs: ScoredPairs, seed: int = 0) -> FittedRelevance:
    """Fit a logistic curve (Platt 1999), or an isotonic one (Zadrozny and Elkan 2002) if clearly better out of fold.

    Clearly better: its log loss is lower by more than a standard error (Breiman et al. 1984). Candidates of a query
    stay in one fold. No curve for fewer than ENOUGH queries, for too few relevant or other documents, or if scores do
    not rise with relevance.
    """
    queries = len(np.unique(pairs.query))
    relevant = float(pairs.truth.sum())
    if queries < ENOUGH:
        return _none(f"labels or judges cover {queries} dev queries; {ENOUGH} are needed")
    if min(relevant, len(pairs) - relevant) < ENOUGH / 2:
        return _none(f"{relevant:,.0f} of the {len(pairs):,} candidates of dev queries are relevant: too few, or all")
    if _logistic(pairs.score, pairs.truth) is None:
        return _none("scores do not rise with relevance on dev queries")
    folds = rng("relevance folds", seed).permutation(int(pairs.query.max()) + 1) % _FOLDS
    fits: list[FittedRelevance] = []
    for method in (_logistic, _isotonic):
        left_out = np.full(len(pairs), np.nan)
        for number in range(_FOLDS):
            mine = folds[pairs.query] == number
            other = method(pairs.score[~mine], pairs.truth[~mine])
            if other is not None:
                left_out[mine] = other.of(pairs.score[mine])
        if np.isfinite(left_out).all():
            fits.append(FittedRelevance(method(pairs.score, pairs.truth), left_out))
    return fits[-1] if len(fits) < 2 or _clearly_better(fits[1], fits[0], pairs) else fits[0]


def _none(why: str) -> FittedRelevance:
    return FittedRelevance(None, np.zeros(0), why)


def _clearly_better(one: FittedRelevance, other: FittedRelevance, pairs: ScoredPairs) -> bool:
    """True if `one` has a lower log loss out of fold, by more than a standard error over queries."""
    gain = _log_loss(other.out_of_fold, pairs.truth) - _log_loss(one.out_of_fold, pairs.truth)
    gain_Q = np.bincount(pairs.query, gain)[np.unique(pairs.query)]
    return bool(gain_Q.mean() > gain_Q.std(ddof=1) / np.sqrt(len(gain_Q)))


def _log_loss(probability: Reals, truth: Reals) -> Reals:
    p = np.clip(probability, 1e-9, 1.0 - 1e-9)
    return -(truth * np.log(p) + (1.0 - truth) * np.log1p(-p))


def _logistic(score: Reals, truth: Reals) -> RelevanceCurve | None:
    """Platt's fit: targets shrink as by one more document of each kind, so no probability is 0 or 1."""
    middle, spread = float(score.mean()), float(score.std())
    relevant = float(truth.sum())
    low, high = 1.0 / (len(truth) - relevant + 2.0), (relevant + 1.0) / (relevant + 2.0)
    if spread < 1e-9 * max(1.0, abs(middle)):
        return None
    line = logistic((score - middle) / spread, low + (high - low) * truth)
    if line is None:
        return None
    slope = float(line[1]) / spread
    return RelevanceCurve("logistic", float(line[0]) - slope * middle, slope)


def _isotonic(score: Reals, truth: Reals) -> RelevanceCurve:
    """Pool adjacent violators over groups of neighbours, each with one more document of the mean truth.

    Straight lines between the means of its levels make it rise where the fit has steps (Oron and Flournoy 2017).
    """
    from scipy import optimize

    value, of_value = np.unique(score, return_inverse=True)  # equal scores are of one group
    count = np.bincount(of_value)
    above = len(score) - np.cumsum(count)
    group = np.unique(-(above // _GROUP), return_inverse=True)[1]  # full from the top, where precision is decided
    size = np.bincount(group, count)
    level = (np.bincount(group, np.bincount(of_value, truth)) + truth.mean()) / (size + 1.0)
    fitted = optimize.isotonic_regression(level, weights=size).x
    block = np.unique(fitted, return_inverse=True)[1]
    middle = np.bincount(block, np.bincount(group, count * value)) / np.bincount(block, size)
    points = zip(middle.tolist(), np.unique(fitted).tolist(), strict=True)
    return RelevanceCurve("isotonic", points=tuple(points))


def thresholds(pairs: ScoredPairs, probability: Reals) -> tuple[float | None, ...]:
    """The lowest threshold, in hundredths, for each of PRECISIONS; None if not reached with _FEWEST documents.

    Both the truth and the probabilities float64[N] must reach it: of many thresholds some do by chance.
    """
    level = np.searchsorted(_GRID, probability, side="right")  # how many thresholds a document passes
    documents, relevant, expected = (
        np.bincount(level, weights, len(_GRID) + 1)[::-1].cumsum()[::-1][1:]
        for weights in (np.ones(len(pairs)), pairs.truth, probability)
    )
    at_least = np.minimum(relevant, expected)
    reached = [np.flatnonzero((documents >= _FEWEST) & (at_least >= precision * documents)) for precision in PRECISIONS]
    return tuple(float(_GRID[at[0]]) if at.size else None for at in reached)


def check(scored: ScoredPairs, probability: Reals, at: Sequence[float | None], truth: Truth) -> RelevanceCheck:
    """Compare `probability` float64[N] with the truth, at the thresholds `at` (see `thresholds`) too."""
    pairs = Pairs(1.0 - probability, probability, scored.truth, scored.query)
    likely = probability >= LIKELY
    of_likely, others = (
        Pairs(pairs.first_P[chosen], pairs.second_P[chosen], pairs.score_P[chosen], pairs.query_P[chosen])
        for chosen in (likely, ~likely)
    )
    curve = reliability(others, 1) if len(others) else ()
    if len(of_likely):
        curve += reliability(of_likely, min(_BUCKETS, max(1, len(of_likely) // _FEWEST)))
    return RelevanceCheck(
        truth=truth,
        queries=len(np.unique(scored.query)),
        pairs=len(scored),
        relevant=float(scored.truth.sum()),
        expected=float(probability.sum()),
        error=calibration(pairs, _BUCKETS),
        likely=calibration(of_likely, _BUCKETS) if len(of_likely) >= _FEWEST else None,
        curve=curve,
        thresholds=tuple(_kept(scored, probability, *each) for each in zip(PRECISIONS, at, strict=True)),
    )


def _kept(pairs: ScoredPairs, probability: Reals, precision: float, least: float | None) -> RelevanceThreshold:
    if least is None:
        return RelevanceThreshold(precision)
    kept = probability >= least
    relevant = float(pairs.truth.sum())
    return RelevanceThreshold(
        precision,
        least,
        wilson(pairs.truth[kept], pairs.query[kept]),
        float(pairs.truth[kept].sum()) / relevant if relevant else 0.0,
        float(kept.sum()) / len(np.unique(pairs.query)),
    )
