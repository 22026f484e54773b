"""Known-item search: the rank at which BM25 finds the document that a query was made from.

A document may be searched in several variants (with different passages masked). Words are counted once per shard and
kept on disk; every search chooses the variants. Memory is that of a shard, and eight bytes per document.
Q queries, N documents of a shard, K depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.retrieve import Bm25Config
from anmi_ray.core import identity
from anmi_ray.retrieval import bm25
from anmi_ray.retrieval.hits import full_texts
from anmi_ray.retrieval.statistics import Statistics

_NONE = np.uint64(2**64 - 1)


class KnownItems:
    """The counted words of a collection, shard by shard, in `folder`."""

    def __init__(self, config: Bm25Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._keys: list[NDArray[np.uint64]] = []
        self._rows: list[dict[bytes, tuple[int, int]]] = []  # of documents with variants: original row, first variant
        self._last: tuple[int, bm25.Counts] | None = None

    def add(self, documents: pa.Table, variants: Mapping[bytes, Sequence[str]]) -> None:
        """Count a shard (Document table), and other texts of some of its documents, by doc_id."""
        documents = documents.sort_by("doc_id")  # ties go to the smaller id
        texts = full_texts(documents)
        rows: dict[bytes, tuple[int, int]] = {}
        for row, doc_id in enumerate(documents["doc_id"].to_pylist()):
            if doc_id in variants:
                rows[doc_id] = row, len(texts)
                texts += variants[doc_id]
        folder = self._folder / str(len(self._keys))
        folder.mkdir()
        counts = bm25.Counts.of(texts, self._config)
        counts.save(folder)
        self._last = len(self._keys), counts
        self._keys.append(_keys(identity.id_matrix(documents["doc_id"])))
        self._rows.append(rows)

    def ranks(
        self, queries: Sequence[str], sources: Sequence[bytes], chosen: Mapping[bytes, int], depth: int
    ) -> NDArray[np.int64]:
        """Return the rank int64[Q] of each query's source (a doc_id) among all documents, 0 if not in the top `depth`.

        `chosen`: the variant of a document to search; other documents are searched unchanged.
        """
        words = bm25.words(queries, self._config)
        shards = range(len(self._keys))
        statistics = Statistics.merged(self._counts(shard, chosen).statistics(words) for shard in shards)
        score_QK = np.full((len(queries), depth), -np.inf)
        key_QK = np.full((len(queries), depth), _NONE)
        for shard in shards:
            index = bm25.Bm25Index(self._counts(shard, chosen), self._config, statistics)
            place_QK, found_QK = index.search(queries, depth)
            inside = place_QK >= 0
            score_QK = np.concatenate([score_QK, np.where(inside, found_QK, -np.inf)], axis=1)
            key_QK = np.concatenate([key_QK, np.where(inside, self._keys[shard][place_QK], _NONE)], axis=1)
            order = np.lexsort((key_QK, -score_QK), axis=1)[:, :depth]
            score_QK = np.take_along_axis(score_QK, order, axis=1)
            key_QK = np.take_along_axis(key_QK, order, axis=1)
        source_Q16 = np.frombuffer(b"".join(sources), dtype=np.uint8).reshape(-1, identity.ID_BYTES)
        match_QK = key_QK == _keys(source_Q16)[:, None]
        return np.where(match_QK.any(axis=1), match_QK.argmax(axis=1) + 1, 0)

    def _counts(self, shard: int, chosen: Mapping[bytes, int]) -> bm25.Counts:
        if self._last is None or self._last[0] != shard:
            self._last = None  # free memory before the next shard is read
            self._last = shard, bm25.Counts.load(self._folder / str(shard))
        counts = self._last[1]
        rows = np.arange(len(self._keys[shard]))
        for doc_id, (row, first) in self._rows[shard].items():
            if doc_id in chosen:
                rows[row] = first + chosen[doc_id]
        return bm25.Counts(counts.count_NV[rows], counts.vocabulary)


def _keys(doc_N16: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the first half of each id, which is unique, since ids are digests, and sorts like it."""
    return np.ascontiguousarray(doc_N16[:, :8]).view(">u8").ravel().astype(np.uint64)
