"""Which offers of documents become queries: filtered, told apart, and as many of each kind.

Order is that of a hash of seed, kind and document, so it depends neither on the order of documents nor on their shards.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anmi_ray.config.queries import WRITTEN
from anmi_ray.core import identity
from anmi_ray.queries.frequency import DocumentFrequency
from anmi_ray.queries.kinds import KINDS, Offer
from anmi_ray.queries.masking import LEAST_LEFT
from anmi_ray.queries.words import normal, says, words

PER_DOCUMENT = 2  # queries of one document: more would train on a few documents
SHORT = "too short"
LONG = "too long"
EMPTY = "says nothing"
NEAR = "near-duplicate"
CROWDED = "its document gives two others"
BARE = "little is left of its document without it"
LOST = "its document is not found by it"
SPARE = "not needed"

_FEWEST = {"sentence": 4}  # words; of other kinds 2
_MOST = 24  # words
MOST_CHARACTERS = 300
_SHARED = 8  # documents: a title, heading or sentence of more is boilerplate
_ALIKE = 0.8  # Jaccard
_TOP = 16  # offers of a kind that are kept of a document until all documents are counted
_FOUND_ONCE = ("phrase",)  # kinds of which many stand in a document, most of them fragments
# Headings of two words and more that name no subject, in collections too small for their number to show it.
_USUAL = frozenset(
    {"table of contents", "see also", "further reading", "related work", "external links", "getting started"}
    | {"materials and methods", "results and discussion", "conflict of interest", "release notes", "change log"}
)


@dataclass(frozen=True)
class QueryCandidate:
    """A query that a document offers; `order` is its place among all, by hash; `number` of its kind and document."""

    kind: str
    text: str
    passage: str
    source: str
    doc_id: bytes
    order: bytes
    number: int = 0

    @property
    def passages(self) -> tuple[str, ...]:
        """What is masked in its document: nothing for one that was written."""
        return () if self.kind in WRITTEN else tuple(dict.fromkeys((self.text, self.passage)))

    @property
    def query_id(self) -> str:
        """Its id, the same whatever else is made."""
        later = (self.number,) if self.number else ()
        return f"{self.kind}-{identity.digest('made query', self.kind, self.source, *later).hex()[:16]}"


@dataclass(frozen=True)
class LeftOutQuery:
    """A candidate that is no query, and why."""

    candidate: QueryCandidate
    reason: str


def kept_until_counted(offers: Iterable[Offer]) -> list[Offer]:
    """Of each kind the offers that may still be the best of their document, once all documents are counted."""
    by_kind = defaultdict[str, list[Offer]](list)
    for offer in offers:
        if len(offer.text) > MOST_CHARACTERS:  # is too long, and need not be held whole
            offer = offer._replace(text=offer.text[: 2 * MOST_CHARACTERS], passage="", key="")
        by_kind[offer.kind].append(offer)
    return [
        offer
        for found in by_kind.values()
        for offer in sorted(found, key=lambda one: (-one.times, -one.key.count(" ")))[:_TOP]
    ]


def best_offers(
    offers: Iterable[Offer],
    source: str,
    length: int,
    seed: int,
    frequency: DocumentFrequency,
    stop_words: frozenset[str],
) -> list[tuple[QueryCandidate, str]]:
    """At most one candidate of each kind, with why it is no query, or "". `length`: words of the document.

    The best is, of those that can be asked, the one of highest tf-idf, the longest of these, and then by hash.
    """
    best: dict[str, tuple[tuple[bool, float, int, bytes], QueryCandidate, str]] = {}
    doc_id = identity.doc_id(source)
    for offer in offers:
        if offer.kind in _FOUND_ONCE and offer.times < 2 and frequency.of(offer.key) < 2:
            continue  # a run of words that nobody says again is a fragment, not a term
        reason = _unfit(offer, frequency, stop_words)
        if not reason and length - len(words(offer.passage)) < LEAST_LEFT:
            reason = BARE
        value = offer.times * frequency.idf(offer.key) if offer.kind in ("phrase", "identifier") else 0.0
        longest = len(words(offer.text)) if offer.kind == "phrase" else 0
        rank = (bool(reason), -value, -longest, identity.digest("offer", seed, offer.key))
        if offer.kind not in best or rank < best[offer.kind][0]:
            order = identity.digest("made order", seed, offer.kind, source)
            candidate = QueryCandidate(offer.kind, offer.text, offer.passage, source, doc_id, order)
            best[offer.kind] = rank, candidate, reason
    return [(candidate, reason) for _, candidate, reason in best.values()]


def unfit(kind: str, text: str, stop_words: frozenset[str]) -> str:
    """Why a text cannot be asked, whatever the collection, or ""."""
    found = words(text)
    if len(found) < _FEWEST.get(kind, 2):
        return SHORT
    if len(found) > _MOST or len(text) > MOST_CHARACTERS:
        return LONG
    if sum(says(word, stop_words) for word in found) < 2 or normal(text) in _USUAL:
        return EMPTY
    return ""


def _unfit(offer: Offer, frequency: DocumentFrequency, stop_words: frozenset[str]) -> str:
    """Why an offer cannot be asked, or ""."""
    if reason := unfit(offer.kind, offer.text, stop_words):
        return reason
    if offer.kind in ("title", "sentence", "heading") and frequency.of(offer.key) > _SHARED:
        return EMPTY
    return ""


def near_duplicates(candidates: Sequence[QueryCandidate]) -> set[QueryCandidate]:
    """Those whose set of words has a Jaccard similarity of .8 or more with one before them that is none itself.

    Exact, by prefixes (Chaudhuri, Ganti and Kaushik 2006): of two sets that are so alike, each has one of their common
    words among its first n − ⌈.8 n⌉ + 1, the rarest words first; only sets that share one of these are compared.
    """
    sets = [frozenset(words(candidate.text)) for candidate in candidates]
    held = Counter(word for one in sets for word in one)
    by_word = defaultdict[str, list[frozenset[str]]](list)
    found: set[QueryCandidate] = set()
    for candidate, mine in zip(candidates, sets, strict=True):
        rarest = sorted(mine, key=lambda word: (held[word], word))
        prefix = rarest[: len(mine) - math.ceil(_ALIKE * len(mine)) + 1]
        if any(_jaccard(mine, other) >= _ALIKE for word in prefix for other in by_word[word]):
            found.add(candidate)
            continue
        for word in prefix:
            by_word[word].append(mine)
    return found


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def balanced(candidates: Iterable[QueryCandidate], number: int) -> tuple[list[QueryCandidate], list[LeftOutQuery]]:
    """`number` candidates, as many of each kind as there are, at most two of a document; and the others.

    The kinds take turns, each with its next in order, until there are enough.
    """
    queues = {kind: list[QueryCandidate]() for kind in (*KINDS, *WRITTEN)}
    for candidate in sorted(candidates, key=lambda one: one.order, reverse=True):
        queues[candidate.kind].append(candidate)
    taken: list[QueryCandidate] = []
    left: list[LeftOutQuery] = []
    given = Counter[bytes]()
    while len(taken) < number and any(queues.values()):
        for queue in queues.values():
            while queue and given[queue[-1].doc_id] == PER_DOCUMENT:
                left.append(LeftOutQuery(queue.pop(), CROWDED))
            if queue and len(taken) < number:
                taken.append(queue.pop())
                given[taken[-1].doc_id] += 1
    left += [LeftOutQuery(candidate, SPARE) for queue in queues.values() for candidate in queue]
    return taken, left
