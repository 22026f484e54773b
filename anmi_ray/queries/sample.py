"""A sample of documents while they stream by: those of smallest hash, whatever their order and their shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from anmi_ray.core import identity

Kept = TypeVar("Kept")


class DocumentSample(Generic[Kept]):
    """What was kept of `size` documents."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._held: dict[bytes, Kept] = {}
        self._limit: bytes | None = None

    def takes(self, source: str) -> bool:
        """Whether a document may be one of them, as far as is known yet."""
        return self._limit is None or self._key(source) < self._limit

    def add(self, source: str, kept: Kept) -> None:
        """Keep something of a document that it takes."""
        self._held[self._key(source)] = kept
        if len(self._held) >= 2 * self._size:
            self._prune()

    def drawn(self) -> Iterable[Kept]:
        """What was kept of each of them, in the order of their hashes."""
        self._prune()
        return self._held.values()

    def _key(self, source: str) -> bytes:
        return identity.digest("sample", "documents", self._seed, source)

    def _prune(self) -> None:
        kept = sorted(self._held)[: self._size]
        self._held = {key: self._held[key] for key in kept}
        if len(kept) == self._size:
            self._limit = kept[-1]
