"""pseudo: candidates -> P(relevant) of each, from rank and similarity alone, with ratings and gaps for mining.

Takes the place of all stages with judges (`mine.anchors: retrieved`): pseudo-labels with probabilities. The rating is
the log odds of P(relevant) in Elo points; its error is a nominal logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.base import Settings
from anmi_ray.core.arrays import rank_within
from anmi_ray.core.records import CANDIDATE, GAP, RATING, RELEVANCE
from anmi_ray.core.scale import ELO_PER_LOGIT
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.anchor import with_anchors
from anmi_ray.stages.ingest import TRAIN_QUERIES, of_queries, sample_queries
from anmi_ray.store import Artifact, Flow

_QUERIES = 1000  # of the sample that similarities are scaled by
_SCALE = "scale.json"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Settings, context: Context) -> dict[str, Any]:
    """Scale similarities by their spread within a sample of queries, then run one task per bucket."""
    retrieve = inputs["retrieve"]
    scale = artifact.read_json(_SCALE)
    if scale is None:
        scale = {"unit": run_task(context, _unit, retrieve, context.buckets)}
        artifact.publish_json(_SCALE, scale)
    return {"flows": run_buckets(context, artifact, ("relevance", RELEVANCE), _bucket, retrieve, scale["unit"])}


def _candidates(retrieve: Artifact, bucket: int) -> pa.Table:
    """Return the bucket's candidates without random documents, sorted by query."""
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    return candidates.filter(pc.not_equal(candidates["source"], "random")).sort_by("query_id")


def _unit(retrieve: Artifact, buckets: int) -> float:
    from anmi_ray.mining import relevance

    sample, buckets = sample_queries(retrieve, "candidates", buckets, _QUERIES, "relevance")
    tables = [of_queries(_candidates(retrieve, bucket), sample) for bucket in range(buckets)]
    return relevance.unit_of(relevance.first_stage(pa.concat_tables(tables)))


def _bucket(artifact: Artifact, bucket: int, retrieve: Artifact, unit: float) -> list[Flow]:
    from anmi_ray.mining import relevance
    from anmi_ray.mining.anchors import POSSIBLE
    from anmi_ray.mining.borderline import ASKED

    candidates = _candidates(retrieve, bucket)
    ids = {name: candidates[name].combine_chunks() for name in ("query_id", "doc_id")}
    evidence = relevance.first_stage(candidates)
    query = evidence.query
    log_odds, probability = relevance.by_retrieval(evidence, unit)
    size = np.bincount(query)
    rating = ELO_PER_LOGIT * (log_odds - (np.bincount(query, log_odds) / size)[query])
    is_known = candidates["is_positive"].to_numpy()
    is_labelled = (np.bincount(query, is_known) > 0)[query]
    place = rank_within(query, -probability)
    error = np.full(len(query), ELO_PER_LOGIT)
    ratings = {"rating_elo": rating, "std_err_elo": error, "latent": rating / ELO_PER_LOGIT, "games": 0.0 * error}

    anchor = np.flatnonzero(np.where(is_labelled, is_known, place < ASKED))
    documents = size[query[anchor]]  # of each anchor's query, in adjacent rows
    row = np.repeat(anchor, documents)
    first = np.cumsum(size) - size
    nth = np.arange(len(row)) - np.repeat(np.cumsum(documents) - documents, documents)
    doc = first[query[row]] + nth
    row, doc = row[row != doc], doc[row != doc]
    gaps = {
        "query_id": ids["query_id"].take(row),
        "anchor_id": ids["doc_id"].take(row),
        "doc_id": ids["doc_id"].take(doc),
        "gap_elo": rating[row] - rating[doc],
        "gap_se_elo": np.full(len(row), ELO_PER_LOGIT * np.sqrt(2.0)),
        "anchor_kind": pa.array(np.where(is_labelled[row], "known", "top-rated")),
    }
    own = ~is_labelled
    none = pa.nulls(int(own.sum()), pa.float64())
    documents = pa.table(ids).filter(pa.array(own))
    likely = probability[own]
    relevant, flows = with_anchors(documents, query[own], likely, likely, none, place[own] < ASKED, POSSIBLE)
    parts = {
        "ratings": (RATING, RATING.table({**ids, **ratings, "component": np.zeros(len(query), np.int32)})),
        "gaps": (GAP, GAP.table(gaps)),
        "relevance": (RELEVANCE, relevant),
    }
    artifact.commit_bucket(bucket, parts, flows, None)
    return flows


STAGE = Stage(
    name="pseudo",
    version=1,
    inputs=("retrieve",),
    does="estimate which candidates are relevant from rank and similarity alone",
    run=run,
    settings="mine",
    config=lambda _: Settings(),
    split=TRAIN_QUERIES,
)
