"""The compiled links against high-precision arithmetic, numpy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from anmi_ray.core.scale import Model, sigmoid
from anmi_ray.rating import likelihood as links
from tests.rating import reference

MODELS: list[Model] = ["thurstone", "bradley-terry"]
# 40 digits' arithmetic: log Φ(x) and λ(x) = φ(x)/Φ(x)
TAIL = [
    (-40.0, -804.608442013754, 40.0249688472),
    (-10.0, -53.2312851505124, 10.0980932339625),
    (-1.0, -1.84102164500926, 1.52513527616098),
    (0.0, -0.693147180559945, 0.797884560802865),
    (5.0, -2.86651613004559e-07, 1.48671994090536e-06),
]


@pytest.mark.parametrize(("x", "log_cdf", "mills"), TAIL)
def test_normal_tail_golden(x: float, log_cdf: float, mills: float) -> None:
    assert reference.log_normal_cdf(x) == pytest.approx(log_cdf, rel=1e-12)
    assert reference.inverse_mills(x) == pytest.approx(mills, rel=1e-10)
    assert links.log_link_both(links.THURSTONE, x)[0] == pytest.approx(log_cdf, rel=1e-12)
    assert links.link_terms(links.THURSTONE, x)[0] == pytest.approx(mills, rel=1e-10)


@pytest.mark.parametrize("model", MODELS)
def test_compiled_kernels_agree_with_numpy(model: Model) -> None:
    code = links.MODEL_CODES[model]
    for x in np.concatenate([np.linspace(-45, 45, 361), [-1e3, -200.0, 200.0, 1e3]]):
        upper, lower = links.log_link_both(code, float(x))
        np.testing.assert_allclose([upper, lower], reference.log_link([x, -x], model), rtol=2e-13, atol=1e-300)
        slope, back, _, _ = links.link_terms(code, float(x))
        if model == "thurstone":
            np.testing.assert_allclose([slope, back], reference.inverse_mills([x, -x]), rtol=1e-11, atol=1e-300)
        else:
            np.testing.assert_allclose([slope, back], sigmoid([-x, x]), rtol=1e-13)


def test_log_cdf_against_scipy_far_out() -> None:
    for x in (-60.0, -150.0, -1000.0):
        assert links.log_link_both(links.THURSTONE, x)[0] == pytest.approx(special.log_ndtr(x), rel=1e-14)


@pytest.mark.parametrize("model", MODELS)
def test_derivatives_by_finite_differences(model: Model) -> None:
    code, h = links.MODEL_CODES[model], 1e-5
    for x in np.linspace(-8, 8, 65):
        slope, back, curvature, curvature_back = links.link_terms(code, x)
        assert links.link_terms(code, -x) == pytest.approx((back, slope, curvature_back, curvature), rel=1e-14)
        up, down = (links.log_link_both(code, x + s)[0] for s in (h, -h))
        assert slope == pytest.approx((up - down) / (2 * h), abs=2e-9)
        up, down = (links.link_terms(code, x + s) for s in (h, -h))
        assert curvature == pytest.approx((down[0] - up[0]) / (2 * h), abs=2e-9)
        assert links.link_skew(code, x, slope, curvature) == pytest.approx((up[2] - down[2]) / (2 * h), abs=2e-9)


def test_probit_curvature_keeps_its_digits_far_behind() -> None:
    """κ(x) = λ(λ + x) → 1 - 1/x² as x → -∞, where λ + x cancels."""
    for z in (30.0, 1e3, 1e6):
        curvature = links.link_terms(links.THURSTONE, -z)[2]
        assert 1.0 - curvature == pytest.approx(z**-2 - 6.0 * z**-4, rel=1e-4, abs=1e-15)


@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, derandomize=True)
@given(x=st.floats(-1e8, 1e8))
def test_curvature_stays_in_the_unit_interval(model: Model, x: float) -> None:
    code = links.MODEL_CODES[model]
    slope, back, curvature, curvature_back = links.link_terms(code, x)
    assert slope >= 0.0
    assert back >= 0.0
    assert 0.0 <= curvature <= 1.0
    assert 0.0 <= curvature_back <= 1.0
