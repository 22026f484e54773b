"""The figures' arithmetic: ticks, scales, smoothing, and how numbers are written."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.evaluation import figures, page, svg


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_round_few_and_inside(low: float, width: float, count: int):
    axis = svg.Axis(low, low + width, 0, 100)
    ticks = axis.ticks(count)
    assert len(ticks) <= count + 1
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)
    step = svg.tick_step(low, low + width, count)
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 9) in {1.0, 2.0, 2.5, 5.0, 10.0}


def test_axis_holds_its_values_and_is_never_empty():
    for values in ([3.0], [0.0], [1.0, 2.0], [float("nan")], []):
        axis = svg.axis(values, 0, 100)
        assert axis.low < axis.high
        assert all(0 <= axis(v) <= 100 for v in values if math.isfinite(v))
    assert svg.axis([5.0], 0, 1, zero=True).low == 0


def test_numbers():
    assert svg.number(-0.25, 0.25) == "−0.25"
    assert svg.number(-1000, 500) == "−1,000"
    assert svg.number(-1e-17, 0.2) == "0"
    assert page.decimal(-0.0004) == "0.000"
    assert [page.signed(v) for v in (0.1, -0.1, 0.0, None)] == ["+0.100", "−0.100", "±0.000", "—"]
    assert [page.seconds(v) for v in (0.04, 9.96, 59.7, 3600, 7625)] == [
        "0.0 s",
        "10.0 s",
        "1 min 00 s",
        "1 h 00 min",
        "2 h 07 min",
    ]
    assert page.p_value(0.0004) == "p < 0.001"
    assert page.clip("one two  three", 9) == "one two …"
    assert page.clip("x" * 20, 9) == "x" * 9 + " …"


def test_smoothing_keeps_the_mean():
    points = [(float(i), float(i % 7)) for i in range(1000)]
    thin = figures.smooth(points, 100)
    assert len(thin) == 100
    assert np.mean([y for _, y in thin]) == pytest.approx(np.mean([y for _, y in points]))
    assert figures.smooth(points[:10]) == points[:10]


def test_histogram_draws_every_document():
    groups = {"soft": np.array([150.0, 160.0, -9e9]), "easy": np.array([700.0] * 5)}
    drawn = figures.histogram(groups, {}, [("soft", 100.0, 200.0)], "gap")
    counts = [int(count) for count in re.findall(r"<title>\w+: (\d+) between", drawn)]
    assert sum(counts) == 8


def test_large_inputs_stay_small():
    values = np.linspace(-1, 1, 50_000)
    assert len(figures.scatter(values, values, "x", "y")) < 120_000
    assert len(figures.per_query(values, "nDCG@10", "a", "b")) < 60_000
