"""Approximate document frequencies, and a sample, of a stream of documents in constant memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

from anmi_ray.core import identity

Kept = TypeVar("Kept")

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


class DocumentSample(Generic[Kept]):
    """A sample of `size` documents by smallest hash, independent of order and sharding, with a value for each."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._held: dict[bytes, Kept] = {}
        self._limit: bytes | None = None

    def takes(self, source: str) -> bool:
        """Return whether a document may still belong to the sample."""
        return self._limit is None or self._key(source) < self._limit

    def add(self, source: str, kept: Kept) -> None:
        """Add a document's value; only if `takes` accepted it."""
        self._held[self._key(source)] = kept
        if len(self._held) >= 2 * self._size:
            self._prune()

    def drawn(self) -> Iterable[Kept]:
        """Return the kept values in hash order."""
        self._prune()
        return self._held.values()

    def _key(self, source: str) -> bytes:
        return identity.digest("sample", "documents", self._seed, source)

    def _prune(self) -> None:
        kept = sorted(self._held)[: self._size]
        self._held = {key: self._held[key] for key in kept}
        if len(kept) == self._size:
            self._limit = kept[-1]
