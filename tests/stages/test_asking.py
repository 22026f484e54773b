"""Judges that read, asked through Ray over the answer log: only what is missing, shared by runs, failures named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray import judging
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import ApiJudgeConfig, JudgeConfig
from anmi_ray.errors import ConfigError, JudgeError
from anmi_ray.records import JUDGMENT
from anmi_ray.stages import judge
from anmi_ray.stages.asking import _share, log_of
from anmi_ray.stages.runtime import Context
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import inputs, quiet
from tests.judging.serving import Chat, serving

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUERIES, BUCKETS = 4, 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Artifact]]:
    folder = tmp_path_factory.mktemp("asking")
    return folder, inputs(Store(str(folder)), QUERIES, BUCKETS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


def run(made: tuple[Path, dict[str, Artifact]], name: str, *judges: dict[str, object], **more: object) -> Artifact:
    folder, sources = made
    store = Store(str(folder))
    artifact = Artifact(store, "judge", name)
    execution = ExecutionConfig(root=str(folder), buckets=BUCKETS, chunk=700)
    config = JudgeConfig.model_validate({"judges": list(judges), **more})
    facts = judge.run(artifact, sources, config, Context(store, execution, BUCKETS, 0, quiet))
    artifact.complete(facts.pop("flows"), **facts)
    return artifact


def judgments(artifact: Artifact) -> pa.Table:
    return pa.concat_tables([artifact.read_part("judgments", bucket, JUDGMENT) for bucket in range(BUCKETS)])


def asked(artifact: Artifact, name: str) -> dict[str, int]:
    return (artifact.manifest() or {})["asked"][name]


def test_only_what_is_missing_is_asked(ray_local: None, made: tuple[Path, dict[str, Artifact]]) -> None:
    first = run(made, "first", {"kind": "null", "name": "a"})
    total = QUERIES * 400 * 2
    assert asked(first, "a") | {"segments": 0} == {"asked": total, "answered": total, "failed": 0, "segments": 0}
    again = run(made, "again", {"kind": "null", "name": "b"}, {"kind": "similarity"})
    assert asked(again, "b") == {}  # bought under another name, for another panel
    by_b = judgments(again).filter(pc.equal(judgments(again)["judge"], "b"))
    assert by_b["p_a"].equals(judgments(first)["p_a"])
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}]})
    log = log_of(first, config.reading[0])
    (made[0] / log.path / log.segments(1)[0]).unlink()
    third = run(made, "third", {"kind": "null", "name": "a"})
    assert 0 < asked(third, "a")["asked"] < total
    assert judgments(third).equals(judgments(first))


def test_every_fault_ends_as_an_answer_or_a_named_failure(
    ray_local: None, made: tuple[Path, dict[str, Artifact]], port: int
) -> None:
    """Three calls in ten fail; retries and a second pass are too few for all, and those left are failures by name."""
    chat = Chat(port, "faulty")
    chat.setup(faults={"429:0": 0.1, "500": 0.08, "reset": 0.04, "invalid": 0.03, "wrong": 0.03, "context": 0.02})
    api = {"kind": "api", "name": "llm", "endpoint": chat.config(retries=0).model_dump()}
    found = run(made, "faulty", api, retry_passes=1)
    table = judgments(found)
    assert table.num_rows == QUERIES * 400 * 2
    audit = found.read_json("audit.json")["judges"]["llm"]
    assert set(audit["failures"]) == {"http 429", "http 500", "connection reset", "invalid JSON"} | {
        "neither letter", "not a number", "context length"
    } & set(audit["failures"])  # fmt: skip
    assert audit["failures"]["context length"] > 0
    assert audit["answered"] + sum(audit["failures"].values()) == table.num_rows
    assert set(table["p_a"].drop_null().to_pylist()) <= {0.0, 0.5, 1.0}
    told = chat.log()
    passing = sum(entry["action"] in ("429:0", "500", "reset", "invalid") for entry in told)
    assert len(told) == len({entry["question"] for entry in told}) + sum(entry["visit"] > 0 for entry in told)
    assert asked(found, "llm")["asked"] == len(told)
    assert passing > 0.1 * len(told)
    assert max(entry["visit"] for entry in told) == 1  # the second pass asks the failed only


def test_actors_share_a_judges_limits(port: int) -> None:
    endpoint = Chat(port, "unused").config(requests_per_minute=90, concurrency=7)
    config = JudgeConfig.model_validate({"judges": [{"kind": "api", "name": "a", "endpoint": endpoint.model_dump()}]})
    shared = _share(config.reading[0], 3)
    assert isinstance(shared, ApiJudgeConfig)
    found = shared.endpoint
    assert (found.requests_per_minute, found.tokens_per_minute, found.concurrency) == (30.0, None, 2)
    assert judging.judge_id(shared) == judging.judge_id(config.reading[0])


@pytest.mark.parametrize("settings", [{"key_env": "ANMI_NO_SUCH_KEY"}, {"base_url": "http://127.0.0.1:9/v1"}])
def test_what_the_user_has_to_mend_comes_out_as_itself(
    ray_local: None, made: tuple[Path, dict[str, Artifact]], port: int, settings: dict[str, object]
) -> None:
    chat = Chat(port, "unused")
    api = {"kind": "api", "name": "llm", "endpoint": chat.config(retries=0, **settings).model_dump()}
    with pytest.raises((ConfigError, JudgeError)) as caught:
        run(made, f"mend-{len(settings)}", api)
    assert caught.value.remedy
    assert json.dumps(caught.value.args)
