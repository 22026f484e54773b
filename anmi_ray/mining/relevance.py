"""P(relevant) of rated documents without labels: from rating, first-stage rank and similarity, and direct answers.

A latent class model, relevant or other, is fitted to the run's own ratings by maximum a posteriori (as Dawid and Skene
1979 fit observers without a known truth). Evidence for the class: what the first stage says (rank, similarity), the
rating (`gain` points higher than others of the same rank and similarity), and direct answers. The first stage's weight
is fitted too, and is 0 if it says nothing. Ratings of the other class may depend on rank and similarity, and answers on
the rating, so correlated evidence is not counted twice. The spread within a class includes the judges' lasting errors,
which standard errors of ratings do not.
Two models with the same parameters are fitted, at most one relevant document per query (exclusive) and any number
(independent), and the likelier one is kept.
The prior of ratings shrinks them towards the mean, more for documents with fewer questions; with unequal numbers, as in
adaptive designs, `by_answers` removes this first, or asked documents would seem relevant.
Weak priors: half of the documents at rank 1 are relevant, fewer below, more the more similar they are, and ratings of
the others hardly depend on the first stage.
A hundred queries overrule them; without them, twenty queries gave two classes unrelated to relevance.
Letters: N documents of many queries, F features of the prior, C columns of the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import optimize, special

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.records import find_rows

FEWEST = 200  # minimum number of documents for a fit: five queries of forty
WEAKEST = 1.4  # minimum separation of the classes in standard deviations; in noise up to 1.3 is found
# maximum excess of P(relevant) at rank 10 over that at rank 1, and their maximum ratio; more means other classes
_RISES, _TIMES = 0.1, 3.0
_LEAST_KEPT = 0.02  # minimum share of the prior's variance removed by answers
_MOST_FOUND = 0.99  # maximum share of queries with a relevant document
_OPTIONS = {"maxiter": 2000, "maxfun": 5000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-8}  # of L-BFGS
# Normal priors, L = log rank, s = similarity: 1, L, L², s in the log odds; 1, L, L², L³, s in a rating; log gain;
# log sd; log degrees of freedom; 1, rating, relevant in an answer (finite for separable answers). Ratings are in units
# of their sd.
_MEAN = np.array([0.0, -1.5, 0.0, 1.0] + [0.0] * 5 + [math.log(1.5), math.log(0.8), math.log(300.0)] + [0.0] * 3)
_SD = np.array([1.0, 0.5, 0.1, 0.5] + [math.inf, 0.15, 0.1, 0.05, 0.15] + [math.inf] * 2 + [1.0] + [30.0] * 3)
# Weights of 1, L, L², s without ratings; fits to labels of four collections have -0.8 to -1.7 for L, -0.1 to 1.9 for s.
_WITHOUT_RATINGS = (1.0, -0.75, 0.0, 1.5)
_ODDS, _LOG_GAIN, _LOG_SD, _LOG_FREEDOM = 4, 9, 10, 11  # places in the parameters
_BOUNDS = [(None, None)] * _LOG_GAIN
_BOUNDS += [(math.log(least), math.log(most)) for least, most in ((0.01, 20.0), (0.05, 20.0), (2.0, 1000.0))]
_BOUNDS += [(None, None)] * 3


class Evidence(NamedTuple):
    """Evidence about N documents; answer is in [0, 1], NaN without one."""

    query: Ints  # any numbering
    rating: Reals  # points, centred within the query
    error: Reals  # points, of the rating
    rank: Reals  # from 1
    similarity: Reals  # to the query; any scale, NaN or constant if unknown
    answer: Reals

    @property
    def asked(self) -> Flags:
        """Documents with an answer, bool[N]."""
        return np.isfinite(self.answer)


class _Data(NamedTuple):
    """Evidence as the model reads it: N documents in groups of which at most one document is relevant."""

    group: Ints  # [N] from 0
    size: Ints  # [N] documents of the group
    odds_NF: Reals  # 1, L, L², s
    level_NC: Reals  # 1, L, L², L³, s
    rating: Reals
    variance: Reals  # error²
    asked: Flags
    answer: Reals  # 0 without one
    answer_N2: Reals  # 1, rating/spread; 0 without an answer

    def log_total(self, logit: Reals) -> Reals:
        """Return, per document, log(1 + Σ exp(logit)) over the documents of its group."""
        greatest = np.zeros(int(self.group.max(initial=-1)) + 1)
        np.maximum.at(greatest, self.group, logit)
        total = np.exp(-greatest) + np.bincount(self.group, np.exp(logit - greatest[self.group]))
        return (greatest + np.log(total))[self.group]

    def shares(self, logit: Reals) -> Reals:
        """Return exp(logit) as a share of its group's total, in which none is 1."""
        return np.exp(logit - self.log_total(logit))


