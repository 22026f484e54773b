"""Ids that a collection does not have: how many there are, and which change on their way would explain them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from urllib.parse import unquote

from anmi_ray.core.errors import DataError

_TRIED = 1_000  # unknown ids that an explanation is looked for
_SHOWN = 80  # characters of an id in a message
# By what was changed, what makes the written id and the collection's the same.
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


def likely_change(unknown: Collection[str], known: Iterable[str]) -> str:
    """What was changed in most of the unknown ids, with an example, if one change explains half of them; else ""."""
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
    known: Callable[[], Iterable[str]],
    say: Callable[[str], None] | None = None,
) -> None:
    """Report `unknown` ids, that `count` of `total` things (`what`, in the plural) have; `known` iterates over all ids.

    Raises DataError if it is half of them or more: ids were changed on their way, or belong to another collection.
    """
    if not unknown:
        return
    example = min(unknown)[:_SHOWN]
    message = f"{count:,} of {total:,} {what} are not in the collection, or have no text there, such as {example}"
    change = likely_change(unknown, known())
    if 2 * count >= total:
        raise DataError(
            f"{message}{change and f' ({change})'}",
            place,
            "write the collection's ids" if change else "give the collection that these ids belong to",
        )
    if say is not None:
        say(f"{place}: {message}{change and f' ({change})'}")
