"""P(relevant) of rated documents where no label says it: from rating, rank in the first stage, and direct answers.

A document is of one of two classes, relevant or other, and nobody says of which. Three things speak of it: its rank in
the first stage (how often a document there is relevant), its rating (relevant ones stand `gain` points above others of
the same rank), and, where judges were asked directly, their answer. What each is worth is fitted by EM on the run's own
ratings, as Dawid and Skene (1979) fit observers without a known truth. So a useless first stage gets no weight. How
ratings follow the rank among the other documents is fitted too: a judge who likes what retrieval likes, rightly or not,
is not believed twice. Nor is a judge who errs alike on a document in comparisons and in the direct answer, for an
answer is modelled given the rating. The spread of ratings within a class holds the judges' lasting errors, which no
standard error of a rating knows.
A rating is drawn towards the mean by its prior, the more the less was asked about its document. Where documents were
asked about unequally, as in an adaptive design, that is taken out before (`by_answers`): else those that few questions
were about stand so close together that whoever was asked about seems relevant.
What follows the rank has weak priors: half of the documents at rank 1 are relevant, fewer below, and ratings of the
others hardly follow it. A hundred queries overrule them; in twenty, two classes were found that were not relevance.
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

FEWEST = 200  # documents below which nothing is fitted: five queries of forty
WEAKEST = (
    1.0  # minimum separation of the classes in standard deviations: EM ends near .6 on noise, and is calibrated from 1
)
_RISES = 0.25  # of P(relevant) from rank 1 to rank 10: no chance does that, the classes are two kinds of document
STEPS = 500
_TOLERANCE = 1e-7  # nats per document that a step must still gain
_PRIOR = 3  # powers of log rank that the prior has
_NARROWEST = 0.05  # minimum sd of a class, as a share of the sd of all ratings
_LEAST_KEPT = 0.02  # of the prior's variance that answers took away: with less a document was hardly asked about
_LOOSE = 1e3  # variance of a coefficient that nothing is known of: finite where answers are told apart whole
# Normal priors of what follows L = log rank: means and variances of 1, L, L² in the log odds of relevance; sds of
# 1, L, L², L³ in a rating, in sds of all ratings.
_BY_RANK = (np.array([0.0, -1.5, 0.0]), np.array([1.0**2, 0.5**2, 0.1**2]))
_LEVEL_SD = np.array([math.inf, 0.15, 0.1, 0.05])
_UNKNOWN = (np.zeros(3), np.full(3, _LOOSE))
# Where EM starts: a query's relevant documents sum to _FOUND, shared by exp(_SHARP · rating beside its rank, in sds) /
# rank. A start by rank alone ends where the class is "the first ten" if ratings follow the rank.
_FOUND = 0.9
_SHARP = 1.5


class Evidence(NamedTuple):
    """What is known of N documents. answer is in [0, 1], NaN where nobody was asked."""

    query: Ints  # any numbering
    rating: Reals  # points, centred within the query
    error: Reals  # points, of the rating
    rank: Reals  # from 1
    answer: Reals

    @property
    def asked(self) -> Flags:
        """Who has an answer, bool[N]."""
        return np.isfinite(self.answer)


@dataclass(frozen=True)
class RelevanceModel:
    """How rank, rating and answer follow from the class; ratings in points, L = log rank.

    logit P(relevant) = prior · (1, L, L²); rating ~ N(level · (1, L, L², L³) + gain · [relevant], sd² + error²);
    logit P(yes) = answer · (1, (rating − level)/sd, [relevant]), all 0 where nobody was asked.
    share is the mean P(relevant). log_posterior is of the data and of what follows the rank, per document.
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
    def tells(self) -> bool:
        """Return whether the classes are separated: below WEAKEST, EM finds two classes in noise.

        And whether they are relevance: a first stage may tell nothing of it, but is not upside down.
        """
        first, tenth = self._shares()
        return self.apart >= WEAKEST and tenth - first <= _RISES

    def _shares(self) -> tuple[float, float]:
        """P(relevant) at ranks 1 and 10, where nothing else is known."""
        first, tenth = special.expit(_powers(np.array([1.0, 10.0]))[:, :_PRIOR] @ np.array(self.prior))
        return float(first), float(tenth)

    def posterior(self, known: Evidence) -> Reals:
        """P(relevant | rank, rating, answer), float64[N]."""
        return special.expit(_log_odds(self, known, _powers(known.rank))[0])

    def by_judges(self, known: Evidence) -> Reals:
        """P(relevant | rating, answer), float64[N]: the rank says nothing, all ranks have the documents' mean share.

        What measures systems must not know where the first stage put a document, or whoever copies it is the best.
        """
        power_N4 = _powers(known.rank)
        by_rank = power_N4[:, :_PRIOR] @ np.array(self.prior)
        log_odds, _ = _log_odds(self, known, power_N4)
        return special.expit(log_odds - by_rank + special.logit(self.share))

    def said(self) -> str:
        """One line for the report."""
        first, tenth = self._shares()
        answers = f", {self.asked:,} of them asked about directly" if self.asked else ""
        return (
            f"{self.documents:,} documents{answers}: at rank 1 {first:.0%} are relevant, at rank 10 {tenth:.0%}; "
            f"they are rated {self.gain:.0f} points higher than others of their rank, {self.apart:.1f} sds"
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
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
    """(query_id, doc_id) of the rated documents of queries without a known positive, as they stand in Ratings; of each
    what is known.

    gaps say which queries these are: theirs are measured from top-rated documents. answers: query_id, doc_id,
    probability (NaN: no answer) of those asked about. A rated document that no retriever found is ranked behind
    the others of its query. prior_elo: sd of the ratings' prior, where documents were asked about unequally.
    """
    wanted = pc.unique(gaps.filter(pc.equal(gaps["anchor_kind"], "top-rated"))["query_id"])
    rated = ratings.filter(pc.is_in(ratings["query_id"], value_set=wanted))
    keys = {"query_id": rated["query_id"], "doc_id": rated["doc_id"]}
    rank = pc.cast(candidates["rank"], pa.float64()).to_numpy()  # null is NaN
    found = np.append(rank, np.nan)[find_rows(candidates, keys)]
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
    known = Evidence(
        query=query,
        rating=rating,
        error=error,
        rank=np.where(np.isnan(found), last, found),
        answer=answer,
    )
    return pa.table(keys), known


def by_answers(rating: Reals, error: Reals, prior_elo: float) -> tuple[Reals, Reals]:
    """Ratings and errors, float64[N] points, as the answers alone give them: without the prior N(0, prior_elo²).

    A posterior N(r, e²) is the prior times N(r / k, e² / k) with k = 1 - e² / prior_elo², a document by itself.
    """
    kept = np.maximum(1.0 - np.square(error / prior_elo), _LEAST_KEPT)
    return rating / kept, error / np.sqrt(kept)


def fit(known: Evidence) -> RelevanceModel | None:
    """The likeliest model near the start; None where there are fewer than FEWEST documents, or no spread.

    Steps of EM, which leave out what answers say of the rating's scale; they end where the posterior rises no more, be
    it that the next step would lower it. Raises DataError on values that are not finite, ranks below 1.
    """
    _check(known)
    spread = float(known.rating.std()) if len(known.rating) else 0.0
    if len(known.rating) < FEWEST or spread < 1e-6:
        return None
    model = _none(known, spread)
    power_N4 = _powers(known.rank)
    share = _start(known, power_N4)
    before = -math.inf
    for step in range(1, STEPS + 1):
        model = _maximised(model, known, power_N4, share, spread)
        log_odds, density = _log_odds(model, known, power_N4)
        share = special.expit(log_odds)
        value = (float(density.sum()) + _log_prior(model, spread)) / len(density)
        ended = value - before < _TOLERANCE
        model = replace(model, share=float(share.mean()), log_posterior=value, steps=step, converged=ended)
        if ended:
            break
        before = value
    return model


def _none(known: Evidence, spread: float) -> RelevanceModel:
    """Before anything is fitted."""
    asked = int(known.asked.sum())
    return RelevanceModel(len(known.rating), asked, 0.0, (0.0,) * 3, (0.0,) * 4, 0.0, spread, (0.0,) * 3)


def _start(known: Evidence, power_N4: Reals) -> Reals:
    """P(relevant) of every document before anything is fitted."""
    beside = known.rating - power_N4 @ np.linalg.lstsq(power_N4, known.rating, rcond=None)[0]
    share = np.exp(_SHARP * beside / max(float(beside.std()), 1e-9)) / known.rank
    query = np.unique(known.query, return_inverse=True)[1]
    return _FOUND * share / np.bincount(query, share)[query]


def _log_prior(model: RelevanceModel, spread: float) -> float:
    """Log density of what follows the rank, but for a constant."""
    mean, variance = _BY_RANK
    by_rank = np.square(np.array(model.prior) - mean) / variance
    level = np.square(np.array(model.level) / (_LEVEL_SD * spread))
    return -0.5 * float(by_rank.sum() + level.sum())


def _powers(rank: Reals) -> Reals:
    """1, L, L², L³ with L = log rank, float64[N, 4]."""
    return np.vander(np.log(rank), 4, increasing=True).astype(np.float64)


def _log_odds(model: RelevanceModel, known: Evidence, power_N4: Reals) -> tuple[Reals, Reals]:
    """Log odds of relevant against other, and log density of all that is known, float64[N] each."""
    variance = model.sd**2 + known.error**2
    prior = power_N4[:, :_PRIOR] @ np.array(model.prior)
    beside = known.rating - power_N4 @ np.array(model.level)
    log_other = special.log_expit(-prior) - 0.5 * beside**2 / variance
    log_relevant = special.log_expit(prior) - 0.5 * (beside - model.gain) ** 2 / variance
    asked = known.asked
    yes, by_rating, by_class = model.answer
    logit = yes + by_rating * beside[asked] / model.sd
    log_other[asked] += _fractional(known.answer[asked], logit)
    log_relevant[asked] += _fractional(known.answer[asked], logit + by_class)
    density = np.logaddexp(log_other, log_relevant) - 0.5 * np.log(2.0 * math.pi * variance)
    return log_relevant - log_other, density


def _maximised(model: RelevanceModel, known: Evidence, power_N4: Reals, share: Reals, spread: float) -> RelevanceModel:
    """The M step: `share` float64[N] is P(relevant) of every document."""
    precision = 1.0 / (model.sd**2 + known.error**2)
    level, gain = _regressed(power_N4, known.rating, share, precision, _LEVEL_SD * spread)
    beside = known.rating - power_N4 @ level
    # the rating without its error is hidden too: its mean and variance given the class make the sd
    kept = model.sd**2 * precision
    squares = (1.0 - share) * (kept * beside) ** 2 + share * (kept * (beside - gain)) ** 2
    sd = max(float(np.sqrt((squares + kept * known.error**2).mean())), _NARROWEST * spread)
    prior = _logistic(power_N4[:, :_PRIOR], share, np.ones(len(share)), np.array(model.prior), *_BY_RANK)
    moved = replace(model, prior=tuple(prior.tolist()), level=tuple(level.tolist()), gain=gain, sd=sd)
    asked = known.asked
    if not asked.any():
        return moved
    other_N3 = np.stack([np.ones(asked.sum()), beside[asked] / sd, np.zeros(asked.sum())], axis=1)
    design = np.concatenate([other_N3, other_N3 + np.array([0.0, 0.0, 1.0])])
    weight = np.concatenate([1.0 - share[asked], share[asked]])
    answer = _logistic(design, np.tile(known.answer[asked], 2), weight, np.array(model.answer), *_UNKNOWN)
    return replace(moved, answer=tuple(answer.tolist()))


def _regressed(level_NC: Reals, rating: Reals, share: Reals, precision: Reals, sd: Reals) -> tuple[Reals, float]:
    """Level [C] and gain: least squares of the rating on the rank's powers and the class, known by `share` alone.

    A document stands in the sums twice, as another and, with weight `share`, as a relevant one. sd [C] of the level's
    prior, whose mean is 0.
    """
    weighed_NC = level_NC * precision[:, None]
    crossed = weighed_NC.T @ share
    relevant = share @ precision
    drawn = level_NC.T @ weighed_NC + np.diag(1.0 / np.square(sd))
    normal = np.block([[drawn, crossed[:, None]], [crossed[None], np.array([[relevant]])]])
    target = np.append(weighed_NC.T @ rating, (share * precision) @ rating)
    found = np.linalg.lstsq(normal, target, rcond=None)[0]
    return found[:-1].astype(np.float64), float(found[-1])


def _logistic(design_NC: Reals, target: Reals, weight: Reals, start: Reals, mean: Reals, variance: Reals) -> Reals:
    """One Newton step of weighted logistic regression on targets in [0, 1], halved until it does not lose.

    Coefficients [C] are N(mean, variance) before.
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
    """Log-likelihood of targets in [0, 1]: t log σ(x) + (1 − t) log σ(−x)."""
    return target * special.log_expit(logit) + (1.0 - target) * special.log_expit(-logit)


def _check(known: Evidence) -> None:
    good = np.isfinite(known.rating) & np.isfinite(known.error) & (known.error >= 0) & (known.rank >= 1)
    if not good.all():
        raise DataError(
            f"{int((~good).sum())} documents have a rating or an error that is not finite, or a rank below 1",
            PLACE,
            "recompute the rate stage",
        )
