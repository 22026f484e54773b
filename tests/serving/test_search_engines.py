"""The code of docs/how-to/behind-a-search-engine.md, with each engine's response and the service over HTTP."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from anmi_ray.tables.trec import read_run
from tests.serving.test_service import service

PAGE = Path(__file__).parents[2] / "docs/how-to/behind-a-search-engine.md"
FOUND = [{"title": "a", "text": "short"}, {"title": "b", "text": "a text that is longer"}, {"title": "c", "text": ""}]
RESPONSES = {
    "of_elasticsearch": {"hits": {"hits": [{"_id": one["title"], "_source": one} for one in FOUND]}},
    "of_vespa": {"root": {"children": [{"id": one["title"], "fields": one} for one in FOUND]}},
    "of_solr": {"response": {"docs": [{"id": one["title"], **one} for one in FOUND]}},
}


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(service().app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("engine", RESPONSES)
def test_what_an_engine_found_is_reranked(code: dict[str, Any], url: str, engine: str) -> None:
    hits = code[engine](RESPONSES[engine])
    assert code["rerank"]("q", hits, url=url) == ["b", "a", "c"], "the service of this test prefers longer texts"
    assert code["rerank"]("q", hits, top=1, url=url) == ["b"]
    assert code["rerank"]("q", hits, url="http://127.0.0.1:9") == ["a", "b", "c"]
    assert code["rerank"]("q", [], url=url) == []


def test_an_engines_rankings_are_a_run(code: dict[str, Any], tmp_path: Path) -> None:
    code["write_rankings"](tmp_path / "engine.csv", {"q1": [("b", 2.5), ("a", 1.0)], "q2": [("c", 7)]})
    run = read_run(tmp_path / "engine.csv")
    assert run.table["rank"].to_pylist() == [1, 2, 1]
    assert set(run.documents) == {"a", "b", "c"}
