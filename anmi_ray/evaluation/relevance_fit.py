"""The curve from a reranker's score to P(relevant), and how it does on queries that it was not fitted to.

Two curves are tried: a logistic one (Platt 1999), two numbers that a hundred queries tell, and an isotonic one
(Zadrozny and Elkan 2002), which follows any rise and, of few relevant documents, chance as well. It is taken where its
log loss out of fold is lower by more than a standard error (Breiman et al. 1984). Candidates of a query stay in one
fold, and intervals are over queries.
Letters: N pairs of a query and a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import rng
from anmi_ray.evaluation import pairwise_measures as measured
from anmi_ray.evaluation.judged import ENOUGH, logistic
from anmi_ray.evaluation.pairwise import Pairs
from anmi_ray.evaluation.relevance import RelevanceCheck, RelevanceCurve, RelevanceThreshold, Truth

PRECISIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LIKELY = 0.1  # from here on a document is one that a threshold may keep
_FOLDS = 5
_BUCKETS = 10
_FEWEST = 20  # documents needed to report a figure
_GROUP = 20  # neighbouring documents that the isotonic curve takes as one: a single one says 0 or 1
_GRID = np.arange(1, 100) / 100.0


@dataclass(frozen=True)
class ScoredPairs:
    """N scored pairs: query numbers 0..Q-1; truth in [0, 1], whether or how likely the document is relevant."""

    query: Ints
    score: Reals
    truth: Reals

    def __len__(self) -> int:
        return len(self.query)

    def under(self, probability: Reals) -> Pairs:
        """The pairs with `probability` float64[N] as what is predicted."""
        return Pairs(1.0 - probability, probability, self.truth, self.query)


@dataclass(frozen=True)
class FittedRelevance:
    """A curve and out-of-fold probabilities of all pairs, or the reason why there is no curve."""

    curve: RelevanceCurve | None
    out_of_fold: Reals
    why_not: str = ""


def fit(known: ScoredPairs, seed: int = 0) -> FittedRelevance:
    """The logistic curve, or the isotonic one where that is clearly better out of fold.

    There is none of fewer than ENOUGH queries, of too few relevant or other documents, or where scores do not rise with
    relevance.
    """
    queries = len(np.unique(known.query))
    relevant = float(known.truth.sum())
    if queries < ENOUGH:
        return _none(f"of {queries} dev queries it is known what is relevant, by labels or judges; {ENOUGH} are needed")
    if min(relevant, len(known) - relevant) < ENOUGH / 2:
        return _none(f"{relevant:,.0f} of the {len(known):,} candidates of dev queries are relevant: too few, or all")
    if _logistic(known.score, known.truth) is None:
        return _none("scores do not rise with relevance on dev queries")
    folds = rng("relevance folds", seed).permutation(int(known.query.max()) + 1) % _FOLDS
    found: list[FittedRelevance] = []
    for method in (_logistic, _isotonic):
        left_out = np.full(len(known), np.nan)
        for number in range(_FOLDS):
            mine = folds[known.query] == number
            other = method(known.score[~mine], known.truth[~mine])
            if other is not None:
                left_out[mine] = other.of(known.score[mine])
        if np.isfinite(left_out).all():
            found.append(FittedRelevance(method(known.score, known.truth), left_out))
    return found[-1] if len(found) < 2 or _clearly_better(found[1], found[0], known) else found[0]


def _none(why: str) -> FittedRelevance:
    return FittedRelevance(None, np.zeros(0), why)


def _clearly_better(one: FittedRelevance, other: FittedRelevance, known: ScoredPairs) -> bool:
    """Whether one loses less out of fold than the other, by more than a standard error over queries."""
    gain = _log_loss(other.out_of_fold, known.truth) - _log_loss(one.out_of_fold, known.truth)
    gain_Q = np.bincount(known.query, gain)[np.unique(known.query)]
    return bool(gain_Q.mean() > gain_Q.std(ddof=1) / np.sqrt(len(gain_Q)))


def _log_loss(probability: Reals, truth: Reals) -> Reals:
    p = np.clip(probability, 1e-9, 1.0 - 1e-9)
    return -(truth * np.log(p) + (1.0 - truth) * np.log1p(-p))


def _logistic(score: Reals, truth: Reals) -> RelevanceCurve | None:
    """Platt's: targets are drawn in as by one more document of each kind, so no probability is 0 or 1."""
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


def thresholds(known: ScoredPairs, probability: Reals) -> tuple[float | None, ...]:
    """Of every one of PRECISIONS the least threshold, in hundredths, from which on documents are that often relevant.

    By the truth and by the probabilities, float64[N], both: of many thresholds some reach anything by chance. None
    where none with _FEWEST documents does.
    """
    level = np.searchsorted(_GRID, probability, side="right")  # how many thresholds a document passes
    documents, relevant, expected = (
        np.bincount(level, weights, len(_GRID) + 1)[::-1].cumsum()[::-1][1:]
        for weights in (np.ones(len(known)), known.truth, probability)
    )
    at_least = np.minimum(relevant, expected)
    reached = [np.flatnonzero((documents >= _FEWEST) & (at_least >= wanted * documents)) for wanted in PRECISIONS]
    return tuple(float(_GRID[at[0]]) if at.size else None for at in reached)


def check(known: ScoredPairs, probability: Reals, at: Sequence[float | None], truth: Truth) -> RelevanceCheck:
    """How `probability` float64[N] agrees with the truth, and what the thresholds `at` (as of `thresholds`) keep."""
    pairs = known.under(probability)
    likely = probability >= LIKELY
    of_likely, others = (_some(pairs, chosen) for chosen in (likely, ~likely))
    curve = [measured.mean_buckets(others, 1)] if len(others) else []
    if len(of_likely):
        curve.append(measured.mean_buckets(of_likely, min(_BUCKETS, max(1, len(of_likely) // _FEWEST))))
    return RelevanceCheck(
        truth=truth,
        queries=len(np.unique(known.query)),
        pairs=len(known),
        relevant=float(known.truth.sum()),
        expected=float(probability.sum()),
        error=measured.calibration(pairs, _BUCKETS),
        likely=measured.calibration(of_likely, _BUCKETS) if len(of_likely) >= _FEWEST else None,
        curve=tuple((one.predicted, one.observed) for part in curve for one in part),
        thresholds=tuple(_kept(known, probability, *each) for each in zip(PRECISIONS, at, strict=True)),
    )


def _some(pairs: Pairs, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Pairs:
    first, second, score = (part[chosen] for part in (pairs.first_P, pairs.second_P, pairs.score_P))
    return Pairs(first, second, score, pairs.query_P[chosen])


def _kept(known: ScoredPairs, probability: Reals, wanted: float, least: float | None) -> RelevanceThreshold:
    if least is None:
        return RelevanceThreshold(wanted)
    kept = probability >= least
    relevant = float(known.truth.sum())
    return RelevanceThreshold(
        wanted,
        least,
        measured.wilson(known.truth[kept], known.query[kept]),
        float(known.truth[kept].sum()) / relevant if relevant else 0.0,
        float(kept.sum()) / len(np.unique(known.query)),
    )
