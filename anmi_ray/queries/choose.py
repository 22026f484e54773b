"""Choose queries from candidates: filter, drop near-duplicates, balance the kinds.

Candidates are ordered by a hash of seed, kind and document, so neither document order nor sharding matters. Document
frequencies and the sample of documents take constant memory. Of queries that a language model wrote no part is trusted,
since the document may contain instructions to the model.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from anmi_ray.config.queries import WRITTEN
from anmi_ray.core import identity
from anmi_ray.queries.kinds import KINDS, Offer, first_sentence, headings
from anmi_ray.queries.words import LEAST_LEFT, cleaned, normal, says, words

Kept = TypeVar("Kept")

PER_DOCUMENT = 2  # queries of one document: more would train on a few documents
SHORT = "too short"
LONG = "too long"
EMPTY = "says nothing"
NEAR = "near-duplicate"
CROWDED = "its document gives two others"
BARE = "little is left of its document without it"
LOST = "its document is not found by it"
SPARE = "not needed"
ANSWER = "answer"  # kind recorded for a document that got no queries
BLANK = "is empty"
CONTROL = "holds control characters"
COPY = "copies its document"
UNWANTED = "was not asked for"

_FEWEST = {"sentence": 4}  # words; of other kinds 2
_MOST = 24  # words
MOST_CHARACTERS = 300
_SHARED = 8  # documents: a title, heading or sentence of more is boilerplate
_ALIKE = 0.8  # Jaccard
_COPIED = 4  # consecutive words of the document; shorter runs are terms that every query may need
_COUNTERS = 1 << 22  # 16 MiB; on a collision two keys share a count, so both look more frequent
_TOP = 16  # candidates of one kind kept per document until document frequencies are known
_FOUND_ONCE = ("phrase",)  # kinds with many candidates per document, most of them fragments
# Generic headings of two or more words, for collections too small to show it by frequency.
_USUAL = frozenset(
    {"table of contents", "see also", "further reading", "related work", "external links", "getting started"}
    | {"materials and methods", "results and discussion", "conflict of interest", "release notes", "change log"}
)


@dataclass(frozen=True)
class QueryCandidate:
    """A candidate query. `order`: sort key, by hash; `number`: its index within its document and kind."""

    kind: str
    text: str
    passage: str
    source: str
    doc_id: bytes
    order: bytes
    number: int = 0

    @property
    def passages(self) -> tuple[str, ...]:
        """Texts to mask in its document; none if a model wrote the query."""
        return () if self.kind in WRITTEN else tuple(dict.fromkeys((self.text, self.passage)))

    @property
    def query_id(self) -> str:
        """Its id, independent of the other queries."""
        later = (self.number,) if self.number else ()
        return f"{self.kind}-{identity.digest('made query', self.kind, self.source, *later).hex()[:16]}"


class DocumentFrequency:
    """Hashed counters, which never underestimate."""

    def __init__(self) -> None:
        self.documents = 0
        self._count = np.zeros(_COUNTERS, dtype=np.uint32)

    def add(self, keys: Iterable[str]) -> None:
        """Count the keys of one document, each once."""
        slots = np.unique(np.fromiter(map(_slot, keys), dtype=np.int64))
        self._count[slots] += 1
        self.documents += 1

    def of(self, key: str) -> int:
        """Estimated number of documents that contain the key; never too low."""
        return int(self._count[_slot(key)])

    def idf(self, key: str) -> float:
        """Inverse document frequency ln((N + 1) / (n + 1)), at least 0."""
        return max(0.0, math.log((self.documents + 1) / (self.of(key) + 1)))


def _slot(key: str) -> int:
    return zlib.crc32(key.encode()) % _COUNTERS


class DocumentSample(Generic[Kept]):
    """A sample of `size` documents by smallest hash, independent of order and sharding, with a value for each."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._held: dict[bytes, Kept] = {}
        self._limit: bytes | None = None

    def takes(self, source: str) -> bool:
        """Return whether a document may still belong to the sample."""
        return self._limit is None or self._key(source) < self._limit

    def add(self, source: str, kept: Kept) -> None:
        """Add a document's value; only if `takes` accepted it."""
        self._held[self._key(source)] = kept
        if len(self._held) >= 2 * self._size:
            self._prune()

    def drawn(self) -> Iterable[Kept]:
        """Return the kept values in hash order."""
        self._prune()
        return self._held.values()

    def _key(self, source: str) -> bytes:
        return identity.digest("sample", "documents", self._seed, source)

    def _prune(self) -> None:
        kept = sorted(self._held)[: self._size]
        self._held = {key: self._held[key] for key in kept}
        if len(kept) == self._size:
            self._limit = kept[-1]


