"""judge: comparisons -> signed preferences of every judge in both orders; failures stay failures.

Judges that read texts are asked first, what is missing in the answer log (`asking`); then every bucket's judgments are
put together from the log, from files of preferences (`importing`), and from the judges that compute in process (a
simulated panel, similarity). For a simulated
panel the latent relevance that it was told is kept beside its judgments, so that the report can check what is
recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anmi_ray import judging
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.rating.graph import count_triads
from anmi_ray.records import CANDIDATE, COMPARISON, JUDGMENT, TRUTH
from anmi_ray.stages import asking, importing
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.runtime import Context, run_buckets, run_task
from anmi_ray.store import Artifact, Flow

_AUDIT_QUERIES = 1000


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: JudgeConfig, context: Context) -> dict[str, Any]:
    """One task per bucket, then the audit of a sample; returns flows and the audit."""
    sources = asking.Sources(inputs["compare"], inputs["retrieve"], inputs["ingest"])
    asked = asking.ask(artifact, sources, config, context) if config.reading else {}
    brought = importing.judges(config, inputs["ingest"], context)
    flows = run_buckets(context, artifact, ("judgments", JUDGMENT), _bucket, sources, config, context.seed, brought)
    audit = artifact.read_json("audit.json")
    if audit is None:
        audit = run_task(context, _audit, artifact, inputs["compare"], config, context.buckets)
        artifact.publish_json("audit.json", audit)
    return {"flows": flows, "asked": asked}


def _bucket(
    artifact: Artifact,
    bucket: int,
    sources: asking.Sources,
    config: JudgeConfig,
    seed: int,
    brought: Mapping[str, importing.Brought],
) -> list[Flow]:
    comparisons = sources.compare.read_part("comparisons", bucket, COMPARISON)
    candidates = sources.retrieve.read_part("candidates", bucket, CANDIDATE)
    given = dict(asking.bought(artifact, sources, config, bucket))
    given |= {name: one.answers(bucket) for name, one in brought.items()}
    judgments = judging.judge(comparisons, candidates, config, seed, given)
    asked, answered = judgments.num_rows, len(judgments["p_a"]) - judgments["p_a"].null_count
    flows = [Flow("judgments", asked, answered, asked - answered)]
    parts = {"judgments": (JUDGMENT, judgments), "truth": (TRUTH, judging.truth(candidates, config, seed))}
    artifact.commit_bucket(bucket, parts, flows, None, explained=asked - answered)
    return flows


def _audit(judge: Artifact, compare: Artifact, config: JudgeConfig, buckets: int) -> dict[str, Any]:
    """The audit over a hash sample of queries, read bucket by bucket."""
    sample = sample_queries(compare, "comparisons", buckets, _AUDIT_QUERIES, "audit")
    kept: list[list[pa.Table]] = [[], [], []]
    for bucket in range(buckets):
        tables = (
            judge.read_part("judgments", bucket, JUDGMENT),
            compare.read_part("comparisons", bucket, COMPARISON),
            judge.read_part("truth", bucket, TRUTH),
        )
        for rows, table in zip(kept, tables, strict=True):
            rows.append(of_queries(table, sample))
    judgments, comparisons, truth = (pa.concat_tables(rows) for rows in kept)
    figures = judging.audit(judgments, comparisons, truth, config, triads=count_triads)
    return {"queries": sample.num_rows, **figures}
