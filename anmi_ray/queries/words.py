"""Words for extracting queries: runs of letters, digits and underscores, case-folded.

Documents are hostile input, so every pattern reads a text once from left to right.
"""

from __future__ import annotations

import re

# English words, in addition to the usual stop words, that do not begin or end a term.
_LITTLE = frozenset(
    {"also", "although", "among", "another", "around", "because", "could", "either", "else", "ever", "every"}
    | {"first", "furthermore", "hence", "however", "instead", "last", "less", "many", "may", "might", "moreover"}
    | {"much", "must", "neither", "often", "one", "others", "per", "rather", "second", "several", "shall", "since"}
    | {"still", "therefore", "third", "though", "thus", "together", "toward", "towards", "two", "unless", "upon"}
    | {"use", "used", "using", "via", "well", "whereas", "whether", "within", "without", "would", "yet"}
)
WORD = re.compile(r"\w+")


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