@dataclass(frozen=True)
class RelevanceModel:
    """Model of first stage, rating and answer given the class; ratings in points, L = log rank, s = similarity.

    P(relevant) in a group, against none with odds 1: exp(odds · (1, L, L², s)).
    rating/spread ~ t(level · (1, L, L², L³, s) + gain · [relevant], sd² + error²), gain and sd as ratios to spread.
    Student's t with fitted degrees of freedom: with a normal, a few extreme ratings pass for the relevant class.
    logit P(yes) = answer · (1, rating/spread, [relevant]).
    """

    documents: int
    asked: int
    exclusive: bool  # a group is a query; otherwise each document is one
    share: float  # mean P(relevant)
    first: float  # mean prior of documents at rank 1
    tenth: float  # at rank 10
    parameters: list[float]  # in the order of _MEAN
    spread: float  # sd of the ratings, points
    unit: float  # sd of similarities within queries, 0 if they are not used
    log_posterior: float  # per document

    @property
    def gain(self) -> float:
        """Points by which relevant documents are rated higher."""
        return math.exp(self.parameters[_LOG_GAIN]) * self.spread

    @property
    def sd(self) -> float:
        """Spread of ratings within a class, points, without their errors."""
        return math.exp(self.parameters[_LOG_SD]) * self.spread

    @property
    def apart(self) -> float:
        """Separation of the class means, in standard deviations."""
        return self.gain / self.sd

    @property
    def is_reliable(self) -> bool:
        """Return whether the classes are separated, neither is empty, and P(relevant) does not increase with rank."""
        rises = self.tenth > self.first + _RISES or self.tenth > _TIMES * self.first
        return self.apart >= WEAKEST and self.share * self.documents >= 1.0 and not rises

    def posterior(self, evidence: Evidence) -> Reals:
        """Return P(relevant | rank, similarity, rating, answer), float64[N]."""
        data = _data(evidence, self.spread, self.unit, self.exclusive)
        return _evaluate(np.array(self.parameters), data)[0]

    def by_judges(self, evidence: Evidence) -> Reals:
        """Return P(relevant | rating, answer), float64[N], with the mean share as prior of all documents.

        Measurements must not use the first stage, or systems that copy it would win.
        """
        data = _data(evidence, self.spread, self.unit, self.exclusive)
        some = np.minimum(data.size * self.share, _MOST_FOUND)
        return _evaluate(np.array(self.parameters), data, math.log(self.share) - np.log1p(-some))[0]

    def said(self) -> str:
        """Return one line for the report."""
        answers = f", {self.asked:,} of them asked about directly" if self.asked else ""
        number = "at most one per query" if self.exclusive else "any number per query"
        return (
            f"{self.documents:,} documents{answers}: at rank 1 {self.first:.0%} are relevant, at rank 10 "
            f"{self.tenth:.0%}, {number}; they are rated {self.gain:.0f} points higher than others of the same rank "
            f"and similarity ({self.apart:.1f} standard deviations)"
        )


