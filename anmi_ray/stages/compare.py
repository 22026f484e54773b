"""compare: candidates -> which pairs of documents to ask about, a sparse graph per query, or a file's pairs.

For an adaptive design, this is the first round; `stages/rounds.py` has the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.paths import as_written
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, COMPARISON, IMPORTED
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.store import Artifact, Flow

_SEAL = ("comparisons", COMPARISON)


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: CompareConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket. Raises DataError if no pair of an imported file can be compared."""
    retrieve = inputs["retrieve"]
    if config.design != "imported":
        return {"flows": run_buckets(context, artifact, _SEAL, _bucket, retrieve, config, context.seed)}
    from anmi_ray.stages.judge import importing

    ingest = Artifact(artifact.store, "ingest", (retrieve.manifest() or {})["inputs"]["ingest"])
    preferences = importing.bring_in(config, ingest, context)
    flows = run_buckets(context, artifact, _SEAL, _imported_bucket, retrieve, preferences)
    if not any(flow.rows_out for flow in flows if flow.unit == "preferences"):
        raise DataError(
            "no pair of the file has two candidates of its query",
            as_written(config.path or ""),
            "raise retrieve.candidates and retrieve.depth: only documents that are retrieved are compared, of train "
            "queries, and of dev queries where corpus.unlabelled_dev holds them out",
        )
    return {"flows": flows}


def _bucket(artifact: Artifact, bucket: int, retrieve: Artifact, config: CompareConfig, seed: int) -> list[Flow]:
    from anmi_ray import comparisons

    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    choose = comparisons.first_round if config.design == "adaptive" else comparisons.compare
    pairs, rejects = choose(candidates, config, seed)
    queries = len(set(candidates["query_id"].to_pylist()))
    flows = [Flow("queries", queries, queries - rejects.num_rows, rejects.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, rejects)
    return flows


def _imported_bucket(artifact: Artifact, bucket: int, retrieve: Artifact, imported: Artifact) -> list[Flow]:
    """Count rows of the file in and rows used out; rejects include those of reading the file."""
    from anmi_ray import comparisons
    from anmi_ray.comparisons.compare import NOT_CANDIDATES, NOT_COMPARED
    from anmi_ray.judging.imported import refused
    from anmi_ray.stages.judge import importing

    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    rows = imported.read_part("preferences", bucket, IMPORTED)
    before = importing.rejects_of(imported, bucket)
    pairs, left, without = comparisons.imported(candidates, rows)
    query_ids = pc.unique(candidates["query_id"])
    compared = pc.is_in(left["query_id"], value_set=query_ids)
    refusals = [refused(left.filter(compared), NOT_CANDIDATES), refused(left.filter(pc.invert(compared)), NOT_COMPARED)]
    bad = before.num_rows + left.num_rows
    flows = [
        Flow("preferences", rows.num_rows + before.num_rows, rows.num_rows - left.num_rows, bad),
        Flow("queries", len(query_ids), len(query_ids) - without.num_rows, without.num_rows),
    ]
    rejects = pa.concat_tables([before, *refusals, without])
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, rejects)
    return flows


def _also(config: CompareConfig, *_: Any) -> dict[str, str]:
    if config.path is None:
        return {}
    from anmi_ray.tables import formats

    return {"file": formats.identity_of(Path(config.path).expanduser())}


def _cost(load: Workload) -> StageCost:
    """Return the number of rows of a file as an upper bound."""
    config: CompareConfig = load.config
    pairs = load.candidates * config.degree // 2
    work = f"{pairs:,} pairs, {config.degree} per document"
    if config.path is not None:
        from anmi_ray.tables import formats

        batches = formats.read_batches(Path(config.path).expanduser(), ("query_id",))
        pairs = sum(rows.table.num_rows for rows in batches)
        work = f"at most {pairs:,} pairs of {config.path}"
    return StageCost(work, pairs)


STAGE = Stage(
    name="compare",
    version=2,  # 2: rings in order of hashes
    inputs=("retrieve",),
    does="choose which pairs of candidates to ask about: a sparse regular graph",
    run=run,
    cost=_cost,
    also=_also,
    split=TRAIN_QUERIES,
)
