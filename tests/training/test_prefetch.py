"""Batches made ahead are those that are asked for; what goes wrong is raised where they are; the thread ends."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import ConfigError
from anmi_ray.training.batching import Ahead
from anmi_ray.training.curriculum import Phase

PHASES = [Phase(0.7), Phase(0.7, 100.0), Phase(0.5)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, *PHASES]), st.sampled_from(PHASES)), max_size=12))
def test_what_is_given_depends_on_step_and_phase_alone(steps: list[tuple[int, Phase | None, Phase]]) -> None:
    """Whatever is foreseen: the right phase, another one, another step, nothing."""
    made: list[tuple[int, Phase]] = []

    def make(step: int, phase: Phase) -> list[object]:
        made.append((step, phase))
        return [(step, phase)]

    with Ahead(make) as ahead:
        for step, (skipped, foreseen, phase) in enumerate(steps):
            ahead.prepare(step + skipped, foreseen)
            assert ahead.batches(step, phase) == [(step, phase)]
    wanted = [(step, phase) for step, (_, _, phase) in enumerate(steps)]
    wrong = [one for one in made if one not in wanted]
    missed = sum(1 for skipped, foreseen, phase in steps if foreseen and (skipped, foreseen) != (0, phase))
    assert len(made) == len(steps) + missed, "what was foreseen is not made twice"
    assert len(wrong) <= missed
    assert threads() == []


def test_what_was_foreseen_is_made_by_the_thread_before_it_is_asked_for() -> None:
    by: list[str] = []
    ready = threading.Event()

    def make(step: int, phase: Phase) -> list[object]:
        by.append(threading.current_thread().name)
        ready.set()
        return [step]

    with Ahead(make) as ahead:
        ahead.prepare(1, PHASES[0])
        assert ready.wait(60)
        assert ahead.batches(1, PHASES[0]) == [1]
    assert [name.startswith("batches") for name in by] == [True]


def test_an_error_is_raised_where_its_batches_are_asked_for_and_not_elsewhere() -> None:
    def make(step: int, phase: Phase) -> list[object]:
        if phase == PHASES[1]:
            raise ConfigError("cannot be divided", "train.lists_per_step", "choose another")
        return [step]

    with Ahead(make) as ahead:
        ahead.prepare(1, PHASES[1])
        assert ahead.batches(1, PHASES[0]) == [1]
        ahead.prepare(2, PHASES[1])
        with pytest.raises(ConfigError, match="cannot be divided"):
            ahead.batches(2, PHASES[1])
    assert threads() == []


def test_the_thread_ends_when_the_run_is_interrupted() -> None:
    def interrupted() -> None:
        with Ahead(lambda step, phase: []) as ahead:
            ahead.prepare(1, PHASES[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threads() == []
