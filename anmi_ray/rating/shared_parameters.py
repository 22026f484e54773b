"""What all queries share, estimated once from a hash sample of queries and then frozen.

Prior, dispersion and, where asked for, tie width and judges' leanings towards what they are shown first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import optimize

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import DataError, FitError
from anmi_ray.core.identity import hash_sample, id_array
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.diagnostics import Components, components, refuse_without_maximum, without_maximum
from anmi_ray.rating.dispersion import (
    DEFAULT,
    Spreads,
    least_dispersion,
    pooled_dispersion,
    weighted_spreads,
    with_defaults,
)
from anmi_ray.rating.games import Games, bounded
from anmi_ray.rating.likelihood import Likelihood, Ties
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.prior import (
    SD_FACTOR_BOUNDS,
    Free,
    PriorShape,
    empirical_bayes,
    log_marginal,
    prior_arrays,
    top_of_normals,
)
from anmi_ray.rating.solver import Posterior, solve

SAMPLE_QUERIES = 5000  # from which prior and dispersion are estimated: their error is then far below a rating's own
MIN_POSITIVES = 100  # rated known positives from which their own prior is fitted rather than assumed
# Nats per positive that a fitted spread must gain. Simulated: under .025 where positives are the best documents
# (Laplace's error and chance; or the spread runs to its bound), .05 to 1.2 where half or all of them are not.
SPREAD_GAIN = 0.03
_ROUNDS = 20  # prior and dispersion depend on each other; they settle in three to six rounds
_SETTLED = 2e-3
_PRECISE = 1e-4  # relative, of a tie width given all else
SAMPLE_DOCUMENTS = 2000  # of a larger query only a piece of its graph is looked at: the estimates factorise it
WIDTH_BOUNDS = (1e-3, 50.0)
_FIRST_WIDTH = 0.3
_OPTIONAL = {"spreads"}  # fields of Globals that may be absent from its JSON
_FORMER = {"lapse": 0.0, "lapse_how": "none"}  # fields in the JSON of earlier versions


@dataclass(frozen=True)
class Globals:
    """Prior, dispersion, tie width and judges' leanings, in latent units, and how each was obtained.

    sigma0: sd of the prior, None for plain maximum likelihood. positive_mean_factor, positive_sd_factor: a known
    positive's prior is N(a M σ0, (b S σ0)²), M and S those of the maximum of the query's n draws (None: like all).
    positive_mean, positive_sd: the same in latent units at the sample's median n, for reading. dispersion: φ.
    tie_width: Davidson's ν, 0 where a tie is half a win. offsets: by judge, what a gap gains in favour of the document
    shown first. log_marginal: of the sample, for comparing models that use the same games. spreads: where sigma0 is a
    default, the standard deviations that ratings are averaged over; sigma0 is their root mean square.
    """

    model: Model
    sigma0: float | None
    sigma0_how: str
    positive_mean_factor: float | None
    positive_sd_factor: float | None
    positive_mean: float | None
    positive_sd: float | None
    positive_how: str
    dispersion: float
    dispersion_how: str
    ties: Ties
    tie_width: float
    offsets: dict[str, float]
    queries: int
    documents: int
    games: int
    positives: int
    log_marginal: float
    spreads: Spreads | None = None

    def to_json(self) -> str:
        """Return all fields as one JSON object, keys sorted; `spreads` only if there are any."""
        values: dict[str, object] = asdict(self)
        kept = {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}
        return json.dumps(kept, sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Globals:
        """The inverse of `to_json`; DataError on anything else."""
        try:
            values = dict(json.loads(text))
            values = {name: value for name, value in values.items() if _FORMER.get(name, ...) != value}
            if set(values) | _OPTIONAL != {field.name for field in fields(cls)}:
                raise ValueError(f"fields {sorted(values)}")
            if "spreads" in values:
                values["spreads"] = tuple((sd, weight) for sd, weight in values["spreads"])
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise DataError(f"not the shared numbers of a rate stage: {error}", None, "recompute the stage") from error

    def posterior(self, games: Games) -> Posterior:
        """Likelihood and prior of all queries of `games`; a judge unknown here does not lean. Raises as `posterior`."""
        like = Likelihood.of(self.model, self.ties, self.tie_width)
        shape = None
        if self.sigma0 is not None:
            shape = PriorShape(self.sigma0, self.positive_mean_factor, self.positive_sd_factor)
        leaning = np.array([self.offsets.get(name, 0.0) for name in games.judges])
        return posterior(games, like, games.answers / self.dispersion, shape, games.offset(leaning))


def sample_queries(query_ids: Iterable[bytes], size: int) -> list[bytes]:
    """The queries that shared numbers come from: a hash sample, so samples of parts hold the sample of the whole."""
    return hash_sample(list(query_ids), size, "rate")


def posterior(
    games: Games, like: Likelihood, m: Floats, shape: PriorShape | None, offset: Floats | None = None
) -> Posterior:
    """Return the posterior of all queries. Raises FitError without a prior if no finite unique maximum exists."""
    if shape is None:
        refuse_without_maximum(games)
    return Posterior(games, like, m, *prior_arrays(games, shape), offset)


def fit_globals(judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, config: RateConfig) -> Globals:
    """`globals_of` the games of at most SAMPLE_QUERIES of the queries given."""
    chosen = sample_queries(pc.unique(comparisons["query_id"]).to_pylist(), SAMPLE_QUERIES)
    judgments, comparisons, candidates = (
        table.filter(pc.is_in(table["query_id"], value_set=id_array(chosen)))
        for table in (judgments, comparisons, candidates)
    )
    how = (config.judge_offsets, config.judge_weights)
    games, _ = read_games(judgments, comparisons, candidates, *how)
    return globals_of(games, config)


def globals_of(games: Games, config: RateConfig, threads: int = 1) -> Globals:
    """Estimate what all queries share from the games of a sample.

    `games` are the documents and games looked at: a query of more than SAMPLE_DOCUMENTS gives a piece of its graph.
    Prior and judges' leanings (empirical Bayes, pooled over queries), dispersion (pooled) and tie width
    (marginal likelihood) are fitted in turn until all converge. FitError: no pair has an answer, or plain maximum
    likelihood has no maximum.
    """
    if not games.queries:
        raise FitError(
            "no pair has an answer, so nothing can be estimated",
            "rate",
            "look at the judge stage's rejects; every judgment failed or none was asked",
        )
    if config.prior is None:
        refuse_without_maximum(games)
    games = bounded(games, SAMPLE_DOCUMENTS)
    original = config
    parts = components(games)
    config = with_defaults(games, config, parts)
    if config.prior is None and isinstance(config.dispersion, str) and len(without_maximum(games)):
        raise FitError(  # whole queries have a maximum, pieces need not
            f"the dispersion is estimated on at most {SAMPLE_DOCUMENTS:,} connected documents of a query, and without "
            "a prior such a piece of a larger query has no finite maximum here",
            "rate",
            "set rate.dispersion (--dispersion) to a number, such as 1, or the prior to empirical-bayes",
        )
    positives = int(games.positive.sum())
    fitted = config.positive_prior == "fitted" and positives >= MIN_POSITIVES and config.prior is not None
    sample = _Sample(games, original, config, parts, threads)
    free = Free(config.prior == "empirical-bayes", fitted, offsets=bool(config.judge_offsets))
    state = _settle(sample, _first_state(sample), free)
    spread = False
    if fitted:  # a wider prior of positives has to pay for itself: Laplace alone would widen it where games are few
        wider = free._replace(sd_factor=True)
        narrow, narrow_value = _fit_prior(sample, state, free)
        wide, wide_value = _fit_prior(sample, narrow, wider)
        inside = wide.shape is not None and (wide.shape.sd_factor or 0.0) < SD_FACTOR_BOUNDS[1]  # else not identified
        spread = inside and wide_value - narrow_value > SPREAD_GAIN * positives
        if spread:
            state = _settle(sample, wide, wider)
    if config.prior == original.prior or state.shape is None:
        return _globals(sample, state, positives, fitted, spread)
    offset = games.offset(state.leaning)
    spreads = weighted_spreads(games, parts, state.like, state.dispersion, state.shape, offset, config)
    mean_square = sum(weight * sd * sd for sd, weight in spreads)
    state = replace(state, shape=replace(state.shape, sigma0=math.sqrt(mean_square)))
    return replace(_globals(sample, state, positives, fitted, spread), spreads=spreads)


@dataclass(frozen=True)
class _Sample:
    """Inputs of the estimates."""

    games: Games
    asked: RateConfig  # the settings as given
    config: RateConfig  # the same with defaults where there are too few comparisons
    parts: Components
    threads: int


@dataclass(frozen=True)
class _State:
    """Current values of the alternating estimates."""

    shape: PriorShape | None
    dispersion: float
    dispersion_how: str
    like: Likelihood
    leaning: Floats
    latent: Floats | None = None
    at_bound: bool = False


def _first_state(sample: _Sample) -> _State:
    config = sample.config
    width = 0.0 if config.ties == "half" else _FIRST_WIDTH
    shape = None
    if config.prior is not None:
        factors = (None, None) if config.positive_prior == "same" else ()
        shape = PriorShape(1.0 if isinstance(config.prior, str) else config.prior, *factors)
    return _State(
        shape=shape,
        dispersion=1.0 if isinstance(config.dispersion, str) else config.dispersion,
        dispersion_how=config.dispersion if isinstance(config.dispersion, str) else _given(sample, "dispersion"),
        like=Likelihood.of(config.model, config.ties, width),
        leaning=np.zeros(len(sample.games.judges)),
    )


def _given(sample: _Sample, setting: str) -> str:
    """How a number was obtained that was not estimated."""
    return "fixed" if getattr(sample.asked, setting) == getattr(sample.config, setting) else DEFAULT


def _settle(sample: _Sample, state: _State, free: Free) -> _State:
    """Fit prior, tie width and dispersion in turn, by secant steps in log φ, until an estimate repeats its input."""
    before: tuple[float, float] | None = None
    for _ in range(_ROUNDS):
        state = _fit_prior(sample, state, free)[0]
        state, width_settled = _fit_tie_width(sample, state)
        if state.dispersion_how != "pooled":
            if width_settled:
                return state
            continue
        target, latent = _mode(sample, state)
        state = replace(state, latent=latent)
        estimate = pooled_dispersion(target, latent, sample.parts.component, sample.threads)
        if np.isnan(estimate):
            return replace(state, dispersion_how="1, no game is predicted by others")
        log_used = math.log(state.dispersion)
        log_estimate = math.log(max(estimate, least_dispersion(sample.games, sample.parts)))
        if abs(log_estimate - log_used) <= _SETTLED and width_settled:
            return state
        # a larger φ gives a smaller σ0, which gives a smaller φ: the plain iteration swings, so steps are shortened
        slope = -0.6 if before is None or log_used == before[0] else (log_estimate - before[1]) / (log_used - before[0])
        before = (log_used, log_estimate)
        step = (log_estimate - log_used) / (1.0 - min(0.5, max(-2.0, slope)))
        state = replace(state, dispersion=math.exp(log_used + step))
    return replace(state, dispersion_how=f"{state.dispersion_how}, not settled after {_ROUNDS} rounds")


def _fit_prior(sample: _Sample, state: _State, free: Free) -> tuple[_State, float]:
    """The prior and the judges' leanings that explain the games best, and the log marginal likelihood."""
    games = sample.games
    m = games.answers / state.dispersion
    if not (free.sigma0 or free.mean_factor or free.sd_factor or (free.offsets and len(state.leaning))):
        offset = games.offset(state.leaning)
        at = log_marginal(games, state.like, m, state.shape, state.latent, offset, sample.threads)
        return replace(state, latent=at.latent), at.value
    fit = empirical_bayes(games, state.like, m, state.shape, free, state.latent, state.leaning, sample.threads)
    fitted = replace(state, shape=fit.shape, latent=fit.latent, at_bound=fit.at_bound, leaning=fit.offsets)
    return fitted, fit.log_marginal


