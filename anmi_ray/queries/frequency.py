"""Approximate document frequencies of a stream, in constant memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

import numpy as np

_COUNTERS = 1 << 22  # 16 MiB; on a collision two keys share a count, so both look more frequent


class DocumentFrequency:
    """Hashed counters, which never underestimate."""

    def __init__(self) -> None:
        self.documents = 0
        self._count = np.zeros(_COUNTERS, dtype=np.uint32)

    def add(self, keys: Iterable[str]) -> None:
        """Count the keys of one document, each once."""
        slots = np.unique(np.fromiter(map(_slot, keys), dtype=np.int64))
        self._count[slots] += 1
        self.documents += 1

    def of(self, key: str) -> int:
        """Estimated number of documents that contain the key; never too low."""
        return int(self._count[_slot(key)])

    def idf(self, key: str) -> float:
        """Inverse document frequency ln((N + 1) / (n + 1)), at least 0."""
        return max(0.0, math.log((self.documents + 1) / (self.of(key) + 1)))


def _slot(key: str) -> int:
    return zlib.crc32(key.encode()) % _COUNTERS
