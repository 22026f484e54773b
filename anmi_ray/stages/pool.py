"""pool: runs of held-out queries -> their top documents, for judges who say one by one whether they answer the query.

The pool is the union of the top documents of every measured system, as deep as the headline measure. Fusions take part
with even weights, since the weights chosen on dev may follow from the judges' answers. What a simulated panel needs (a
cosine, a label) is in the part candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, COMPARISON, QREL, RELEVANCE, RUN, find_rows
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Split, Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.store import Artifact, Flow

DESIGN = "pool"
_DOCUMENTS = "documents to ask about"
_EACH = 2.0  # documents per query and rank of the pool: systems of one first stage share most of their top
_PAIR = ["query_id", "doc_id"]


def run(artifact: Artifact, inputs: Inputs, config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket; the manifest gets the depth of the pool."""
    from anmi_ray.evaluation import measures

    depth = measures.depth_of(config.measures[0])
    flows = run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, dict(inputs), config, depth)
    if not sum(flow.rows_out for flow in flows if flow.unit == _DOCUMENTS):
        context.notice(
            f"no held-out query is to be judged (evaluate.judged: {config.judged}): every one is labelled, or none was "
            "retrieved for; corpus.unlabelled_test holds unlabelled ones out, evaluate.judged: all asks about all"
        )
    return {"flows": flows, "depth": depth}


def _bucket(artifact: Artifact, bucket: int, inputs: Inputs, config: EvaluateConfig, depth: int) -> list[Flow]:
    from anmi_ray.mining.borderline import comparisons_of
    from anmi_ray.stages.evaluate import fusions

    qrels = inputs["ingest"].read_part("qrels", bucket, QREL)
    queries = queries_of(inputs["ingest"], bucket, "dev", "test")
    if config.judged == "unlabelled":
        labelled = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"].combine_chunks()
        queries = queries.filter(pc.invert(pc.is_in(queries["query_id"], value_set=labelled)))
    if "anchor" in inputs:  # ratings are better evidence about dev queries
        rated = inputs["anchor"].read_part("relevance", bucket, RELEVANCE)["query_id"].combine_chunks()
        queries = queries.filter(pc.invert(pc.is_in(queries["query_id"], value_set=rated)))
    single = [of_queries(inputs[role].read_part("runs", bucket, RUN), queries) for role in ("retrieve", "rerank")]
    runs = pa.concat_tables(single)
    reranked = int((inputs["rerank"].manifest() or {})["depth"])
    runs = pa.concat_tables([runs, fusions(runs, {}, config, reranked)])
    top = runs.filter(pc.less_equal(runs["rank"], depth)).select(_PAIR).group_by(_PAIR).aggregate([])
    top = top.take(pa.array(identity.id_order(*(identity.id_matrix(top[name]) for name in _PAIR))))
    nothing = pa.repeat(pa.scalar(identity.NOTHING, identity.ID), top.num_rows)
    pairs = {"query_id": top["query_id"], "doc_a": top["doc_id"], "doc_b": nothing}
    parts = {
        "comparisons": (COMPARISON, comparisons_of(pa.table(pairs), DESIGN)),
        "candidates": (CANDIDATE, _candidates(top, runs, qrels)),
    }
    found = pc.count_distinct(top["query_id"]).as_py()
    flows = [Flow("held-out queries", found, found), Flow(_DOCUMENTS, top.num_rows, top.num_rows)]
    artifact.commit_bucket(bucket, parts, flows, None)
    return flows


def _candidates(top: pa.Table, runs: pa.Table, qrels: pa.Table) -> pa.Table:
    """Return the pool as Candidates: rank and score of the hybrid, the last ones if it lacks a document, and cosine."""
    keys = {name: top[name] for name in _PAIR}
    hybrid, dense = (runs.filter(pc.equal(runs["system"], name)) for name in ("hybrid", "dense"))
    row = find_rows(hybrid, keys)
    rank = np.append(hybrid["rank"].to_numpy(), hybrid.num_rows + 1)[row]  # row -1 is the last
    score = np.append(hybrid["score"].to_numpy(), 0.0)[row]
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))
    nowhere = pa.MapArray.from_arrays([0] * (top.num_rows + 1), pa.array([], pa.string()), pa.array([], pa.int32()))
    return CANDIDATE.table(
        {
            **keys,
            "source": ["retrieved"] * top.num_rows,
            "is_positive": find_rows(relevant, keys) >= 0,
            "rank": rank.astype(np.int32),
            "fused_score": score,
            "retriever_ranks": nowhere,
            "similarity": _similarity(top, dense, find_rows(dense, keys)),
        }
    )


def _similarity(top: pa.Table, dense: pa.Table, row: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """Return the cosines of the dense run; below its depth the query's lowest, 0 without any."""
    each = dense.group_by("query_id").aggregate([("score", "min")])
    lowest = np.append(each["score_min"].to_numpy(), 0.0)[find_rows(each, {"query_id": top["query_id"]})]
    return np.where(row >= 0, np.append(dense["score"].to_numpy(), 0.0)[row], lowest)


def _cost(load: Workload) -> StageCost:
    """Count what it found, else assume that all held-out queries are judged."""
    from anmi_ray.evaluation import measures

    about = round(_EACH * measures.depth_of(load.config.measures[0]) * load.held_out)
    pairs = load.found(_DOCUMENTS, about)
    return StageCost(
        f"about {pairs:,} documents to ask about, the top ones of {load.held_out:,} held-out queries", pairs
    )


STAGE = Stage(
    name="pool",
    version=1,
    inputs=("rerank", "retrieve", "ingest"),
    does="gather the top documents of held-out queries that judges are to measure",
    run=run,
    cost=_cost,
    settings="evaluate",
    config=lambda experiment: experiment.evaluate.over(experiment.retrieve.retrievers),
    left_out=frozenset({"judge", "baseline", "rounds"}),
    of=read_of_dev,
    split=Split(
        "test",
        "hold some out (corpus.unlabelled_test=0.2), give qrels of a test split (corpus.qrels), or set "
        "evaluate.judged=none",
    ),
)
