"""Which document ids were read, and what explains ids that a collection does not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import ID_BYTES

_RECENT = 1 << 15  # ids held as Python objects, which take eight times as much
_TRIED = 1_000  # unknown ids for which an explanation is searched
_SHOWN = 80  # characters of an id in a message
# Possible differences between a written id and the collection's, each with a function that removes it.
_CHANGES: dict[str, Callable[[str], str]] = {
    "upper or lower case": str.casefold,
    "leading zeros": lambda name: re.sub(r"(?<![0-9])0+(?=[0-9])", "", name),
    "an ending .0": lambda name: re.sub(r"\.0+$", "", name),
    "quotation marks": lambda name: name.strip("\"'"),
    "percent encoding": unquote,
    "a prefix": lambda name: re.sub(r"^.*[-_:/|#]", "", name),
    "a prefix of letters": lambda name: re.sub(r"^[^0-9]+(?=[0-9])", "", name),
    "a suffix": lambda name: re.sub(r"[-_:/|#.][^-_:/|#.]*$", "", name),
}
_AFFIXES = ("a prefix", "a suffix")


class SeenIds:
    """A growing set of ids of 16 bytes each: recent ones in a set, the others in sorted arrays.

    An array is merged with the previous one unless that is twice as large, so there are few.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._sorted: list[NDArray[np.bytes_]] = []

    def __contains__(self, identifier: bytes) -> bool:
        return identifier in self._recent or bool(self._held([identifier])[0])

    def add(self, ids: Sequence[bytes]) -> list[bool]:
        """Add ids in their order; return whether each is new.

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
            array = np.array(sorted(self._recent), dtype=f"S{ID_BYTES}")
            self._recent = set()
            while self._sorted and len(self._sorted[-1]) < 2 * len(array):
                array = np.sort(np.concatenate([self._sorted.pop(), array]))
            self._sorted.append(array)
        return new

    def _held(self, ids: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return whether each id is in a sorted array."""
        wanted = np.array(ids, dtype=f"S{ID_BYTES}")
        found = np.zeros(len(wanted), dtype=bool)
        for array in self._sorted:
            place = np.searchsorted(array, wanted)
            found |= array[np.minimum(place, len(array) - 1)] == wanted
        return found


def likely_change(unknown: Collection[str], known: Iterable[str]) -> str:
    """Describe the change that explains at least half of the unknown ids, with an example; "" if none does."""
    tried = sorted(unknown)[:_TRIED]
    changed = {what: {name: change(name) for name in tried} for what, change in _CHANGES.items()}
    wanted = {what: set(names.values()) for what, names in changed.items()}
    found: dict[str, dict[str, str]] = {what: {} for what in _CHANGES}
    for name in known:
        for what, change in _CHANGES.items():
            if (same := change(name)) in wanted[what]:
                found[what].setdefault(same, name)
    best = ("", {})
    for what, names in changed.items():
        pairs = {name: found[what][same] for name, same in names.items() if same in found[what]}
        if what.startswith(_AFFIXES):
            pairs = {name: other for name, other in pairs.items() if name in other or other in name}
        best = (what, pairs) if len(pairs) > len(best[1]) else best
    what, pairs = best
    if not pairs or 2 * len(pairs) < len(tried):
        return ""
    name = min(pairs)
    return f"{name[:_SHOWN]} is {pairs[name][:_SHOWN]} there: ids differ by {what}"


def report_unknown(
    unknown: Collection[str],
    count: int,
    total: int,
    what: str,
    place: str,
    known: Iterable[str],
    say: Callable[[str], None] | None = None,
) -> None:
    """Report the ids `unknown`, which `count` of `total` `what` (a plural) have.

    known: all known ids, read only if needed.
    Raises DataError if it is half of them or more: the ids were changed, or belong to another collection.
    """
    if not unknown:
        return
    example = min(unknown)[:_SHOWN]
    change = likely_change(unknown, known)
    message = f"{count:,} of {total:,} {what} are not in the collection, or have no text there, such as {example}"
    message += change and f" ({change})"
    if 2 * count >= total:
        remedy = "write the collection's ids" if change else "give the collection that these ids belong to"
        raise DataError(message, place, remedy)
    if say is not None:
        say(f"{place}: {message}")