def evidence(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    answers: pa.Table | None = None,
    prior_elo: float | None = None,
) -> tuple[pa.Table, Evidence]:
    """Return (query_id, doc_id) of rated documents of queries without known positives, in order, and their evidence.

    gaps: identify these queries, whose gaps are from top-rated documents.
    answers: query_id, doc_id, probability (NaN: no answer). Documents that were not retrieved get the last rank.
    prior_elo: sd of the ratings' prior, if documents were asked about unequally.
    """
    queries = pc.unique(gaps.filter(pc.equal(gaps["anchor_kind"], "top-rated"))["query_id"])
    rated = ratings.filter(pc.is_in(ratings["query_id"], value_set=queries))
    keys = {"query_id": rated["query_id"], "doc_id": rated["doc_id"]}
    row = find_rows(candidates, keys)  # -1 without one
    rank = np.append(pc.cast(candidates["rank"], pa.float64()).to_numpy(), np.nan)[row]  # null is NaN
    of_query = candidates.group_by("query_id").aggregate([("rank", "max")])
    greatest = pc.cast(of_query["rank_max"], pa.float64()).to_numpy()
    last = 1.0 + np.nan_to_num(np.append(greatest, np.nan)[find_rows(of_query, {"query_id": rated["query_id"]})])
    answer = np.full(rated.num_rows, np.nan)
    if answers is not None:
        answer = np.append(answers["probability"].to_numpy(), np.nan)[find_rows(answers, keys)]
    query = pc.dictionary_encode(rated["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    rating, error = (rated[name].to_numpy().astype(np.float64) for name in ("rating_elo", "std_err_elo"))
    if prior_elo is not None:
        rating, error = by_answers(rating, error, prior_elo)
    data = Evidence(
        query=query,
        rating=rating,
        error=error,
        rank=np.where(np.isnan(rank), last, rank),
        similarity=np.append(candidates["similarity"].to_numpy(), np.nan)[row],
        answer=answer,
    )
    return pa.table(keys), data


def first_stage(candidates: pa.Table) -> Evidence:
    """Return the evidence of rank and similarity, float64[N], about candidates sorted by query; ratings are 0."""
    query = pc.dictionary_encode(candidates["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    rank = pc.fill_null(pc.cast(candidates["rank"], pa.float64()), np.nan).to_numpy()
    last = np.zeros(int(query.max(initial=-1)) + 1)
    np.maximum.at(last, query, np.nan_to_num(rank))
    zeros = np.zeros(len(query))
    rank = np.where(np.isnan(rank), last[query] + 1.0, rank)
    return Evidence(query, zeros, zeros + 1.0, rank, candidates["similarity"].to_numpy(), zeros + np.nan)


def unit_of(evidence: Evidence) -> float:
    """Return the sd of similarities within queries; 0 if they do not vary."""
    unit = float(_centred(evidence).std())
    return unit if unit > 1e-6 * np.abs(np.nan_to_num(evidence.similarity)).max(initial=0.0) else 0.0


def by_retrieval(evidence: Evidence, unit: float) -> tuple[Reals, Reals]:
    """Return log odds and P(relevant | rank, similarity) without ratings, float64[N], at most one relevant a query."""
    data = _data(evidence, 1.0, unit, exclusive=True)
    log_odds = data.odds_NF @ np.array(_WITHOUT_RATINGS)
    return log_odds, data.shares(log_odds)


def by_answers(rating: Reals, error: Reals, prior_elo: float) -> tuple[Reals, Reals]:
    """Return ratings and errors, float64[N] points, without the prior N(0, prior_elo²).

    For each document, N(r, e²) is the prior times N(r / k, e² / k) with k = 1 - e² / prior_elo².
    """
    kept = np.maximum(1.0 - np.square(error / prior_elo), _LEAST_KEPT)
    return rating / kept, error / np.sqrt(kept)


def fit(evidence: Evidence) -> RelevanceModel | None:
    """Fit both models and return the likelier; None for fewer than FEWEST documents or constant ratings.

    If it is not reliable, the likelier without similarity: few ratings that follow it closely hide the classes.
    """
    spread = float(evidence.rating.std()) if len(evidence.rating) else 0.0
    if len(evidence.rating) < FEWEST or spread < 1e-6:
        return None
    unit = unit_of(evidence)
    model = _likelier(evidence, spread, unit)
    return model if model.is_reliable or not unit else _likelier(evidence, spread, 0.0)


def _likelier(evidence: Evidence, spread: float, unit: float) -> RelevanceModel:
    return max((_fit(evidence, spread, unit, exclusive) for exclusive in (False, True)), key=lambda m: m.log_posterior)


def _fit(evidence: Evidence, spread: float, unit: float, exclusive: bool) -> RelevanceModel:
    data = _data(evidence, spread, unit, exclusive)
    start = _MEAN.copy()
    start[_ODDS:_LOG_GAIN] = np.linalg.lstsq(data.level_NC, data.rating, rcond=None)[0]
    fitted = optimize.minimize(
        lambda at: _evaluate(at, data)[1:], start, method="L-BFGS-B", jac=True, bounds=_BOUNDS, options=_OPTIONS
    )
    prior = data.shares(data.odds_NF @ fitted.x[:_ODDS])
    return RelevanceModel(
        documents=len(evidence.rating),
        asked=int(evidence.asked.sum()),
        exclusive=exclusive,
        share=float(_evaluate(fitted.x, data)[0].mean()),
        first=float(prior[evidence.rank == 1.0].sum() / max(np.sum(evidence.rank == 1.0), 1)),
        tenth=float(prior[evidence.rank == 10.0].sum() / max(np.sum(evidence.rank == 10.0), 1)),
        parameters=fitted.x.tolist(),
        spread=spread,
        unit=unit,
        log_posterior=-float(fitted.fun),
    )


def _centred(evidence: Evidence) -> Reals:
    """Return similarities without their query's mean, float64[N], 0 where unknown."""
    query = np.unique(evidence.query, return_inverse=True)[1]
    known = np.isfinite(evidence.similarity)
    similarity = np.where(known, evidence.similarity, 0.0)
    mean = np.bincount(query, similarity) / np.maximum(np.bincount(query, known), 1)
    return np.where(known, similarity - mean[query], 0.0)


def _data(evidence: Evidence, spread: float, unit: float, exclusive: bool) -> _Data:
    """Return evidence in the model's units."""
    query = np.unique(evidence.query, return_inverse=True)[1]
    group = query if exclusive else np.arange(len(query))
    power_N4 = np.vander(np.log(evidence.rank), 4, increasing=True).astype(np.float64)
    centred = _centred(evidence) / unit if unit else np.zeros(len(query))
    greatest = np.full(int(query.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(greatest, query, centred)
    rating = evidence.rating / spread
    asked = evidence.asked
    return _Data(
        group=group,
        size=np.bincount(group)[group],
        odds_NF=np.column_stack([power_N4[:, :3], centred - greatest[query]]),
        level_NC=np.column_stack([power_N4, centred]),
        rating=rating,
        variance=np.square(evidence.error / spread),
        asked=asked,
        answer=np.where(asked, evidence.answer, 0.0),
        answer_N2=np.column_stack([np.ones(len(rating)), rating]) * asked[:, None],
    )


def _evaluate(parameters: Reals, data: _Data, log_odds: Reals | None = None) -> tuple[Reals, float, Reals]:
    """Return P(relevant), float64[N], and the negative log posterior per document of the parameters, and its gradient.

    The classes are integrated out, so the gradient is that of the log density of evidence and class, averaged over
    P(relevant) (Fisher's identity). log_odds: prior of each document instead of the fitted one.
    """
    odds, level, (log_gain, log_sd, log_freedom), answer = np.split(parameters, [_ODDS, _LOG_GAIN, _LOG_FREEDOM + 1])
    log_odds = data.odds_NF @ odds if log_odds is None else log_odds
    gain, squared_sd = math.exp(log_gain), math.exp(2.0 * log_sd)
    variance = squared_sd + data.variance
    residual = data.rating - data.level_NC @ level
    yes = data.answer_N2 @ answer[:2]
    yes_relevant = yes + answer[2]
    log_answer = np.where(data.asked, _bernoulli(data.answer, yes), 0.0)
    other, relevant = (_student_t(x, variance, math.exp(log_freedom)) for x in (residual, residual - gain))
    log_other = log_answer + other.log_density
    log_ratio = relevant.log_density - other.log_density
    log_ratio += np.where(data.asked, _bernoulli(data.answer, yes_relevant), 0.0) - log_answer
    before, after = data.log_total(log_odds), data.log_total(log_odds + log_ratio)
    share = np.exp(log_odds + log_ratio - after)
    z = (parameters - _MEAN) / _SD
    value = float(((after - before) / data.size + log_other).sum()) - 0.5 * float(z @ z)
    by_residual, by_log_variance, by_log_freedom = (
        (1.0 - share) * a + share * b for a, b in zip(other[1:], relevant[1:], strict=True)
    )
    error = (1.0 - share) * data.asked * (data.answer - special.expit(yes))
    error_relevant = share * data.asked * (data.answer - special.expit(yes_relevant))
    gradient = np.concatenate(
        [
            data.odds_NF.T @ (share - np.exp(log_odds - before)),
            -(data.level_NC.T @ by_residual),
            [-gain * float((share * relevant.by_residual).sum())],
            [squared_sd * float((by_log_variance / variance).sum())],
            [float(by_log_freedom.sum())],
            data.answer_N2.T @ (error + error_relevant),
            [float(error_relevant.sum())],
        ]
    )
    documents = max(len(share), 1)
    return share, -value / documents, -(gradient - z / _SD) / documents


class _StudentT(NamedTuple):
    """Log density of residuals under Student's t, [N], and its derivatives."""

    log_density: Reals
    by_residual: Reals
    by_log_variance: Reals  # twice the derivative
    by_log_freedom: Reals


def _student_t(residual: Reals, variance: Reals, freedom: float) -> _StudentT:
    """Return the t density with scale² `variance`; normal for infinite `freedom`."""
    square = residual**2 / variance
    log_tail = np.log1p(square / freedom)
    weight = (freedom + 1.0) / (freedom + square)
    half, more = 0.5 * freedom, 0.5 * (freedom + 1.0)
    constant = special.gammaln(more) - special.gammaln(half) - 0.5 * math.log(math.pi * freedom)
    by_freedom = half * (special.digamma(more) - special.digamma(half) - log_tail) + 0.5 * (weight * square - 1.0)
    log_density = constant - 0.5 * np.log(variance) - more * log_tail
    return _StudentT(log_density, -weight * residual / variance, weight * square - 1.0, by_freedom)


def _bernoulli(target: Reals, logit: Reals) -> Reals:
    """Return the log-likelihood of targets in [0, 1]: t log σ(x) + (1 − t) log σ(−x)."""
    return target * special.log_expit(logit) + (1.0 - target) * special.log_expit(-logit)
