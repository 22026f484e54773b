"""Late interaction: rank what the other retrievers found by MaxSim over token vectors.

score(q, d) = Σ_i max_j q_i · d_j over unit vectors of tokens (Khattab and Zaharia 2020). `pool` chooses the hits to
score for a bucket of queries, `rescore` scores those of a shard, encoding each document once, and `with_scores` adds
the scores to the hits before merging. Scores do not depend on how pairs are distributed over shards or buckets.
T tokens of a query, U of a document, d dimensions, N pairs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import StoreError
from anmi_ray.retrieval.hits import HITS, full_texts
from anmi_ray.retrieval.merge import by_shard, gather, rank_retrievers

_KEY = ["query_id", "doc_id"]
PAIRS = pa.schema([pa.field(name, identity.ID, nullable=False) for name in _KEY])
SCORED = PAIRS.append(pa.field("late_score", pa.float64(), nullable=False))
_TOKENS = 32_768  # tokens with vectors in memory at once: 50 MB with 384 dimensions


class TokenVectors(Protocol):
    """The interface of `models.encoder.TokenEncoder` that late interaction uses."""

    @property
    def limits(self) -> Mapping[str, int]:
        """Maximum number of vectors of a query and of a document."""
        ...

    @property
    def dimension(self) -> int:
        """Length d of a vector."""
        ...

    def encode(self, texts: Sequence[str], task: Literal["query", "document"]) -> list[NDArray[np.float32]]:
        """Unit vectors float32[tokens, d] of every text, at least one each."""
        ...


def maxsim(query_Td: NDArray[np.float32], doc_Ud: NDArray[np.float32]) -> float:
    """Σ_i max_j q_i · d_j, equation (3) of Khattab and Zaharia (2020): products in single precision, summed in double.

    >>> round(maxsim(np.eye(2, dtype=np.float32), np.array([[1, 0], [0.6, 0.8]], dtype=np.float32)), 6)
    1.8
    """
    return float((query_Td @ doc_Ud.T).max(axis=1).sum(dtype=np.float64))


def pool(shards: Iterable[pa.Table], queries: pa.Table, config: RetrieveConfig) -> list[pa.Table]:
    """Return for every shard the pairs (PAIRS) to score: hits within `config.depth` of a retriever over all shards.

    The retrievers are `config.searchers`; `queries` is the Query table of a bucket.
    """
    before = config.model_copy(update={"retrievers": config.searchers, "random_negatives": 0})
    hits, count = gather(shards, queries, before, 0)
    rank_N = rank_retrievers(hits, queries, config.searchers, config.depth).rank
    ranked = hits.filter(pa.array(np.logical_or.reduce([rank > 0 for rank in rank_N.values()])))
    return [pairs.select(_KEY) for pairs in by_shard(ranked, count)]


def rescore(documents: pa.Table, queries: pa.Table, pairs: pa.Table, encoder: TokenVectors) -> pa.Table:
    """Return MaxSim of `pairs` (PAIRS) as SCORED; `documents` (Document) and `queries` (Query) contain at least theirs.

    Every document and query is encoded once. Query vectors are kept on disk in half precision (32 of 384 dimensions:
    25 kB); documents are in memory block by block.
    """
    query_N = _rows(pairs["query_id"], queries["query_id"])
    doc_N = _rows(pairs["doc_id"], documents["doc_id"])
    order = np.lexsort((query_N, doc_N))
    score_N = np.zeros(len(order))
    with _on_disk(queries["text"], np.unique(query_N), encoder) as query_vectors:
        doc_rows, begin = np.unique(doc_N[order], return_index=True)
        end = np.append(begin[1:], len(order))
        size = max(1, _TOKENS // encoder.limits["document"])
        for start in range(0, len(doc_rows), size):
            rows = slice(start, start + size)
            vectors = encoder.encode(full_texts(documents.take(doc_rows[rows])), "document")
            for doc_Ud, first, last in zip(vectors, begin[rows], end[rows], strict=True):
                for pair in order[first:last]:
                    score_N[pair] = maxsim(query_vectors[int(query_N[pair])], doc_Ud)
    return pa.Table.from_arrays([*(pairs[name] for name in _KEY), pa.array(score_N)], schema=SCORED)


def with_scores(hits: pa.Table, scored: pa.Table) -> pa.Table:
    """Add scores (SCORED) to the hits (HITS) of a shard; hits without one keep null."""
    joined = (
        hits.drop_columns("late_score")
        .join(scored, _KEY, join_type="left outer")
        .sort_by([(name, "ascending") for name in _KEY])
    )
    if joined.num_rows != hits.num_rows or joined["late_score"].null_count != hits.num_rows - scored.num_rows:
        raise AssertionError("scores of pairs that are not hits, or repeated pairs")
    return HITS.table({name: joined[name] for name in HITS.schema.names})


def _rows(ids: pa.ChunkedArray, table_ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the row of each id in a table."""
    row = pc.index_in(ids, value_set=table_ids.combine_chunks())
    if row.null_count:
        raise AssertionError("pairs of unknown queries or documents")
    return row.to_numpy().astype(np.int64)


class _Scratch:
    """Token vectors of texts, by row, read from a file on demand."""

    def __init__(self, file: IO[bytes], rows: NDArray[np.int64], lengths: Sequence[int], dimension: int) -> None:
        self._rows = rows
        self._end = np.cumsum([0, *lengths])
        self._vectors = np.memmap(file, np.float16, "r", shape=(int(self._end[-1]), dimension)) if len(rows) else None

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        assert self._vectors is not None
        place = int(np.searchsorted(self._rows, row))
        return self._vectors[self._end[place] : self._end[place + 1]].astype(np.float32)


@contextmanager
def _on_disk(texts: pa.ChunkedArray, rows: NDArray[np.int64], encoder: TokenVectors) -> Iterator[_Scratch]:
    """Keep vectors of the queries `rows` (ascending) in a temporary file during the block."""
    lengths = list[int]()
    size = max(1, _TOKENS // encoder.limits["query"])
    with tempfile.TemporaryFile() as file:
        for start in range(0, len(rows), size):
            for vectors in encoder.encode(texts.take(rows[start : start + size]).to_pylist(), "query"):
                lengths.append(len(vectors))
                try:
                    file.write(vectors.astype(np.float16).tobytes())
                    file.flush()  # so that a full disk fails here, not as a signal when the mapped file is read
                except OSError as error:
                    message = f"token vectors of queries cannot be kept: {error.strerror}"
                    remedy = "free space there, or set TMPDIR to a folder with more"
                    raise StoreError(message, tempfile.gettempdir(), remedy) from error
        yield _Scratch(file, rows, lengths, encoder.dimension)
