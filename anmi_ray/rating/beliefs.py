"""A fit's ratings with all their covariances, query by query: what an adaptive design chooses the next pairs by.

The first stage's order is worth something before anybody is asked. Here, and only here, it moves the ratings' prior
mean, by a slope that the answers so far decide: near zero where the order tells nothing. The ratings that are kept
leave it out, since whoever weighs them against ranks, or measures systems by them, would count it twice.

A rating's prior is N(μ + β x, 1/τ'), x the normal score of the document's rank (mean 0, variance 1; 0 of a known
positive) and 1/τ' = 1/τ - β², what β x leaves of the prior's variance. The answers enter as the Gaussian factors of the
fit, N(m, (L + diag(τ))⁻¹) with the answers' precision L; so β and the posterior follow without another fit.
Letters: Q queries; of one query n documents.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """What answers say of the first stage's order: their log evidence is `pull` β - `precision` β² / 2."""

    pull: float = 0.0
    precision: float = 0.0

    def slope(self) -> float:
        """The β of the most evidence, not below 0: an order is not taken for its opposite."""
        return max(0.0, self.pull / self.precision) if self.precision else 0.0


class _Query(NamedTuple):
    """One query of a fit: where its documents stand, L, τ, μ, the fit's mean, and x."""

    at: slice
    answers: Floats
    prior: Floats
    prior_mean: Floats
    mean: Floats
    score: Floats
    strength: float


def worth(
    judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, globals_: Globals, config: RateConfig
) -> Worth:
    """What the answers about a bucket's queries say of the order in which their candidates were retrieved."""
    fitted = _fit(judgments, comparisons, candidates, globals_, config)
    found = Worth()
    for query in _queries(fitted, candidates) if fitted is not None else ():
        given = query.prior * query.score
        covariance = np.linalg.inv(query.answers + np.diag(query.prior))
        pull = given @ (query.mean - query.prior_mean)
        precision = given @ query.score - given @ covariance @ given
        found = Worth(found.pull + float(pull), found.precision + float(precision))
    return found


def beliefs(
    judgments: pa.Table,
    comparisons: pa.Table,
    candidates: pa.Table,
    globals_: Globals,
    config: RateConfig,
    slope: float = 0.0,
) -> Iterator[QueryBeliefs]:
    """The posterior of every query of a bucket that has a game, as `rate` fits it, but for `slope`, the β of ranks.

    `config` must have a prior.
    """
    fitted = _fit(judgments, comparisons, candidates, globals_, config)
    if fitted is None:
        return
    games = fitted.posterior.games
    for q, query in enumerate(_queries(fitted, candidates)):
        variance = 1.0 / query.prior
        explained = np.where(query.score == 0.0, 0.0, np.minimum(slope * slope, _MOST * variance))
        prior = 1.0 / (variance - explained)
        covariance = np.linalg.inv(query.answers + np.diag(prior)).astype(np.float64)
        said = query.answers @ query.mean + query.prior * (query.mean - query.prior_mean)  # the answers' own pull
        expected = query.prior_mean + np.sign(slope) * np.sqrt(explained) * query.score
        yield QueryBeliefs(
            games.query_ids[q].tobytes(),
            games.doc_ids[query.at],
            covariance @ (said + prior * expected),
            covariance,
            games.positive[query.at],
            query.strength,
        )


def _fit(
    judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, globals_: Globals, config: RateConfig
) -> Gaussian | None:
    """The posterior's Gaussian approximation, or None where no pair has an answer."""
    read = config.inconsistent_strength, config.judge_offsets, config.judge_weights
    games, _ = read_games(judgments, comparisons, candidates, *read)
    return approximate(games, globals_, config)[1] if games.queries else None


def _queries(fitted: Gaussian, candidates: pa.Table) -> Iterator[_Query]:
    target = fitted.posterior
    games = target.games
    pair, _ = games.pairs()
    keys = np.hstack([games.query_ids[games.query_of_doc], games.doc_ids])
    known = np.hstack([id_matrix(candidates[name]) for name in ("query_id", "doc_id")])
    # what was not retrieved comes after all that was
    ranks = pc.fill_null(candidates["rank"], np.iinfo(np.int32).max).to_numpy()[positions(keys, known)]
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
        score = np.where(games.positive[at], 0.0, _scores(ranks[at]))
        yield _Query(at, answers, *prior, fitted.mean[at], score, strength)


def _scores(ranks: NDArray[np.int32]) -> Floats:
    """Normal scores of ranks, mean 0 and variance 1; all 0 where there is one rank only."""
    places = np.searchsorted(np.sort(ranks), ranks) + np.searchsorted(np.sort(ranks), ranks, side="right")
    scores = -normal_quantile(places / (2.0 * len(ranks)))
    spread = float(scores.std())
    return (scores - scores.mean()) / spread if spread > 0.0 else np.zeros(len(ranks))
