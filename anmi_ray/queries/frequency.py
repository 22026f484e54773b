"""In how many documents something stands, counted while they stream by, in memory that does not grow with them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

import numpy as np

_COUNTERS = 1 << 22  # 16 MiB; two things that share one look as frequent as both, which only makes them look common


class DocumentFrequency:
    """Counts by hash, so never too few."""

    def __init__(self) -> None:
        self.documents = 0
        self._count = np.zeros(_COUNTERS, dtype=np.uint32)

    def add(self, keys: Iterable[str]) -> None:
        """Count what stands in one document, each thing once."""
        slots = np.unique(np.fromiter(map(_slot, keys), dtype=np.int64))
        self._count[slots] += 1
        self.documents += 1

    def of(self, key: str) -> int:
        """The documents in which it stands, or a few more."""
        return int(self._count[_slot(key)])

    def idf(self, key: str) -> float:
        """ln((N + 1) / (n + 1)), 0 or more."""
        return max(0.0, math.log((self.documents + 1) / (self.of(key) + 1)))


def _slot(key: str) -> int:
    return zlib.crc32(key.encode()) % _COUNTERS
