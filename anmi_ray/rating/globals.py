"""What all queries share: prior and dispersion, estimated once from a hash sample of queries and then frozen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.rate import RateConfig
from anmi_ray.errors import DataError, FitError
from anmi_ray.identity import hash_sample, id_array
from anmi_ray.rating.diagnostics import components, refuse_without_maximum
from anmi_ray.rating.dispersion import pearson_dispersion, pooled_dispersion
from anmi_ray.rating.games import Games
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.prior import SD_FACTOR_BOUNDS, Free, PriorShape, empirical_bayes, prior_arrays, top_of_normals
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.scale import Floats, Model

MIN_POSITIVES = 100  # rated known positives from which their own prior is fitted rather than assumed
# Nats per positive that a fitted spread must gain. Simulated: under .025 where positives are the best documents
# (Laplace's error and chance; or the spread runs to its bound), .05 to 1.2 where half or all of them are not.
SPREAD_GAIN = 0.03
_ROUNDS = 20  # prior and dispersion depend on each other; they settle in three to six rounds
_SETTLED = 2e-3


@dataclass(frozen=True)
class Globals:
    """Prior and dispersion of a run, in latent units, and how each was obtained.

    sigma0: sd of the prior, None for plain maximum likelihood. positive_mean_factor, positive_sd_factor: a known
    positive's prior is N(a M σ0, (b S σ0)²), M and S those of the maximum of the query's n draws (None: like all).
    positive_mean, positive_sd: the same in latent units at the sample's median n, for reading. dispersion: φ.
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
    queries: int
    documents: int
    games: int
    positives: int

    def to_json(self) -> str:
        """All fields as one JSON object, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Globals:
        """The inverse of `to_json`; DataError on anything else."""
        try:
            values = json.loads(text)
            if set(values) != {field.name for field in fields(cls)}:
                raise ValueError(f"fields {sorted(values)}")
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise DataError(f"not the shared numbers of a rate stage: {error}", None, "recompute the stage") from error

    def prior(self) -> PriorShape | None:
        """The prior's shape, None for plain maximum likelihood."""
        if self.sigma0 is None:
            return None
        return PriorShape(self.sigma0, self.positive_mean_factor, self.positive_sd_factor)


def sample_queries(query_ids: Iterable[bytes], size: int) -> list[bytes]:
    """The queries that `fit_globals` uses: a hash sample, so samples of parts hold the sample of the whole."""
    return hash_sample(list(query_ids), size, "rate")


def posterior(games: Games, model: Model, m: Floats, shape: PriorShape | None) -> Posterior:
    """Likelihood and prior of all queries; without a prior, FitError where there is no finite unique maximum."""
    if shape is None:
        refuse_without_maximum(games)
        none = np.zeros(len(games.doc_ids))
        return Posterior(games, model, m, none, none)
    return Posterior(games, model, m, *prior_arrays(games, shape))


def fit_globals(judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, config: RateConfig) -> Globals:
    """Estimate prior and dispersion from at most `config.sample_queries` of the queries given.

    Prior (empirical Bayes, pooled over queries) and dispersion (Pearson, pooled) are found in turn until both stand.
    FitError: no pair has an answer, or plain maximum likelihood has no maximum.
    """
    chosen = sample_queries(pc.unique(comparisons["query_id"]).to_pylist(), config.sample_queries)
    judgments, comparisons, candidates = (
        table.filter(pc.is_in(table["query_id"], value_set=id_array(chosen)))
        for table in (judgments, comparisons, candidates)
    )
    games, _ = read_games(judgments, comparisons, candidates, config.inconsistent_strength)
    return globals_of(games, config)


