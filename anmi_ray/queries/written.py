"""Queries that a language model wrote about a document: which of them can be asked, and why others cannot.

Who reads a document may have been told by it what to write, so nothing of an answer is taken on trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from anmi_ray.core import identity
from anmi_ray.queries.choose import MOST_CHARACTERS, QueryCandidate, unfit
from anmi_ray.queries.kinds import first_sentence, headings
from anmi_ray.queries.words import cleaned, normal

ANSWER = "answer"  # in the place of a kind, where a document got no queries
BLANK = "is empty"
CONTROL = "holds control characters"
COPY = "copies its document"
UNWANTED = "was not asked for"
_COPIED = 4  # words that stand in the document one after the other: fewer are its terms, which every query may need


def written_queries(
    answer: Iterable[tuple[str, str]],
    source: str,
    document: tuple[str, str],
    wanted: tuple[Sequence[str], int],
    seed: int,
    stop_words: frozenset[str],
) -> list[tuple[QueryCandidate, str]]:
    """Each (kind, query) of an answer as a candidate, with why it is no query, or "".

    document: title and text; wanted: the kinds that were asked for, and how many of each.
    """
    kinds, each = wanted
    of_kind = Counter[str]()
    found: list[tuple[QueryCandidate, str]] = []
    for kind, text in answer:
        known = kind if kind in kinds else ANSWER
        candidate = _candidate(known, text, source, of_kind[known], seed)
        of_kind[known] += 1
        beyond = known == ANSWER or candidate.number >= each
        found.append((candidate, UNWANTED if beyond else _fault(known, text, document, stop_words)))
    return found


def unanswered(source: str, answer: str, seed: int) -> QueryCandidate:
    """What stands in the place of a document's queries where there are none; `answer`: what came instead."""
    return _candidate(ANSWER, answer, source, 0, seed)


def _candidate(kind: str, text: str, source: str, number: int, seed: int) -> QueryCandidate:
    order = identity.digest("made order", seed, kind, source, number)
    shown = cleaned(text[: 2 * MOST_CHARACTERS])
    return QueryCandidate(kind, shown, "", source, identity.doc_id(source), order, number)


def _fault(kind: str, text: str, document: tuple[str, str], stop_words: frozenset[str]) -> str:
    text = text.strip()
    if not text:
        return BLANK
    if not text.isprintable():
        return CONTROL
    return unfit(kind, text, stop_words) or (COPY if _is_copy(text, *document) else "")


def _is_copy(query: str, title: str, text: str) -> bool:
    """Whether a query is the title, a heading or the first sentence, or a longer run of words that stands there."""
    wanted = normal(query)
    if wanted in (normal(title), normal(first_sentence(text)), *map(normal, headings(text))):
        return True
    return wanted.count(" ") + 1 >= _COPIED and any(f" {wanted} " in f" {normal(one)} " for one in (title, text))
