"""Words of documents, and removing queries from the documents they were extracted from.

Words are runs of letters, digits and underscores, case-folded. Documents are hostile input, so every pattern reads a
text once from left to right. Queries are removed so that exact copies are neither retrieved nor learned; nothing
replaces them, since a mask token would reveal which document a query came from.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

# English words, in addition to the usual stop words, that do not begin or end a term.
_LITTLE = frozenset(
    {"also", "although", "among", "another", "around", "because", "could", "either", "else", "ever", "every"}
    | {"first", "furthermore", "hence", "however", "instead", "last", "less", "many", "may", "might", "moreover"}
    | {"much", "must", "neither", "often", "one", "others", "per", "rather", "second", "several", "shall", "since"}
    | {"still", "therefore", "third", "though", "thus", "together", "toward", "towards", "two", "unless", "upon"}
    | {"use", "used", "using", "via", "well", "whereas", "whether", "within", "without", "would", "yet"}
)
WORD = re.compile(r"\w+")
LEAST_LEFT = 8  # words of a document without its queries; fewer leave nothing to retrieve or judge
_ROUNDS = 4  # removing a copy may join its neighbors into another; stop on texts built to repeat this
_NEAR = 256  # characters around a match that are searched for the rest of its line
_RULES = frozenset("=-~^*")  # characters that underline a heading


def words(text: str) -> list[str]:
    """Return the words of a text in order.

    >>> words("The *first* ORA-00942, again")
    ['the', 'first', 'ora', '00942', 'again']
    """
    return normal(text).split()


def normal(text: str) -> str:
    """Return the words of a text joined by spaces, for comparing texts."""
    return " ".join(WORD.findall(text)).casefold()


def says(word: str, stop_words: frozenset[str]) -> bool:
    """Return whether a case-folded word is informative: two or more characters, a letter, not a stop word."""
    return (
        len(word) > 1
        and word not in stop_words
        and word not in _LITTLE
        and not word.isdigit()
        and any(map(str.isalpha, word))
    )


def cleaned(text: str) -> str:
    """Return a text as one printable line with single spaces.

    Its words stay the same, since a word contains no unprintable characters.
    """
    if text.isprintable():
        return " ".join(text.split())
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def masked(title: str, text: str, passages: Sequence[str]) -> tuple[str, str] | None:
    """Return title and text without any occurrence of a passage, compared word by word.

    None if the passages cannot be removed, or too little text would remain.

    >>> masked("Slow leaks", "# Slow leaks\\nA tyre that loses air (slow leaks) is fixed in these seven steps.",
    ...        ["slow leaks"])
    ('', 'A tyre that loses air () is fixed in these seven steps.')
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
    """Remove the words of `wanted` (case-folded, joined by spaces)."""
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
    """Return (begin, end) of every occurrence in `text` of the words of `wanted` (case-folded, joined by spaces)."""
    found = list(WORD.finditer(text))
    folded = [match.group().casefold() for match in found]
    at: list[int] = []  # where each word begins in the joined words
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
    """Extend a match by trailing punctuation, or to its whole line and underline if nothing else is on that line."""
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
