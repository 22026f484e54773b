"""A whole run with other rerankers beside the trained one, through Ray and a server in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.load import load
from anmi_ray.core.records import METRIC, QUERY, RUN
from anmi_ray.pipeline.run import run
from anmi_ray.stages import report
from anmi_ray.store import Artifact, Store
from tests.judging.rerank_server import serving
from tests.models.tiny import write_tiny_bert
from tests.small import start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]


def test_peers_are_measured_beside_the_trained_model(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    with serving() as server:
        peers = [
            {"name": "bare", "untrained": True},
            {"name": "served", "endpoint": server.config(documents_per_call=4).model_dump()},
        ]
        tiny = str(write_tiny_bert(tmp_path / "tiny"))
        train = {"model": tiny, "max_steps": 2, "max_tokens": 48, "dev_points": []}
        config = write_config(
            tmp_path / "small.yaml", small_collection, train=train, rerank={"depth": 10, "peers": peers}
        )
        settings = load(config, [f"execution.root={start_from(prepared, tmp_path / 'root', 'mine')}"])
        record = run(settings, last="retrieve")
        store = Store(settings.execution.root)
        buckets = range(settings.execution.buckets)

        def part(record: dict, stage: str, name: str, kind: object) -> pa.Table:
            artifact = Artifact(store, stage, record["stages"][stage]["fingerprint"])
            return pa.concat_tables([artifact.read_part(name, bucket, kind) for bucket in buckets])  # type: ignore[arg-type]

        queries = part(record, "ingest", "queries", QUERY)
        test = queries.filter(pc.equal(queries["split"], "test"))
        server.spoiled = test["text"][0].as_py()
        record = run(settings)
        assert len(server.bodies) == 3 * test.num_rows  # ten documents, four a call; no dev query is paid for

        runs = part(record, "rerank", "runs", RUN)
        assert set(runs["system"].to_pylist()) == {"reranked", "bare", "served"}  # the start's head would be drawn
        evaluate = Artifact(store, "evaluate", record["stages"]["evaluate"]["fingerprint"])
        rows = {row["system"]: row for row in evaluate.read_json("comparisons.json") if row["measure"] == "nDCG@10"}
        assert rows["bare"]["queries"] == rows["reranked"]["queries"] == test.num_rows
        assert rows["served"]["queries"] == test.num_rows - 1
        metrics = evaluate.read_part("metrics", 0, METRIC)
        assert metrics.filter(pc.equal(metrics["system"], "served")).num_rows == 3 * (test.num_rows - 1)
        rejects = Artifact(store, "rerank", record["stages"]["rerank"]["fingerprint"]).rejects().to_pylist()
        assert [(row["place"], row["reason"]) for row in rejects] == [("rerank served", "documents without a score")]
        page = Path(report.result(settings, record).path).read_text(encoding="utf-8")
        assert f"on {test.num_rows - 1} queries: it has no scores of the others" in page
        assert (Path(store.where(f"reports/{record['name']}")) / "served.trec").is_file()

        asked = len(server.bodies)
        again = settings.model_copy(update={"rerank": settings.rerank.model_copy(update={"max_tokens": 32})})
        other = run(again)
        assert other["stages"]["rerank"]["fingerprint"] != record["stages"]["rerank"]["fingerprint"]
        assert len(server.bodies) == asked  # another model of ours: the server's scores were bought already
        assert (
            part(other, "rerank", "runs", RUN)
            .filter(pc.field("system") == "served")
            .equals(runs.filter(pc.equal(runs["system"], "served")))
        )