def _fit_tie_width(sample: _Sample, state: _State) -> tuple[_State, bool]:
    """Fit the tie width by marginal likelihood, and say whether it is what it was."""
    games = sample.games
    if sample.config.ties == "half":
        return state, True
    m = games.answers / state.dispersion
    offset = games.offset(state.leaning)

    def loss(log_value: float) -> float:
        like = state.like._replace(width=math.exp(log_value))
        return -log_marginal(games, like, m, state.shape, state.latent, offset, sample.threads).value

    minimum: Any = optimize.minimize_scalar(
        loss, bounds=np.log(WIDTH_BOUNDS), method="bounded", options={"xatol": _PRECISE}
    )
    width = math.exp(minimum.x)
    settled = abs(math.log(width / state.like.width)) <= 5.0 * _SETTLED
    return replace(state, like=state.like._replace(width=width)), settled


def _mode(sample: _Sample, state: _State) -> tuple[Posterior, Floats]:
    """Return the posterior at the current estimates and its modes, warm-started."""
    games = sample.games
    offset = games.offset(state.leaning)
    target = posterior(games, state.like, games.answers / state.dispersion, state.shape, offset)
    return target, solve(target, start=state.latent, threads=sample.threads).latent


def _globals(sample: _Sample, state: _State, positives: int, fitted: bool, spread: bool) -> Globals:
    games = sample.games
    config = sample.config
    shape = state.shape
    bound = ", at a bound of its range" if state.at_bound else ""
    mean = sd = None
    if shape is not None and shape.mean_factor is not None and shape.sd_factor is not None:
        top_mean, top_sd = top_of_normals(int(np.median(games.documents)))
        mean = shape.mean_factor * top_mean * shape.sigma0
        sd = shape.sd_factor * top_sd * shape.sigma0
    how = f"empirical Bayes{bound}" if config.prior == "empirical-bayes" else _given(sample, "prior")
    return Globals(
        model=config.model,
        sigma0=None if shape is None else shape.sigma0,
        sigma0_how="none" if shape is None else how,
        positive_mean_factor=None if shape is None else shape.mean_factor,
        positive_sd_factor=None if shape is None else shape.sd_factor,
        positive_mean=mean,
        positive_sd=sd,
        positive_how=_positive_how(config, positives, fitted, spread),
        dispersion=state.dispersion,
        dispersion_how=state.dispersion_how,
        ties=config.ties,
        tie_width=state.like.width,
        offsets=dict(zip(games.judges, state.leaning.tolist(), strict=True)) if config.judge_offsets else {},
        queries=games.queries,
        documents=len(games.doc_ids),
        games=len(games.w),
        positives=positives,
        log_marginal=_fit_prior(sample, state, Free(False))[1],
    )


def _positive_how(config: RateConfig, positives: int, fitted: bool, spread: bool) -> str:
    if config.prior is None:
        return "none"
    if config.positive_prior == "same":
        return "same as all documents"
    if fitted:
        what = "mean and spread" if spread else "mean"
        return f"maximum of n draws, {what} fitted to {positives} known positives"
    if config.positive_prior == "fitted":
        return f"maximum of n draws (only {positives} known positives, {MIN_POSITIVES} needed to fit)"
    return "maximum of n draws"
