"""Choose the number of actors that ask a judge, and how much of the backlog to ask before choosing again.

Ray Data scales a pool between two sizes by its queue; it has no hook for a deadline. So a backlog is asked
in waves, each a dataset with its own pool, and the sizes of the next wave follow the rate of the last one: if spot
instances were lost, the rate is low and the next wave is larger. Pure functions, without clock or cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds import TextJudge

# Seconds from requesting an actor to its first answer (node, image, weights), until the first wave measures it. With a
# target, no actor is started for less work than this.
START_S = 120.0
_SHARE = 1 / 3  # fraction of the remaining work in a wave, so that waves get shorter towards the deadline
_PAYS = 10.0  # minimum length of a wave in start-up times, so that start-up takes at most a tenth of it
_TRIAL = 2  # chunks per actor in the first wave, while the rate is unknown
_SPARE = 1.25  # extra actors relative to what the deadline needs, for late starts and lost nodes
_SLOWEST = 1e-6  # questions per second assumed after a wave without answers


@dataclass(frozen=True)
class Limits:
    """Minimum and maximum number of actors, and seconds from requesting one to its first answer."""

    least: int
    most: int
    start: float


@dataclass(frozen=True)
class Wave:
    """The next `chunks` chunks of a backlog, and the pool's minimum and maximum size."""

    chunks: int
    least: int
    most: int


def target_of(config: JudgeConfig, judge: TextJudge, passed: float) -> float:
    """Return the seconds that a judge may take, `passed` seconds after its panel was first asked; inf without a target.

    The remaining time is split evenly among this judge and those after it.
    """
    if config.target_hours is None:
        return math.inf
    panel = kinds.reading(config)
    waiting = len(panel) - panel.index(judge)
    return max(config.target_hours * 3600 - passed, 0.0) / waiting


def size(backlog: float, rate: float, left: float, limits: Limits) -> tuple[int, int]:
    """Return the pool's minimum and maximum size for `backlog` questions at `rate` questions per second and actor.

    left: seconds until the deadline, inf without one.
    No actor is started for less work than its start-up time. With a deadline, the minimum is what it needs and the
    maximum a quarter more. Always within the limits.

    >>> size(360_000, 25.0, 3600, Limits(1, 16, 120)), size(5_000, 25.0, math.inf, Limits(1, 16, 120))
    ((5, 6), (1, 1))
    """
    work = backlog / rate
    needed = 0.0
    most = float(limits.most) if limits.start <= 0 else min(limits.most, work / limits.start)
    if left < math.inf:
        working = max(left - limits.start, limits.start, 1e-3)
        needed = work / working
        most = min(most, math.ceil(_SPARE * work / working))
    largest = max(math.floor(most), limits.least)
    return max(math.ceil(min(needed, largest)), limits.least), largest


def next_wave(chunks: Sequence[int], rate: float | None, left: float, limits: Limits) -> Wave:
    """Return the next wave of a backlog of `chunks` (numbers of questions, at least one), with `left` seconds for all.

    Without a deadline, everything. With one, a trial with the fewest actors while `rate` is unknown; then a third of
    the backlog, or ten start-up times if that is more, or everything if less than such a wave would remain.
    """
    if left == math.inf:
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
    """Return questions per second and actor in a wave; actors that never started count as slow."""
    return max(answered / (max(passed - limits.start, 1.0) * wave.most), _SLOWEST)
