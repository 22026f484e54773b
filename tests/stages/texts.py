"""Artifacts with questions of chosen texts, for judges that read."""

from __future__ import annotations

from collections.abc import Sequence

from anmi_ray.config.judge import JudgeConfig, TextJudgeConfig
from anmi_ray.core.identity import comparison_id, doc_id, query_id, text_hash
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.judge import dispatch
from anmi_ray.stages.judge.asking import QuestionSources
from anmi_ray.store import Artifact, Store

Query = tuple[str, Sequence[str], Sequence[tuple[int, int]]]  # its text, its documents' texts, which are compared


def write_questions(store: Store, name: str, buckets: Sequence[Sequence[Query]]) -> QuestionSources:
    """Publish ingest, retrieve and compare artifacts called `name`, a list of queries a bucket."""
    made = {stage: Artifact(store, stage, name) for stage in ("ingest", "retrieve", "compare")}
    for bucket, queries in enumerate(buckets):
        rows: dict[str, list[tuple[object, ...]]] = {stage: [] for stage in made}
        for number, (text, documents, pairs) in enumerate(queries):
            query = query_id(f"{bucket}/{number}")
            ids = [doc_id(f"{bucket}/{number}/{i}") for i in range(len(documents))]
            rows["ingest"].append((query, f"{bucket}/{number}", text, text_hash(text), "train"))
            rows["retrieve"] += [
                (i, i.hex(), text_hash("", one), "", one) for i, one in zip(ids, documents, strict=True)
            ]
            for pair in pairs:
                a, b = sorted(ids[i] for i in pair)
                rows["compare"].append((comparison_id(query, a, b), query, a, b, 0, "test"))
        for stage, part, record in (
            ("ingest", "queries", QUERY), ("retrieve", "texts", TEXT_OF), ("compare", "comparisons", COMPARISON),
        ):  # fmt: skip
            columns = dict(zip(_COLUMNS[stage], zip(*rows[stage], strict=True), strict=True))
            made[stage].publish_part(part, bucket, record.table({k: list(v) for k, v in columns.items()}), record)
    return QuestionSources(made["compare"], made["retrieve"], made["ingest"])


_COLUMNS = {
    "ingest": ("query_id", "external_id", "text", "text_hash", "split"),
    "retrieve": ("doc_id", "external_id", "text_hash", "title", "text"),
    "compare": ("comparison_id", "query_id", "doc_a", "doc_b", "round", "design"),
}


def ask(
    sources: QuestionSources, judge: TextJudgeConfig, context: Context, calls: int | None = None, **more: object
) -> dict[str, int]:
    """Ask what is missing of a panel of one judge; what was asked."""
    panel: dict[str, object] = {"judges": [judge.model_dump()], "budget": {"calls": calls}, **more}
    artifact = Artifact(context.store, "judge", "test")
    return dispatch.ask(artifact, sources, JudgeConfig.model_validate(panel), context)[judge.name]
