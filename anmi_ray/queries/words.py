"""What a word is to queries that are made of documents: a run of letters, digits and underscores, its case folded.

Documents are hostile input, so every pattern here and in the finders reads a text once from left to right.
"""

from __future__ import annotations

import re

# English words beside the usual stop words that begin or end no term.
_LITTLE = frozenset(
    {"also", "although", "among", "another", "around", "because", "could", "either", "else", "ever", "every"}
    | {"first", "furthermore", "hence", "however", "instead", "last", "less", "many", "may", "might", "moreover"}
    | {"much", "must", "neither", "often", "one", "others", "per", "rather", "second", "several", "shall", "since"}
    | {"still", "therefore", "third", "though", "thus", "together", "toward", "towards", "two", "unless", "upon"}
    | {"use", "used", "using", "via", "well", "whereas", "whether", "within", "without", "would", "yet"}
)
WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text in their order.

    >>> words("The *first* ORA-00942, again")
    ['the', 'first', 'ora', '00942', 'again']
    """
    return normal(text).split()


def normal(text: str) -> str:
    """The words of a text, joined: what "the same words" means."""
    return " ".join(WORD.findall(text)).casefold()


def says(word: str, stop_words: frozenset[str]) -> bool:
    """Whether a word, its case folded, says something by itself: two characters or more, a letter, no stop word."""
    return (
        len(word) > 1
        and word not in stop_words
        and word not in _LITTLE
        and not word.isdigit()
        and any(map(str.isalpha, word))
    )


def cleaned(text: str) -> str:
    """A text as one line that can be shown: what is not printed becomes a space, and spaces are single.

    Its words are those of `text`: characters that are not printed stand in no word.
    """
    if text.isprintable():
        return " ".join(text.split())
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
