"""The likelihood of pairwise games: log-likelihood, gradient, curvature and its slope, per game and per query.

A game between i and j with preference w for i and strength m adds m ℓ(x; w), x = e_i - e_j + offset. Letters: a, t, b
are the shares of w that are wins, ties and losses of i: t = 1 - |2w - 1|, a = max(0, 2w - 1), b = max(0, 1 - 2w).

| ties | model | ℓ(x; w) | source |
|---|---|---|---|
| half | either | w log F(x) + (1-w) log F(-x), F = Φ or σ; a tie is half a win | (22), (30) |
| davidson | Bradley-Terry | P(win), P(tie), P(loss) ∝ e^{x/2}, ν, e^{-x/2} | Davidson 1970 |

All are concave; curvatures are the observed information. Scalar kernels evaluate one game; `terms` evaluates all games
of a query, vectorised for the two plain links.
Letter: P games of a query.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from anmi_ray.core.scale import Floats, Model, link
from anmi_ray.rating.links import (
    BRADLEY_TERRY,
    MODEL_CODES,
    THURSTONE,
    compiled,
    inlined,
    link_skew,
    link_terms,
    log_link_both,
    mills_excess,
)

Ties = Literal["half", "davidson"]

DAVIDSON = 2  # the kind after those of MODEL_CODES
_SKEW_STEP = 1e-4  # of the central difference of a curvature where its derivative has no short form
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


class Likelihood(NamedTuple):
    """The likelihood as the compiled kernels read it: the link or DAVIDSON, and the tie width ν."""

    kind: int
    width: float

    @classmethod
    def of(cls, model: Model, ties: Ties = "half", width: float = 0.0) -> Likelihood:
        """Return the likelihood of a model by its names; AssertionError for a combination that does not exist."""
        if ties == "half":
            return cls(MODEL_CODES[model], 0.0)
        if model != "bradley-terry" or width <= 0.0:
            raise AssertionError(f"no likelihood: {model}, ties {ties}, width {width}")
        return cls(DAVIDSON, float(width))


@compiled
def shares(w: float) -> tuple[float, float, float]:
    """(win, tie, loss) shares of a preference w, equally a mean of votes: 1 is a win, 1/2 a tie, 3/4 half of either."""
    return max(0.0, 2.0 * w - 1.0), 1.0 - abs(2.0 * w - 1.0), max(0.0, 1.0 - 2.0 * w)


@compiled
def game_log_likelihood(like: Likelihood, x: float, w: float) -> float:
    """ℓ(x; w) of one game of strength 1."""
    if like.kind <= BRADLEY_TERRY:
        upper, lower = log_link_both(like.kind, x)
        return w * upper + (1.0 - w) * lower
    win, tie, loss = shares(w)
    z = abs(x)
    log_z = 0.5 * z + math.log(1.0 + math.exp(-z) + like.width * math.exp(-0.5 * z))  # log(e^{x/2} + e^{-x/2} + ν)
    return 0.5 * (win - loss) * x - log_z + tie * math.log(like.width)


@compiled
def game_terms(like: Likelihood, x: float, w: float) -> tuple[float, float]:
    """(gradient in x, curvature ≥ 0) of one game."""
    if like.kind <= BRADLEY_TERRY:
        slope, slope_back, curved, curved_back = link_terms(like.kind, x)
        return w * slope - (1.0 - w) * slope_back, w * curved + (1.0 - w) * curved_back
    mean, variance = outcome_moments(like, x)
    return w - mean, variance


@compiled
def game_skew(like: Likelihood, x: float, w: float) -> float:
    """d/dx of a game's curvature; the marginal likelihood's gradient needs it."""
    if like.kind <= BRADLEY_TERRY:
        slope, back, curved, curved_back = link_terms(like.kind, x)
        skew = w * link_skew(like.kind, x, slope, curved)
        return skew - (1.0 - w) * link_skew(like.kind, -x, back, curved_back)
    above = game_terms(like, x + _SKEW_STEP, w)[1]
    below = game_terms(like, x - _SKEW_STEP, w)[1]
    return (above - below) / (2.0 * _SKEW_STEP)


@compiled
def steepest(like: Likelihood) -> float:
    """At least the largest |d/dx| of a game's curvature (0.2958 and 1/√108 found); infinite where it is not known."""
    if like.kind > BRADLEY_TERRY:
        return np.inf
    return 0.296 if like.kind == THURSTONE else 0.0963


