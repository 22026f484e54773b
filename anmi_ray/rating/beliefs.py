"""A fit's ratings with all their covariances, query by query: what an adaptive design chooses the next pairs by.

The first stage's order is informative before any answer. Here, and only here, it moves the ratings' prior
mean, by slopes estimated from the answers: near zero if the order is uninformative. The ratings that are kept
leave it out, since weighing them against ranks, or measuring systems by them, would count it twice.

A rating's prior is N(μ + xᵀβ, 1/τ'). x are two scores of the document's rank, each of mean 0 and variance 1: the normal
score, by which half of all documents are better than the other half, and the reciprocal rank, by which few are better
than all others; both are 0 of a known positive. 1/τ' is what xᵀβ leaves of the prior's variance 1/τ on average over a
query. The answers enter as the Gaussian factors of the fit, N(m, (L + diag(τ))⁻¹) with the answers' precision L; so β
and the posterior follow without another fit.
Letters: Q queries; of one query n documents; B = 2 scores of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import id_matrix
from anmi_ray.core.scale import Floats, normal_quantile
from anmi_ray.rating.bucket import approximate
from anmi_ray.rating.gaussian import Gaussian
from anmi_ray.rating.pairs import positions, read_games
from anmi_ray.rating.shared_parameters import Globals

_SCORES = 2  # of a rank
_MOST = 0.9  # of the prior's variance that ranks may explain: no order is so good that nothing is left to ask


class QueryBeliefs(NamedTuple):
    """One query's posterior: doc_ids uint8[n, 16] sorted, mean float64[n], covariance float64[n, n], positive bool[n].

    strength: what the answers about one of its pairs count for on average, in games.
    """

    query_id: bytes
    doc_ids: NDArray[np.uint8]
    mean: Floats
    covariance: Floats
    positive: NDArray[np.bool_]
    strength: float


class Worth(NamedTuple):
    """What answers say of the first stage's order: their log evidence is pullᵀβ - βᵀ precision β / 2.

    pull float64[B], precision float64[B, B].
    """

    pull: Floats
    precision: Floats

    def slopes(self) -> Floats:
        """The β of the most evidence, float64[B], none below 0: an order is not taken for its opposite."""
        best, most = np.zeros(len(self.pull)), 0.0
        for at in ([0], [1], [0, 1]):
            solved = np.linalg.lstsq(self.precision[np.ix_(at, at)], self.pull[at])[0]
            evidence = 0.5 * float(self.pull[at] @ solved)
            if (solved >= 0.0).all() and evidence > most:
                most = evidence
                best = np.zeros(len(self.pull))
                best[at] = solved
        return best


class _Query(NamedTuple):
    """One query of a fit: the slice of its documents, L, τ, μ, the fit's mean, and x, float64[n, B]."""

    at: slice
    answers: Floats
    prior: Floats
    prior_mean: Floats
    mean: Floats
    scores: Floats
    strength: float


def worth(
    judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, globals_: Globals, config: RateConfig
) -> Worth:
    """Return the evidence of a bucket's answers about the order in which candidates were retrieved."""
    fitted = _fit(judgments, comparisons, candidates, globals_, config)
    evidence = Worth(np.zeros(_SCORES), np.zeros((_SCORES, _SCORES)))
    for query in _queries(fitted, candidates) if fitted is not None else ():
        weighted = query.prior[:, None] * query.scores
        covariance = np.linalg.inv(query.answers + np.diag(query.prior))
        pull = weighted.T @ (query.mean - query.prior_mean)
        precision = weighted.T @ query.scores - weighted.T @ covariance @ weighted
        evidence = Worth(evidence.pull + pull, evidence.precision + precision)
    return evidence


def beliefs(
    judgments: pa.Table,
    comparisons: pa.Table,
    candidates: pa.Table,
    globals_: Globals,
    config: RateConfig,
    slopes: Sequence[float] = (0.0,) * _SCORES,
) -> Iterator[QueryBeliefs]:
    """The posterior of every query of a bucket that has a game, as `rate` fits it, but for `slopes`, the β of ranks.

    `config` must have a prior.
    """
    fitted = _fit(judgments, comparisons, candidates, globals_, config)
    if fitted is None:
        return
    games = fitted.posterior.games
    for q, query in enumerate(_queries(fitted, candidates)):
        variance = 1.0 / query.prior
        moved = query.scores @ np.asarray(slopes)
        informed = moved != 0.0
        square = float(np.mean(moved[informed] ** 2)) if informed.any() else 0.0
        explained = np.where(informed, np.minimum(square, _MOST * variance), 0.0)
        prior = 1.0 / (variance - explained)
        covariance = np.linalg.inv(query.answers + np.diag(prior)).astype(np.float64)
        answers_pull = query.answers @ query.mean + query.prior * (query.mean - query.prior_mean)
        expected = query.prior_mean + (np.sqrt(explained / square) * moved if square else 0.0)
        yield QueryBeliefs(
            games.query_ids[q].tobytes(),
            games.doc_ids[query.at],
            covariance @ (answers_pull + prior * expected),
            covariance,
            games.positive[query.at],
            query.strength,
        )


def _fit(
    judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, globals_: Globals, config: RateConfig
) -> Gaussian | None:
    """The posterior's Gaussian approximation, or None where no pair has an answer."""
    read = config.judge_offsets, config.judge_weights
    games, _ = read_games(judgments, comparisons, candidates, *read)
    return approximate(games, globals_, config)[1] if games.queries else None


def _queries(fitted: Gaussian, candidates: pa.Table) -> Iterator[_Query]:
    target = fitted.posterior
    games = target.games
    pair, _ = games.pairs()
    keys = np.hstack([games.query_ids[games.query_of_doc], games.doc_ids])
    candidate_keys = np.hstack([id_matrix(candidates[name]) for name in ("query_id", "doc_id")])
    # what was not retrieved comes after all that was
    ranks = pc.fill_null(candidates["rank"], np.iinfo(np.int32).max).to_numpy()[positions(keys, candidate_keys)]
    for q in range(games.queries):
        at = slice(games.doc_start[q], games.doc_start[q + 1])
        played = slice(games.game_start[q], games.game_start[q + 1])
        first, second, weight = games.first[played], games.second[played], fitted.weight[played]
        answers = np.zeros((at.stop - at.start,) * 2)
        np.add.at(answers, (first, first), weight)
        np.add.at(answers, (second, second), weight)
        np.subtract.at(answers, (first, second), weight)
        np.subtract.at(answers, (second, first), weight)
        strength = float(target.m[played].sum()) / len(np.unique(pair[played]))
        prior = target.prior_precision[at], target.prior_mean[at]
        scores = np.where(games.positive[at][:, None], 0.0, _scores(ranks[at]))
        yield _Query(at, answers, *prior, fitted.mean[at], scores, strength)


def _scores(ranks: NDArray[np.int32]) -> Floats:
    """Normal scores and reciprocals of ranks, float64[n, B], mean 0 and variance 1; all 0 where there is one rank."""
    places = (np.searchsorted(np.sort(ranks), ranks) + np.searchsorted(np.sort(ranks), ranks, side="right")) / 2.0
    raw = np.stack([-normal_quantile(places / len(ranks)), 1.0 / (0.5 + places)], axis=1)
    spread = raw.std(axis=0)
    return (raw - raw.mean(axis=0)) / np.where(spread > 0.0, spread, np.inf)
