"""shortlist: ratings -> documents to ask judges about one by one: the likeliest of queries without a known positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray.config.base import Settings
from anmi_ray.core.records import COMPARISON, GAP
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.store import Artifact, Flow

_QUERIES = "queries without a known positive"
_DOCUMENTS = "documents to ask about"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Settings, context: Context) -> dict[str, Any]:
    """The model of relevance from a sample, then one task per bucket; returns flows for the manifest.

    Raises JudgeError where ratings do not tell relevant documents from others, before anybody is asked about them.
    """
    from anmi_ray.stages import anchor

    model = anchor.telling(artifact, inputs, context)
    parts = ("comparisons", COMPARISON)
    return {"flows": run_buckets(context, artifact, parts, _bucket, dict(inputs), model)}


def _bucket(artifact: Artifact, bucket: int, inputs: Mapping[str, Artifact], model: Any) -> list[Flow]:
    from anmi_ray import mining
    from anmi_ray.stages import anchor

    documents, known = anchor.known(inputs, bucket)
    score = known.rating if model is None else model.posterior(known)
    pairs = mining.shortlist(inputs["rate"].read_part("gaps", bucket, GAP), documents, score)
    queries = len(set(pairs["query_id"].to_pylist()))
    flows = [Flow(_QUERIES, queries, queries), Flow(_DOCUMENTS, pairs.num_rows, pairs.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
    return flows


def _cost(load: Workload) -> StageCost:
    """As many as it found, else of all queries that are compared: which have no known positive is not known before."""
    from anmi_ray.mining.borderline import ASKED

    pairs = load.found(_DOCUMENTS, ASKED * load.compared)
    work = f"at most {pairs:,} documents to ask about, {ASKED} of each query without a known positive"
    return StageCost(work, pairs)


STAGE = Stage(
    name="shortlist",
    version=2,
    inputs=("rate", "retrieve"),
    does="find the likeliest documents of queries without a known positive",
    run=run,
    cost=_cost,
    settings="mine",
    config=lambda _: Settings(),
)
