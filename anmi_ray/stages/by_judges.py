"""Measure by judges: what they say about the top documents of held-out queries, as gains.

The stage pool gathers these documents for judges who say one by one whether they answer the query: the union of the top
documents of every measured system, as deep as the headline measure. Fusions take part with even weights, since the
weights chosen on dev may follow from the judges' answers. What a simulated panel needs (a cosine, a label) is in its
part candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT, METRIC, QREL, RELEVANCE, RUN, find_rows
from anmi_ray.evaluation import judged, measures, significance
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Split, Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.store import Artifact, Flow

NAME = "by_judges"  # of the file and of the part of evaluate
DESIGN = "pool"
_DOCUMENTS = "documents to ask about"
_EACH = 2.0  # documents per query and rank of the pool: systems of one first stage share most of their top
_PAIR = ["query_id", "doc_id"]


@dataclass(frozen=True)
class Assessed:
    """Answers about pooled documents of held-out queries.

    answers: query_id, doc_id, answer (NaN: no answer), probability (calibrated by labels if there are enough).
    panel: kind of each judge by name.
    """

    answers: pa.Table
    calibration: str
    measure: str
    panel: dict[str, str]

    def about(self, queries: pa.Table) -> pa.Table:
        """Return the answers about `queries`."""
        return self.answers.filter(pc.is_in(self.answers["query_id"], value_set=queries["query_id"].combine_chunks()))

    def gains(self, queries: pa.Table) -> pa.Table:
        """Return Qrels of `queries` with gains as grades."""
        mine = self.about(queries)
        return judged.gains(mine, mine["probability"].to_numpy())


def read(pool: Artifact, assess: Artifact, qrels: pa.Table, buckets: int, seed: int) -> Assessed:
    """Read all answers, calibrated by the labels of dev and test (qrels)."""
    from anmi_ray import judging

    parts = [
        judging.confirmations(
            assess.read_part("judgments", bucket, JUDGMENT), pool.read_part("comparisons", bucket, COMPARISON)
        )
        for bucket in range(buckets)
    ]
    found = pa.concat_tables(parts).select(["query_id", "doc_id", "probability"])
    found = found.rename_columns(["query_id", "doc_id", "answer"])
    probability, how = judged.calibrated(found, qrels, seed)
    depth = (pool.manifest() or {})["depth"]
    panel = (assess.manifest() or {})["panel"]
    return Assessed(found.append_column("probability", [probability]), how, f"nDCG@{depth}", panel)


def rated(anchor: Artifact, queries: pa.Table, buckets: int) -> pa.Table:
    """Return Qrels of `queries` with P(relevant) by ratings and answers as grades, ignoring first-stage ranks."""
    parts = [of_queries(anchor.read_part("relevance", bucket, RELEVANCE), queries) for bucket in range(buckets)]
    found = pa.concat_tables(parts)
    return judged.graded(found, found["by_judges"].to_numpy())


def measure(
    said: Assessed,
    runs: pa.Table,
    queries: pa.Table,
    config: EvaluateConfig,
    systems: Sequence[str],
    baseline: str,
    peers: Sequence[str],
    seed: int,
) -> tuple[judged.ByJudges, pa.Table]:
    """Return measurements by judges and Metric rows, for the systems of `runs` on the test queries `queries`."""
    asked = said.about(queries)
    answered = asked.filter(pc.is_finite(asked["answer"]))
    pooled, heard = (pc.count_distinct(table["query_id"]).as_py() for table in (asked, answered))
    doubts = [f"{pooled - heard:,} of {pooled:,} test queries have no answer (budget, failures)"] * (heard < pooled)
    gains = said.gains(queries)
    kept = pc.unique(gains["query_id"])
    facts: dict[str, Any] = {
        "measure": said.measure,
        "judges": tuple(said.panel),
        "own_panel": config.judge is not None,
        "simulated": "simulated" in said.panel.values(),
        "asked": heard,
        "queries": len(kept),
        "documents": asked.num_rows,
        "calibration": said.calibration,
    }
    if not len(kept):
        doubts.append("judges confirm no document of a test query" if pooled else "no test query was asked about")
        return judged.ByJudges(**facts, fault="; ".join(doubts)), METRIC.empty()
    metrics = without_failed(measures.evaluate(runs, gains, (said.measure,), systems), runs, peers)
    rows = significance.compare(metrics, baseline, systems, said.measure, seed=seed, partial=peers)
    shares = judged.judged_share(runs, answered, kept, measures.depth_of(said.measure))
    rates = judged.win_rates(metrics, said.measure, systems)
    if not pc.any(pc.less_equal(answered["answer"], judged.YES)).as_py():
        doubts.append("judges confirm every document: their yes says nothing")
    rows = judged.with_shares(rows, shares)
    return judged.ByJudges(**facts, comparisons=rows, win_rates=rates, fault="; ".join(doubts)), metrics


def without_failed(metrics: pa.Table, runs: pa.Table, peers: Sequence[str]) -> pa.Table:
    """Return `metrics` without the queries that a peer did not score, which would count as zeros."""
    for peer in peers:
        mine = runs.filter(pc.equal(runs["system"], peer))
        has = pc.is_in(metrics["query_id"], value_set=pc.unique(mine["query_id"]))
        metrics = metrics.filter(pc.or_(pc.not_equal(metrics["system"], peer), has))
    return metrics


def systems(artifact: Artifact) -> list[dict[str, Any]]:
    """Return the measures of a complete evaluate artifact by system, by labels if there are any, else by judges."""
    if by_labels := artifact.read_json("comparisons.json"):
        return [{**row, "by": "labels"} for row in by_labels]
    found = measurements(artifact)
    return [{**asdict(row), "by": "judges"} for row in found.comparisons] if found is not None else []


def measurements(artifact: Artifact) -> judged.ByJudges | None:
    """Return the judges' measurements in a complete evaluate artifact; None if they were not asked."""
    content = artifact.read_json(f"{NAME}.json")
    return None if content is None else judged.from_json(content)


def gather(artifact: Artifact, inputs: Inputs, config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Gather the pool, a task per bucket; the manifest gets its depth."""
    depth = measures.depth_of(config.measures[0])
    flows = run_buckets(context, artifact, ("comparisons", COMPARISON), _pool, dict(inputs), config, depth)
    if not sum(flow.rows_out for flow in flows if flow.unit == _DOCUMENTS):
        context.notice(
            f"no held-out query is to be judged (evaluate.judged: {config.judged}): every one is labelled, or none was "
            "retrieved for; corpus.unlabelled_test holds unlabelled ones out, evaluate.judged: all asks about all"
        )
    return {"flows": flows, "depth": depth}


def _pool(artifact: Artifact, bucket: int, inputs: Inputs, config: EvaluateConfig, depth: int) -> list[Flow]:
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
    about = round(_EACH * measures.depth_of(load.config.measures[0]) * load.held_out)
    pairs = load.found(_DOCUMENTS, about)
    return StageCost(
        f"about {pairs:,} documents to ask about, the top ones of {load.held_out:,} held-out queries", pairs
    )


POOL = Stage(
    name="pool",
    version=1,
    inputs=("rerank", "retrieve", "ingest"),
    does="gather the top documents of held-out queries that judges are to measure",
    run=gather,
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
