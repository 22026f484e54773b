"""Which pairs people are asked about: chances are as recorded, nothing hangs on the order of rows, all answer a few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.identity import digest
from anmi_ray.labelling.choice import RANDOM, PairWorth, choose, disputes, inclusion, near_bound

TOTAL = 240


def worth_of(total: int = TOTAL) -> PairWorth:
    random = np.random.default_rng(0)
    ids = np.frombuffer(b"".join(digest("pair", i) for i in range(total)), np.uint8).reshape(-1, 16)
    judges = np.where(random.random(total) < 0.3, random.random(total), 0.0)
    return PairWorth(
        ids, judges, random.random(total) ** 4, np.where(random.random(total) < 0.2, random.random(total), 0)
    )


@pytest.fixture(scope="module")
def pairs() -> PairWorth:
    return worth_of()


def test_recorded_chances_estimate_totals_without_bias(pairs: PairWorth) -> None:
    """Over seeds the random share has the mean of all, and both halves weighted as they say have the total of all."""
    value = np.random.default_rng(1).random(TOTAL) + pairs.judges
    rounds = 1500
    means, totals, drawn = np.zeros(rounds), np.zeros(rounds), np.zeros(TOTAL)
    for seed in range(rounds):
        chosen = choose(pairs, 60, 0.2, seed)
        random = np.array([why == RANDOM for why in chosen.why])
        assert chosen.probability[random] == pytest.approx(30 / TOTAL)
        means[seed] = value[chosen.row[random]].mean()
        totals[seed] = value[chosen.row[random]].sum() + (value[chosen.row] / chosen.probability)[~random].sum()
        drawn[chosen.row[random]] += 1
    assert means.mean() == pytest.approx(value.mean(), abs=4 * means.std() / rounds**0.5)
    # Pareto's chances are off by up to a percent
    assert totals.mean() == pytest.approx(value.sum(), abs=4 * totals.std() / rounds**0.5 + 0.01 * value.sum())
    error = (drawn / rounds - 30 / TOTAL) / np.sqrt(30 / TOTAL * (1 - 30 / TOTAL) / rounds)
    assert np.abs(error).max() < 5


def test_the_other_half_are_worth_more_and_say_why(pairs: PairWorth) -> None:
    chosen = choose(pairs, 60, 0.2, 0)
    other = np.array([why != RANDOM for why in chosen.why])
    assert pairs.parts[chosen.row[other]].sum(axis=1).mean() > 1.5 * pairs.parts.sum(axis=1).mean()
    assert {chosen.why[i] for i in np.flatnonzero(other)} == {"judges", "orders", "bound"}
    assert len(set(chosen.row.tolist())) == 60


@given(st.permutations(range(40)), st.integers(1, 60), st.floats(0, 1))
def test_rows_may_come_in_any_order(order: list[int], count: int, overlap: float) -> None:
    plain = worth_of(40)
    mixed = PairWorth(*(column[order] for column in vars(plain).values()))
    a, b = choose(plain, count, overlap, 3), choose(mixed, count, overlap, 3)
    assert (plain.ids[a.row] == mixed.ids[b.row]).all()
    assert (a.why, a.probability.tolist(), a.everyone.tolist()) == (b.why, b.probability.tolist(), b.everyone.tolist())
    assert len(a.row) == min(count, 40)
    assert a.everyone.sum() == round(overlap * len(a.row))
    if count >= 40:
        assert set(a.why) == {RANDOM}
        assert (a.probability == 1).all()


def test_a_larger_choice_holds_the_random_share_of_a_smaller(pairs: PairWorth) -> None:
    small, large = choose(pairs, 40, 0.2, 0), choose(pairs, 80, 0.2, 0)
    assert set(small.row[:20].tolist()) < set(large.row[:40].tolist())
    assert len(set(small.row.tolist()) & set(large.row.tolist())) >= 30
    assert set(choose(pairs, 40, 0.2, 1).row.tolist()) != set(small.row.tolist())


@given(st.lists(st.floats(1e-3, 3), min_size=1, max_size=30), st.data())
def test_chances_sum_to_the_number_and_follow_worth(worth: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(worth)))
    chance = inclusion(np.array(worth), count)
    assert chance.sum() == pytest.approx(count)
    assert chance.max() <= 1 + 1e-12
    ratio = (chance / np.array(worth))[chance < 1 - 1e-9]
    assert np.ptp(ratio) <= 1e-9 * ratio.max() if len(ratio) else True


@given(st.lists(st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0, np.nan]), min_size=6, max_size=6), min_size=1))
def test_disputes_do_not_hang_on_which_document_is_called_a(rows: list[list[float]]) -> None:
    p_a = np.array(rows).reshape(-1, 3, 2)
    for one, other in zip(disputes(p_a), disputes(1.0 - p_a[:, :, ::-1]), strict=True):
        assert one == pytest.approx(other)
        assert ((one >= 0) & (one <= 1)).all()


def test_a_gap_is_open_near_the_bound_as_its_error_allows() -> None:
    gap, error = np.array([100.0, 160, 160, 500]), np.array([30.0, 30, 60, 60])
    open_ = near_bound(gap, error, 100.0)
    assert open_[0] == pytest.approx(1)
    assert open_[0] > open_[2] > open_[1] > open_[3]