@compiled
def outcome_moments(like: Likelihood, x: float) -> tuple[float, float]:
    """Mean and variance of one judge's outcome (win 1, tie 1/2, loss 0) at gap x."""
    if like.kind <= BRADLEY_TERRY:
        upper, lower = log_link_both(like.kind, x)
        up = math.exp(upper)
        return up, up * math.exp(lower)
    tail = math.exp(-abs(x))
    total = 1.0 + tail + like.width * math.exp(-0.5 * abs(x))
    better = 1.0 / total
    worse = tail / total
    win, loss = (better, worse) if x >= 0.0 else (worse, better)
    difference = win - loss
    return 0.5 + 0.5 * difference, 0.25 * (win + loss - difference * difference)


# exp on the loop below: 2^k by bits, the rest by its series of degree 13 on |r| ≤ ½ log 2, exact to rounding. Numba's
# own exp is a call, which keeps a loop from being vectorised.
_LOG2_E = 1.0 / math.log(2.0)
_LN_2 = math.log(2.0)
_SHIFT = 1.5 * 2.0**52  # adding it rounds a double to an integer, in the lowest bits
_LEAST = -1020.0  # smaller powers of two are clamped to this: 1e-307 next to numbers near one
_SERIES = tuple(1.0 / math.factorial(k) for k in range(14))


@inlined
def _series(r):
    a = _SERIES
    r2 = r * r
    r4 = r2 * r2
    low = (a[0] + a[1] * r) + (a[2] + a[3] * r) * r2
    middle = (a[4] + a[5] * r) + (a[6] + a[7] * r) * r2
    high = (a[8] + a[9] * r) + (a[10] + a[11] * r) * r2 + (a[12] + a[13] * r) * r4
    return low + (middle + high * r4) * r4


@compiled
def terms(like, x, w, m, gradient, curvature, scratch, bits):
    """m times `game_terms` of all games [p]; `scratch` float64[p] and `bits` int64[p] are the same memory."""
    if like.kind > BRADLEY_TERRY:
        for p in range(len(x)):
            g, c = game_terms(like, x[p], w[p])
            gradient[p] = m[p] * g
            curvature[p] = m[p] * c
        return
    thurstone = like.kind == THURSTONE
    for p in range(len(x)):  # the exponent base 2 of φ(x) or e^{-|x|}, and what rounding leaves of it
        z = abs(x[p])
        power = max(-_LOG2_E * (0.5 * z * z if thurstone else z), _LEAST)
        shifted = power + _SHIFT
        scratch[p] = shifted
        gradient[p] = _series((power - (shifted - _SHIFT)) * _LN_2)
    for p in range(len(x)):
        bits[p] = (bits[p] + 1023) << 52
    if thurstone:
        for p in range(len(x)):
            z = abs(x[p])
            excess = mills_excess(z)
            lower = z + excess
            density = _INV_SQRT_2PI * gradient[p] * scratch[p]
            upper = density * lower / (lower - density)
            better = w[p] if x[p] >= 0.0 else 1.0 - w[p]  # the preference for the document ahead
            push = better * upper - (1.0 - better) * lower
            gradient[p] = m[p] * (push if x[p] >= 0.0 else -push)
            curvature[p] = m[p] * (better * upper * (upper + z) + (1.0 - better) * lower * excess)
    else:
        for p in range(len(x)):
            tail = gradient[p] * scratch[p]
            lower = 1.0 / (1.0 + tail)
            upper = tail * lower
            gradient[p] = m[p] * (w[p] - (lower if x[p] >= 0.0 else upper))
            curvature[p] = m[p] * upper * lower


def moments(like: Likelihood, x: Floats) -> tuple[Floats, Floats]:
    """`outcome_moments` of gaps float64[P]: mean and variance of one judge's outcome."""
    if like.kind <= BRADLEY_TERRY:
        up = link(x, "thurstone" if like.kind == THURSTONE else "bradley-terry")
        return up, up * (1.0 - up)
    mean = np.empty_like(x)
    variance = np.empty_like(x)
    _moments_all(like, x, mean, variance)
    return mean, variance


@compiled
def _moments_all(like, x, mean, variance):
    for p in range(len(x)):
        mean[p], variance[p] = outcome_moments(like, x[p])
