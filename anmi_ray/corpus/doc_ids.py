"""Which document ids were read: sixteen bytes for each, so that a collection may be far larger than its reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.identity import ID_BYTES

_RECENT = 1 << 15  # ids that are held as Python objects, which take eight times as much


class SeenIds:
    """A set of ids (16 bytes each) that grows: recent ones in a set, the others in sorted arrays.

    An array is merged with the one before it when that is not twice as large, so there are few, and an id is moved as
    often as the number of arrays.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._sorted: list[NDArray[np.bytes_]] = []

    def __contains__(self, identifier: bytes) -> bool:
        return identifier in self._recent or bool(self._held([identifier])[0])

    def add(self, ids: Sequence[bytes]) -> list[bool]:
        """Add ids in their order; of each, whether it is new.

        >>> seen = SeenIds()
        >>> a, b = b"a" * 16, b"b" * 16
        >>> seen.add([a, b, a]), seen.add([b]), b in seen
        ([True, True, False], [False], True)
        """
        new = []
        for identifier, held in zip(ids, self._held(ids), strict=True):
            new.append(not held and identifier not in self._recent)
            if new[-1]:
                self._recent.add(identifier)
        if len(self._recent) >= _RECENT:
            self._settle()
        return new

    def _held(self, ids: Sequence[bytes]) -> NDArray[np.bool_]:
        """Of each id, whether it is in a sorted array."""
        wanted = np.array(ids, dtype=f"S{ID_BYTES}")
        found = np.zeros(len(wanted), dtype=bool)
        for array in self._sorted:
            place = np.searchsorted(array, wanted)
            found |= array[np.minimum(place, len(array) - 1)] == wanted
        return found

    def _settle(self) -> None:
        array = np.array(sorted(self._recent), dtype=f"S{ID_BYTES}")
        self._recent = set()
        while self._sorted and len(self._sorted[-1]) < 2 * len(array):
            array = np.sort(np.concatenate([self._sorted.pop(), array]))
        self._sorted.append(array)
