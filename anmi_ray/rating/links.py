"""The links as compiled scalar kernels: log F, its slope and its curvature, F = Φ (Thurstone) or σ (Bradley-Terry).

The solver needs them a hundred million times. What is asked of them is a gap in latent units.
"""

from __future__ import annotations

import math

from numba import njit

from anmi_ray.core.scale import Model

MODEL_CODES: dict[Model, int] = {"thurstone": 0, "bradley-terry": 1}  # how the compiled kernels name a link
THURSTONE = 0
BRADLEY_TERRY = 1

# How every kernel is compiled: cached on disk, without the GIL, division as in numpy, a·b + c in one instruction; no C
# wrapper, nobody calls one. `inlined` is for what the solver's inner loops call: a call would keep them from being
# vectorised.
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
