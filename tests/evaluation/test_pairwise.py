"""A pairwise judge's predictions: reading, and measures by hand, against closed forms, and by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.pairwise import (
    Pairs,
    accuracy,
    brier,
    buckets,
    calibration,
    compare,
    constant,
    read,
    reliability,
    resample,
    steps_of,
    wilson,
)

from .judged_pairs import World, an_id, learning, table, world


def of_means(mean: np.ndarray | list[float], score: np.ndarray | list[float], queries: int | None = None) -> Pairs:
    """Binary predictions, one pair a query unless said."""
    values = np.asarray(mean, dtype=float)
    query = np.arange(len(values)) % (queries or len(values))
    return Pairs(1 - values, values, np.asarray(score, dtype=float), query)


def of_world(one: World) -> Pairs:
    return Pairs(one.ternary[:, 0], one.ternary[:, 1], one.score_P, one.query_P)


@pytest.mark.parametrize(
    ("first", "second", "mean"),
    [(1.0, 0.0, 0.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.5), (0.5, 0.5, 0.5), (0.6, 0.2, 0.3)],
)
def test_means_by_hand(first: float, second: float, mean: float) -> None:
    pairs = Pairs(np.array([first]), np.array([second]), np.zeros(1), np.zeros(1, dtype=np.int64))
    assert pairs.mean_P[0] == pytest.approx(mean, abs=1e-15)


@settings(max_examples=40, deadline=None)
@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1, 1)), st.integers(1, 25))
def test_buckets_are_equal_ordered_and_hold_everything_once(values: np.ndarray, count: int) -> None:
    found = buckets(values, count)
    held = np.bincount(found, minlength=count)
    assert len(held) == count
    assert held.sum() == len(values)
    assert held.max() - held.min() <= 1
    tops = [values[found == b].max() for b in range(count) if held[b]]
    bottoms = [values[found == b].min() for b in range(count) if held[b]]
    assert all(top <= bottom for top, bottom in zip(tops, bottoms[1:], strict=False))


def test_read_takes_the_last_step_and_orders_by_pair() -> None:
    of = world(30, seed=3)
    stored = pa.concat_tables([learning(of, steps=(5, 10)), table(of, "binary", "binary", 7, of.mean_P)])
    turned = stored.take(pa.array(np.arange(stored.num_rows)[::-1]))
    assert steps_of(turned, "ternary") == [5, 10]
    last = read(turned, "ternary")
    order = np.argsort([an_id("judged-pair", i) for i in range(30)])
    np.testing.assert_allclose(last.score_P, of.score_P[order])
    np.testing.assert_array_equal(read(stored, "ternary", 10).first_P, last.first_P)
    np.testing.assert_allclose(read(stored, "binary").mean_P, of.mean_P[order], atol=1e-12)
    assert last.queries == 15
    assert np.all(np.bincount(last.query_P) == 2)


def test_two_heads_stand_in_the_triangle() -> None:
    of = world(4)
    heads = np.array([[0.3, 0.8], [0.9, 0.2], [0.5, 0.0], [0.5, 1.0]])
    found = read(table(of, "heads", "two-head", 1, heads), "heads")
    order = np.argsort([an_id("judged-pair", i) for i in range(4)])
    np.testing.assert_allclose(found.mean_P, heads[order, 0], atol=1e-15)
    expected = np.array([0.8, 0.8, 0.0, 1.0])  # the second said less than |2 x 0.9 - 1|
    np.testing.assert_allclose(found.first_P + found.second_P, expected[order], atol=1e-15)


def test_what_is_not_there_is_said() -> None:
    of = world(10)
    stored = learning(of, steps=(5, 10))
    with pytest.raises(DataError, match="ternary"):
        read(stored, "other")
    with pytest.raises(DataError, match="5, 10"):
        read(stored, "ternary", 6)


def test_accuracy_by_hand() -> None:
    """Consensus: right, wrong, undecided (a half), right; the last two pairs are not consensus."""
    found = accuracy(of_means([0.9, 0.8, 0.5, 0.1, 0.9, 0.9], [1, 0, 1, 0, 0.5, 1 / 3]))
    assert found.mean == 2.5 / 4
    assert found.n == 4
    assert accuracy(of_means([0.9], [0.5])).mean is None


def test_wilson_as_in_books() -> None:
    """8 of 10: 0.490 to 0.943 (Newcombe 1998's form); with pairs of one query each, there is no design effect."""
    found = wilson(np.array([1.0] * 8 + [0.0] * 2), np.arange(10))
    assert (found.low, found.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


def test_pairs_of_a_query_that_go_alike_count_less() -> None:
    values = np.repeat([1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0], 5)
    alone, together = wilson(values, np.arange(40)), wilson(values, np.arange(40) // 5)
    assert alone.mean == together.mean
    assert together.low is not None
    assert alone.low is not None
    assert together.low < alone.low - 0.1
    # five alike: the design effect is 5, up to Q/(Q − 1)
    expected = wilson(np.array([1.0] * 6 + [0.0] * 2), np.arange(8))
    assert expected.low is not None
    assert together.low == pytest.approx(expected.low, abs=0.03)
    certain = wilson(np.ones(40), np.arange(40) // 5)
    assert certain.low == pytest.approx(8 / (8 + 1.959964**2), abs=1e-6)


def test_samples_are_of_whole_queries_and_repeat() -> None:
    counts = resample(np.eye(7), rounds=400)
    assert counts.shape == (400, 7)
    assert np.all(counts.sum(axis=1) == 7)
    np.testing.assert_array_equal(counts, resample(np.eye(7), rounds=400))
    assert not np.array_equal(counts, resample(np.eye(7), rounds=400, seed=1))
    assert counts.mean() == 1.0
    assert counts.var() == pytest.approx(6 / 7, abs=0.1)


def test_brier_with_its_interval() -> None:
    found = brier(of_means([0.9, 0.5, 0.2], [1, 0, 1 / 3]))
    assert found.mean == pytest.approx((0.01 + 0.25 + (2 / 15) ** 2) / 3)
    of = of_world(world(600, seed=4))
    found = brier(of)
    values = (of.mean_P - of.score_P) ** 2
    by_query = np.bincount(of.query_P, values) / np.bincount(of.query_P)
    half = 1.96 * by_query.std() / math.sqrt(len(by_query))
    assert found.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_calibration_by_hand() -> None:
    """Two buckets: predicted .2 and .8; observed .25 and .5. Differences .05 and −.3, slope .25/.6."""
    pairs = of_means([0.1, 0.3, 0.7, 0.9], [0.0, 0.5, 1.0, 0.0])
    found = calibration(pairs, 2)
    assert found.ece == pytest.approx((0.05 + 0.3) / 2)
    assert found.slope.mean == pytest.approx(0.25 / 0.6)
    assert found.at_half.mean == pytest.approx(0.375)
    assert found.intercept.mean == pytest.approx(0.375 - 0.5 * 0.25 / 0.6)
    # score − μ: (−.1, .2) and (.3, −.9): squares of the means less half of the sample variances
    squared = ((0.05**2 - 0.045 / 2) + (0.3**2 - 0.72 / 2)) / 2
    assert squared < 0
    assert found.rms.mean == 0.0
    rows = reliability(pairs, 2)
    assert [(one.n, round(predicted, 9), one.mean) for predicted, one in rows] == [(2, 0.2, 0.25), (2, 0.8, 0.5)]


@pytest.mark.parametrize("shrink", [0.5, 1.0, 1.25])
def test_the_line_finds_a_planted_slope(shrink: float) -> None:
    random = rng("slope")
    true = random.uniform(0.15, 0.85, 4000)
    score = random.binomial(3, true) / 3
    found = calibration(of_means(0.5 + (true - 0.5) / shrink, score, 2000)).slope
    assert found.low is not None
    assert found.high is not None
    assert found.low < shrink < found.high
    assert found.high - found.low < 0.15


@pytest.mark.slow
def test_the_interval_of_the_error_covers() -> None:
    """Off by 0.08 everywhere: about 95 in 100 intervals hold it; of calibrated models nearly all reach 0."""
    random, held, zero = rng("covers"), 0, 0
    for _ in range(100):
        true = random.uniform(0.2, 0.8, 400)
        score = random.binomial(3, true) / 3
        found = calibration(of_means(true - 0.08, score), 10).rms
        held += found.low <= 0.08 <= found.high  # type: ignore[operator]
        zero += calibration(of_means(true, score), 10).rms.low == 0
    assert held >= 87
    assert zero >= 90


def test_the_expected_error_of_a_calibrated_model_is_what_one_shows() -> None:
    random, shown, said = rng("chance"), [], []
    for _ in range(100):
        true = random.uniform(0.1, 0.9, 300)
        found = calibration(of_means(true, random.binomial(3, true) / 3), 10)
        shown.append(found.ece)
        said.append(found.ece_if_calibrated)
    assert np.mean(shown) == pytest.approx(np.mean(said), rel=0.1)


def test_swapping_the_documents_changes_nothing_but_the_side() -> None:
    pairs = of_world(world(400, seed=2))
    other = replace(pairs, first_P=pairs.second_P, second_P=pairs.first_P, score_P=1.0 - pairs.score_P)
    assert accuracy(other) == accuracy(pairs)
    assert brier(other).mean == pytest.approx(brier(pairs).mean)
    one, two = calibration(pairs), calibration(other)
    assert two.slope.mean == pytest.approx(one.slope.mean)
    assert two.ece == pytest.approx(one.ece)
    assert two.at_half.mean == pytest.approx(1 - (one.at_half.mean or 0))


def test_a_constant_has_no_line() -> None:
    pairs = of_world(world(100))
    half = constant(pairs, 0.5)
    assert accuracy(half).mean == 0.5
    assert calibration(half).slope.mean is None
    assert brier(half).mean == pytest.approx(float(np.mean((pairs.score_P - 0.5) ** 2)))


def test_one_query_has_no_interval_over_queries() -> None:
    pairs = of_world(world(40))
    alone = calibration(replace(pairs, query_P=np.zeros_like(pairs.query_P)))
    for one in (alone.rms, alone.slope, alone.at_half, alone.intercept):
        assert one.mean is not None
        assert (one.low, one.high) == (None, None)


def test_predictors_are_compared_with_the_last_step() -> None:
    of = world(200, seed=6)
    stored = pa.concat_tables([learning(of, steps=(5, 10)), table(of, "other", "binary", 1, of.mean_P)])
    found = compare(stored, "ternary", ["other"])
    assert [one.name for one in found][:2] == ["ternary", "other"]
    assert len(found) == 4  # two constants
    assert found[0].brier.mean == pytest.approx(found[1].brier.mean, abs=1e-4)
    with pytest.raises(DataError):
        compare(stored, "ternary", ["absent"])
    with pytest.raises(DataError):
        compare(learning(world(4, queries=1), steps=(1,)), "ternary")
