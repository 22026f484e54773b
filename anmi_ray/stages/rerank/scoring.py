"""What models score, the hybrid's top documents of some splits' queries, and how: the trained one's and its peers'.

A cross-encoder scores a bucket's pairs in the bucket's task; of a model that reads texts alone, scores are made before,
by document (`by_document`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import RUN, TEXT_OF
from anmi_ray.models.reranker import Reranker
from anmi_ray.runtime import exchange
from anmi_ray.runtime.actors import scorers
from anmi_ray.runtime.tasks import Carrier, Context, windowed
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank import by_document
from anmi_ray.stages.rerank.ranking import pairs_of, ranked
from anmi_ray.store import Artifact

Load = Callable[[], Reranker]  # called in the tasks, where it remembers what it has loaded


@dataclass(frozen=True)
class Asked:
    """Return the pairs to score: the hybrid's top `depth` documents of the queries of `splits`."""

    retrieve: Artifact
    ingest: Artifact
    depth: int
    splits: tuple[str, ...]

    def of_bucket(self, bucket: int) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """A bucket's queries, the hybrid's Run of them, its top `depth`, and the texts of these documents."""
        queries = queries_of(self.ingest, bucket, *self.splits)
        runs = of_queries(self.retrieve.read_part("runs", bucket, RUN), queries)
        hybrid = runs.filter(pc.equal(runs["system"], "hybrid"))
        top = hybrid.filter(pc.less_equal(hybrid["rank"], self.depth))
        return queries, hybrid, top, self.retrieve.read_part("texts", bucket, TEXT_OF)


def score_documents(context: Context, artifact: Artifact, asked: Asked, load: Load) -> int:
    """Have a model that reads texts alone score what the buckets without a seal need; the slices of `scored`."""
    buckets = context.buckets
    if any(artifact.seal("runs", RUN, bucket) is None for bucket in range(buckets)):
        make = partial(exchange.make, context, artifact)
        make("asked", buckets, _ask, asked, buckets, what="bucket", does="asked for")
        by = scorers(context.execution)
        make("scored", buckets, by_document.score, buckets, load, what="slice", does="scored", by=by)
    return buckets


def carrier(context: Context, slices: int | None) -> Carrier:
    """Choose how to run buckets; those with stored scores by document compute none."""
    return scorers(context.execution) if slices is None else windowed


def scored(
    artifact: Artifact,
    bucket: int,
    tables: tuple[pa.Table, pa.Table, pa.Table],
    load: Load,
    slices: int | None,
    system: str,
) -> pa.Table:
    """The Run of `system` of a bucket's top documents, by score; `tables`: the top (Run), queries, and texts.

    slices: of the scores by document; None: the pairs are scored here.
    """
    top, queries, texts = tables
    if not top.num_rows:
        return RUN.empty()
    if slices is None:
        score_N = load().score(*pairs_of(top, queries, texts)).astype(np.float64)
    else:
        score_N = by_document.scores_of(artifact, bucket, slices, top)
    return ranked(top, score_N, system)


def _ask(artifact: Artifact, bucket: int, asked: Asked, slices: int) -> None:
    queries, _, top, texts = asked.of_bucket(bucket)
    by_document.ask(artifact, bucket, slices, top, queries, texts)
