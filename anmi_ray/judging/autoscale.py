"""How many actors ask a judge, and for how much of the backlog before that is decided again.

Ray Data scales a pool between two sizes while it works on a dataset, by how much waits; it has no hook for a deadline
or a price. So a backlog is asked in waves, each a dataset with a pool of its own, and between two waves the sizes
follow what the last one achieved: engines that a spot market took away show as a low rate, and the next wave has more.
Numbers in, numbers out: no clock and no cluster in here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds import TextJudge

# Seconds from asking for an actor to its first answer, with its node, image and weights: with a target, none is started
# for less work.
START_S = 120.0
_SHARE = 1 / 3  # of the time left that a wave takes, so that decisions are more frequent towards the deadline
_PAYS = 10.0  # times its start-up that a wave takes at least: starting pools costs a tenth of the time at most
_TRIAL = 2  # chunks that an actor of the first wave gets, where its rate is not known
_SPARE = 1.25  # actors of a wave over those that the deadline needs: some start late, some are taken away
_SLOWEST = 1e-6  # questions a second: what a wave without an answer is taken for


@dataclass(frozen=True)
class Target:
    """In how many seconds the backlog should be answered, and how many seconds of actors' time it may take."""

    seconds: float | None = None
    actor_seconds: float | None = None

    def after(self, passed: float, actors: int) -> Target:
        """What is left of it when so many seconds passed with so many actors."""
        return Target(
            None if self.seconds is None else self.seconds - passed,
            None if self.actor_seconds is None else self.actor_seconds - passed * actors,
        )


@dataclass(frozen=True)
class Limits:
    """Fewest and most actors, and the seconds from asking for one until it answers (node, image, weights)."""

    least: int
    most: int
    start: float


@dataclass(frozen=True)
class Wave:
    """The next `chunks` chunks of a backlog, asked by a pool of `least` to `most` actors."""

    chunks: int
    least: int
    most: int


def limits_of(judge: TextJudge, execution: ExecutionConfig) -> Limits:
    """Fewest and most actors that may ask a judge."""
    return Limits(*judge.actors(execution), START_S)


def target_of(config: JudgeConfig, judge: TextJudge, execution: ExecutionConfig, passed: float) -> Target:
    """A judge's part of a panel's target, `passed` seconds after the panel was first asked.

    What is left is shared evenly with the judges after it, as a budget is; money only with those that use GPUs.
    """
    panel = kinds.reading(config)
    seconds = None
    if config.target_hours is not None:
        waiting = len(panel) - panel.index(judge)
        seconds = max(config.target_hours * 3600 - passed, 0.0) / waiting
    actor_seconds = None
    if config.target_dollars is not None and execution.gpu_dollars_hour and judge.gpus:
        using = sum(one.gpus > 0 for one in panel)
        hours = config.target_dollars / using / execution.gpu_dollars_hour / judge.gpus
        actor_seconds = hours * 3600
    return Target(seconds, actor_seconds)


def size(backlog: float, rate: float, target: Target, limits: Limits) -> tuple[int, int]:
    """Fewest and most actors for so many questions, at `rate` questions a second of one actor.

    No actor that would work for less time than it takes to start; with a deadline as many as it needs (`most`: a
    quarter more), with a price as many as can be started of what the work itself leaves of it. Always in the limits.

    >>> size(360_000, 25.0, Target(seconds=3600), Limits(1, 16, 120))
    (5, 6)
    >>> size(5_000, 25.0, Target(), Limits(1, 16, 120))
    (1, 1)
    """
    work = backlog / rate
    needed = 0.0
    most = float(limits.most) if limits.start <= 0 else min(limits.most, work / limits.start)
    if target.seconds is not None:
        left = max(target.seconds - limits.start, limits.start, 1e-3)
        needed = work / left
        most = min(most, math.ceil(_SPARE * work / left))
    if target.actor_seconds is not None and limits.start > 0:
        most = min(most, max(0.0, (target.actor_seconds - work) / limits.start))
    largest = max(math.floor(most), limits.least)
    return max(math.ceil(min(needed, largest)), limits.least), largest


def next_wave(chunks: Sequence[int], rate: float | None, left: Target, limits: Limits) -> Wave:
    """What to ask next of a backlog of `chunks` (questions of each, at least one), and with how many actors.

    Without a target all of it. With one, a trial of the fewest actors where `rate` is not known; else a third of the
    time left, or ten times what a pool takes to start where that is more, and all where no such wave would be left.
    """
    if left == Target():
        return Wave(len(chunks), limits.least, limits.most)
    if rate is None:
        return Wave(min(_TRIAL * limits.least, len(chunks)), limits.least, limits.least)
    backlog = sum(chunks)
    least, most = size(backlog, rate, left, limits)
    worth = rate * most * _PAYS * limits.start
    goal = max(_SHARE * backlog, worth)
    if backlog - goal < worth:
        return Wave(len(chunks), least, most)
    count = sum(total < goal for total in accumulate(chunks, initial=0))
    return Wave(count, least, most)


def achieved(answered: int, passed: float, wave: Wave, limits: Limits) -> float:
    """Questions a second of one actor in a wave that took so many seconds; actors that never came count as slow."""
    return max(answered / (max(passed - limits.start, 1.0) * wave.most), _SLOWEST)
