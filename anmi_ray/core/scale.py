"""Scales and links, each formula once: Φ, log Φ, σ, log σ, the inverse Mills ratio, Elo points, win probabilities.

A latent rating is in probits (Thurstone, F = Φ) or logits (Bradley-Terry, F = σ); Elo points are what is shown.
The first half is vectorised numpy for everybody; the second half holds the same links as compiled scalar kernels
for the solver, where log F, its slope and its curvature are needed a hundred million times.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import special

Model = Literal["thurstone", "bradley-terry"]
Floats = NDArray[np.float64]

ELO_PER_LOGIT = 400.0 / math.log(10.0)  # 173.718: a gap of 400 points is odds of ten to one
ELO_PER_PROBIT = ELO_PER_LOGIT * 4.0 / math.sqrt(2.0 * math.pi)  # 277.21: equal slope of the win curve at gap zero

MODEL_CODES: dict[Model, int] = {"thurstone": 0, "bradley-terry": 1}  # how the compiled kernels name a link
THURSTONE = 0
BRADLEY_TERRY = 1


def elo_per_latent(model: Model) -> float:
    """Elo points per latent unit: 277.21 per probit (Thurstone), 173.718 per logit (Bradley-Terry)."""
    return ELO_PER_PROBIT if model == "thurstone" else ELO_PER_LOGIT


def to_elo(latent: ArrayLike, model: Model) -> Floats:
    """Latent units to Elo points.

    >>> to_elo(1.0, "thurstone").round(2).item(), to_elo(1.0, "bradley-terry").round(3).item()
    (277.21, 173.718)
    """
    return np.asarray(latent, dtype=np.float64) * elo_per_latent(model)


def to_latent(elo: ArrayLike, model: Model) -> Floats:
    """Elo points to latent units, the inverse of `to_elo`."""
    return np.asarray(elo, dtype=np.float64) / elo_per_latent(model)


def normal_pdf(x: ArrayLike) -> Floats:
    """φ(x) = exp(-x²/2) / √(2π)."""
    return np.exp(-0.5 * np.square(np.asarray(x, dtype=np.float64))) / math.sqrt(2.0 * math.pi)


def normal_cdf(x: ArrayLike) -> Floats:
    """Φ(x), the standard normal distribution function."""
    return special.ndtr(np.asarray(x, dtype=np.float64))


def normal_quantile(p: ArrayLike) -> Floats:
    """Φ⁻¹(p), the probit; ±inf at 0 and 1."""
    return special.ndtri(np.asarray(p, dtype=np.float64))


def sigmoid(x: ArrayLike) -> Floats:
    """σ(x) = 1 / (1 + exp(-x))."""
    return special.expit(np.asarray(x, dtype=np.float64))


def logit(p: ArrayLike) -> Floats:
    """σ⁻¹(p) = log(p / (1 - p)); ±inf at 0 and 1."""
    return special.logit(np.asarray(p, dtype=np.float64))


def log_sigmoid(x: ArrayLike) -> Floats:
    """log σ(x) = -log(1 + exp(-x)), stable on both sides."""
    return special.log_expit(np.asarray(x, dtype=np.float64))


def link(x: ArrayLike, model: Model) -> Floats:
    """F(x), the probability that a document better by x latent units wins."""
    return normal_cdf(x) if model == "thurstone" else sigmoid(x)


def link_inverse(p: ArrayLike, model: Model) -> Floats:
    """F⁻¹(p): the latent gap at which the better document wins with probability p."""
    return normal_quantile(p) if model == "thurstone" else logit(p)


def win_probability(gap_elo: ArrayLike, model: Model) -> Floats:
    """Probability that a document `gap_elo` points better is preferred.

    >>> win_probability([100, 400], "bradley-terry").round(2), win_probability([100, 400], "thurstone").round(2)
    (array([0.64, 0.91]), array([0.64, 0.93]))
    """
    return link(to_latent(gap_elo, model), model)


# How every kernel is compiled: cached on disk, without the GIL, division as in numpy, a·b + c in one instruction; no C
# wrapper, nobody calls one. `inlined` is for what the solver's inner loops call: a call would keep them from being
# vectorised.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, no_cfunc_wrapper=True)
inlined = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, no_cfunc_wrapper=True, inline="always"
)

# Compiled scalar kernels. Editing one does not invalidate Numba's cache of the modules that call it: delete
# __pycache__ in rating/ after a change here.

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
