"""The waves in which a judge's backlog is asked, and how large a pool each has.

The arithmetic is `judging/pools.py`; here are the clock, the settings and the count of answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig, TextJudgeConfig, gpus_of
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.judging import pools
from anmi_ray.judging.pools import Limits, Target

Chunk = dict[str, int]


def limits_of(judge: TextJudgeConfig, execution: ExecutionConfig) -> Limits:
    """Fewest and most actors that may ask a judge."""
    if isinstance(judge, VllmJudgeConfig):
        return Limits(*judge.execution.engines, execution.pool_start_s)
    return Limits(*execution.asking, execution.pool_start_s)


def target_of(config: JudgeConfig, judge: TextJudgeConfig, execution: ExecutionConfig, passed: float) -> Target:
    """A judge's part of a panel's target, `passed` seconds after the panel was first asked.

    What is left is shared evenly with the judges after it, as a budget is; money only with those that use GPUs.
    """
    waiting = config.reading[config.reading.index(judge) :]
    hours, dollars = config.target_hours, None
    price = execution.gpu_dollars_hour
    if config.target_dollars is not None and price and gpus_of(judge):
        using = sum(gpus_of(one) > 0 for one in config.reading)
        dollars = config.target_dollars / using / price / gpus_of(judge)
    return Target(
        None if hours is None else max(hours * 3600 - passed, 0.0) / len(waiting),
        None if dollars is None else dollars * 3600,
    )


def in_waves(
    chunks: list[Chunk], target: Target, limits: Limits, answered: Callable[[], int]
) -> Iterator[tuple[list[Chunk], tuple[int, int]]]:
    """Chunks and the fewest and most actors for them, wave after wave; the caller asks each before it takes the next.

    answered: counts the questions answered so far.
    """
    rate: float | None = None
    while chunks:
        sizes = [chunk["stop"] - chunk["start"] for chunk in chunks]
        wave = pools.next_wave(sizes, rate, target, limits)
        before, began = answered(), time.monotonic()
        yield chunks[: wave.chunks], (wave.least, wave.most)
        passed = time.monotonic() - began
        rate = pools.achieved(answered() - before, passed, wave, limits)
        target, chunks = target.after(passed, wave.most), chunks[wave.chunks :]
