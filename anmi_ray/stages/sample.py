"""sample: candidates -> the pairs that an ensemble is asked about and a judge learns from, no document in two.

Which query gets a document depends on all queries. Tasks propose documents per query in the order of a hash; one pass
on the driver decides, and asks for more proposals on conflicts; then one task per bucket writes its pairs. The driver
holds the sample, never the candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.distill import SampleConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, COMPARISON
from anmi_ray.runtime import exchange
from anmi_ray.runtime.costs import StageCost
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, over_buckets, run_buckets
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.comparisons.sample import Salt

_AT_ONCE = 64  # buckets whose queries are held at once
_FEWEST = 10  # pairs that a sample needs at least


def run(artifact: Artifact, inputs: Inputs, config: SampleConfig, context: Context) -> dict[str, Any]:
    """Draw the sample, then write one bucket per task.

    Raises DataError if only one query can be compared, or fewer than ten pairs are found.
    """
    retrieve = inputs["retrieve"]
    if exchange.groups_of(artifact, "pairs", 0) is None:
        _draw(artifact, retrieve, config, context)
    flows = run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, retrieve)
    found = [flow for flow in flows if flow.unit == "pairs"]
    if any(flow.rejected for flow in found):
        drawn, asked = sum(flow.rows_out for flow in found), sum(flow.rows_in for flow in found)
        context.notice(
            f"{drawn:,} of {asked:,} pairs (distill.sample.pairs): no document may be in two pairs, and these are all "
            "that the candidates give; raise retrieve.candidates for more"
        )
    return {"flows": flows}


def _draw(artifact: Artifact, retrieve: Artifact, config: SampleConfig, context: Context) -> None:
    """Draw the sample, and publish it with a row group per bucket."""
    from anmi_ray.comparisons import sample

    salt = sample.salt_of(context.seed, config.seed)
    known: list[pa.Table] = []
    total = 0
    for start in range(0, context.buckets, _AT_ONCE):
        buckets = list(range(start, min(start + _AT_ONCE, context.buckets)))
        found = over_buckets(context, buckets, _queries, retrieve, salt, config.pairs)
        total += sum(count for _, count in found)
        known = [sample.first([*known, *(table for table, _ in found)], config.pairs)]
    if total < 2:
        raise DataError(
            f"{'one query only has' if total else 'no query has'} two candidates to compare",
            "stage sample",
            "a judge is distilled from pairs of several queries: give more train queries (they need no label; see "
            "corpus.max_train_queries), or let the ensemble judge (judge.judges)",
        )

    def ask(wanted: pa.Table) -> pa.Table:
        parts = {
            bucket: wanted.filter(pc.equal(wanted["bucket"], bucket))
            for bucket in sorted(pc.unique(wanted["bucket"]).to_pylist())
        }
        return pa.concat_tables(over_buckets(context, parts, _propose, retrieve, salt))

    drawn = sample.draw(known[0], total, config.pairs, ask)
    if drawn.pairs.num_rows < _FEWEST:
        raise DataError(
            f"{drawn.pairs.num_rows} pairs are found of which no two share a document, and a judge needs {_FEWEST} at "
            "least to learn from",
            "stage sample",
            "raise retrieve.candidates, give more train queries, or let the ensemble judge (judge.judges)",
        )
    for name, table in (("dry", drawn.dry), ("pairs", drawn.pairs)):  # pairs last: with them the draw is complete
        parts = [table.filter(pc.equal(table["bucket"], bucket)) for bucket in range(context.buckets)]
        exchange.publish(artifact, name, 0, parts)


def _queries(bucket: int, retrieve: Artifact, salt: Salt, pairs: int) -> tuple[pa.Table, int]:
    """Return the queries of a bucket that may enter the sample, and how many could be compared."""
    from anmi_ray.comparisons import sample

    found, _ = sample.queries(retrieve.read_part("candidates", bucket, CANDIDATE, ["query_id", "source"]), salt)
    table = found.append_column("bucket", pa.repeat(pa.scalar(bucket, pa.int64()), found.num_rows))
    return sample.first([table], pairs), found.num_rows


def _propose(bucket: int, wanted: pa.Table, retrieve: Artifact, salt: Salt) -> pa.Table:
    from anmi_ray.comparisons import sample

    columns = ["query_id", "doc_id", "source"]
    return sample.propose(retrieve.read_part("candidates", bucket, CANDIDATE, columns), wanted, salt)


def _bucket(artifact: Artifact, bucket: int, retrieve: Artifact) -> list[Flow]:
    from anmi_ray.comparisons import sample

    candidates = retrieve.read_part("candidates", bucket, CANDIDATE, ["query_id", "source"])
    compared, few = sample.queries(candidates, ())
    pairs = exchange.read(artifact, "pairs", 0, bucket).select(COMPARISON.schema.names)
    dry = sample.dry_rejects(exchange.read(artifact, "dry", 0, bucket))
    flows = [
        Flow("train queries", compared.num_rows + few.num_rows, compared.num_rows, few.num_rows),
        Flow("pairs", pairs.num_rows + dry.num_rows, pairs.num_rows, dry.num_rows),
    ]
    parts = {"comparisons": (COMPARISON, pairs.cast(COMPARISON.schema))}
    artifact.commit_bucket(bucket, parts, flows, pa.concat_tables([few, dry]))
    return flows


STAGE = Stage(
    name="sample",
    version=1,
    inputs=("retrieve",),
    does="draw pairs of candidates, queries evenly and no document twice",
    run=run,
    cost=lambda load: StageCost(f"{load.config.pairs:,} pairs of {load.train:,} queries", load.config.pairs),
    settings="distill.sample",
    split=TRAIN_QUERIES,
)
