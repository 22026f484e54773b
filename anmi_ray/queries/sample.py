"""Sample documents from a stream by smallest hash, independent of order and sharding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from anmi_ray.core import identity

Kept = TypeVar("Kept")


class DocumentSample(Generic[Kept]):
    """A sample of `size` documents, with a value kept for each."""

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
