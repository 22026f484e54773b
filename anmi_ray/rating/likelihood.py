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
from numba import njit

from anmi_ray.core.scale import Floats, Model, link

MODEL_CODES: dict[Model, int] = {"thurstone": 0, "bradley-terry": 1}  # how the compiled kernels name a link
THURSTONE = 0
BRADLEY_TERRY = 1

# Options of all kernels: cached on disk, without the GIL, division as in numpy, fused multiply-add, no C wrapper.
# `inlined` is for functions in the solver's inner loops, where calls would prevent vectorization.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, no_cfunc_wrapper=True)
inlined = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, no_cfunc_wrapper=True, inline="always"
)

# Compiled scalar kernels. Editing one does not invalidate Numba's cache of the modules that call it: delete
# __pycache__ here after a change.

# λ(-z) - z = φ(z)/Φ(-z) - z for z ≥ 0 as t·p(7t - 1), t = 1/(z + 3.5): Chebyshev interpolation of degree 24 on
# t in (0, 2/7], computed with 60 digits; relative error below 4e-16 on [0, 1e4]. Unlike λ itself it gives the curvature
# λ(λ - z) far below zero without cancellation.
_EXCESS = (
    1.759738854003898,
    1.02997838860964,
    0.21069624634471903,
    -0.15371368344046052,
    -0.10078958422629242,
    0.022180098764980533,
    0.03558751624229286,
    -0.0020298814592259345,
    -0.011862643731299742,
    -0.00027217041879341365,
    0.0038678025048975223,
    0.00020438887575739746,
    -0.0012316132803319325,
    -5.557632359379937e-05,
    0.00037620214935029327,
    4.402860429507267e-06,
    -0.00010708476428349528,
    3.5101896779162394e-06,
    2.7266847427647538e-05,
    -1.9286363957925366e-06,
    -5.821872955017586e-06,
    4.869914800107314e-07,
    9.20405180262174e-07,
    -5.460848199804058e-08,
    -7.921758935339038e-08,
)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


@inlined
def mills_excess(z: float) -> float:
    """λ(-z) - z for z ≥ 0: by how much the inverse Mills ratio exceeds its asymptote."""
    t = 1.0 / (z + 3.5)
    x = 7.0 * t - 1.0
    # Estrin's scheme: the polynomial is the solver's inner loop and Horner's would wait on itself.
    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    a = _EXCESS
    p0 = (a[0] + a[1] * x) + (a[2] + a[3] * x) * x2
    p1 = (a[4] + a[5] * x) + (a[6] + a[7] * x) * x2
    p2 = (a[8] + a[9] * x) + (a[10] + a[11] * x) * x2
    p3 = (a[12] + a[13] * x) + (a[14] + a[15] * x) * x2
    p4 = (a[16] + a[17] * x) + (a[18] + a[19] * x) * x2
    p5 = (a[20] + a[21] * x) + (a[22] + a[23] * x) * x2
    return t * ((p0 + p1 * x4) + (p2 + p3 * x4) * x8 + (p4 + p5 * x4 + a[24] * x8) * (x8 * x8))


@compiled
def log_link_both(model: int, x: float) -> tuple[float, float]:
    """(log F(x), log F(-x)) from one exponential."""
    z = abs(x)
    if model == BRADLEY_TERRY:
        upper = -math.log1p(math.exp(-z))
        lower = upper - z
    else:
        slope = z + mills_excess(z)
        upper = math.log1p(-_INV_SQRT_2PI * math.exp(-0.5 * z * z) / slope)
        lower = -math.log(slope) - 0.5 * z * z - _LOG_SQRT_2PI
    return (upper, lower) if x >= 0.0 else (lower, upper)


@compiled
def link_terms(model: int, x: float) -> tuple[float, float, float, float]:
    """(s(x), s(-x), κ(x), κ(-x)): slope and curvature of -log F on both sides, from one exponential.

    s = d log F / dx is the inverse Mills ratio λ for Φ and σ(-x) for σ; κ = -d² log F / dx², in [0, 1], is λ(λ + x)
    and σ(1 - σ).
    """
    z = abs(x)
    if model == BRADLEY_TERRY:
        tail = math.exp(-z)
        lower = 1.0 / (1.0 + tail)
        upper = tail * lower
        curved = curved_back = upper * lower
    else:
        excess = mills_excess(z)
        lower = z + excess
        density = _INV_SQRT_2PI * math.exp(-0.5 * z * z)
        upper = density * lower / (lower - density)
        curved = upper * (upper + z)
        curved_back = lower * excess
    return (upper, lower, curved, curved_back) if x >= 0.0 else (lower, upper, curved_back, curved)


@compiled
def link_skew(model: int, x: float, slope: float, curvature: float) -> float:
    """d/dx of κ(x), given s(x) and κ(x): λ - κ(2λ + x) for Φ, -κ(1 - 2σ(-x)) for σ."""
    if model == BRADLEY_TERRY:
        return -curvature * (1.0 - 2.0 * slope)
    return slope - curvature * (2.0 * slope + x)


Ties = Literal["half", "davidson"]

DAVIDSON = 2  # the kind after those of MODEL_CODES
_SKEW_STEP = 1e-4  # of the central difference of a curvature where its derivative has no short form


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
