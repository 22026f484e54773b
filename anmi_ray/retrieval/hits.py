"""What searching a shard gives and merging takes: hits, who is drawn at random, texts. Loads no index and no model.

A merging worker needs no more than this, and starts in a second.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RETRIEVERS
from anmi_ray.core import identity
from anmi_ray.core.records import TEXT_OF
from anmi_ray.core.schema import Record

# <retriever>_score is null where the document is not among that retriever's best `depth` of the shard.
# is_positive and is_random are said of train queries only; is_random marks who may become a random negative.
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
    """What is indexed of a document: title and text."""
    columns = zip(documents["title"].to_pylist(), documents["text"].to_pylist(), strict=True)
    return [f"{title} {text}".strip() for title, text in columns]


def texts_of(documents: pa.Table, wanted: pa.Array) -> pa.Table:
    """The Text table of those documents of a shard (Document table) whose doc_id is wanted, in order of doc_id."""
    table = documents.filter(pc.is_in(documents["doc_id"], value_set=wanted)).sort_by("doc_id")
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
    """A uniform in [0, 1) for every pair of ids (uint8[..., 16], broadcast): who is drawn as a random negative.

    Each side is hashed once, and a pair costs one multiply-shift mix (the finaliser of MurmurHash3).
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
