"""Which pairs people are asked about: a random half, a disputed half, whatever the order of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.identity import digest
from anmi_ray.labelling.selection import DISPUTED, RANDOM, disputes, select

TOTAL = 240


@pytest.fixture(scope="module")
def weights() -> dict[str, float]:
    random = np.random.default_rng(0)
    return {digest("pair", i).hex(): float(random.random() ** 4) for i in range(TOTAL)}


def test_the_random_half_is_unbiased(weights: dict[str, float]) -> None:
    rounds = 500
    counts = dict.fromkeys(weights, 0)
    for seed in range(rounds):
        selected = select(weights, 60, 0.2, seed)
        assert len({one.pair for one in selected}) == 60
        for one in selected[:30]:
            assert one.why == RANDOM
            counts[one.pair] += 1
    share = 30 / TOTAL
    error = (np.array(list(counts.values())) / rounds - share) / np.sqrt(share * (1 - share) / rounds)
    assert np.abs(error).max() < 5


def test_the_other_half_is_disputed(weights: dict[str, float]) -> None:
    other = [one.pair for one in select(weights, 60, 0.2, 0) if one.why == DISPUTED]
    assert len(other) == 30
    assert np.mean([weights[pair] for pair in other]) > 1.5 * np.mean(list(weights.values()))


@given(st.permutations(range(40)), st.integers(1, 60), st.floats(0, 1))
def test_rows_may_come_in_any_order(order: list[int], count: int, overlap: float) -> None:
    plain = {digest("pair", i).hex(): i / 40 for i in range(40)}
    mixed = {list(plain)[i]: list(plain.values())[i] for i in order}
    selected = select(plain, count, overlap, 3)
    assert selected == select(mixed, count, overlap, 3)
    assert len(selected) == min(count, 40)
    assert sum(one.everyone for one in selected) == round(overlap * len(selected))
    if count >= 40:
        assert {one.why for one in selected} == {RANDOM}


def test_a_larger_selection_contains_the_random_half_of_a_smaller(weights: dict[str, float]) -> None:
    small, large = ([one.pair for one in select(weights, count, 0.2, 0)] for count in (40, 80))
    assert set(small[:20]) < set(large[:40])
    assert [one.pair for one in select(weights, 40, 0.2, 1)] != small


def test_disputes_are_between_judges_and_between_orders() -> None:
    rows = [
        *(("x", judge, order, p_a) for judge, p_a in (("j", 1.0), ("k", 0.0)) for order in ("ab", "ba")),
        *(("y", judge, order, p_a) for judge in "jk" for order, p_a in (("ab", 1.0), ("ba", 0.0))),
        *(("z", judge, "ab", 1.0) for judge in "jk"),
    ]
    columns = dict(zip(("pair", "judge", "order", "p_a"), map(list, zip(*rows, strict=True)), strict=True))
    assert dict(disputes(pa.table(columns))) == {"x": 1.0, "y": 1.0, "z": 0.0}
