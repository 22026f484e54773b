"""Intervals of shares, and blocks of bootstrap rounds."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution
BLOCK = 1 << 20  # numbers drawn at once


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927) of a share of `size` independent units.

    >>> [round(end, 4) for end in wilson(0.1, 50)]
    [0.0435, 0.2136]
    """
    middle = (share + Z95**2 / (2 * size)) / (1 + Z95**2 / size)
    half = Z95 / (1 + Z95**2 / size) * math.sqrt(share * (1 - share) / size + Z95**2 / (4 * size**2))
    return max(middle - half, 0.0) if share else 0.0, min(middle + half, 1.0) if share < 1 else 1.0


def blocks(rounds: int, width: int) -> list[int]:
    """Return the sizes of blocks of rounds such that a block holds about BLOCK numbers."""
    size = max(1, BLOCK // max(1, width))
    full, rest = divmod(rounds, size)
    return [size] * full + ([rest] if rest else [])
