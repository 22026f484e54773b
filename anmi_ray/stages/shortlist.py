"""shortlist: ratings -> documents to ask judges about one by one: the likeliest of queries without a known positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray import mining
from anmi_ray.config.base import Settings
from anmi_ray.core.records import COMPARISON, GAP
from anmi_ray.mining.borderline import ASKED
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages import anchor
from anmi_ray.store import Artifact, Flow

_QUERIES = "queries without a known positive"
_DOCUMENTS = "documents to ask about"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Settings, context: Context) -> dict[str, Any]:
    """Fit the relevance model to a sample, then run one task per bucket.

    Raises JudgeError, before judges are asked, if ratings do not separate relevant documents from others.
    """
    model = anchor.telling(artifact, inputs, context)
    parts = ("comparisons", COMPARISON)
    return {"flows": run_buckets(context, artifact, parts, _bucket, dict(inputs), model)}


def _bucket(artifact: Artifact, bucket: int, inputs: Mapping[str, Artifact], model: Any) -> list[Flow]:
    documents, known = anchor.known(inputs, bucket)
    score = known.rating if model is None else model.posterior(known)
    pairs = mining.shortlist(inputs["rate"].read_part("gaps", bucket, GAP), documents, score)
    queries = len(set(pairs["query_id"].to_pylist()))
    flows = [Flow(_QUERIES, queries, queries), Flow(_DOCUMENTS, pairs.num_rows, pairs.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
    return flows


def _cost(load: Workload) -> StageCost:
    """Count what it found, else assume all compared queries: those without a known positive are not known before."""
    pairs = load.found(_DOCUMENTS, ASKED * load.compared)
    work = f"at most {pairs:,} documents to ask about, {ASKED} of each query without a known positive"
    return StageCost(work, pairs)


STAGE = Stage(
    name="shortlist",
    version=4,
    inputs=("rate", "retrieve"),
    does="find the likeliest documents of queries without a known positive",
    run=run,
    cost=_cost,
    settings="mine",
    config=lambda _: Settings(),
)
