"""The first stage for one new query, with a run's indexes and documents open.

A query of the run gets the same result as in retrieve, by the same code: the shards' retrievers, the statistics of the
whole collection, late interaction, the merge. Missing indexes are built at the start. Texts are in mapped files, not in
memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import StoreError
from anmi_ray.core.records import DOCUMENT
from anmi_ray.retrieval import dense, lucene, shard
from anmi_ray.retrieval import late as late_interaction
from anmi_ray.retrieval.hits import ranks
from anmi_ray.retrieval.merge import HYBRID, STUDENT, gather, rank_hits
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.stages.rerank.ranking import document_texts
from anmi_ray.stages.retrieve import late
from anmi_ray.stages.retrieve.search import LazyEncoder
from anmi_ray.store import Artifact, index_cache

_STUDENT_VERSION = 1  # of its vectors: incremented when the same model would give others
_QUERIES = pa.schema([pa.field("query_id", identity.ID), pa.field("text", pa.string())])
Places = dict[bytes, dict[str, tuple[int, float]]]
"""By doc_id and system, rank (from 1) and score of the documents within a system's depth."""


@dataclass(frozen=True)
class Student:
    """A trained model that embeds texts.

    fingerprint: of the model.
    encode: (N texts, whether they are queries) -> float32[N, d].
    """

    fingerprint: str
    encode: Callable[[list[str], bool], NDArray[np.float32]]


@dataclass
class _Shard:
    documents: pa.Table  # of the mapped file, in order of doc_id
    retrievers: shard.ShardIndex
    student: dense.ExactIndex | None


