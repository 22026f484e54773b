"""Take queries out of the document that they were made of, so that it is not found, nor learnt, as a copy of them.

Nothing is put in their place: a mark would tell a model which document a query came from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from anmi_ray.queries.words import WORD, normal, words

LEAST_LEFT = 8  # words of a document without its queries: less leaves nothing to find, or to judge
_ROUNDS = 4  # taking a copy out may join its neighbours into another; a text made to do so for ever is refused
_NEAR = 256  # characters to each side of a place in which the rest of its line is looked for
_RULES = frozenset("=-~^*")  # what a heading is underlined with


def masked(title: str, text: str, passages: Sequence[str]) -> tuple[str, str] | None:
    """Title and text without every place where the words of a passage stand one after the other.

    None where they cannot be taken out, or too little would be left.

    >>> masked("Slow leaks", "# Slow leaks\\nA tyre that loses air (slow leaks) is mended in these seven steps.",
    ...        ["slow leaks"])
    ('', 'A tyre that loses air () is mended in these seven steps.')
    """
    every = [wanted for passage in passages if (wanted := normal(passage))]
    for _ in range(_ROUNDS):
        for wanted in every:
            title = _without(title, wanted)
            text = _without(text, wanted)
        folded = f" {normal(title)} \n {normal(text)} "
        if not any(f" {wanted} " in folded for wanted in every):
            break
    else:
        return None
    title = title if WORD.search(title) else ""
    return (title, text.strip()) if len(words(f"{title} {text}")) >= LEAST_LEFT else None


def _without(text: str, wanted: str) -> str:
    """A text without the words of `wanted`, folded and joined."""
    if f" {wanted} " not in f" {normal(text)} ":
        return text
    kept: list[str] = []
    end = 0
    for first, last in _places(text, wanted):
        begin, after = _widened(text, first, last)
        kept.append(text[end : max(end, begin)])
        end = max(end, after)
    return "".join([*kept, text[end:]])


def _places(text: str, wanted: str) -> list[tuple[int, int]]:
    """(begin, end) of every place where the words of `wanted`, folded and joined, stand in `text`."""
    found = list(WORD.finditer(text))
    folded = [match.group().casefold() for match in found]
    at: list[int] = []  # where each word begins in the words joined
    length = 1
    for word in folded:
        at.append(length)
        length += len(word) + 1
    joined = f" {' '.join(folded)} "
    size = wanted.count(" ") + 1
    places: list[tuple[int, int]] = []
    place = joined.find(f" {wanted} ")
    while place >= 0:
        first = bisect_left(at, place + 1)
        places.append((found[first].start(), found[first + size - 1].end()))
        place = joined.find(f" {wanted} ", place + len(wanted) + 1)
    return places


def _widened(text: str, first: int, last: int) -> tuple[int, int]:
    """A place with the punctuation at its end; where nothing else stands in its line, the whole line and its rule."""
    while last < len(text) and text[last] in ".,;:!?" and last - first < _NEAR:
        last += 1
    before = text[max(0, first - _NEAR) : first].rpartition("\n")[2]
    after = text[last : last + _NEAR].partition("\n")[0]
    if max(len(before), len(after)) == _NEAR or any(map(str.isalpha, before)) or any(map(str.isalnum, after)):
        return first, last
    end = last + len(after) + 1
    rule = text[end : end + _NEAR].partition("\n")[0]
    if rule.strip() and set(rule.strip()) <= _RULES:
        end += len(rule) + 1
    return first - len(before), min(len(text), end)
