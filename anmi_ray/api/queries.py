"""`anmi queries`: make a collection with queries from a collection's documents.

Queries are found in documents, or written by a language model (`written_queries.py`), and pass the same filter.
Documents are read three times, shard by shard: to count phrases and draw a sample, to count the words of the sample's
documents with and without their queries, and to write them. Memory holds a shard, ids, counts, and the sample's offers.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from anmi_ray.api.written_queries import NOT_ASKED, QueryWriting, checking, unconfirmed
from anmi_ray.core import identity, redaction
from anmi_ray.core.errors import DataError, refuse
from anmi_ray.judging.writer import UNREADABLE
from anmi_ray.pipeline.requirements import of_servers
from anmi_ray.queries import choose
from anmi_ray.queries.choose import DocumentFrequency, DocumentSample, QueryCandidate
from anmi_ray.queries.kinds import KINDS, Offer, offers
from anmi_ray.queries.words import masked, words
from anmi_ray.store.folders import new_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from anmi_ray.config.experiment import Experiment
    from anmi_ray.retrieval.known_items import KnownItems

DEPTH = 10  # BM25 must rank a query's document this high
_DOCUMENTS = 4  # sampled documents per requested query: most offers are rejected
_TRIED = 3  # searched queries per requested query
_REMEDY = {
    choose.SHORT: "documents need titles, headings or sentences of several words; check which columns are read",
    choose.LONG: "documents need short titles, headings or sentences; check which columns are read",
    choose.EMPTY: "titles and headings repeat in many documents; remove boilerplate from the texts",
    choose.NEAR: "documents repeat each other; remove copies",
    choose.BARE: "documents are one line long; join them to longer ones",
    choose.LOST: "set retrieve.bm25.stemmer and retrieve.bm25.stopwords to the documents' language",
    UNREADABLE: "see the prompt with --dry-run; queries.writer.template and max_tokens must suit the model",
    NOT_ASKED: "raise queries.budget and run the same command again: answers are kept",
}


@dataclass(frozen=True)
class MadeQueries:
    """A collection that was written.

    ranks: BM25's rank of each query's document
    searched: the same for all searched candidates, in a collection without any of them; 0: not found
    left_out: the other candidates, with reasons
    """

    documents: int
    refused_documents: int
    queries: list[QueryCandidate]
    ranks: list[int]
    searched: dict[QueryCandidate, int]
    left_out: dict[QueryCandidate, str]
    kinds: tuple[str, ...] = KINDS

    def counts(self) -> dict[str, Counter[str]]:
        """Return, by kind, the number of candidates that were kept ("kept") and left out, by reason."""
        found = {kind: Counter[str]() for kind in self.kinds}
        for query in self.queries:
            found[query.kind]["kept"] += 1
        for candidate, reason in self.left_out.items():
            found.setdefault(candidate.kind, Counter())[reason] += 1
        return found


def make_queries(experiment: Experiment, to: Path, number: int, say: Callable[[str], None]) -> MadeQueries:
    """Make up to `number` queries from the collection of `experiment`, and write the folder `to`.

    `say` receives progress. Raise ConfigError if `to` is not new or empty, DataError if the collection has no documents
    or yields no query, StoreError if the storage fails.
    """
    with new_folder(to) as folder:
        return _Maker(experiment, number, folder, say).make()


def preview_writing(experiment: Experiment, number: int) -> Iterator[str]:
    """Yield lines with the writer's number of calls, cost and exact prompt; send nothing.

    Raise ConfigError without a writer, DataError without a suitable document.
    """
    from anmi_ray import corpus
    from anmi_ray.retrieval import bm25

    writing = QueryWriting(experiment, number, bm25.stop_words(experiment.retrieve.bm25))
    for table in corpus.read(experiment.corpus, documents_alone=True).documents():
        for source, title, text in _rows(table):
            writing.offer(source, title, text)
    yield from writing.preview()


class _Maker:
    """The passes over the documents, in order."""

    def __init__(self, experiment: Experiment, number: int, folder: Path, say: Callable[[str], None]) -> None:
        from anmi_ray.retrieval import bm25

        self._experiment = experiment
        self._number = number
        self._folder = folder
        self._say = say
        self._stop_words = bm25.stop_words(experiment.retrieve.bm25)
        self._place = f"corpus {redaction.scrub(experiment.corpus.name)}"
        self._documents = 0
        self._refused = 0
        self._rejected: list[str] = []  # of these, by reason
        self._searched: dict[QueryCandidate, int] = {}
        self._left: dict[QueryCandidate, str] = {}
        self._found_kinds = experiment.queries.found
        self._writing: QueryWriting | None = None
        if experiment.queries.writer is not None:
            self._writing = QueryWriting(experiment, number, self._stop_words)
        asked = [experiment.queries.writer.endpoint] if experiment.queries.writer is not None else []
        if experiment.queries.check:
            asked += [judge.server for judge in checking(experiment) if judge.server is not None]
        refuse(of_servers(asked, offline=True))  # before the documents are read

    def make(self) -> MadeQueries:
        self._say("reading documents, counting phrases")
        tried = self._candidates()
        for line in self._rejected:
            self._say(line)
        self._say(f"masking {len(tried):,} queries in their documents, counting words")
        with tempfile.TemporaryDirectory(prefix="counts-", dir=self._folder) as scratch:
            index, variants = self._index(tried, Path(scratch))
            maskable = {candidate for sets in variants.values() for some in sets for candidate in some}
            tried = self._without(tried, dict.fromkeys(set(tried) - maskable, choose.BARE))
            self._say("searching each query's document")
            queries, ranks = self._found(tried, index, variants)
        if not queries:
            raise self._nothing_left()
        self._say(f"writing {self._documents:,} documents and {len(queries):,} queries")
        self._write(queries, ranks)
        kinds = (*self._found_kinds, *self._experiment.queries.written)
        return MadeQueries(self._documents, self._refused, queries, ranks, self._searched, self._left, kinds)

    def _tables(self) -> Iterator[pa.Table]:
        """Read the documents again, shard by shard."""
        from anmi_ray import corpus
        from anmi_ray.corpus.counts import examples

        reader = corpus.read(self._experiment.corpus, documents_alone=True)
        self._documents = 0
        for table in reader.documents():
            self._documents += table.num_rows
            yield table
        self._refused = reader.rows_in()["documents"] - self._documents
        self._rejected = examples(reader.rejects())

    def _candidates(self) -> list[QueryCandidate]:
        """Return the queries to search, from a sample of the documents."""
        seed = self._experiment.seed
        frequency = DocumentFrequency()
        sample = DocumentSample[tuple[str, int, list[Offer]]](_DOCUMENTS * self._number, seed)
        for table in self._tables():
            for source, title, text in _rows(table):
                if self._writing is not None:
                    self._writing.offer(source, title, text)
                if not self._found_kinds:
                    continue
                found = [one for one in offers(title, text, self._stop_words) if one.kind in self._found_kinds]
                frequency.add({offer.key for offer in found})
                if found and sample.takes(source):
                    length = len(words(title)) + len(words(text))
                    sample.add(source, (source, length, choose.kept_until_counted(found)))
        if self._documents < 2:
            remedy = "a ranking needs at least two documents"
            raise DataError(f"expected two documents or more, got {self._documents}", self._place, remedy)
        told: list[tuple[QueryCandidate, str]] = []
        for source, length, found in sample.drawn():
            told += choose.best_offers(found, source, length, seed, frequency, self._stop_words)
        if self._writing is not None:
            told += self._writing.candidates(self._say)
        self._left |= {candidate: reason for candidate, reason in told if reason}
        fit = sorted((candidate for candidate, reason in told if not reason), key=lambda candidate: candidate.order)
        apart = self._without(fit, dict.fromkeys(choose.near_duplicates(fit), choose.NEAR))
        tried, spare = choose.balanced(apart, _TRIED * self._number)
        self._left |= spare
        return tried

    def _without(self, candidates: list[QueryCandidate], reasons: Mapping[QueryCandidate, str]) -> list[QueryCandidate]:
        """Leave out the candidates that have a reason, and return the others."""
        self._left |= {candidate: reasons[candidate] for candidate in candidates if candidate in reasons}
        return [candidate for candidate in candidates if candidate not in reasons]

    def _index(
        self, tried: list[QueryCandidate], scratch: Path
    ) -> tuple[KnownItems, dict[bytes, list[frozenset[QueryCandidate]]]]:
        """Return the collection to search, and the queries that each variant of a document masks.

        Queries without which too little of their document remains are in no variant.
        """
        from anmi_ray.retrieval.known_items import KnownItems

        index = KnownItems(self._experiment.retrieve.bm25, scratch)
        of_document = _by_document(tried)
        variants: dict[bytes, list[frozenset[QueryCandidate]]] = {}
        for table in self._tables():
            texts: dict[bytes, list[str]] = {}
            for source, title, text in _rows(table):
                doc_id = identity.doc_id(source)
                if doc_id in of_document:
                    kept = _maskable(title, text, of_document[doc_id])
                    sets = [frozenset(some) for size in (1, 2) for some in combinations(kept, size)]
                    variants[doc_id] = sets
                    texts[doc_id] = [" ".join(_masked(title, text, some)).strip() for some in sets]
            index.add(table, texts)
        return index, variants

    def _found(
        self, tried: list[QueryCandidate], index: KnownItems, variants: Mapping[bytes, list[frozenset[QueryCandidate]]]
    ) -> tuple[list[QueryCandidate], list[int]]:
        """Return the queries whose document BM25 finds in the collection as it is written, and the ranks.

        If judges check queries, they have confirmed these. The selection decides which documents are masked, which
        changes ranks: replace lost queries and search all again, until each one is found.
        """
        pool = tried
        chosen = tried
        spare: dict[QueryCandidate, str] = {}
        settled = False
        while chosen:
            places = {doc: variants[doc].index(frozenset(some)) for doc, some in _by_document(chosen).items()}
            sources = [candidate.doc_id for candidate in chosen]
            ranks = index.ranks([candidate.text for candidate in chosen], sources, places, DEPTH).tolist()
            reasons = {candidate: choose.LOST for candidate, rank in zip(chosen, ranks, strict=True) if not rank}
            reasons = reasons or (self._unconfirmed(chosen) if settled else {})
            if settled and not reasons:
                self._left |= spare
                return chosen, ranks
            self._searched = self._searched or dict(zip(chosen, ranks, strict=True))
            pool = self._without(pool, reasons)
            chosen, spare = choose.balanced(pool, self._number)
            chosen.sort(key=lambda candidate: candidate.query_id)
            settled = True
        return [], []

    def _unconfirmed(self, chosen: Sequence[QueryCandidate]) -> dict[QueryCandidate, str]:
        """Return the queries that judges reject, if they are asked, with reasons."""
        if not self._experiment.queries.check:
            return {}
        of_document = _by_document(chosen)
        documents = {
            source: _masked(title, text, of_document[identity.doc_id(source)])
            for table in self._tables()
            for source, title, text in _rows(table)
            if identity.doc_id(source) in of_document
        }
        return unconfirmed(self._experiment, chosen, documents, self._say)

    def _write(self, queries: Sequence[QueryCandidate], ranks: Sequence[int]) -> None:
        of_document = _by_document(queries)
        with (self._folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for table in self._tables():
                for source, title, text in _rows(table):
                    title, text = _masked(title, text, of_document.get(identity.doc_id(source), ()))
                    _line(file, {"_id": source, "title": title, "text": text})
        with (self._folder / "queries.jsonl").open("w", encoding="utf-8") as file:
            for query, rank in zip(queries, ranks, strict=True):
                about = {"kind": query.kind, "source": query.source, "bm25_rank": rank}
                _line(file, {"_id": query.query_id, "text": query.text, "metadata": about})
        with (self._folder / "queries-left-out.jsonl").open("w", encoding="utf-8") as file:
            for query in sorted(self._left, key=lambda query: query.order):
                about = {"kind": query.kind, "source": query.source, "text": query.text}
                _line(file, {**about, "reason": self._left[query]})

    def _nothing_left(self) -> DataError:
        reasons = Counter(reason for reason in self._left.values() if reason != choose.SPARE)
        if not reasons:
            offered = "title, sentence, heading, phrase or identifier of words"
            offered = offered if self._found_kinds else "text of a few words"
            what = f"its {self._documents:,} documents have no {offered}"
            return DataError(what, self._place, "check which columns or fields are title and text")
        most, count = reasons.most_common(1)[0]
        told = ", ".join(f"{reason} {some:,}" for reason, some in reasons.most_common())
        what = f"no query left: {count:,} of {sum(reasons.values()):,} candidates were '{most}' (all: {told})"
        return DataError(what, self._place, _REMEDY.get(most, "give more documents"))


def _rows(table: pa.Table) -> Iterator[tuple[str, str, str]]:
    """Yield (external id, title, text) of each document of a shard."""
    return zip(*(table[name].to_pylist() for name in ("external_id", "title", "text")), strict=True)


def _by_document(candidates: Iterable[QueryCandidate]) -> dict[bytes, list[QueryCandidate]]:
    found: dict[bytes, list[QueryCandidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.doc_id, []).append(candidate)
    return found


def _masked(title: str, text: str, queries: Iterable[QueryCandidate]) -> tuple[str, str]:
    """Return title and text without queries that can be masked."""
    passages = _passages(queries)
    found = masked(title, text, passages) if passages else (title, text)
    assert found is not None, "the queries can be masked"
    return found


def _maskable(title: str, text: str, queries: Iterable[QueryCandidate]) -> list[QueryCandidate]:
    """Return the first of these queries without which enough of their document remains."""
    kept: list[QueryCandidate] = []
    for query in queries:
        if all(masked(title, text, _passages(some)) is not None for some in ([query], [*kept, query])):
            kept.append(query)
    return kept


def _passages(queries: Iterable[QueryCandidate]) -> list[str]:
    """Return the texts to mask, longest first, since a shorter one may be part of a longer one."""
    found = {passage for query in queries for passage in query.passages}
    return sorted(found, key=lambda passage: (-len(passage), passage))


def _line(file: IO[str], row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
