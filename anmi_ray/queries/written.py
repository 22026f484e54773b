"""Check queries that a language model wrote about a document.

The document may contain instructions to the model, so no part of its answer is trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from anmi_ray.core import identity
from anmi_ray.queries.choose import MOST_CHARACTERS, QueryCandidate, unfit
from anmi_ray.queries.kinds import first_sentence, headings
from anmi_ray.queries.words import cleaned, normal

ANSWER = "answer"  # kind recorded for a document that got no queries
BLANK = "is empty"
CONTROL = "holds control characters"
COPY = "copies its document"
UNWANTED = "was not asked for"
_COPIED = 4  # consecutive words of the document; shorter runs are terms that every query may need


def written_queries(
    answer: Iterable[tuple[str, str]],
    source: str,
    document: tuple[str, str],
    wanted: tuple[Sequence[str], int],
    seed: int,
    stop_words: frozenset[str],
) -> list[tuple[QueryCandidate, str]]:
    """Return each (kind, query) of an answer as a candidate, with its rejection reason or "".

    document: title and text.
    wanted: the requested kinds, and how many queries of each.
    """
    kinds, each = wanted
    counts = Counter[str]()
    candidates: list[tuple[QueryCandidate, str]] = []
    for kind, text in answer:
        known = kind if kind in kinds else ANSWER
        candidate = _candidate(known, text, source, counts[known], seed)
        counts[known] += 1
        beyond = known == ANSWER or candidate.number >= each
        candidates.append((candidate, UNWANTED if beyond else _fault(known, text, document, stop_words)))
    return candidates


def unanswered(source: str, answer: str, seed: int) -> QueryCandidate:
    """Return a placeholder for a document without queries; `answer`: the model's reply."""
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
    """Return whether a query copies the title, a heading, the first sentence, or a longer run of words."""
    wanted = normal(query)
    if wanted in (normal(title), normal(first_sentence(text)), *map(normal, headings(text))):
        return True
    return wanted.count(" ") + 1 >= _COPIED and any(f" {wanted} " in f" {normal(part)} " for part in (title, text))