class FirstStage:
    """The documents of `ingest`, indexed by `config`; for one thread at a time.

    made: the indexes that were missing and built.
    Raises ConfigError if a model or Lucene is missing, DamagedError if documents or indexes are damaged, StoreError if
    the disk has no room for the texts.
    """

    def __init__(self, ingest: Artifact, config: RetrieveConfig, threads: int, student: Student | None = None) -> None:
        late.check(config)
        if "lucene" in config.retrievers:
            lucene.check()
        self._ingest = ingest
        self._config = config
        self._threads = threads
        self._student = student
        self._encoder = LazyEncoder(config.dense, 1, "cpu")  # more threads do not help with one short text
        self._counts = dict[str, int]()  # documents with a word, for Lucene's words seen up to now
        self.made: list[str] = []
        count = int((ingest.manifest() or {})["shards"])
        with ExitStack() as opened:
            known = self._statistics(count)
            encoder = LazyEncoder(config.dense, threads, "cpu")
            self._shards = [self._open_shard(opened, number, known, encoder) for number in range(count)]
            self._opened = opened.pop_all()

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(one.documents.num_rows for one in self._shards)

    def close(self) -> None:
        """Close the indexes and the texts."""
        self._opened.close()

    def search(self, text: str, systems: Collection[str]) -> Places:
        """Rank the best documents of each of `systems`: retrievers, hybrid (with all retrievers), student.

        Raises DataError if the dense model's vectors have another dimension than the documents'.
        """
        places: Places = {}
        retrievers = tuple(name for name in self._config.retrievers if name in systems)
        if HYBRID in systems or "late" in systems:  # late ranks the hits of the others
            retrievers = self._config.retrievers
        if retrievers:
            self._add_retrieved(places, text, retrievers, HYBRID in systems)
        if STUDENT in systems and self._student is not None:
            self._add_student(places, self._student.encode([text], True))
        return places

    def texts(self, doc_ids: Iterable[bytes]) -> dict[bytes, tuple[str, str, str]]:
        """Return by doc_id the collection's own id, the title and the text."""
        names = ["doc_id", "external_id", "title", "text"]
        wanted = np.array(list(doc_ids), dtype=f"S{identity.ID_BYTES}")
        found: dict[bytes, tuple[str, str, str]] = {}
        for one in self._shards:
            ids = np.ascontiguousarray(one.retrievers.doc_N16).view(wanted.dtype).ravel()
            rows = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            for row in one.documents.select(names).take(rows[ids[rows] == wanted]).to_pylist():
                found[row["doc_id"]] = (row["external_id"], row["title"], row["text"])
        return found

    def _statistics(self, count: int) -> dict[str, Statistics]:
        """Return word statistics of a collection with several shards: all of bm25's, Lucene's as they are needed."""
        if count == 1 or shard.COUNT_WORDS.isdisjoint(self._config.retrievers):
            return {}
        parts: dict[str, list[Statistics]] = {}
        for number in range(count):
            documents = self._ingest.read_part("documents", number, DOCUMENT)
            with index_cache.shelf_of(self._ingest.store, index_cache.content_of_documents(documents)) as shelf:
                for name, one in shard.statistics(documents, self._config, {"lucene": ()}, shelf).items():
                    parts.setdefault(name, []).append(one)
                self.made += [f"{kind} of shard {number}" for kind in shelf.made]
        known = {name: Statistics.merged(of_name) for name, of_name in parts.items()}
        if "lucene" in known:
            known["lucene"] = Statistics(known["lucene"].documents, known["lucene"].length, self._counts)
        return known

    def _open_shard(self, opened: ExitStack, number: int, known: dict[str, Statistics], encoder: LazyEncoder) -> _Shard:
        documents = self._ingest.read_part("documents", number, DOCUMENT)
        content = index_cache.content_of_documents(documents)
        documents = _mapped(documents.sort_by("doc_id"))
        shelf = opened.enter_context(index_cache.shelf_of(self._ingest.store, content))
        retrievers = shard.ShardIndex(documents, self._config, encoder, self._threads, shelf, known)
        opened.callback(retrievers.close)
        index = None
        if (student := self._student) is not None:

            def make(folder: Path) -> None:
                encoded = student.encode(document_texts(documents), False)
                dense.write_vectors(folder, retrievers.doc_N16, encoded, "float32")

            folder = shelf("vectors", _STUDENT_VERSION, {"student": student.fingerprint}, make)
            index = dense.ExactIndex(dense.read_vectors(folder, retrievers.doc_N16), self._threads)
        self.made += [f"{kind} of shard {number}" for kind in shelf.made]
        return _Shard(documents, retrievers, index)

    def _add_retrieved(self, places: Places, text: str, retrievers: Sequence[str], fused: bool) -> None:
        queries = pa.table([identity.id_array([identity.query_id("")]), [text]], schema=_QUERIES)
        config = self._config.model_copy(update={"retrievers": retrievers, "random_negatives": 0})
        query_1d = np.zeros((1, 0), dtype=np.float32)
        if "dense" in retrievers:  # rounded like the run's queries
            query_1d = self._encoder.encode([text], config.dense.query_prompt)
            query_1d = query_1d.astype(config.dense.stored).astype(np.float32)
        self._count_words(queries, config)
        hits = [one.retrievers.hits(queries, query_1d, retrievers) for one in self._shards]
        if "late" in retrievers:
            hits = self._with_late(hits, queries, config)
        every, _ = gather(hits, queries, config, 0)
        every = every.drop_columns("shard").sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
        ranked = rank_hits(every, queries, config)
        ids = every["doc_id"].to_pylist()
        for name, rank_N in {**ranked.rank, **({HYBRID: ranked.hybrid} if fused else {})}.items():
            for row in np.flatnonzero(rank_N).tolist():
                places.setdefault(ids[row], {})[name] = (int(rank_N[row]), float(ranked.score[name][row]))

    def _add_student(self, places: Places, query_1d: NDArray[np.float32]) -> None:
        ids: list[NDArray[np.uint8]] = []
        scores: list[NDArray[np.float64]] = []
        for one in self._shards:
            assert one.student is not None
            index_1K, score_1K = one.student.search(query_1d, self._config.depth)
            found = index_1K[0] >= 0
            ids.append(one.retrievers.doc_N16[index_1K[0][found]])
            scores.append(score_1K[0][found])
        doc_N16 = np.concatenate(ids)
        score_N = np.concatenate(scores)
        rank_N = ranks(np.zeros(len(score_N), dtype=np.int64), score_N, doc_N16)
        for row in np.flatnonzero(rank_N <= self._config.depth).tolist():
            places.setdefault(doc_N16[row].tobytes(), {})[STUDENT] = (int(rank_N[row]), float(score_N[row]))

    def _count_words(self, queries: pa.Table, config: RetrieveConfig) -> None:
        """Count the documents with the query's words for Lucene in all shards, before scoring."""
        if "lucene" not in config.retrievers or len(self._shards) == 1:
            return
        new = shard.asked_words(queries, config)["lucene"] - self._counts.keys()
        self._counts.update(dict.fromkeys(new, 0))
        for one in self._shards:
            for word, held in one.retrievers.lucene_statistics(new).items():
                self._counts[word] += held

    def _with_late(self, hits: list[pa.Table], queries: pa.Table, config: RetrieveConfig) -> list[pa.Table]:
        """Score the hits of every shard by late interaction."""
        encoder = late.encoder(config.late.model_dump_json(), config.late.model, self._threads)
        scored: list[pa.Table] = []
        pairs = late_interaction.pool(hits, queries, config)
        for one, of_shard, wanted in zip(self._shards, hits, pairs, strict=True):
            scores = late_interaction.rescore(one.documents, queries, wanted, encoder)
            scored.append(late_interaction.with_scores(of_shard, scores))
        return scored


def _mapped(table: pa.Table) -> pa.Table:
    """Move a table to an unnamed file, which ends with the process. Raises StoreError on a full disk."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".arrow") as file:
            with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            return pa.ipc.open_file(pa.memory_map(file.name)).read_all()
    except OSError as error:
        remedy = "free space there, or set TMPDIR to a folder with more"
        raise StoreError(f"texts of documents cannot be stored: {error.strerror}", folder, remedy) from error
