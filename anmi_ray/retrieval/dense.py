"""Dense retrieval: inner products of unit vectors, exact, or of documents that an approximate index proposes.

FAISS proposes a few more documents than wanted; their scores are computed again in a fixed order and double precision,
so a similarity is the same number everywhere and does not depend on FAISS' blocking.
Q queries, N documents, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.retrieve import HnswIndex, IvfPqIndex
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.retrieval.fusion import Hits, empty, top

_MARGIN = 32  # additional documents proposed, to resolve ties and rounding
_ROUNDING = 1e-5  # error of a single-precision inner product of unit vectors
_BLOCK = 1024  # queries searched at once
_ROWS = 1024  # pairs rescored at once: within the cache
_PROPOSED = 4  # documents that an approximate index proposes per wanted one
_SAMPLE = 65_536  # vectors of a shard from which lists and codes are learned
_LINKS = 32  # neighbors of a vector in a graph: the authors' M for many dimensions
_BUILD_EFFORT = 200  # candidates considered for a vector's neighbors
_SEARCH_EFFORT = 128  # candidates kept while searching a graph, at least
_CODE_BYTES = 48  # bytes of a compressed vector, or the largest divisor of its dimension below
_CODES = 256  # values of a byte of a code
_POINTS = 39  # vectors that k-means needs per center: FAISS warns below that
FEWEST = _CODES * _POINTS
"""Documents below which codes cannot be learned well, and comparing with every vector is fast."""


class ExactIndex:
    """Exact search over every vector, with exact ties."""

    def __init__(self, doc_Nd: NDArray[np.float32], threads: int = 1) -> None:
        self._doc_Nd = np.ascontiguousarray(doc_Nd)
        self._threads = threads
        self._index = faiss.IndexFlatIP(doc_Nd.shape[1])
        self._index.add(self._doc_Nd)  # pyright: ignore[reportCallIssue]

    def search(self, query_Qd: NDArray[np.float32], depth: int) -> Hits:
        """Return the `depth` documents of largest inner product: (index int64[Q, depth], -1 padded; score float64)."""
        queries = len(query_Qd)
        documents = len(self._doc_Nd)
        index, score = empty(queries, depth)
        if not queries or not documents:
            return index, score
        proposed = min(documents, depth + _MARGIN)
        faiss.omp_set_num_threads(self._threads)
        for start in range(0, queries, _BLOCK):
            block = np.ascontiguousarray(query_Qd[start : start + _BLOCK])
            neighbors = self._index.search(block, proposed)[1]  # pyright: ignore[reportCallIssue]
            rows = slice(start, start + len(block))
            index[rows], score[rows], exact = _rescored(block, self._doc_Nd, neighbors, depth)
            if proposed < documents:
                # If the last proposed document might tie with the last wanted one, others might too: compare all.
                worst = exact.min(axis=1)
                for row in np.flatnonzero(worst >= score[rows][:, depth - 1] - _ROUNDING):
                    every = similarity(block, self._doc_Nd, np.full(documents, row), np.arange(documents))
                    index[start + row], score[start + row] = (part[0] for part in top(every[None, :], depth))
        return index, score


class Approximate:
    """Search with an approximate index, rescored; `path`: a file written by `build`, mapped into memory.

    Raises DataError if the index is damaged or of other vectors.
    """

    def __init__(
        self, path: Path, config: IvfPqIndex | HnswIndex, doc_Nd: NDArray[np.float32], threads: int = 1
    ) -> None:
        self._doc_Nd = doc_Nd
        self._config = config
        self._threads = threads
        remedy = "delete that folder: the index is built again"
        try:
            index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise DataError(f"damaged index: {str(error).splitlines()[0]}", str(path), remedy) from error
        if (index.ntotal, index.d) != doc_Nd.shape:
            actual = f"an index of {index.ntotal} vectors of {index.d} dimensions, but there are {len(doc_Nd)} of "
            raise DataError(f"{actual}{doc_Nd.shape[1]}", str(path), remedy)
        self._index = index

    def search(self, query_Qd: NDArray[np.float32], depth: int) -> Hits:
        """Return the `depth` best proposed documents, as `ExactIndex.search`."""
        queries = len(query_Qd)
        documents = len(self._doc_Nd)
        index, score = empty(queries, depth)
        if not queries:
            return index, score
        proposed = min(documents, max(depth, _PROPOSED * depth))
        if isinstance(self._config, IvfPqIndex):
            self._index.nprobe = min(self._config.probes, self._index.nlist)
        else:
            self._index.hnsw.efSearch = max(_SEARCH_EFFORT, proposed)
        faiss.omp_set_num_threads(self._threads)
        for start in range(0, queries, _BLOCK):
            block = np.ascontiguousarray(query_Qd[start : start + _BLOCK])
            neighbors = self._index.search(block, proposed)[1]
            rows = slice(start, start + len(block))
            index[rows], score[rows], _ = _rescored(block, self._doc_Nd, neighbors, depth)
        return index, score


def built_by(config: IvfPqIndex | HnswIndex) -> dict[str, Any]:
    """Return the settings that determine an index; the others only affect searching."""
    if isinstance(config, IvfPqIndex):
        return {"kind": config.kind, "lists": None, "code_bytes": _CODE_BYTES, "sample": _SAMPLE}
    return {"kind": config.kind, "links": _LINKS, "build_effort": _BUILD_EFFORT}


def build(path: Path, doc_Nd: NDArray[np.float32], config: IvfPqIndex | HnswIndex, seed: int) -> None:
    """Write an approximate index, with one thread, since a graph's links depend on the order of threads."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        doc_Nd = np.ascontiguousarray(doc_Nd)
        index: Any
        if isinstance(config, IvfPqIndex):
            index = _ivfpq(doc_Nd, seed)
        else:
            index = faiss.IndexHNSWFlat(doc_Nd.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _BUILD_EFFORT
        index.add(doc_Nd)
        faiss.write_index(index, str(path))
    finally:
        faiss.omp_set_num_threads(threads)


def _ivfpq(doc_Nd: NDArray[np.float32], seed: int) -> Any:
    documents, dimensions = doc_Nd.shape
    code_bytes = next(size for size in range(_CODE_BYTES, 0, -1) if dimensions % size == 0)
    lists = max(1, min(round(4 * documents**0.5), documents // _POINTS))
    coarse = faiss.IndexFlatIP(dimensions)
    index: Any = faiss.IndexIVFPQ(coarse, dimensions, lists, code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = index.pq.cp.seed = seed % 2**31
    sample = identity.rng("index sample", seed).permutation(documents)[:_SAMPLE]
    index.train(doc_Nd[np.sort(sample)])
    return index


def similarity(
    query_Qd: NDArray[np.float32], doc_Nd: NDArray[np.float32], row: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the inner products of query `row[i]` with document `column[i]`, float64, each summed separately."""
    result = np.empty(len(row))
    for start in range(0, len(row), _ROWS):
        part = slice(start, start + _ROWS)
        result[part] = (query_Qd[row[part]].astype(np.float64) * doc_Nd[column[part]]).sum(axis=1)
    return result


def _rescored(
    query_Bd: NDArray[np.float32], doc_Nd: NDArray[np.float32], found_BP: NDArray[np.int64], depth: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the best `depth` of each query's proposed documents (-1: none), their scores, and the scores of all.

    The score of a place without a document is -inf.
    """
    found_BP = np.sort(found_BP, axis=1)
    row, place = np.nonzero(found_BP >= 0)
    exact = np.full(found_BP.shape, -np.inf)
    exact[row, place] = similarity(query_Bd, doc_Nd, row, found_BP[row, place])
    at, score = top(exact, depth)
    index = np.where(at >= 0, np.take_along_axis(found_BP, np.maximum(at, 0), axis=1), -1)
    return index, score, exact
