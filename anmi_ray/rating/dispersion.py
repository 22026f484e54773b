"""The dispersion φ of answers over a fair coin's variance, pooled over all queries.

Judges who agree because they share their errors, two orders that answer alike, and graded instead of yes/no answers
all show in one number: how far preferences scatter around what is expected. A pair of `answers` answers then counts
as answers/φ games (methods 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import Floats, to_latent
from anmi_ray.rating.diagnostics import Components
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import linearise
from anmi_ray.rating.likelihood import Likelihood, moments
from anmi_ray.rating.prior import PriorShape, log_marginal
from anmi_ray.rating.solver import Posterior
from anmi_ray.rating.uncertainty import game_variances

# Of answers that count as one each: graded judges can follow the model exactly; an answer is at most 50 games.
DISPERSION_BOUNDS = (0.02, 50.0)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def pooled_dispersion(posterior: Posterior, latent: Floats, component: NDArray[np.int32], threads: int = 1) -> float:
    """φ by moments of leave-one-pair-out predictions; NaN where no pair can be predicted from the others.

    All games of a pair are one mean preference w of `answers` answers: who repeats another's errors, or a file that
    counts wins and losses in rows of their own, shows only there. With μ(x) and V(x) the mean and variance of one
    answer at the gap x that the other pairs predict, p = E μ: E (w - p)² = (E μ² - p²) + φ E V / answers, so
    φ = Σ answers [(w - p)² - (E μ² - p²)] / Σ E V. Fitted residuals would be too small wherever games are few:
    Pearson's φ falls to .7 for independent judges.
    """
    left = leave_one_pair_out(posterior, latent, component, threads)
    if not len(left.pair):
        return float("nan")
    games = posterior.games
    answers = games.answers[left.game]
    forward = left.sign > 0
    total = np.bincount(left.pair, answers)

    def per_pair(of_first: Floats) -> Floats:
        """Mean over a pair's answers of something about its first document."""
        return np.bincount(left.pair, answers * of_first) / total

    w = games.w[left.game]
    w = per_pair(np.where(forward, w, 1.0 - w))
    mean, square, noise = np.zeros((3, len(w)))
    for weight, outcome, spread in predictions(posterior.likelihood, left):
        predicted = per_pair(np.where(forward, outcome, 1.0 - outcome))
        mean += weight * predicted
        square += weight * predicted * predicted
        noise += weight * per_pair(spread)
    surplus = float(np.sum(total * (np.square(w - mean) - (square - np.square(mean)))))
    expected = float(np.sum(noise))
    return float(np.clip(surplus / expected, *bounds(games))) if expected > 0.0 else float("nan")


def bounds(games: Games) -> tuple[float, float]:
    """Of φ, which is multiplied where all answers are: by the unit of strengths, or counts of repeated answers."""
    each = float(games.answers.mean())
    least, most = DISPERSION_BOUNDS
    return least * min(each, 1.0), most * max(each, 1.0)


@dataclass(frozen=True)
class LeftOut:
    """Games whose pair the other pairs predict: game int64[G] (positions), pair int64[G] numbered from 0, sign (1 where
    the game's first document is the pair's smaller one, else -1), and the predicted gap N(gap, width²), float64[G].
    """

    game: NDArray[np.int64]
    pair: NDArray[np.int64]
    sign: NDArray[np.int64]
    gap: Floats
    width: Floats


def leave_one_pair_out(posterior: Posterior, latent: Floats, component: NDArray[np.int32], threads: int = 1) -> LeftOut:
    """Each pair's gap without its own games: x ~ N(x̂ - v₋ g, v₋), v₋ = v / (1 - c v).

    Approximate leave-one-out (Rad and Maleki 2020); g, c the gradient and curvature of the pair's games, v the gap's
    posterior variance. Without a prior, a pair that alone connects its documents is predicted by nothing.
    """
    games = posterior.games
    pair, sign = games.pairs()
    x, g, c = linearise(posterior, latent)
    variance = game_variances(posterior, c, component, threads)
    freedom = 1.0 - np.bincount(pair, c)[pair] * variance
    usable = np.flatnonzero(freedom > 1e-6)
    without = variance[usable] / freedom[usable]
    pull = np.bincount(pair, sign * g)[pair]
    gap = x[usable] - sign[usable] * without * pull[usable]
    width = np.copysign(np.sqrt(without), sign[usable])  # one draw of the pair's gap moves its games together
    return LeftOut(usable, np.unique(pair[usable], return_inverse=True)[1], sign[usable], gap, width)


