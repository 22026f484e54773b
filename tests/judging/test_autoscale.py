"""Pools of actors: a deadline is met where it can be, no actor is started for nothing, and losses are made good."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.judging.autoscale import Limits, Wave, achieved, next_wave, size

RATES, STARTS = st.floats(0.01, 1e4), st.floats(0, 1000)
BACKLOGS = st.integers(1, 10**10)
LIMITS = st.tuples(st.integers(1, 50), st.integers(0, 500), STARTS).map(
    lambda one: Limits(one[0], sum(one[:2]), one[2])
)


def seconds(backlog: float, rate: float, actors: int, limits: Limits) -> float:
    """How long a pool of so many actors takes, their start included."""
    return limits.start + backlog / (rate * actors) if backlog else 0.0


TARGETS = st.just(math.inf) | st.floats(-100, 1e6)


@given(BACKLOGS, RATES, TARGETS, LIMITS)
def test_sizes_are_in_the_limits(backlog: int, rate: float, target: float, limits: Limits) -> None:
    least, most = size(backlog, rate, target, limits)
    assert limits.least <= least <= most <= limits.most


@given(BACKLOGS, BACKLOGS, RATES, TARGETS, LIMITS)
def test_more_to_ask_takes_no_fewer_actors(one: int, other: int, rate: float, target: float, limits: Limits) -> None:
    small, large = (size(backlog, rate, target, limits) for backlog in sorted((one, other)))
    assert small[0] <= large[0]
    assert small[1] <= large[1]


@given(BACKLOGS, RATES, st.floats(1, 1e6), st.floats(1, 1e6), LIMITS)
def test_a_nearer_deadline_takes_no_fewer_actors(
    backlog: int, rate: float, one: float, other: float, limits: Limits
) -> None:
    near, far = (size(backlog, rate, hours, limits) for hours in sorted((one, other)))
    assert near[0] >= far[0]


@given(BACKLOGS, RATES, st.floats(1, 1e6), LIMITS)
def test_a_deadline_is_met_by_the_fewest_that_can(backlog: int, rate: float, left: float, limits: Limits) -> None:
    least, most = size(backlog, rate, left, limits)
    possible = left > 2 * limits.start and seconds(backlog, rate, most, limits) <= left
    if possible and least > limits.least:
        assert seconds(backlog, rate, least, limits) <= left * (1 + 1e-9)
        assert seconds(backlog, rate, least - 1, limits) > left * (1 - 1e-9)


@given(BACKLOGS, RATES, TARGETS, LIMITS)
def test_no_actor_is_started_for_less_work_than_its_start(
    backlog: int, rate: float, target: float, limits: Limits
) -> None:
    _, most = size(backlog, rate, target, limits)
    assert most == limits.least or backlog / rate / most >= limits.start * (1 - 1e-9)


def test_without_a_target_it_is_one_wave() -> None:
    assert next_wave([5, 5, 5], None, math.inf, Limits(2, 7, 60)) == Wave(3, 2, 7)


CHUNKS = st.lists(st.integers(1, 10_000), min_size=1, max_size=300)


@given(CHUNKS, st.none() | RATES, TARGETS, LIMITS)
def test_a_wave_asks_something_and_no_more_than_there_is(
    chunks: list[int], rate: float | None, target: float, limits: Limits
) -> None:
    wave = next_wave(chunks, rate, target, limits)
    assert 1 <= wave.chunks <= len(chunks)
    assert limits.least <= wave.least <= wave.most <= limits.most


def played(
    chunks: list[int], rate: float, target: float, limits: Limits, there: Callable[[int, int], int]
) -> tuple[float, float, list[Wave]]:
    """Seconds and actor-seconds that a backlog takes, and its waves; there(wave's number, actors): how many come."""
    known, clock, held, waves = None, 0.0, 0.0, list[Wave]()
    while chunks:
        wave = next_wave(chunks, known, target, limits)
        actors = max(1, there(len(waves), wave.most))
        answered = sum(chunks[: wave.chunks])
        passed = seconds(answered, rate, actors, limits)
        known, target = achieved(answered, passed, wave, limits), target - passed
        clock, held, chunks = clock + passed, held + passed * actors, chunks[wave.chunks :]
        waves.append(wave)
    return clock, held, waves


@pytest.mark.parametrize("rate", [2.0, 20.0, 200.0])
@pytest.mark.parametrize("hours", [4.0, 24.0])
def test_a_campaign_ends_in_time_and_holds_no_more_than_it_needs(rate: float, hours: float) -> None:
    """Ten million questions, the rate not known before: done by the deadline, 15 % over what they take at best."""
    chunks, limits = [8192] * 1221, Limits(1, 4096, 180.0)
    clock, held, waves = played(chunks, rate, hours * 3600, limits, lambda _, asked: asked)
    assert clock <= hours * 3600
    assert held <= 1.15 * sum(chunks) / rate + 3600 * 2
    assert len(waves) < 30


@given(st.floats(0.3, 1.0), st.floats(0, 1), st.integers(0, 2**32))
def test_engines_that_are_taken_away_are_made_good(share: float, often: float, seed: int) -> None:
    """A spot market that gives a share of what is asked for, now and then, until the last hours of a day."""

    def there(number: int, asked: int) -> int:
        gone = (number * 2654435761 + seed) % 1000 < 1000 * often and number < 6
        return math.ceil(asked * share) if gone else asked

    chunks = [8192] * 1221
    clock, _, _ = played(chunks, 20.0, 24 * 3600.0, Limits(1, 4096, 180.0), there)
    assert clock <= 24 * 3600


def test_what_cannot_be_done_in_time_is_done_by_all() -> None:
    clock, _, waves = played([8192] * 1221, 20.0, 3600.0, Limits(1, 8, 180.0), lambda _, asked: asked)
    assert waves[-1].most == 8
    assert clock < 1.2 * sum([8192] * 1221) / 20.0 / 8 + 3600


def test_after_a_wave_without_an_answer_all_that_may_come_are_asked_for() -> None:
    limits = Limits(1, 4, 60.0)
    nothing = achieved(0, 500.0, Wave(1, 1, 1), limits)
    assert next_wave([8192] * 3, nothing, 600.0, limits) == Wave(1, 4, 4)