def kept_until_counted(offers: Iterable[Offer]) -> list[Offer]:
    """Keep, per kind, the offers that may still turn out best once document frequencies are known."""
    by_kind = defaultdict[str, list[Offer]](list)
    for offer in offers:
        if len(offer.text) > MOST_CHARACTERS:  # too long for a query: do not hold all of it
            offer = offer._replace(text=offer.text[: 2 * MOST_CHARACTERS], passage="", key="")
        by_kind[offer.kind].append(offer)
    return [
        offer
        for group in by_kind.values()
        for offer in sorted(group, key=lambda offer: (-offer.times, -offer.key.count(" ")))[:_TOP]
    ]


def best_offers(
    offers: Iterable[Offer],
    source: str,
    length: int,
    seed: int,
    frequency: DocumentFrequency,
    stop_words: frozenset[str],
) -> list[tuple[QueryCandidate, str]]:
    """Return the best candidate of each kind with its rejection reason, or "". `length`: words of the document.

    Acceptable candidates come first, then higher tf-idf, then longer ones; the hash breaks ties.
    """
    best: dict[str, tuple[tuple[bool, float, int, bytes], QueryCandidate, str]] = {}
    doc_id = identity.doc_id(source)
    for offer in offers:
        if offer.kind in _FOUND_ONCE and offer.times < 2 and frequency.of(offer.key) < 2:
            continue  # a phrase that occurs once in the collection is a fragment, not a term
        reason = unfit(offer.kind, offer.text, stop_words)
        if not reason and offer.kind in ("title", "sentence", "heading") and frequency.of(offer.key) > _SHARED:
            reason = EMPTY
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
    """Return why a text is rejected regardless of the collection, or ""."""
    tokens = words(text)
    if len(tokens) < _FEWEST.get(kind, 2):
        return SHORT
    if len(tokens) > _MOST or len(text) > MOST_CHARACTERS:
        return LONG
    if sum(says(word, stop_words) for word in tokens) < 2 or normal(text) in _USUAL:
        return EMPTY
    return ""


def near_duplicates(candidates: Sequence[QueryCandidate]) -> set[QueryCandidate]:
    """Near-duplicates: Jaccard similarity of at least .8 with an earlier candidate that was kept.

    Exact, by prefix filtering (Chaudhuri, Ganti and Kaushik 2006): with words sorted from rare to frequent, two sets
    that are this similar share a word among the first n − ⌈.8 n⌉ + 1 of each, so only such sets are compared.
    """
    sets = [frozenset(words(candidate.text)) for candidate in candidates]
    occurrences = Counter(word for each in sets for word in each)
    by_word = defaultdict[str, list[frozenset[str]]](list)
    duplicates: set[QueryCandidate] = set()
    for candidate, own in zip(candidates, sets, strict=True):
        rarest = sorted(own, key=lambda word: (occurrences[word], word))
        prefix = rarest[: len(own) - math.ceil(_ALIKE * len(own)) + 1]
        others = (other for word in prefix for other in by_word[word])
        if any(len(own & other) / len(own | other) >= _ALIKE for other in others):
            duplicates.add(candidate)
            continue
        for word in prefix:
            by_word[word].append(own)
    return duplicates


def balanced(
    candidates: Iterable[QueryCandidate], number: int
) -> tuple[list[QueryCandidate], dict[QueryCandidate, str]]:
    """Choose `number` candidates, balanced over kinds and at most two per document; also return the rest, with reasons.

    The kinds take turns, each with its next candidate in order, until there are enough.
    """
    queues = {kind: list[QueryCandidate]() for kind in (*KINDS, *WRITTEN)}
    for candidate in sorted(candidates, key=lambda candidate: candidate.order, reverse=True):
        queues[candidate.kind].append(candidate)
    chosen: list[QueryCandidate] = []
    rest: dict[QueryCandidate, str] = {}
    per_document = Counter[bytes]()
    while len(chosen) < number and any(queues.values()):
        for queue in queues.values():
            while queue and per_document[queue[-1].doc_id] == PER_DOCUMENT:
                rest[queue.pop()] = CROWDED
            if queue and len(chosen) < number:
                chosen.append(queue.pop())
                per_document[chosen[-1].doc_id] += 1
    return chosen, rest | {candidate: SPARE for queue in queues.values() for candidate in queue}


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