def predictions(like: Likelihood, left: LeftOut) -> Iterator[tuple[float, Floats, Floats]]:
    """(weight, mean, variance of one answer [G]) at every node of a quadrature over the predicted gaps."""
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        yield weight, *moments(like, left.gap + left.width * node)


DISPERSION_FREEDOM = 60  # degrees of freedom; with fewer, the dispersion is 1
PRIOR_FREEDOM = 200  # with fewer, ratings are averaged over spreads of the prior, and the dispersion is at least 1
PRIOR_GAPS = 60  # the same, with fewer gaps that can be estimated
DEFAULT = "default, too few comparisons to estimate it"
SPREADS_ELO = (75.0, 150.0, 300.0, 450.0, 600.0, 800.0, 1000.0)  # prior standard deviations to average over
_MIDDLE = 450.0
_MAX_EVIDENCE = 20.0  # estimable gaps; more do not change the weights of the spreads further

Spreads = tuple[tuple[float, float], ...]  # (sd of the prior in latent units, weight); the weights sum to 1


def with_defaults(games: Games, config: RateConfig, parts: Components) -> RateConfig:
    """The settings, with numbers in place of what too few comparisons cannot estimate.

    Degrees of freedom are pairs - documents + components, and estimable gaps documents - components, each summed over
    queries.
    """
    freedom, gaps = _freedom(games, parts)
    defaults: dict[str, float] = {}
    if isinstance(config.dispersion, str) and freedom < DISPERSION_FREEDOM:
        defaults["dispersion"] = 1.0
    if isinstance(config.prior, str) and (freedom < PRIOR_FREEDOM or gaps < PRIOR_GAPS):
        defaults["prior"] = float(to_latent(_MIDDLE, config.model))
    return config.model_copy(update=defaults)


def least_dispersion(games: Games, parts: Components) -> float:
    """The least dispersion that an estimate may give: 1 where there are few comparisons, else 0.

    Below it answers vary less than their own odds say. Estimated from 171 degrees of freedom, values of .7 to 1 made
    95 % intervals of 20 documents cover .90 (truth 2 probit); with this bound they cover .94.
    """
    return 1.0 if _freedom(games, parts)[0] < PRIOR_FREEDOM else 0.0


def _freedom(games: Games, parts: Components) -> tuple[int, int]:
    """Degrees of freedom of the dispersion, and estimable gaps."""
    gaps = len(games.doc_ids) - int(parts.count.sum())
    return int(games.pairs()[0].max()) + 1 - gaps, gaps


def weighted_spreads(
    games: Games,
    parts: Components,
    like: Likelihood,
    dispersion: float,
    shape: PriorShape,
    offset: Floats | None,
    config: RateConfig,
) -> Spreads:
    """Return candidate prior sds, weighted by sd x (marginal likelihood of the games)^t, t = min(1, 20/gaps).

    Laplace's approximation of the marginal likelihood favors narrow priors where games are few. The factor sd makes up
    for it in one query: equal weights covered .84 of the ratings of 20 documents in a chain of single games (truth 2
    probit). The exponent makes up for it where the bias adds up over queries: with t = 1, 95 % intervals of 48 chains
    of 15 documents covered .66 (truth 2 probit), with empirical Bayes .57, with this exponent .98 (simulated).
    """
    sds = to_latent(SPREADS_ELO, config.model)
    m = games.answers / dispersion
    each = (log_marginal(games, like, m, replace(shape, sigma0=sd), None, offset).value for sd in sds.tolist())
    values = np.array(list(each))
    evidence = min(1.0, _MAX_EVIDENCE / max(1, _freedom(games, parts)[1]))
    weights = sds * np.exp(evidence * (values - values.max()))
    return tuple(zip(sds.tolist(), (weights / weights.sum()).tolist(), strict=True))