def globals_of(games: Games, config: RateConfig) -> Globals:
    """`fit_globals` on games already read."""
    if not games.queries:
        raise FitError(
            "no pair has an answer, so nothing can be estimated",
            "rate",
            "look at the judge stage's rejects; every judgment failed or none was asked",
        )
    positives = int(games.positive.sum())
    fitted = config.positive_prior == "fitted" and positives >= MIN_POSITIVES and config.prior is not None
    state = _State(
        shape=_first_shape(config),
        dispersion=1.0 if isinstance(config.dispersion, str) else config.dispersion,
        dispersion_how=config.dispersion if isinstance(config.dispersion, str) else "fixed",
    )
    free = Free(sigma0=config.prior == "empirical-bayes", mean_factor=fitted)
    state = _settle(games, config, state, free)
    spread = False
    if fitted:  # a wider prior of positives has to pay for itself: Laplace alone would widen it where games are few
        m, wider = games.answers / state.dispersion, free._replace(sd_factor=True)
        narrow = empirical_bayes(games, config.model, m, state.shape, free, state.latent)
        wide = empirical_bayes(games, config.model, m, narrow.shape, wider, narrow.latent)
        gain = wide.log_marginal - narrow.log_marginal
        inside = (wide.shape.sd_factor or 0.0) < SD_FACTOR_BOUNDS[1]  # at the bound it is not identified
        spread = inside and gain > SPREAD_GAIN * positives
        if spread:
            state = _settle(games, config, replace(state, shape=wide.shape, latent=wide.latent), wider)
    return _globals(games, config, state, positives, fitted, spread)


@dataclass(frozen=True)
class _State:
    """Where the turns between prior and dispersion stand."""

    shape: PriorShape
    dispersion: float
    dispersion_how: str
    latent: Floats | None = None
    at_bound: bool = False


def _settle(games: Games, config: RateConfig, state: _State, free: Free) -> _State:
    """Fit prior and dispersion in turn, by secant steps in log φ, until an estimate repeats what it was given."""
    parts = components(games)
    before: tuple[float, float] | None = None
    for _ in range(_ROUNDS):
        m = games.answers / state.dispersion
        if any(free):
            found = empirical_bayes(games, config.model, m, state.shape, free, state.latent)
            state = replace(state, shape=found.shape, latent=found.latent, at_bound=found.at_bound)
        if state.dispersion_how not in ("pooled", "pearson"):
            return state
        target = posterior(games, config.model, m, None if config.prior is None else state.shape)
        latent = solve(target, config.tolerance, config.max_iterations, state.latent).latent
        if state.dispersion_how == "pearson":  # once: fed back, it runs towards zero where games are few
            estimate, how = pearson_dispersion(games, config.model, latent, parts.count), "pearson at dispersion 1"
        else:
            estimate, how = pooled_dispersion(target, latent, parts.component), state.dispersion_how
        state = replace(state, latent=latent, dispersion_how=how)
        if np.isnan(estimate):
            return replace(state, dispersion_how="1, no game is predicted by others")
        if how != "pooled":
            state = replace(state, dispersion=estimate)
            continue
        given, got = math.log(state.dispersion), math.log(estimate)
        if abs(got - given) <= _SETTLED:
            return state
        # a larger φ gives a smaller σ0, which gives a smaller φ: the plain iteration swings, so steps are shortened
        slope = -0.6 if before is None or given == before[0] else (got - before[1]) / (given - before[0])
        before = (given, got)
        step = (got - given) / (1.0 - min(0.5, max(-2.0, slope)))
        state = replace(state, dispersion=math.exp(given + step))
    return replace(state, dispersion_how=f"{state.dispersion_how}, not settled after {_ROUNDS} rounds")


def _first_shape(config: RateConfig) -> PriorShape:
    sigma0 = 1.0 if config.prior is None or isinstance(config.prior, str) else config.prior
    return PriorShape(sigma0, None, None) if config.positive_prior == "same" else PriorShape(sigma0)


def _globals(games: Games, config: RateConfig, state: _State, positives: int, fitted: bool, spread: bool) -> Globals:
    bound = ", at a bound of its range" if state.at_bound else ""
    shape = state.shape if config.prior is not None else PriorShape(0.0, None, None)
    mean = sd = None
    if shape.mean_factor is not None and shape.sd_factor is not None:
        top_mean, top_sd = top_of_normals(int(np.median(games.documents)))
        mean, sd = shape.mean_factor * top_mean * shape.sigma0, shape.sd_factor * top_sd * shape.sigma0
    return Globals(
        model=config.model,
        sigma0=None if config.prior is None else shape.sigma0,
        sigma0_how=f"empirical Bayes{bound}"
        if config.prior == "empirical-bayes"
        else "fixed"
        if config.prior
        else "none",
        positive_mean_factor=shape.mean_factor,
        positive_sd_factor=shape.sd_factor,
        positive_mean=mean,
        positive_sd=sd,
        positive_how=_positive_how(config, positives, fitted, spread),
        dispersion=state.dispersion,
        dispersion_how=state.dispersion_how,
        queries=games.queries,
        documents=len(games.doc_ids),
        games=len(games.w),
        positives=positives,
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
