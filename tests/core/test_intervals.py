"""Intervals of shares and blocks of rounds."""

from __future__ import annotations

from anmi_ray.core.intervals import BLOCK, blocks, wilson


def test_wilson_interval_on_known_values() -> None:
    low, high = wilson(0.1, 50)  # Wilson (1927)
    assert (round(low, 4), round(high, 4)) == (0.0435, 0.2136)
    assert wilson(0.0, 10)[0] == 0.0
    assert wilson(1.0, 10)[1] == 1.0


def test_blocks_hold_all_rounds() -> None:
    assert blocks(10, BLOCK // 4) == [4, 4, 2]
    assert blocks(3, 2 * BLOCK) == [1, 1, 1]
    assert blocks(8, 1) == [8]
