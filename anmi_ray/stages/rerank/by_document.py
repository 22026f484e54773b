"""Scores of models that read each text alone: a document is encoded once, however many queries have it.

A task per bucket of queries writes which pairs are to be scored, spread over slices of the documents by hash, with
their texts, each once (ask). A task per slice encodes the slice's documents and writes the scores, a row group per
bucket (score). The bucket's own task reads its scores from every slice (scores_of). There are as many slices as
buckets, so a task holds one part in as many of the pairs, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.identity import bucket_of
from anmi_ray.models.reranker import Reranker
from anmi_ray.runtime import exchange
from anmi_ray.stages.rerank.ranking import pairs_of
from anmi_ray.store import Artifact
from anmi_ray.training.training_set import numbered

_KEY = ["query_id", "doc_id"]
_ASKED = pa.schema([*(pa.field(name, identity.ID) for name in _KEY), ("query", pa.string()), ("document", pa.string())])
_SCORED = pa.schema([*(pa.field(name, identity.ID) for name in _KEY), ("score", pa.float64())])


def ask(artifact: Artifact, bucket: int, slices: int, top: pa.Table, queries: pa.Table, texts: pa.Table) -> None:
    """Publish the pairs of `top` (Run) by slice; each text is stored with its first pair of a slice."""
    asked, documents = pairs_of(top, queries, texts)
    pairs = pa.Table.from_arrays([top["query_id"], top["doc_id"], pa.array(asked), pa.array(documents)], schema=_ASKED)
    slice_N = np.array([bucket_of(doc, slices) for doc in top["doc_id"].to_pylist()], dtype=np.int64)
    parts = (pairs.filter(pa.array(slice_N == number)) for number in range(slices))
    exchange.publish(artifact, "asked", bucket, (_texts_once(part) for part in parts))


def score(artifact: Artifact, number: int, buckets: int, load: Callable[[], Reranker]) -> None:
    """Score the pairs of a slice with the model that `load` gives, where there are any."""
    asked = [exchange.read(artifact, "asked", bucket, number) for bucket in range(buckets)]
    every = pa.concat_tables(asked)
    score_N = np.zeros(0)
    if every.num_rows:
        texts = (_filled(every, key, name) for key, name in zip(_KEY, ("query", "document"), strict=True))
        score_N = load().score(*texts).astype(np.float64)
    scored = pa.Table.from_arrays([*(every[name] for name in _KEY), pa.array(score_N)], schema=_SCORED)
    starts = np.cumsum([0, *(part.num_rows for part in asked)]).tolist()
    parts = (scored.slice(start, part.num_rows) for start, part in zip(starts, asked, strict=False))
    exchange.publish(artifact, "scored", number, parts)


def scores_of(artifact: Artifact, bucket: int, slices: int, top: pa.Table) -> NDArray[np.float64]:
    """The scores of a bucket's pairs `top` (Run), in its order."""
    scored = pa.concat_tables([exchange.read(artifact, "scored", number, bucket) for number in range(slices)])
    rows = top.select(_KEY).append_column("row", pa.array(np.arange(top.num_rows)))
    found = rows.join(scored, _KEY, use_threads=False).sort_by("row")
    if found["score"].null_count or found.num_rows != scored.num_rows:
        raise AssertionError("scores of other pairs than were asked for")
    return found["score"].to_numpy()


def _texts_once(pairs: pa.Table) -> pa.Table:
    """Pairs with each text at its first pair alone."""
    for key, name in zip(_KEY, ("query", "document"), strict=True):
        first = np.zeros(pairs.num_rows, dtype=bool)
        first[np.unique(numbered(pairs[key])[0], return_index=True)[1]] = True
        place = pairs.schema.get_field_index(name)
        pairs = pairs.set_column(place, name, pc.if_else(pa.array(first), pairs[name], None))
    return pairs


def _filled(pairs: pa.Table, key: str, name: str) -> list[str]:
    """Return the texts of one kind for all pairs, from those stored with some pair."""
    codes, _ = numbered(pairs[key])
    there = np.flatnonzero(pairs[name].is_valid().to_numpy())
    row = np.empty(int(codes.max()) + 1, dtype=np.int64)
    row[codes[there]] = there
    texts = pairs[name].to_pylist()
    return [texts[at] for at in row[codes]]
