"""shortlist: gaps -> documents to ask judges about one by one: the top-rated of queries without a known positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray.config.base import Settings
from anmi_ray.core.records import COMPARISON, GAP
from anmi_ray.runtime.costs import COMPARISON_BYTES, StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.store import Artifact, Flow

_QUERIES = "queries without a known positive"
_DOCUMENTS = "documents to ask about"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Settings, context: Context) -> dict[str, Any]:
    """One task per bucket; returns flows for the manifest."""
    return {"flows": run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, inputs["rate"])}


def _bucket(artifact: Artifact, bucket: int, rate: Artifact) -> list[Flow]:
    from anmi_ray import mining

    pairs = mining.shortlist(rate.read_part("gaps", bucket, GAP))
    queries = len(set(pairs["query_id"].to_pylist()))
    flows = [Flow(_QUERIES, queries, queries), Flow(_DOCUMENTS, pairs.num_rows, pairs.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
    return flows


def _cost(load: Workload) -> StageCost:
    """As many as it found, else of all train queries: which have no known positive is not known before."""
    from anmi_ray.rating import TOP_RATED

    pairs = TOP_RATED * load.train
    work = f"at most {pairs:,} documents to ask about, {TOP_RATED} of each query without a known positive"
    if load.manifest is not None:
        pairs = next(flow["rows_out"] for flow in load.manifest["flows"] if flow["unit"] == _DOCUMENTS)
        work = f"{pairs:,} documents to ask about"
    return StageCost(work, 2.0, pairs * COMPARISON_BYTES, files=load.buckets, pairs=pairs)


STAGE = Stage(
    name="shortlist",
    version=1,
    inputs=("rate",),
    does="find the top-rated documents of queries without a known positive",
    run=run,
    cost=_cost,
    settings="mine",
    config=lambda _: Settings(),
)
