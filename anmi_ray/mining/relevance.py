"""P(relevant) of rated documents without labels: from rating, first-stage rank, and direct answers.

A mixture of two classes, relevant and other, is fitted by EM to the run's own ratings (as Dawid and Skene 1979 fit
observers without a known truth). Evidence for the class: the rank (share of relevant documents there), the rating
(`gain` points higher than others of the same rank), and direct answers. A useless first stage gets no weight. Ratings
of the other class may depend on rank, and answers on the rating, so correlated evidence is not counted twice. The
spread within a class includes the judges' lasting errors, which standard errors of ratings do not.
The prior shrinks ratings towards the mean, more for documents with fewer questions; with unequal numbers, as in
adaptive designs, `by_answers` removes this first, or asked documents would seem relevant.
Weak priors: half of the documents at rank 1 are relevant, fewer below, and ratings of the others hardly depend on rank.
A hundred queries overrule them; without them, twenty queries gave two classes unrelated to relevance.
Letters: N documents of many queries, C columns of a design.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import special

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import find_rows
from anmi_ray.mining.categories import PLACE

FEWEST = 200  # minimum number of documents for a fit: five queries of forty
WEAKEST = (
    1.0  # minimum separation of the classes in standard deviations; EM finds .6 in noise, and is calibrated from 1
)
_RISES = 0.25  # maximum increase of P(relevant) from rank 1 to 10; more means that the classes are not relevance
STEPS = 500
_TOLERANCE = 1e-7  # minimum gain of a step in nats per document
_PRIOR = 3  # powers of log rank in the prior
_NARROWEST = 0.05  # minimum sd of a class, as a share of the sd of all ratings
_LEAST_KEPT = 0.02  # minimum share of the prior's variance removed by answers
_LOOSE = 1e3  # variance of an uninformative prior; finite for separable answers
# Normal priors of coefficients of L = log rank: means and variances for 1, L, L² in the log odds of relevance;
# standard deviations for 1, L, L², L³ in a rating, relative to that of all ratings.
_BY_RANK = (np.array([0.0, -1.5, 0.0]), np.array([1.0**2, 0.5**2, 0.1**2]))
_LEVEL_SD = np.array([math.inf, 0.15, 0.1, 0.05])
_UNKNOWN = (np.zeros(3), np.full(3, _LOOSE))
# Start of EM: P(relevant) of a query sums to _FOUND, as exp(_SHARP · standardized residual rating) / rank.
# A start by rank alone may end with "the first ten" as a class.
_FOUND = 0.9
_SHARP = 1.5


class Evidence(NamedTuple):
    """Evidence about N documents; answer is in [0, 1], NaN without one."""

    query: Ints  # any numbering
    rating: Reals  # points, centred within the query
    error: Reals  # points, of the rating
    rank: Reals  # from 1
    answer: Reals

    @property
    def asked(self) -> Flags:
        """Documents with an answer, bool[N]."""
        return np.isfinite(self.answer)


@dataclass(frozen=True)
class RelevanceModel:
    """Model of rank, rating and answer given the class; ratings in points, L = log rank.

    logit P(relevant) = prior · (1, L, L²); rating ~ N(level · (1, L, L², L³) + gain · [relevant], sd² + error²);
    logit P(yes) = answer · (1, (rating − level)/sd, [relevant]), all 0 without
    answers. share: mean P(relevant). log_posterior: per document.
    """

    documents: int
    asked: int
    share: float
    prior: tuple[float, ...]
    level: tuple[float, ...]
    gain: float
    sd: float
    answer: tuple[float, ...]
    log_posterior: float = -math.inf
    steps: int = 0
    converged: bool = False

    @property
    def apart(self) -> float:
        """Separation of the class means, in standard deviations."""
        return self.gain / self.sd

    @property
    def is_reliable(self) -> bool:
        """Return whether the classes are separated and P(relevant) does not increase with rank."""
        first, tenth = self._shares()
        return self.apart >= WEAKEST and tenth - first <= _RISES

    def _shares(self) -> tuple[float, float]:
        """Return P(relevant) at ranks 1 and 10 without other evidence."""
        first, tenth = special.expit(_powers(np.array([1.0, 10.0]))[:, :_PRIOR] @ np.array(self.prior))
        return float(first), float(tenth)

    def posterior(self, data: Evidence) -> Reals:
        """Return P(relevant | rank, rating, answer), float64[N]."""
        return special.expit(_log_odds(self, data, _powers(data.rank))[0])

    def by_judges(self, data: Evidence) -> Reals:
        """Return P(relevant | rating, answer), float64[N], with the mean share as prior at all ranks.

        Measurements must not use first-stage ranks, or systems that copy them would win.
        """
        power_N4 = _powers(data.rank)
        by_rank = power_N4[:, :_PRIOR] @ np.array(self.prior)
        log_odds, _ = _log_odds(self, data, power_N4)
        return special.expit(log_odds - by_rank + special.logit(self.share))

    def said(self) -> str:
        """Return one line for the report."""
        first, tenth = self._shares()
        answers = f", {self.asked:,} of them asked about directly" if self.asked else ""
        return (
            f"{self.documents:,} documents{answers}: at rank 1 {first:.0%} are relevant, at rank 10 {tenth:.0%}; "
            f"at equal rank they are rated {self.gain:.0f} points higher ({self.apart:.1f} standard deviations)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RelevanceModel:
        """The inverse of `to_dict`; DataError on anything else."""
        if set(values) != {field.name for field in fields(cls)}:
            raise DataError(f"not a fitted model of relevance: fields {sorted(values)}", PLACE, "recompute the stage")
        lists = {name: tuple(values[name]) for name in ("prior", "level", "answer")}
        return cls(**{**values, **lists})


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
    rank = pc.cast(candidates["rank"], pa.float64()).to_numpy()  # null is NaN
    candidate_rank = np.append(rank, np.nan)[find_rows(candidates, keys)]
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
        rank=np.where(np.isnan(candidate_rank), last, candidate_rank),
        answer=answer,
    )
    return pa.table(keys), data


def by_answers(rating: Reals, error: Reals, prior_elo: float) -> tuple[Reals, Reals]:
    """Return ratings and errors, float64[N] points, without the prior N(0, prior_elo²).

    For each document, N(r, e²) is the prior times N(r / k, e² / k) with k = 1 - e² / prior_elo².
    """
    kept = np.maximum(1.0 - np.square(error / prior_elo), _LEAST_KEPT)
    return rating / kept, error / np.sqrt(kept)


def fit(data: Evidence) -> RelevanceModel | None:
    """Fit by EM until the posterior stops increasing; None for fewer than FEWEST documents or constant ratings.

    Steps ignore the information of answers about the rating's scale.
    """
    spread = float(data.rating.std()) if len(data.rating) else 0.0
    if len(data.rating) < FEWEST or spread < 1e-6:
        return None
    model = _none(data, spread)
    power_N4 = _powers(data.rank)
    share = _start(data, power_N4)
    before = -math.inf
    for step in range(1, STEPS + 1):
        model = _maximised(model, data, power_N4, share, spread)
        log_odds, density = _log_odds(model, data, power_N4)
        share = special.expit(log_odds)
        value = (float(density.sum()) + _log_prior(model, spread)) / len(density)
        ended = value - before < _TOLERANCE
        model = replace(model, share=float(share.mean()), log_posterior=value, steps=step, converged=ended)
        if ended:
            break
        before = value
    return model


def _none(data: Evidence, spread: float) -> RelevanceModel:
    """Return the initial model."""
    asked = int(data.asked.sum())
    return RelevanceModel(len(data.rating), asked, 0.0, (0.0,) * 3, (0.0,) * 4, 0.0, spread, (0.0,) * 3)


def _start(data: Evidence, power_N4: Reals) -> Reals:
    """Return the initial P(relevant) of every document."""
    residual = data.rating - power_N4 @ np.linalg.lstsq(power_N4, data.rating, rcond=None)[0]
    share = np.exp(_SHARP * residual / max(float(residual.std()), 1e-9)) / data.rank
    query = np.unique(data.query, return_inverse=True)[1]
    return _FOUND * share / np.bincount(query, share)[query]


def _log_prior(model: RelevanceModel, spread: float) -> float:
    """Return the log density of the priors of rank coefficients, up to a constant."""
    mean, variance = _BY_RANK
    by_rank = np.square(np.array(model.prior) - mean) / variance
    level = np.square(np.array(model.level) / (_LEVEL_SD * spread))
    return -0.5 * float(by_rank.sum() + level.sum())


def _powers(rank: Reals) -> Reals:
    """Return 1, L, L², L³ with L = log rank, float64[N, 4]."""
    return np.vander(np.log(rank), 4, increasing=True).astype(np.float64)


def _log_odds(model: RelevanceModel, data: Evidence, power_N4: Reals) -> tuple[Reals, Reals]:
    """Return log odds of relevant against other, and the log density of the evidence, float64[N] each."""
    variance = model.sd**2 + data.error**2
    prior = power_N4[:, :_PRIOR] @ np.array(model.prior)
    residual = data.rating - power_N4 @ np.array(model.level)
    log_other = special.log_expit(-prior) - 0.5 * residual**2 / variance
    log_relevant = special.log_expit(prior) - 0.5 * (residual - model.gain) ** 2 / variance
    asked = data.asked
    yes, by_rating, by_class = model.answer
    logit = yes + by_rating * residual[asked] / model.sd
    log_other[asked] += _fractional(data.answer[asked], logit)
    log_relevant[asked] += _fractional(data.answer[asked], logit + by_class)
    density = np.logaddexp(log_other, log_relevant) - 0.5 * np.log(2.0 * math.pi * variance)
    return log_relevant - log_other, density


def _maximised(model: RelevanceModel, data: Evidence, power_N4: Reals, share: Reals, spread: float) -> RelevanceModel:
    """Run the M step, given `share` float64[N], P(relevant) of every document."""
    precision = 1.0 / (model.sd**2 + data.error**2)
    level, gain = _regressed(power_N4, data.rating, share, precision, _LEVEL_SD * spread)
    residual = data.rating - power_N4 @ level
    # the rating without its error is latent too; its mean and variance given the class determine the sd
    kept = model.sd**2 * precision
    squares = (1.0 - share) * (kept * residual) ** 2 + share * (kept * (residual - gain)) ** 2
    sd = max(float(np.sqrt((squares + kept * data.error**2).mean())), _NARROWEST * spread)
    prior = _logistic(power_N4[:, :_PRIOR], share, np.ones(len(share)), np.array(model.prior), *_BY_RANK)
    moved = replace(model, prior=tuple(prior.tolist()), level=tuple(level.tolist()), gain=gain, sd=sd)
    asked = data.asked
    if not asked.any():
        return moved
    other_N3 = np.stack([np.ones(asked.sum()), residual[asked] / sd, np.zeros(asked.sum())], axis=1)
    design = np.concatenate([other_N3, other_N3 + np.array([0.0, 0.0, 1.0])])
    weight = np.concatenate([1.0 - share[asked], share[asked]])
    answer = _logistic(design, np.tile(data.answer[asked], 2), weight, np.array(model.answer), *_UNKNOWN)
    return replace(moved, answer=tuple(answer.tolist()))


def _regressed(level_NC: Reals, rating: Reals, share: Reals, precision: Reals, sd: Reals) -> tuple[Reals, float]:
    """Return level [C] and gain by least squares of ratings on powers of the rank and the class.

    Each document counts twice, as other and, with weight `share`, as relevant. sd [C]: prior of the level, mean 0.
    """
    weighed_NC = level_NC * precision[:, None]
    crossed = weighed_NC.T @ share
    relevant = share @ precision
    drawn = level_NC.T @ weighed_NC + np.diag(1.0 / np.square(sd))
    normal = np.block([[drawn, crossed[:, None]], [crossed[None], np.array([[relevant]])]])
    target = np.append(weighed_NC.T @ rating, (share * precision) @ rating)
    solution = np.linalg.lstsq(normal, target, rcond=None)[0]
    return solution[:-1].astype(np.float64), float(solution[-1])


def _logistic(design_NC: Reals, target: Reals, weight: Reals, start: Reals, mean: Reals, variance: Reals) -> Reals:
    """Take one Newton step of weighted logistic regression on targets in [0, 1], halved until it does not lose.

    Coefficients [C] have the prior N(mean, variance).
    """

    def value(coefficients: Reals) -> float:
        fitted = _fractional(target, design_NC @ coefficients)
        return float(weight @ fitted) - 0.5 * float((np.square(coefficients - mean) / variance).sum())

    p = special.expit(design_NC @ start)
    gradient = design_NC.T @ (weight * (target - p)) - (start - mean) / variance
    curvature = (design_NC * (weight * p * (1.0 - p))[:, None]).T @ design_NC + np.diag(1.0 / variance)
    step = np.linalg.solve(curvature, gradient)
    now = value(start)
    for _ in range(20):
        if value(start + step) >= now:
            return start + step
        step = step / 2.0
    return start


def _fractional(target: Reals, logit: Reals) -> Reals:
    """Return the log-likelihood of targets in [0, 1]: t log σ(x) + (1 − t) log σ(−x)."""
    return target * special.log_expit(logit) + (1.0 - target) * special.log_expit(-logit)
