"""A pilot through Ray: so many pairs asked once, its answers the run's, its verdict an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.core.records import COMPARISON
from anmi_ray.judging.audit.pilot import FAILURES, WHOLE
from anmi_ray.pipeline import pilot
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import judge
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import inputs, quiet
from tests.commands import anmi
from tests.judging.serving import Chat
from tests.small import start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUERIES, BUCKETS, PAIRS = 6, 4, 60


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Artifact]:
    store = Store(str(tmp_path))
    return {**inputs(store, QUERIES, BUCKETS, 30), "judge": Artifact(store, "judge", "some")}


def context(made: dict[str, Artifact]) -> Context:
    store = made["judge"].store
    return Context(store, ExecutionConfig(root=store.root, buckets=BUCKETS, chunk=700, askers=1), BUCKETS, 0, quiet)


def piloted(made: dict[str, Artifact], *judges: dict[str, Any], pairs: int = PAIRS, **more: Any) -> pilot.Piloted:
    config = JudgeConfig.model_validate({"judges": list(judges), **more})
    return pilot.pilot_run(made, config, context(made), pairs)


def priced(chat: Chat) -> dict[str, Any]:
    """A judge whose every answer has 100 prompt tokens, 40 of them cached, and 2 of its own (see chat_server.py)."""
    settings = chat.config(retries=0, input_price=10.0, cached_price=1.0, output_price=50.0)
    return {"kind": "api", "name": "llm", "endpoint": settings.model_dump(), "prompt": {"template": "letters"}}


def test_the_run_buys_nothing_of_its_pilot_again(ray_local: None, made: dict[str, Artifact], chat: Chat) -> None:
    gates = {"max_dollars": 0.5}
    found = piloted(made, priced(chat), {"kind": "null"}, pilot=gates)
    total = sum(made["compare"].read_part("comparisons", bucket, COMPARISON).num_rows for bucket in range(BUCKETS))
    assert (found.pairs, found.of) == (PAIRS, total)
    assert found.asked["llm"] == {"asked": 2 * PAIRS, "answered": 2 * PAIRS, "failed": 0}
    assert found.figures["judges"]["llm"]["n"] == 2 * PAIRS
    assert len(chat.log()) == 2 * PAIRS
    costs = {gate.name: gate for gate in found.verdicts[0].gates}
    each = (60 * 10.0 + 40 * 1.0 + 2 * 50.0) / 1e6
    assert costs[WHOLE].value == pytest.approx(2 * total * each)
    assert costs[WHOLE].outcome == "fail"
    # always the first shown: what no gate lets pass
    assert {one.judge: one.decision for one in found.verdicts}["llm"] == "no-go"
    again = piloted(made, priced(chat), pairs=2 * PAIRS)
    assert 2 * PAIRS <= again.asked["llm"]["asked"] < 4 * PAIRS
    assert piloted(made, priced(chat), pairs=2 * PAIRS).asked["llm"]["asked"] == 0
    bought = len(chat.log())
    config = JudgeConfig.model_validate({"judges": [priced(chat)]})
    judge.run(made["judge"], made, config, context(made))
    assert len(chat.log()) == 2 * total
    assert len({entry["question"] for entry in chat.log()}) == 2 * total > bought


def test_how_many_fail_is_measured_not_raised(ray_local: None, made: dict[str, Artifact], chat: Chat) -> None:
    chat.setup(faults={"500": 0.5})
    found = piloted(made, priced(chat), retry_passes=0)
    [gate] = [gate for gate in found.verdicts[0].gates if gate.name == FAILURES]
    assert gate.outcome == "fail"
    assert gate.value == found.asked["llm"]["failed"] / (2 * PAIRS) > 0.3


def test_dollars_that_the_server_does_not_count_cannot_be_told(
    ray_local: None, made: dict[str, Artifact], chat: Chat
) -> None:
    chat.setup(faults={"uncounted": 1.0})
    found = piloted(made, priced(chat), pilot={"max_dollars": 1e6})
    [gate] = [gate for gate in found.verdicts[0].gates if gate.name == WHOLE]
    assert (gate.value, gate.outcome) == (None, "inconclusive")


def test_a_budget_counts_the_pilot(ray_local: None, made: dict[str, Artifact], chat: Chat) -> None:
    found = piloted(made, priced(chat), pairs=3 * QUERIES, budget={"calls": 20})
    assert 0 < found.figures["judges"]["llm"]["n"] == len(chat.log()) <= 20
    with pytest.raises(JudgeError, match="no question was asked"):
        piloted(made, {**priced(chat), "identity": "another"}, budget={"calls": 1})


def test_the_verdict_is_the_exit_code(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    sharp = {"preset": "thurstone", "judges": [{"kind": "simulated", "name": "one", "noise_sd": 0.2}]}
    config = write_config(tmp_path / "small.yaml", small_collection, judge=sharp)
    root = start_from(prepared, tmp_path / "root", "compare")
    out = tmp_path / "pilot.json"
    command = ("judge", config, "--root", root, "--out", out)
    for code, decision, more in (
        (0, "go", ["--pilot", "0"]),
        (3, "no-go", ["--pilot", "1200", "judge.judges.0.noise_sd=20"]),
        (4, "inconclusive", ["--pilot", "10"]),
    ):
        done = anmi(*command, *more)
        assert done.returncode == code, done.stdout + done.stderr
        found = json.loads(out.read_text())
        assert found["decision"] == decision
        assert found["pairs"] == (int(more[1]) or 300)
        assert found == Store(str(root)).read_json("pilots/small.json")
        assert f"{found['pairs']:,} of {found['of']:,} pairs" in done.stdout
        assert f"{decision:14} one" in done.stdout
    assert not (root / "artifacts" / "judge").exists()
