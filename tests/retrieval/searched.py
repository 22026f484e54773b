"""One shard, indexed, searched and thrown away: what tests of hits read; texts and vectors likewise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.retrieve import Bm25Config, RetrieveConfig
from anmi_ray.retrieval import bm25, dense
from anmi_ray.retrieval.hits import Hits
from anmi_ray.retrieval.shard import DocumentEncoder, ShardIndex, query_vectors
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.store.index_cache import Shelf


@contextmanager
def scratch() -> Iterator[Shelf]:
    """A shelf that is empty at first and gone at last."""
    with tempfile.TemporaryDirectory() as top:

        def shelf(kind: str, version: int, settings: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
            folder = Path(top) / kind
            if not folder.is_dir():
                folder.mkdir()
                make(folder)
            return folder

        yield shelf


@contextmanager
def indexed(
    documents: pa.Table,
    config: RetrieveConfig,
    encoder: DocumentEncoder,
    threads: int = 1,
    statistics: Mapping[str, Statistics] = MappingProxyType({}),
) -> Iterator[ShardIndex]:
    """One shard (Document table in any order), indexed during the block."""
    with scratch() as shelf:
        shard = ShardIndex(documents.sort_by("doc_id"), config, encoder, threads, shelf, statistics)
        with closing(shard):
            yield shard


def search_shard(
    documents: pa.Table,
    queries: pa.Table,
    qrels: pa.Table,
    config: RetrieveConfig,
    encoder: DocumentEncoder,
    seed: int,
    threads: int = 1,
) -> pa.Table:
    """The hits (HITS) of `queries` (Query table) in one shard (Document table), which is indexed for this once."""
    with scratch() as shelf, indexed(documents, config, encoder, threads) as index:
        return index.search(queries, qrels, query_vectors(queries, config, encoder, shelf), seed)


def search_texts(texts: Sequence[str], queries: Sequence[str], config: Bm25Config, depth: int) -> Hits:
    """Index `texts` and search them once: (index int64[Q, depth], -1 padded; score float64[Q, depth])."""
    return bm25.Bm25Index(bm25.Counts.of(texts, config), config).search(queries, depth)


def search_vectors(query_Qd: NDArray[np.float32], doc_Nd: NDArray[np.float32], depth: int, threads: int = 1) -> Hits:
    """Search vectors once, exactly: as `ExactIndex.search`."""
    return dense.ExactIndex(doc_Nd, threads).search(query_Qd, depth)
