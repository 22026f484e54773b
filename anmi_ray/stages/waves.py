"""The waves in which a judge's backlog is asked, and how large a pool each has.

The arithmetic is `judging/pools.py`; here are the clock and the count of answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from anmi_ray.judging import pools
from anmi_ray.judging.pools import Limits, Target

Chunk = dict[str, int]


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
