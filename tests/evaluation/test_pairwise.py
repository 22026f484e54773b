"""The triangle's geometry: small cases by hand, folds, mirrors, buckets and segments as properties."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anmi_ray.core.errors import DataError
from anmi_ray.evaluation.pairwise import (
    KINDS,
    Pairs,
    buckets,
    cumulative,
    folded,
    kinds,
    radius,
    read,
    same_pairs,
    segments,
    shares,
    steps_of,
    swapped,
    within,
)

from .judged_pairs import an_id, learning, table, world

MANY = settings(max_examples=40, deadline=None)
VOTES = st.sampled_from([0, 1 / 6, 1 / 3, 0.5, 2 / 3, 5 / 6, 1])


@st.composite
def predictions(draw: st.DrawFn) -> Pairs:
    """Any points of the triangle with votes of three judges."""
    n = draw(st.integers(1, 50))
    raw = np.array(draw(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=n, max_size=n)), dtype=float)
    raw[raw.sum(axis=1) == 0] = 1.0
    p = raw / raw.sum(axis=1, keepdims=True)
    score = np.array(draw(st.lists(VOTES, min_size=n, max_size=n)))
    return Pairs(p[:, 0], p[:, 1], score, np.arange(n) // 2)


def one(first: float, second: float, score: float = 0.0) -> Pairs:
    return Pairs(np.array([first]), np.array([second]), np.array([score]), np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize(
    ("first", "second", "mean", "decided", "far"),
    [
        (1.0, 0.0, 0.0, 1.0, 0.0),  # surely the first
        (0.0, 1.0, 1.0, 1.0, math.sqrt(2)),  # surely the second
        (0.0, 0.0, 0.5, 0.0, 1.0),  # surely a tie
        (0.5, 0.5, 0.5, 1.0, math.sqrt(0.5)),  # one of them, nobody knows which
        (0.6, 0.2, 0.3, 0.8, math.hypot(0.4, 0.2)),
    ],
)
def test_points_by_hand(first: float, second: float, mean: float, decided: float, far: float) -> None:
    pairs = one(first, second)
    assert pairs.mean_P[0] == pytest.approx(mean, abs=1e-15)
    assert pairs.decided_P[0] == pytest.approx(decided, abs=1e-15)
    assert radius(pairs)[0] == pytest.approx(far)


@MANY
@given(predictions())
def test_folding_keeps_what_it_should(pairs: Pairs) -> None:
    fold, again, other = folded(pairs), folded(folded(pairs)), folded(swapped(pairs))
    assert np.all(fold.second_P <= fold.first_P)
    assert np.all(fold.mean_P <= 0.5 + 1e-15)
    for part in ("first_P", "second_P", "score_P"):
        np.testing.assert_array_equal(getattr(again, part), getattr(fold, part))
    np.testing.assert_array_equal(other.first_P, fold.first_P)
    np.testing.assert_array_equal(fold.decided_P, pairs.decided_P)
    away = pairs.first_P != pairs.second_P  # on the diagonal nothing says which side a score is of
    np.testing.assert_allclose(other.score_P[away], fold.score_P[away], atol=1e-15)
    assert np.all((radius(fold) >= 0) & (radius(fold) <= 1 + 1e-12))


@MANY
@given(predictions())
def test_swapping_mirrors_everything(pairs: Pairs) -> None:
    other, twice = swapped(pairs), swapped(swapped(pairs))
    np.testing.assert_allclose(other.mean_P, 1 - pairs.mean_P, atol=1e-15)
    np.testing.assert_array_equal(other.decided_P, pairs.decided_P)
    np.testing.assert_array_equal(kinds(other.score_P), 4 - kinds(pairs.score_P))
    np.testing.assert_allclose(twice.score_P, pairs.score_P, atol=1e-15)


@MANY
@given(predictions())
def test_a_pair_whose_mean_is_far_from_a_half_is_decided(pairs: Pairs) -> None:
    assert np.all(np.abs(2 * pairs.mean_P - 1) <= pairs.decided_P + 1e-12)


@MANY
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


@MANY
@given(predictions(), st.integers(1, 6), st.integers(1, 5))
def test_segments_are_equal_in_both_dimensions(pairs: Pairs, columns: int, rows: int) -> None:
    found = segments(pairs, columns, rows)
    held = np.bincount(found, minlength=columns * rows)
    assert len(held) == columns * rows
    assert held.sum() == len(pairs)
    assert held.max() - held.min() <= 1
    column = found // rows
    for c in range(columns):
        inside = column == c
        assert (
            not inside.any() or not (column > c).any() or pairs.mean_P[inside].max() <= pairs.mean_P[column > c].min()
        )
        for r in range(rows - 1):
            low, high = found == c * rows + r, found == c * rows + r + 1
            assert not low.any() or not high.any() or pairs.decided_P[low].max() <= pairs.decided_P[high].min()


@MANY
@given(predictions(), st.integers(1, 60))
def test_the_circle_grows_to_hold_everything(pairs: Pairs, rows: int) -> None:
    found = cumulative(pairs, rows)
    assert np.all(np.diff(found.radius) >= 0)
    assert np.all(np.diff(found.rank) > 0)
    assert found.rank[-1] == pytest.approx(1.0) or rows == 1
    np.testing.assert_allclose(found.kind.sum(axis=1), 1.0)
    for k in (0, -1):  # against counting
        inside, share = within(pairs, float(found.radius[k]))
        if not np.any(np.isclose(radius(folded(pairs)), found.radius[k]) & (radius(folded(pairs)) != found.radius[k])):
            assert inside >= round(found.rank[k] * len(pairs))
            assert sum(share) == pytest.approx(1.0)


def test_a_circle_by_hand() -> None:
    pairs = Pairs(
        np.array([0.9, 0.1, 0.5, 0.0]),
        np.array([0.1, 0.8, 0.5, 0.0]),
        np.array([0.0, 0.0, 1.0, 0.5]),
        np.arange(4),
    )
    # folded: (.9, .1) with 0; (.8, .1) with 1, a mistake; (.5, .5) and (0, 0) stay
    np.testing.assert_allclose(radius(folded(pairs)), [math.hypot(0.1, 0.1), math.hypot(0.2, 0.1), math.sqrt(0.5), 1.0])
    assert within(pairs, 0.3) == (2, (0.5, 0, 0, 0, 0.5))
    found = cumulative(pairs)
    assert found.rank.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert found.kind[-1].tolist() == [0.25, 0, 0.25, 0, 0.5]


def test_kinds_of_votes() -> None:
    assert kinds(np.arange(7) / 6).tolist() == [0, 1, 1, 2, 3, 3, 4]
    assert kinds(np.array([0.1, 0.4, 0.42, 0.58, 0.9])).tolist() == [1, 1, 2, 2, 3]
    assert kinds(np.array([0.0, 1e-12, 1 - 1e-12, 1.0])).tolist() == [0, 0, 4, 4]
    held = shares(np.array([0, 0, 4]), np.array([0, 0, 1]), 3)
    assert held[:2].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert np.isnan(held[2]).all()
    assert held.shape == (3, len(KINDS))


# --- reading -----------------------------------------------------------------------------------------------------


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
    assert not read(stored, "binary").two_dimensional
    assert last.two_dimensional


def test_two_heads_stand_in_the_triangle() -> None:
    of = world(4)
    heads = np.array([[0.3, 0.8], [0.9, 0.2], [0.5, 0.0], [0.5, 1.0]])
    found = read(table(of, "heads", "two-head", 1, heads), "heads")
    order = np.argsort([an_id("judged-pair", i) for i in range(4)])
    np.testing.assert_allclose(found.mean_P, heads[order, 0], atol=1e-15)
    expected = np.array([0.8, 0.8, 0.0, 1.0])  # the second said less than |2 x 0.9 - 1|
    np.testing.assert_allclose(found.decided_P, expected[order], atol=1e-15)
    assert found.mended == 1


def test_what_is_not_there_is_said() -> None:
    of = world(10)
    stored = learning(of, steps=(5, 10))
    with pytest.raises(DataError, match=r"no predictions of 'other'; there are ternary"):
        read(stored, "other")
    with pytest.raises(DataError, match=r"no predictions at step 6; there are 5, 10"):
        read(stored, "ternary", 6)
    less = table(of, "other", "binary", 1, of.mean_P).slice(2)
    with pytest.raises(DataError, match="8 in common, 0 and 2 of one alone"):
        same_pairs(pa.concat_tables([stored, less]), "ternary", 10, "other", 1)


def test_the_world_is_calibrated_by_construction() -> None:
    of = world(40_000, hard=0.4, seed=1)
    for values, seen in ((of.mean_P, of.score_P), (1 - of.ternary[:, 2], np.abs(2 * of.score_P - 1))):
        bucket = buckets(values, 10)
        for b in range(10):
            inside = bucket == b
            error = seen[inside].std() / math.sqrt(inside.sum())
            assert abs(seen[inside].mean() - values[inside].mean()) < 4 * error + 1e-4
    assert of.ternary.min() >= 0
    np.testing.assert_allclose(of.ternary.sum(axis=1), 1.0)
