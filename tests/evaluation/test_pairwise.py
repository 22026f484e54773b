"""Predictions of a pairwise judge: points by hand, buckets as a property, reading."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anmi_ray.core.errors import DataError
from anmi_ray.evaluation.pairwise import Pairs, buckets, read, steps_of

from .judged_pairs import an_id, learning, table, world


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
