"""Scores of models for some queries' documents, whether trained, start or peer.

A cross-encoder scores a bucket's pairs in its task. A model that reads each text alone encodes a document once,
however many queries have it: a task per bucket of queries spreads its pairs over slices of the documents by hash, with
each text once (`ask`); a task per slice encodes the slice's documents and writes the scores, a row group per bucket
(`score`); the bucket's task reads its scores from every slice. There are as many slices as buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.identity import bucket_of
from anmi_ray.core.records import RUN, TEXT_OF
from anmi_ray.models.reranker import Reranker
from anmi_ray.runtime import exchange
from anmi_ray.runtime.actors import scorers
from anmi_ray.runtime.tasks import Carrier, Context, run_buckets, windowed
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank.ranking import pairs_of, ranked
from anmi_ray.store import Artifact, Flow
from anmi_ray.training.training_set import numbered

Load = Callable[[], Reranker]  # called in the tasks, where it caches what it has loaded
_KEY = ["query_id", "doc_id"]
_IDS = [pa.field(name, identity.ID) for name in _KEY]
_ASKED = pa.schema([*_IDS, ("query", pa.string()), ("document", pa.string())])
_SCORED = pa.schema([*_IDS, ("score", pa.float64())])


@dataclass(frozen=True)
class Asked:
    """The pairs to score, for the queries of `splits`: the hybrid's top `depth` documents."""

    retrieve: Artifact
    ingest: Artifact
    depth: int
    splits: tuple[str, ...]

    def of_bucket(self, bucket: int) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """Return a bucket's queries, their Run, the part of it to score, and the texts of these documents."""
        queries = queries_of(self.ingest, bucket, *self.splits)
        texts = self.retrieve.read_part("texts", bucket, TEXT_OF)
        runs = of_queries(self.retrieve.read_part("runs", bucket, RUN), queries)
        hybrid = runs.filter(pc.equal(runs["system"], "hybrid"))
        return queries, hybrid, hybrid.filter(pc.less_equal(hybrid["rank"], self.depth)), texts


def run(
    context: Context,
    artifact: Artifact,
    asked: Asked,
    load: Load,
    apart: bool,
    task: Callable[..., list[Flow]],
    *args: Any,
    by: Carrier | None = None,
) -> list[Flow]:
    """Run `task(artifact, bucket, asked, load, slices, *args)` for every bucket, which calls `scored`.

    apart: the model reads each text alone, so the scores are computed by document before.
    by: how to run the tasks; by default as the model needs it.
    """
    buckets, scoring = context.buckets, scorers(context.execution)
    if apart and None in artifact.seals("runs", RUN, buckets):
        make = partial(exchange.make, context, artifact)
        make("asked", buckets, ask, asked, buckets, what="bucket", does="asked for")
        make("scored", buckets, score, buckets, load, what="slice", does="scored", by=scoring)
    by = by or (windowed if apart else scoring)
    slices = buckets if apart else None
    flows = run_buckets(context, artifact, ("runs", RUN), task, asked, load, slices, *args, by=by)
    exchange.forget(artifact)
    return flows


def scored(
    artifact: Artifact,
    bucket: int,
    tables: tuple[pa.Table, pa.Table, pa.Table],
    load: Load,
    slices: int | None,
    system: str,
) -> pa.Table:
    """Return the Run of `system` over a bucket's documents, by score.

    tables: the Run to score, queries, and texts.
    slices: number of slices of the scores by document; None: score the pairs here.
    """
    top, queries, texts = tables
    if not top.num_rows:
        return RUN.empty()
    if slices is None:
        score_N = load().score(*pairs_of(top, queries, texts)).astype(np.float64)
    else:
        score_N = scores_of(artifact, bucket, slices, top)
    return ranked(top, score_N, system)


def ask(artifact: Artifact, bucket: int, asked: Asked, slices: int) -> None:
    """Publish a bucket's pairs by slice; each text is stored with its first pair of a slice."""
    queries, _, top, texts = asked.of_bucket(bucket)
    query_texts, documents = pairs_of(top, queries, texts)
    columns = [top["query_id"], top["doc_id"], pa.array(query_texts), pa.array(documents)]
    pairs = pa.Table.from_arrays(columns, schema=_ASKED)
    slice_N = np.array([bucket_of(doc, slices) for doc in top["doc_id"].to_pylist()], dtype=np.int64)
    parts = (pairs.filter(pa.array(slice_N == number)) for number in range(slices))
    exchange.publish(artifact, "asked", bucket, (_texts_once(part) for part in parts))


def score(artifact: Artifact, number: int, buckets: int, load: Load) -> None:
    """Score the pairs of a slice, if there are any."""

    def scored(pairs: pa.Table) -> pa.Table:
        score_N = np.zeros(0)
        if pairs.num_rows:
            texts = (_filled(pairs, key, name) for key, name in zip(_KEY, ("query", "document"), strict=True))
            score_N = load().score(*texts).astype(np.float64)
        return pa.Table.from_arrays([*(pairs[name] for name in _KEY), pa.array(score_N)], schema=_SCORED)

    exchange.answer(artifact, "asked", "scored", number, buckets, scored)


def scores_of(artifact: Artifact, bucket: int, slices: int, top: pa.Table) -> NDArray[np.float64]:
    """Return the scores of a bucket's pairs `top` (Run), in its order."""
    scored = pa.concat_tables([exchange.read(artifact, "scored", number, bucket) for number in range(slices)])
    rows = top.select(_KEY).append_column("row", pa.array(np.arange(top.num_rows)))
    found = rows.join(scored, _KEY, use_threads=False).sort_by("row")
    if found["score"].null_count or found.num_rows != scored.num_rows:
        raise AssertionError("scores of other pairs than were asked for")
    return found["score"].to_numpy()


def _texts_once(pairs: pa.Table) -> pa.Table:
    """Keep each text at its first pair only."""
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
