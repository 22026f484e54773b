"""The body of score: what it asks are candidates, not the top of a ranking; how it scores is rerank's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.comparisons.compare import retrieved
from anmi_ray.config.evaluate import Scoring
from anmi_ray.core.records import CANDIDATE, RUN, TEXT_OF
from anmi_ray.models.kinds import reads_apart
from anmi_ray.runtime import exchange
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.ingest import TRAIN_QUERIES, of_queries, queries_of
from anmi_ray.stages.rerank import held_out, scoring
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.stages.rerank.start import GONE_ON_WITH
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder


@dataclass(frozen=True)
class Candidates(scoring.Asked):
    """Return the pairs to score: the compared documents of train queries."""

    def of_bucket(self, bucket: int) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """A bucket's queries, its candidates as a Run, that once more, and their texts."""
        queries = queries_of(self.ingest, bucket, *self.splits)
        rows = of_queries(retrieved(self.retrieve.read_part("candidates", bucket, CANDIDATE)), queries)
        top = _as_run(rows.sort_by([("query_id", "ascending"), ("doc_id", "ascending")]))
        return queries, top, top, self.retrieve.read_part("texts", bucket, TEXT_OF)


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Scoring, context: Context) -> dict[str, Any]:
    """One task per bucket, as many at once as there are cores, one thread each; returns flows for the manifest."""
    asked = Candidates(inputs["retrieve"], inputs["ingest"], 0, (TRAIN_QUERIES.name,))
    load = partial(held_out.trained, inputs[GONE_ON_WITH], config, context.execution.score.device)
    apart = reads_apart(str(local_folder(inputs[GONE_ON_WITH], "model")))
    slices = scoring.score_documents(context, artifact, asked, load) if apart else None
    by = scoring.carrier(context, slices)
    flows = run_buckets(context, artifact, ("runs", RUN), _bucket, asked, load, slices, by=by)
    exchange.forget(artifact)
    return {"flows": flows}


def _bucket(artifact: Artifact, bucket: int, asked: Candidates, load: scoring.Load, slices: int | None) -> list[Flow]:
    queries, _, top, texts = asked.of_bucket(bucket)
    scored = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, SYSTEM)
    found = pc.count_distinct(scored["query_id"]).as_py()
    flows = [Flow("train queries with candidates", found, found)]
    artifact.commit_bucket(bucket, {"runs": (RUN, scored)}, flows, None)
    return flows


def _as_run(rows: pa.Table) -> pa.Table:
    """Candidates, by query, as a ranking of no meaning: what breaks ties between equal scores."""
    query = rows["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    rank = np.arange(len(query)) - np.searchsorted(query, query) + 1
    ids = {name: rows[name] for name in ("query_id", "doc_id")}
    return RUN.table(
        {**ids, "system": [SYSTEM] * len(rank), "rank": rank.astype(np.int32), "score": np.zeros(len(rank))}
    )
