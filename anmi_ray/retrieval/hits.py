"""Hits of a shard, random draws, texts and runs, without loading an index or a model, so that workers start quickly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RETRIEVERS
from anmi_ray.core import identity
from anmi_ray.core.records import RUN, TEXT_OF
from anmi_ray.core.schema import Record

System = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(rank int64[N], score float64[N]) over the same N rows; rank 0: not in the ranking."""

# <retriever>_score is null if the document is not among that retriever's best `depth` of the shard.
# is_positive and is_random are set for train queries only; is_random marks possible random negatives.
HITS = Record(
    "Hits",
    1,
    ("query_id", "doc_id"),
    pa.schema(
        [
            pa.field("query_id", identity.ID, nullable=False),
            pa.field("doc_id", identity.ID, nullable=False),
            *(pa.field(f"{name}_score", pa.float64()) for name in RETRIEVERS),
            pa.field("similarity", pa.float64(), nullable=False),
            pa.field("is_positive", pa.bool_(), nullable=False),
            pa.field("is_random", pa.bool_(), nullable=False),
        ]
    ),
)


def full_texts(documents: pa.Table) -> list[str]:
    """Return the texts to index: title and text of each document."""
    columns = zip(documents["title"].to_pylist(), documents["text"].to_pylist(), strict=True)
    return [f"{title} {text}".strip() for title, text in columns]


def texts_of(documents: pa.Table, doc_ids: pa.Array) -> pa.Table:
    """Return the Text table of the wanted documents of a shard (Document table), in order of doc_id."""
    table = documents.filter(pc.is_in(documents["doc_id"], value_set=doc_ids)).sort_by("doc_id")
    titles = table["title"].to_pylist()
    texts = table["text"].to_pylist()
    hashes = [identity.text_hash(title, text) for title, text in zip(titles, texts, strict=True)]
    return TEXT_OF.table(
        {
            "doc_id": table["doc_id"],
            "external_id": table["external_id"],
            "text_hash": identity.id_array(hashes),
            "title": table["title"],
            "text": table["text"],
        }
    )


def pair_hash(query_16: NDArray[np.uint8], doc_16: NDArray[np.uint8], seed: int) -> NDArray[np.float64]:
    """Return a uniform in [0, 1) for every pair of ids (uint8[..., 16], broadcast), for drawing random negatives.

    Each side is hashed once; a pair costs one multiply-shift mix (the finalizer of MurmurHash3).
    """
    query, doc = (_word(ids, seed, side) for ids, side in ((query_16, "query"), (doc_16, "doc")))
    with np.errstate(over="ignore"):
        mixed = query ^ doc
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(33)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _word(ids: NDArray[np.uint8], seed: int, side: str) -> NDArray[np.uint64]:
    flat = np.ascontiguousarray(ids).reshape(-1, identity.ID_BYTES)
    return (identity.uniforms(flat, "random negative", seed, side) * 2.0**64).astype(np.uint64).reshape(ids.shape[:-1])


def to_run(query_N16: NDArray[np.uint8], doc_N16: NDArray[np.uint8], systems: Mapping[str, System]) -> pa.Table:
    """Return the Run table of `systems`, sorted by query_id, system and rank, without rows of rank 0."""
    parts = []
    for name, (rank_N, score_N) in systems.items():
        inside = rank_N > 0
        parts.append(
            RUN.table(
                {
                    "query_id": query_N16[inside],
                    "doc_id": doc_N16[inside],
                    "system": pa.array([name] * int(inside.sum()), type=pa.string()),
                    "rank": rank_N[inside],
                    "score": score_N[inside],
                }
            )
        )
    table = pa.concat_tables(parts) if parts else RUN.empty()
    return table.sort_by([("query_id", "ascending"), ("system", "ascending"), ("rank", "ascending")])
