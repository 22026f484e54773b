"""Index one corpus shard and search it: the hits of every query, to be merged over shards.

A hit is a (query, document) pair with the scores of the retrievers, without the text, since most hits do not survive
the merge. Besides the best `depth` of each retriever, a train query's hits contain its known positives and possible
random negatives. Merging the hits of all shards (`merge.merge_bucket`) gives the result of one shard over all
documents, provided that each shard gets the sum of all shards' `statistics`.
Q queries, N documents of the shard, H hits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from anmi_ray.config.retrieve import RETRIEVERS, Bm25Config, DenseConfig, FlatIndex, LuceneConfig, RetrieveConfig
from anmi_ray.core import identity, scripts
from anmi_ray.core.arrays import Ints
from anmi_ray.core.errors import DataError
from anmi_ray.retrieval import bm25, dense, lucene
from anmi_ray.retrieval.hits import HITS, BestScores, Hits, full_texts, pair_hash
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.store.index_cache import Shelf

COUNT_WORDS = frozenset({"bm25", "lucene"})  # retrievers whose scores need statistics of words
# Versions of stored files: raised when the same texts and settings would give other files.
_VERSION = {"counts": 1, "vectors": 2, "lucene": 1, "approximate": 2}
_APPROXIMATE = "index.faiss"
_BLOCK_PAIRS = 1 << 20  # (query, document) pairs hashed at once


class DocumentEncoder(Protocol):
    """The interface of `models.encoder.Encoder` that dense retrieval uses."""

    @property
    def revision(self) -> str:
        """Identifies the weights."""
        ...

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> NDArray[np.float32]:
        """Unit vectors float32[N, d]."""
        ...


class ShardIndex:
    """The documents of a shard, indexed for the retrievers.

    Without the dense retriever only documents that are hits are encoded, for their similarity.

    documents: sorted by doc_id, so that the smaller index breaks ties by doc_id.
    shelf: keeps everything that depends on documents only: counts of words, vectors, indexes.
    statistics_of: the whole collection's word statistics by retriever; bm25 and lucene without any use the shard's own.
    doc_N16: ids uint8[N, 16].
    vectors: float32[N, d]; None without the dense retriever.
    """

    def __init__(
        self,
        documents: pa.Table,
        config: RetrieveConfig,
        encoder: DocumentEncoder,
        threads: int,
        shelf: Shelf,
        statistics_of: Mapping[str, Statistics],
    ) -> None:
        texts = full_texts(documents)
        self._documents = documents
        self._encoder = encoder
        self._config = config
        self._threads = threads
        self.doc_N16 = identity.id_matrix(documents["doc_id"])
        self._open = ExitStack()
        self._bm25: bm25.Bm25Index | None = None
        self._lucene: lucene.LuceneIndex | None = None
        self._dense: dense.ExactIndex | dense.Approximate | None = None
        self.vectors: NDArray[np.float32] | None = None
        if "bm25" in config.retrievers:
            counts = _counts(texts, config.bm25, shelf)
            self._bm25 = bm25.Bm25Index(counts, config.bm25, statistics_of.get("bm25"))
        if "lucene" in config.retrievers:
            opened = _lucene_index(texts, config.lucene, shelf, statistics_of.get("lucene"))
            self._lucene = self._open.enter_context(closing(opened))
        if "dense" in config.retrievers:
            prompt = config.dense.document_prompt
            self.vectors = _vectors(shelf, documents["doc_id"], texts, config, prompt, encoder)
            self._dense = self._dense_index(self.vectors, shelf)

    def close(self) -> None:
        """Release the indexes."""
        self._open.close()

    def _dense_index(self, doc_Nd: NDArray[np.float32], shelf: Shelf) -> dense.ExactIndex | dense.Approximate:
        config = self._config.dense
        index = config.index
        if isinstance(index, FlatIndex) or len(doc_Nd) < dense.FEWEST:
            return dense.ExactIndex(doc_Nd, self._threads)
        settings = {**_vector_settings(config, config.document_prompt, self._encoder), "index": dense.built_by(index)}

        def make(folder: Path) -> None:
            seed = identity.seed("dense index", self.doc_N16.tobytes())
            dense.build(folder / _APPROXIMATE, doc_Nd, index, seed)

        folder = shelf("approximate", _VERSION["approximate"], settings, make)
        return dense.Approximate(folder / _APPROXIMATE, index, doc_Nd, self._threads)

    def best(
        self, texts: Sequence[str], query_Qd: NDArray[np.float32], names: Collection[str], depth: int
    ) -> Iterator[tuple[str, Hits]]:
        """Yield each retriever of `names` with its `depth` best documents per query; only dense uses vectors.

        Raises DataError if the dimensions of query and document vectors differ.
        """
        if self._bm25 is not None and "bm25" in names:
            yield "bm25", self._bm25.search(texts, depth)
        if self._lucene is not None and "lucene" in names:
            yield "lucene", self._lucene.search(texts, depth, self._threads)
        if self._dense is not None and "dense" in names:
            if self.vectors is not None and len(self.vectors) and self.vectors.shape[1] != query_Qd.shape[1]:
                raise DataError(
                    f"documents have vectors of {self.vectors.shape[1]} dimensions, queries of {query_Qd.shape[1]}",
                    f"model {self._config.dense.model}",
                    "the model's files changed under its revision: delete the vectors under artifacts/vectors",
                )
            yield "dense", self._dense.search(query_Qd, depth)

    def hits(self, queries: pa.Table, query_Qd: NDArray[np.float32], names: Collection[str]) -> pa.Table:
        """Return the result of `best` for `queries` (query_id, text) as HITS: none positive or random, similarity 0."""
        best = self.best(queries["text"].to_pylist(), query_Qd, names, self._config.depth)
        by_retriever = {name: _pairs(hits, len(self.doc_N16)) for name, hits in best}
        pairs = np.unique(np.concatenate([pairs for pairs, _ in by_retriever.values()]))
        none = np.zeros(len(pairs), dtype=bool)
        return _hits(queries, self.doc_N16, pairs, by_retriever, np.zeros(len(pairs)), none, none)

    def lucene_statistics(self, words: Collection[str]) -> Mapping[str, int]:
        """Return the number of documents of the shard with each of `words`; empty without the lucene retriever."""
        return {} if self._lucene is None else self._lucene.statistics(words).document_frequency

    def search(
        self,
        queries: pa.Table,
        qrels: pa.Table,
        query_Qd: NDArray[np.float32],
        seed: int,
        own: pa.Table | None = None,
        rankings: pa.Table | None = None,
        others: BestScores | None = None,
    ) -> pa.Table:
        """Return the hits (HITS) of `queries` (Query table, with vectors in its order) for training.

        Besides the best documents these are train queries' known positives and possible random negatives.
        own: pairs (query_id, doc_id) that are never hits.
        rankings: another engine's documents (query_id, doc_id, score), of all shards.
        others: of other shards, which then bound the hits of this one, and get its scores.
        Raises DataError if the dimensions of query and document vectors differ.
        """
        left_out = np.zeros(0, dtype=np.int64) if own is None else self._flat(queries, own)
        depth = self._config.depth + bool(len(left_out))
        best = self.best(queries["text"].to_pylist(), query_Qd, self._config.retrievers, depth)
        by_retriever = {name: _pairs(hits, len(self.doc_N16), left_out) for name, hits in best}
        if others is not None:
            for name, (pairs, scores) in by_retriever.items():
                kept = others.keeps(name, pairs // len(self.doc_N16), scores)
                by_retriever[name] = pairs[kept], scores[kept]
        if rankings is not None:
            pairs, here = self._index(queries, rankings)
            kept = np.isin(pairs, left_out, invert=True)
            order = np.argsort(pairs[kept])
            by_retriever["engine"] = pairs[kept][order], rankings["score"].to_numpy()[here][kept][order]
        positive = self._positives(queries, qrels)
        chosen = np.unique(np.concatenate([positive, *(pairs for pairs, _ in by_retriever.values())]))
        excluded = np.union1d(positive, left_out)
        random = self._random(queries, np.union1d(chosen, left_out), excluded, seed, others)
        pairs = np.unique(np.concatenate([chosen, random]))
        similarity = self._similarity(query_Qd, *np.divmod(pairs, max(1, len(self.doc_N16))))
        marks = np.isin(pairs, positive), np.isin(pairs, random)
        return _hits(queries, self.doc_N16, pairs, by_retriever, similarity, *marks)

    def _similarity(
        self, query_Qd: NDArray[np.float32], row: NDArray[np.int64], column: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        if self.vectors is not None:
            return dense.similarity(query_Qd, self.vectors, row, column)
        which = np.unique(column)
        texts = full_texts(self._documents.take(which))
        vectors = self._encoder.encode(texts, self._config.dense.document_prompt)
        return dense.similarity(query_Qd, vectors, row, np.searchsorted(which, column))

    def _positives(self, queries: pa.Table, qrels: pa.Table) -> NDArray[np.int64]:
        """Return the pairs of train queries and relevant documents (grade 1 or more) of this shard, as flat indices."""
        train = queries.filter(pc.equal(queries["split"], "train"))
        relevant = qrels.filter(pc.greater_equal(qrels["grade"], 1))
        relevant = relevant.filter(pc.is_in(relevant["query_id"], value_set=train["query_id"].combine_chunks()))
        return self._flat(queries, relevant)

    def _flat(self, queries: pa.Table, pairs: pa.Table) -> NDArray[np.int64]:
        """Return the `pairs` (query_id, doc_id) with documents of this shard as ascending flat indices."""
        return np.unique(self._index(queries, pairs)[0])

    def _index(self, queries: pa.Table, pairs: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the flat indices of the `pairs` whose document is in this shard, and which pairs these are."""
        row = pc.index_in(pairs["query_id"], value_set=queries["query_id"].combine_chunks())
        column = pc.index_in(pairs["doc_id"], value_set=self._documents["doc_id"].combine_chunks())
        here = pc.is_valid(column).to_numpy(zero_copy_only=False)
        row_R = row.to_numpy()[here].astype(np.int64)
        column_R = pc.fill_null(column, 0).to_numpy()[here].astype(np.int64)
        return row_R * len(self.doc_N16) + column_R, here

    def _random(self, queries: pa.Table, chosen: Ints, excluded: Ints, seed: int, others: BestScores | None) -> Ints:
        """Return the pairs that may become random negatives after merging, as flat indices.

        A query's random negatives are the `random_negatives` documents of smallest pair hash, over all shards, that are
        neither hits nor `excluded` (positives, own documents). Since a hit of this shard may drop out of the merged
        hits, hits with a small enough hash are included, which makes merging exact.
        """
        count = self._config.random_negatives
        documents = len(self.doc_N16)
        train = np.flatnonzero(pc.equal(queries["split"], "train").to_numpy(zero_copy_only=False))
        if not count or not documents or not len(train):
            return np.zeros(0, dtype=np.int64)
        query_Q16 = identity.id_matrix(queries["query_id"])
        parts = []
        size = max(1, _BLOCK_PAIRS // documents)
        for start in range(0, len(train), size):
            rows = train[start : start + size]
            hash_BN = pair_hash(query_Q16[rows][:, None], self.doc_N16[None, :], seed)
            free_BN = hash_BN.copy()
            taken = chosen[slice(*np.searchsorted(chosen, [rows[0] * documents, (rows[-1] + 1) * documents]))]
            row, column = np.divmod(taken, documents)
            at = np.searchsorted(rows, row)
            train_row = rows[at] == row
            free_BN[at[train_row], column[train_row]] = np.inf
            place = min(count, documents) - 1
            least_BK = np.partition(free_BN, place, axis=1)[:, : place + 1]
            limit_B = least_BK[:, -1] if others is None else others.limit(rows, least_BK, count)
            row, column = np.nonzero(hash_BN <= limit_B[:, None])
            parts.append(rows[row] * documents + column)
        return np.setdiff1d(np.concatenate(parts), excluded)


def asked_words(queries: pa.Table, config: RetrieveConfig) -> dict[str, set[str]]:
    """Return the words of a Query table, by retriever that counts words."""
    texts = queries["text"].to_pylist()
    words = dict[str, set[str]]()
    if "bm25" in config.retrievers:
        words["bm25"] = bm25.words(texts, config.bm25)
    if "lucene" in config.retrievers:
        words["lucene"] = lucene.words(texts, config.lucene)
    return words


def statistics(
    documents: pa.Table, config: RetrieveConfig, words: Mapping[str, Collection[str]], shelf: Shelf
) -> dict[str, Statistics]:
    """Return a shard's own statistics of `words` (bm25: all words if not given), by retriever that counts words."""
    texts = full_texts(documents.sort_by("doc_id"))
    by_retriever = dict[str, Statistics]()
    if "bm25" in config.retrievers:
        by_retriever["bm25"] = _counts(texts, config.bm25, shelf).statistics(words.get("bm25"))
    if "lucene" in config.retrievers:
        with closing(_lucene_index(texts, config.lucene, shelf)) as index:
            by_retriever["lucene"] = index.statistics(words["lucene"])
    return by_retriever


def _counts(texts: Sequence[str], config: Bm25Config, shelf: Shelf) -> bm25.Counts:
    def make(folder: Path) -> None:
        bm25.Counts.of(texts, config).save(folder)

    settings: dict[str, Any] = {"stemmer": config.stemmer, "stopwords": config.stopwords}
    if any(map(scripts.has_other_scripts, texts)):
        settings["scripts"] = scripts.VERSION
    return bm25.Counts.load(shelf("counts", _VERSION["counts"], settings, make))


def _lucene_index(
    texts: Sequence[str], config: LuceneConfig, shelf: Shelf, whole: Statistics | None = None
) -> lucene.LuceneIndex:
    def make(folder: Path) -> None:
        lucene.build(texts, folder, config)

    settings = {
        "language": config.language,
        "stemmer": config.stemmer,
        "stopwords": config.stopwords,
        "feedback": False,  # of indexes made by earlier versions, which are found again
    }
    folder = shelf("lucene", _VERSION["lucene"], settings, make)
    return lucene.LuceneIndex(folder, config, len(texts), whole)


def query_vectors(
    queries: pa.Table, config: RetrieveConfig, encoder: DocumentEncoder, shelf: Shelf
) -> NDArray[np.float32]:
    """Return the vectors float32[Q, d] of a Query table, in its order, for use with every shard."""
    texts = queries["text"].to_pylist()
    return _vectors(shelf, queries["query_id"], texts, config, config.dense.query_prompt, encoder)


def document_vectors(
    documents: pa.Table, config: RetrieveConfig, encoder: DocumentEncoder, shelf: Shelf
) -> NDArray[np.float32]:
    """Return the vectors float32[N, d] of a Document table, in order of doc_id."""
    documents = documents.sort_by("doc_id")
    return _vectors(shelf, documents["doc_id"], full_texts(documents), config, config.dense.document_prompt, encoder)


def _vectors(
    shelf: Shelf,
    ids: pa.ChunkedArray,
    texts: Sequence[str],
    config: RetrieveConfig,
    prompt: str | None,
    encoder: DocumentEncoder,
) -> NDArray[np.float32]:
    """Return the vectors float32[N, d] of texts, as stored on the shelf."""
    id_N16 = identity.id_matrix(ids)

    def make(folder: Path) -> None:
        dense.write_vectors(folder, id_N16, encoder.encode(texts, prompt), config.dense.stored)

    settings = _vector_settings(config.dense, prompt, encoder)
    return dense.read_vectors(shelf("vectors", _VERSION["vectors"], settings, make), id_N16)


def _vector_settings(config: DenseConfig, prompt: str | None, encoder: DocumentEncoder) -> dict[str, Any]:
    """Return everything besides the text that determines its vector."""
    return {
        "model": encoder.revision,
        "max_tokens": config.max_tokens,
        "dtype": config.dtype,
        "stored": config.stored,
        "prompt": prompt,
    }


def _pairs(hits: Hits, documents: int, left_out: ArrayLike = ()) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hits as (ascending flat index query · N + document, score), without padding and the pairs `left_out`."""
    index_QK, score_QK = hits
    row, place = np.nonzero(index_QK >= 0)
    pairs = row * documents + index_QK[row, place]
    order = np.argsort(pairs)
    order = order[np.isin(pairs[order], left_out, invert=True)]
    return pairs[order], score_QK[row, place][order]


def _hits(
    queries: pa.Table,
    doc_N16: NDArray[np.uint8],
    pairs_H: NDArray[np.int64],
    by_retriever: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]],
    similarity_H: NDArray[np.float64],
    positive_H: NDArray[np.bool_],
    random_H: NDArray[np.bool_],
) -> pa.Table:
    """Return HITS of the ascending flat indices `pairs_H`, with the retrievers' scores."""
    row, column = np.divmod(pairs_H, max(1, len(doc_N16)))
    none = (np.zeros(0, dtype=np.int64), np.zeros(0))
    scores = {f"{name}_score": _aligned(pairs_H, *by_retriever.get(name, none)) for name in RETRIEVERS}
    return HITS.table(
        {
            "query_id": identity.id_matrix(queries["query_id"])[row],
            "doc_id": doc_N16[column],
            **scores,
            "similarity": similarity_H,
            "is_positive": positive_H,
            "is_random": random_H,
        }
    )


def _aligned(pairs_H: NDArray[np.int64], pairs: NDArray[np.int64], scores: NDArray[np.float64]) -> pa.Array:
    """Return the `scores` of `pairs` at their positions in `pairs_H` (both ascending); null elsewhere."""
    result = np.zeros(len(pairs_H))
    null = np.ones(len(pairs_H), dtype=bool)
    at = np.searchsorted(pairs_H, pairs)
    result[at] = scores
    null[at] = False
    return pa.array(result, mask=null)
