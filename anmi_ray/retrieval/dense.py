"""Dense retrieval: inner products of unit vectors, exact, or of documents that an approximate index proposes.

FAISS proposes a few more documents than wanted; their scores are computed again in a fixed order and double precision,
so a similarity is the same number everywhere and does not depend on FAISS' blocking. Vectors are stored in Parquet
files, for later runs over the same texts.
Q queries, N documents, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anmi_ray.config.retrieve import HnswIndex, IvfPqIndex
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.retrieval.hits import Hits, empty, top

FILE = "vectors.parquet"
_AGAIN = "delete that folder: the vectors are computed again"
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
        return _search(self._index, query_Qd, self._doc_Nd, depth + _MARGIN, depth, self._threads, exact=True)


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
        proposed = min(len(self._doc_Nd), max(depth, _PROPOSED * depth))
        if isinstance(self._config, IvfPqIndex):
            self._index.nprobe = min(self._config.probes, self._index.nlist)
        else:
            self._index.hnsw.efSearch = max(_SEARCH_EFFORT, proposed)
        return _search(self._index, query_Qd, self._doc_Nd, proposed, depth, self._threads, exact=False)


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


def _search(
    index: Any,
    query_Qd: NDArray[np.float32],
    doc_Nd: NDArray[np.float32],
    proposed: int,
    depth: int,
    threads: int,
    exact: bool,
) -> Hits:
    """Return the best `depth` of the documents that FAISS proposes, with `exact` also those that tie with the last."""
    documents = len(doc_Nd)
    found, score = empty(len(query_Qd), depth)
    if not documents:
        return found, score
    faiss.omp_set_num_threads(threads)
    for start in range(0, len(query_Qd), _BLOCK):
        block = np.ascontiguousarray(query_Qd[start : start + _BLOCK])
        rows = slice(start, start + len(block))
        neighbors = index.search(block, min(documents, proposed))[1]
        found[rows], score[rows], scores = _rescored(block, doc_Nd, neighbors, depth)
        if exact and proposed < documents:
            # If the last proposed document might tie with the last wanted one, others might too: compare all.
            for row in np.flatnonzero(scores.min(axis=1) >= score[rows][:, depth - 1] - _ROUNDING):
                every = similarity(block, doc_Nd, np.full(documents, row), np.arange(documents))
                found[start + row], score[start + row] = (part[0] for part in top(every[None, :], depth))
    return found, score


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


def write_vectors(folder: Path, id_N16: NDArray[np.uint8], vector_Nd: NDArray[np.float32], stored: str) -> None:
    """Write the vectors (columns id, vector) as `stored`: float32 or float16."""
    rows, width = vector_Nd.shape
    flat = pa.array(np.ascontiguousarray(vector_Nd.astype(stored)).reshape(-1))
    columns = {"id": identity.id_column(id_N16), "vector": pa.FixedSizeListArray.from_arrays(flat, width)}
    # Numbers rarely repeat, so neither a dictionary nor compression helps.
    pq.write_table(
        pa.table(columns),
        folder / FILE,
        compression="none",
        use_dictionary=False,
        row_group_size=max(rows, 1),
        write_page_checksum=True,
    )


def read_vectors(folder: Path, id_N16: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the vectors float32[N, d] of these ids. Raises DataError if the file is damaged or has other ids."""
    try:
        table = pq.read_table(folder / FILE, use_threads=False, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"damaged vectors: {error}", str(folder / FILE), _AGAIN) from error
    if not np.array_equal(identity.id_matrix(table["id"]), id_N16):
        raise DataError("holds the vectors of other texts", str(folder / FILE), _AGAIN)
    width = table.schema.field("vector").type.list_size
    flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(id_N16), width).astype(np.float32, copy=False)
