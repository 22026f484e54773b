"""Contrasts over queries and seeds, and the smallest difference that can be detected."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import DataError
from anmi_ray.evaluation.replicates import (
    contrast,
    crossed_error,
    family,
    markdown,
    queries_needed,
    smallest_difference,
    stratified_interval,
)
from anmi_ray.evaluation.significance import bootstrap_interval


def worlds(
    seed_sd: float, query_sd: float, rest: float, runs: int, strata: int, seeds: int = 3, queries: int = 200
) -> list[list[np.ndarray]]:
    """Differences whose true mean is 0, of `runs` studies."""
    random = np.random.default_rng(5)

    def one() -> np.ndarray:
        drawn = random.normal(0, seed_sd, (seeds, 1)) + random.normal(0, query_sd, (1, queries))
        return drawn + random.normal(0, rest, (seeds, queries))

    return [[one() for _ in range(strata)] for _ in range(runs)]


def test_the_crossed_error_by_hand() -> None:
    # seeds' means 1 and 3, queries' means 1, 2, 3; the rest is ∓1/2, 0, ±1/2
    rows = np.array([[0.5, 1.0, 1.5], [1.5, 3.0, 4.5]])
    # MS_seeds = 3 · 2 = 6, MS_queries = 2 · 1 = 2, MS_rest = (4 · .25)/2 = .5: variance (6 + 2 - .5)/6
    error, freedom = crossed_error([rows])
    assert error == pytest.approx(math.sqrt(7.5 / 6))
    assert freedom == pytest.approx(7.5**2 / (6**2 / 1 + 2**2 / 2 + 0.5**2 / 2))


def test_seeds_that_differ_less_than_chance_leave_the_queries_error() -> None:
    rows = np.array([[1.0, 2.0, 4.0, 5.0], [2.0, 1.0, 5.0, 4.0]])  # equal means
    error, freedom = crossed_error([rows])
    assert error == pytest.approx(rows.mean(0).std(ddof=1) / 2)
    assert freedom == pytest.approx(3.0)


@pytest.mark.parametrize("strata", [1, 2])
@pytest.mark.parametrize("seed_sd", [0.0, 0.01, 0.02])
def test_wide_intervals_hold_the_truth(seed_sd: float, strata: int) -> None:
    found = [contrast("a", "b", one, rounds=100) for one in worlds(seed_sd, 0.1, 0.1, 400, strata)]
    held = np.mean([one.wide_low <= 0.0 <= one.wide_high for one in found])  # type: ignore[operator]
    assert 0.90 <= held <= 0.99
    if seed_sd == 0.02:  # where seeds are noise, the interval over queries alone holds it too rarely
        assert np.mean([one.low <= 0.0 <= one.high for one in found]) < 0.8


def test_strata_are_drawn_apart() -> None:
    # all that differs lies between the strata, so that nothing is left within
    assert stratified_interval([np.zeros(30), np.ones(10)], 500) == (0.25, 0.25)
    values = np.random.default_rng(1).normal(size=300)
    assert stratified_interval([values]) == pytest.approx(bootstrap_interval(values), abs=0.02)


def test_a_contrast_counts_queries_alike_and_averages_seeds() -> None:
    strata = [np.full((2, 30), 0.1), np.array([[0.3] * 10, [0.5] * 10])]
    found = contrast("a", "b", strata)
    assert (found.queries, found.seeds) == (40, 2)
    assert found.difference == pytest.approx((30 * 0.1 + 10 * 0.4) / 40)
    assert found.query_sd == pytest.approx(0.0, abs=1e-12)
    assert found.seed_sd == pytest.approx(math.sqrt(0.25 * 0.02))
    assert found.wide_p is not None
    assert found.p < 0.001 < found.wide_p


def test_one_seed_has_no_wide_interval_and_is_never_called_real() -> None:
    found = family([contrast("a", "b", [np.full((1, 50), 0.1)])])[0]
    assert found.wide_low is None
    assert found.verdict() == "these models"
    assert "None" not in markdown([found])


def test_verdicts_need_both_corrected_values() -> None:
    base = contrast("a", "b", worlds(0.0, 0.1, 0.1, 1, 1)[0], rounds=100)
    assert replace(base, p_holm=0.01, wide_p_holm=0.01).verdict() == "real"
    assert replace(base, p_holm=0.01, wide_p_holm=0.06).verdict() == "these models"
    assert replace(base, p_holm=0.06, wide_p_holm=0.01).verdict() == "not significant"


def test_holm_runs_over_the_family() -> None:
    base = contrast("a", "b", worlds(0.0, 0.1, 0.1, 1, 1)[0], rounds=100)
    given = [replace(base, p=p, wide_p=q) for p, q in ((0.01, 0.02), (0.04, 0.5), (0.03, 0.01))]
    assert [one.p_holm for one in family(given)] == pytest.approx([0.03, 0.06, 0.06])
    assert [one.wide_p_holm for one in family(given)] == pytest.approx([0.04, 0.5, 0.03])


def test_what_cannot_be_compared_is_said() -> None:
    for rows in (np.zeros((0, 5)), np.zeros((3, 1)), np.array([[0.0, np.nan]]), np.zeros(5)):
        with pytest.raises(DataError, match="a - b"):
            contrast("a", "b", [rows])


def test_the_smallest_difference_by_hand() -> None:
    # z of 1 - .05/18 is 2.7729, of .8 it is .8416; (2.7729 + .8416) · .15/sqrt(568) = .02275
    assert smallest_difference({"a": 0.15}, {"a": 568}, 9) == pytest.approx(0.02275, abs=1e-5)
    # (1.95996 + .84162) · sqrt(300 · .04 + 100 · .01)/400 = .025253
    found = smallest_difference({"a": 0.2, "b": 0.1}, {"a": 300, "b": 100, "c": 7})
    assert found == pytest.approx(2.80158 * math.sqrt(13.0) / 400, abs=1e-6)


@given(st.floats(0.01, 1.0), st.integers(2, 5000), st.integers(1, 30))
def test_equal_strata_are_one_and_more_queries_show_less(sd: float, queries: int, comparisons: int) -> None:
    one = smallest_difference({"a": sd}, {"a": 2 * queries}, comparisons)
    two = smallest_difference({"a": sd, "b": sd}, {"a": queries, "b": queries}, comparisons)
    assert one == pytest.approx(two)
    assert smallest_difference({"a": sd}, {"a": queries}, comparisons) == pytest.approx(one * math.sqrt(2))
    assert smallest_difference({"a": sd}, {"a": 2 * queries}, comparisons + 1) > one


@given(st.floats(0.01, 1.0), st.integers(2, 5000))
def test_the_queries_that_a_difference_needs_are_those_that_show_it(sd: float, queries: int) -> None:
    least = smallest_difference({"a": sd}, {"a": queries})
    assert queries_needed(sd, least * (1 + 1e-9)) == queries_needed(sd, -least * (1 + 1e-9)) == queries
    assert queries_needed(sd, least / 2 * (1 + 1e-9)) == 4 * queries
