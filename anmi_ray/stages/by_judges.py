"""Measure by judges: their answers about the top documents of held-out queries as gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.core.records import COMPARISON, JUDGMENT, METRIC, RELEVANCE
from anmi_ray.evaluation import judged, measures, significance
from anmi_ray.stages.ingest import of_queries
from anmi_ray.store import Artifact

NAME = "by_judges"  # of the file and of the part of evaluate


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
