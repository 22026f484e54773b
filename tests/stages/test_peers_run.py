"""A whole run with other rerankers beside the trained one, through Ray and a server in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from anmi_ray.core.records import METRIC, QUERY, RUN
from tests.judging.rerank_server import serving
from tests.small import start_from
from tests.stages.runs import World

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]


def test_peers_are_measured_beside_the_trained_model(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    with serving() as server:
        peers = [
            {"name": "bare", "untrained": True},
            {"name": "served", "endpoint": server.config(documents_per_call=4).model_dump()},
        ]
        world = World(tmp_path, small_collection, rerank={"depth": 10, "peers": peers})
        start_from(prepared, world.root, "mine")
        queries = world.carry_out(last="retrieve").part("ingest", "queries", QUERY)
        test = queries.filter(pc.equal(queries["split"], "test"))
        server.spoiled = test["text"][0].as_py()
        done = world.carry_out(last="report")
        assert len(server.bodies) == 3 * test.num_rows  # ten documents, four a call; no dev query is paid for

        runs = done.part("rerank", "runs", RUN)
        assert set(runs["system"].to_pylist()) == {"reranked", "bare", "served"}  # the start's head would be drawn
        evaluate = done.artifact("evaluate")
        rows = {row["system"]: row for row in evaluate.read_json("comparisons.json") if row["measure"] == "nDCG@10"}
        assert rows["bare"]["queries"] == rows["reranked"]["queries"] == test.num_rows
        assert rows["served"]["queries"] == test.num_rows - 1
        metrics = evaluate.read_part("metrics", 0, METRIC)
        assert metrics.filter(pc.equal(metrics["system"], "served")).num_rows == 3 * (test.num_rows - 1)
        rejects = done.artifact("rerank").rejects().to_pylist()
        assert [(row["place"], row["reason"]) for row in rejects] == [("rerank served", "documents without a score")]
        assert f"on {test.num_rows - 1} queries: it has no scores of the others" in done.report("report.html")
        assert done.report("served.trec")

        asked = len(server.bodies)
        other = world.carry_out("rerank.max_tokens=32", last="report")
        assert other.artifact("rerank") != done.artifact("rerank")
        assert len(server.bodies) == asked  # another model of ours: the server's scores were bought already
        again = other.part("rerank", "runs", RUN)
        theirs = [one.filter(pc.equal(one["system"], "served")) for one in (runs, again)]
        assert theirs[0].equals(theirs[1])
