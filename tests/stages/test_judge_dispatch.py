"""Judges that read, asked through Ray over the answer log: only what is missing, shared by runs, failures named."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import ApiJudgeConfig, JudgeConfig
from anmi_ray.core.errors import BudgetError, ConfigError, JudgeError, StoreError
from anmi_ray.core.records import JUDGMENT
from anmi_ray.judging import autoscale, kinds
from anmi_ray.judging.http.completion import NOT_ALIGNED
from anmi_ray.runtime.costs import BEGUN
from anmi_ray.runtime.tasks import Context, Progress
from anmi_ray.stages import judge
from anmi_ray.stages.judge.dispatch import log_of
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import DEGREE, inputs, quiet
from tests.judging.serving import Chat, serving
from tests.stages.texts import ask, write_questions

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_local")]
QUERIES, BUCKETS = 4, 2
DOCUMENTS = 30
WHOLE = 2 * DOCUMENTS * DEGREE // 2  # questions of a query
LETTERS = {"template": "letters"}
Made = tuple[Path, dict[str, Artifact]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("asking")
    return folder, inputs(Store(str(folder)), QUERIES, BUCKETS, DOCUMENTS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


def talking(port: int, name: str, **setup: Any) -> Chat:
    """A server of chats that are set up."""
    chat = Chat(port, name)
    chat.setup(**setup)
    return chat


def of_letters(chat: Chat, name: str = "llm", **endpoint: Any) -> dict[str, object]:
    """A judge that asks the server for letters."""
    return {"kind": "api", "name": name, "endpoint": chat.config(**endpoint).model_dump(), "prompt": LETTERS}


def run(
    made: Made,
    name: str,
    *judges: dict[str, object],
    progress: Progress = quiet,
    execution: dict[str, object] | None = None,
    **more: object,
) -> Artifact:
    folder, sources = made
    store = Store(str(folder))
    artifact = Artifact(store, "judge", name)
    given = {"root": str(folder), "buckets": BUCKETS, "chunk": 210, "askers": 1, **(execution or {})}
    config = JudgeConfig.model_validate({"judges": list(judges), **more})
    context = Context(store, ExecutionConfig.model_validate(given), BUCKETS, 0, progress)
    facts = judge.run(artifact, sources, config, context)
    artifact.complete(facts.pop("flows"), **facts)
    return artifact


def judgments(artifact: Artifact) -> pa.Table:
    return pa.concat_tables([artifact.read_part("judgments", bucket, JUDGMENT) for bucket in range(BUCKETS)])


def asked(artifact: Artifact, name: str) -> dict[str, int]:
    return (artifact.manifest() or {})["asked"][name]


def chunk_lines(folder: Path, judge: str) -> list[dict[str, Any]]:
    """What the asking actors' log says of the chunks that they asked a judge."""
    files = folder.glob("ray/session_2*/logs/worker-*.err")
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("{"))
    return [one for one in map(json.loads, lines) if one["message"] == "chunk ends" and one["judge"] == judge]


def test_only_what_is_missing_is_asked(short_temp: Path, made: Made) -> None:
    first = run(made, "first", {"kind": "null", "name": "a"})
    total = QUERIES * WHOLE
    said = chunk_lines(short_temp, "a")
    assert sum(line["questions"] for line in said) == total
    assert {line["bucket"] for line in said} <= set(range(BUCKETS))
    assert asked(first, "a") == {"asked": total, "answered": total, "failed": 0}
    again = run(made, "again", {"kind": "null", "name": "b"}, {"kind": "similarity"})
    assert asked(again, "b")["asked"] == 0  # bought under another name, for another panel
    by_b = judgments(again).filter(pc.equal(judgments(again)["judge"], "b"))
    assert by_b["p_a"].equals(judgments(first)["p_a"])
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}]})
    log = log_of(first.store, kinds.reading(config)[0])
    (made[0] / log.path / log.segments(1)[0]).unlink()
    third = run(made, "third", {"kind": "null", "name": "a"})
    assert 0 < asked(third, "a")["asked"] < total
    assert judgments(third).equals(judgments(first))


def test_a_deadline_asks_in_waves_and_changes_no_judgment(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is a trial of the fewest actors, others follow, and every question is asked once."""
    monkeypatch.setattr(autoscale, "START_S", 0.0)
    notes: list[str] = []

    def progress(done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        notes.append(note)

    judge_a: dict[str, object] = {"kind": "null", "name": "a"}
    execution: dict[str, object] = {"askers": (1, 3)}
    whole = run(made, "whole", judge_a)
    again = tmp_path, inputs(Store(str(tmp_path)), QUERIES, BUCKETS, DOCUMENTS)
    timed = run(again, "timed", judge_a, progress=progress, execution=execution, target_hours=1e-4)
    pools = [pool for pool, _ in itertools.groupby(re.findall(r"pool of (\d) to (\d)", " ".join(notes)))]
    assert pools[0] == ("1", "1")
    assert pools[-1] == ("3", "3")
    assert asked(timed, "a")["asked"] == QUERIES * WHOLE
    assert judgments(timed).equals(judgments(whole))


def test_every_fault_ends_as_an_answer_or_a_named_failure(made: Made, port: int) -> None:
    """Four calls in ten fail; retries and a second pass are too few for all, and those left are failures by name."""
    chat = talking(
        port, "faulty", faults={"429:0": 0.1, "500": 0.1, "reset": 0.1, "invalid": 0.1, "wrong": 0.03, "context": 0.03}
    )
    api = of_letters(chat, retries=0)
    found = run(made, "faulty", api, execution={"askers": 2}, retry_passes=1, max_failures=1.0)
    table = judgments(found)
    assert table.num_rows == QUERIES * WHOLE
    audit = found.read_json("audit.json")["judges"]["llm"]
    named = {"http 429", "http 500", "connection reset", "invalid JSON", "neither letter", "context length"}
    assert set(audit["failures"]) == named
    assert audit["answered"] + sum(audit["failures"].values()) == table.num_rows
    assert set(table["p_a"].drop_null().to_pylist()) == {0.0, 1.0}
    told = chat.log()
    passing = sum(entry["action"] in ("429:0", "500", "reset", "invalid") for entry in told)
    assert len(told) == len({entry["question"] for entry in told}) + sum(entry["visit"] > 0 for entry in told)
    assert asked(found, "llm")["asked"] == len(told)
    assert passing > 0.1 * len(told)
    assert max(entry["visit"] for entry in told) == 1  # the second pass asks the failed only


def test_a_text_that_is_always_refused_stops_no_pass_and_no_run(tmp_path: Path, port: int) -> None:
    """Of the second pass, and of a run about other comparisons, all that is asked first is refused."""
    chat = talking(port, "blocked", blocked={"<script>": "403"})
    judge = ApiJudgeConfig.model_validate(of_letters(chat, concurrency=1))
    store = Store(str(tmp_path))
    texts = ["one", "another", "a third", "<script>"]
    context = Context(store, ExecutionConfig(root=store.root, buckets=1, askers=1), 1, 0, quiet)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    for name, chosen, asked in (("most", pairs[:-1], 10 + 4), ("all", pairs, 6 + 6)):
        sources = write_questions(store, name, [[("which?", texts, chosen)]])
        assert ask(sources, judge, context, max_failures=0.6) == {
            "asked": asked, "answered": 6 if name == "most" else 0, "failed": asked - (6 if name == "most" else 0)
        }  # fmt: skip


@pytest.fixture
def few(tmp_path: Path) -> Made:
    """Fewer questions than a judge without any answer is stopped after."""
    return tmp_path, inputs(Store(str(tmp_path)), BUCKETS, BUCKETS, DEGREE + 2)


def test_few_questions_that_all_fail_show_why(few: Made, port: int) -> None:
    chat = talking(port, "silent", faults={"reasoning": 1.0})
    api = {**of_letters(chat, logprobs=5), "prompt": {**LETTERS, "readout": "logprob"}}
    with pytest.raises(JudgeError) as caught:
        run(few, "silent", api)
    asked = len(chat.log())
    assert 0 < asked < 200
    assert f"judge llm: {asked} {NOT_ALIGNED}" in caught.value.message
    audit = Artifact(Store(str(few[0])), "judge", "silent").read_json("audit.json")
    assert audit["judges"]["llm"]["failures"] == {NOT_ALIGNED: asked}


def test_a_limit_that_does_not_pass_is_named_in_the_servers_words(few: Made, port: int) -> None:
    chat = talking(port, "limited", faults={"429:0": 1.0})
    api = of_letters(chat, retries=0)
    notes: list[str] = []

    def progress(done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        notes.append(note)

    with pytest.raises(JudgeError) as caught:
        run(few, "limited", api, progress=progress)
    total = len({entry["question"] for entry in chat.log()})
    reason = re.search(r"([\d,]+) http 429: injected 429", caught.value.message)  # over all passes
    assert reason
    assert total <= int(reason[1]) <= len(chat.log())
    failed = [re.search(r"(\d+) failed \((\d+) http 429: injected 429\)", note) for note in notes if "failed" in note]
    assert all(found and int(found[1]) == int(found[2]) <= total for found in failed), notes


def test_with_too_many_passing_failures_a_run_waits_for_the_next(made: Made, port: int) -> None:
    chat = talking(port, "overloaded", faults={"500": 0.3})
    api = of_letters(chat, retries=0)
    with pytest.raises(JudgeError, match="run the same command again") as caught:
        run(made, "overloaded", api, retry_passes=0)
    assert "questions have no answer" in str(caught.value)
    before = len(chat.log())
    assert before == QUERIES * WHOLE
    found = run(made, "overloaded", api, retry_passes=2)  # goes on where it was
    assert judgments(found)["error"].null_count > 0.95 * before
    assert asked(found, "llm")["asked"] == len(chat.log()) - before


def test_a_budget_ends_asking_at_whole_queries_and_more_money_goes_on(made: Made, port: int) -> None:
    chat = talking(port, "dear")
    api = of_letters(chat, input_price=1.0, output_price=1.0, max_tokens=2)  # a question: 102 tokens
    few = {"calls": 2 * WHOLE + WHOLE // 2}
    with pytest.raises(BudgetError) as spent_out:
        run(made, "dear-2", api, budget=few)
    assert spent_out.value.exit_code == 5
    calls = f"{2 * WHOLE:,} calls, {2 * WHOLE * 102e-6:.2f} dollars in total"
    assert f"(calls {2.5 * WHOLE:g}) is spent, {calls}: 2 of 4 queries have all" in str(spent_out.value)
    assert "judge.max_left_out=0.5" in str(spent_out.value)
    found = run(made, "dear-2", api, budget=few, max_left_out=0.5)  # the same run, which goes on
    assert asked(found, "llm")["asked"] == 0
    assert len(chat.log()) == 2 * WHOLE
    table = judgments(found)
    unasked = table.filter(pc.equal(table["error"], "budget"))
    assert unasked.num_rows == (QUERIES - 2) * WHOLE == len(table["error"]) - table["error"].null_count
    left_out = found.rejects()
    assert set(left_out["key"].to_pylist()) == {query.hex() for query in unasked["query_id"].to_pylist()}
    assert left_out.num_rows == QUERIES - 2
    assert set(left_out["reason"].to_pylist()) == {"budget"}
    flows = {flow["unit"]: flow for flow in (found.manifest() or {})["flows"]}
    assert flows["queries"]["rejected"] == QUERIES - 2
    price = 102e-6
    budget = {"dollars": 3.2 * WHOLE * price}
    more = run(made, "dear-3", api, budget=budget, max_left_out=0.25)  # what was spent counts
    assert asked(more, "llm")["asked"] == WHOLE
    spent = (more.manifest() or {})["spent"]["llm"]
    assert spent["calls"] == 3 * WHOLE == len(chat.log())
    assert spent["dollars"] == pytest.approx(3 * WHOLE * price)
    assert spent["calls_uncounted"] == spent["dollars_uncounted"] == 0
    later = {**made[1], BEGUN: made[1]["compare"]}  # whose queries keep what they have been answered before
    assert asked(run((made[0], later), "dear-4", api, budget=budget, max_left_out=0.1), "llm")["asked"] == 0
    with pytest.raises(BudgetError, match="3 of 4 queries have all"):
        run((made[0], later), "dear-5", api, budget=budget)
    everything = run(made, "dear-all", api)
    assert asked(everything, "llm")["asked"] == WHOLE
    assert judgments(everything)["error"].null_count == QUERIES * WHOLE


def test_prometheus_sees_answers_failures_and_the_queue(made: Made, port: int) -> None:
    chat = talking(port, "metered", faults={"context": 0.02})
    api = of_letters(chat, "metered")
    run(made, "metered", api)
    failed = sum(entry["action"] == "context" for entry in chat.log())
    total, address = QUERIES * WHOLE, f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    wanted = {"answers_total": total - failed, "failures_total": failed, "requests_total": total, "queue": 0}
    found: dict[str, float] = {}
    for _ in range(60):  # metrics are sent every ten seconds, and when their process ends
        with urlopen(address, timeout=10) as page:
            lines = [line for line in page.read().decode().splitlines() if 'judge="metered"' in line]
        found = {line.split("{")[0].removeprefix("ray_anmi_judge_"): float(line.split()[-1]) for line in lines}
        if all(found.get(name) == value for name, value in wanted.items()):
            break
        time.sleep(1.0)
    assert wanted.items() <= found.items()
    assert found["prompt_tokens_total"] == 100 * (total - failed)


def test_an_empty_text_fails_its_own_questions_by_name(tmp_path: Path, port: int) -> None:
    chat = talking(port, "blank")
    judge = ApiJudgeConfig.model_validate(of_letters(chat))
    store, texts = Store(str(tmp_path)), ["one", "  ", "another", "a third"]
    sources = write_questions(store, "blank", [[("which?", texts, [(i, j) for i in range(4) for j in range(i)])]])
    context = Context(store, ExecutionConfig(root=store.root, buckets=1), 1, 0, quiet)
    assert ask(sources, judge, context) == {"asked": 12, "answered": 6, "failed": 6}
    errors = log_of(store, kinds.of(judge)).read(0).table["error"].drop_null().to_pylist()
    assert errors == ["empty text"] * 6
    assert len(chat.log()) == 6
    assert ask(sources, judge, context)["asked"] == 0


def test_a_model_that_answers_nothing_that_can_be_read_is_stopped(made: Made, port: int) -> None:
    chat = talking(port, "babbling")  # it says A, where a number is asked for
    api = {"kind": "api", "name": "llm", "endpoint": chat.config().model_dump()}
    with pytest.raises(
        JudgeError, match=r"none of the first [\d,]+ questions has an answer \([\d,]+ not a number\)"
    ) as caught:
        run(made, "babbling", api)
    assert "--dry-run" in str(caught.value)
    assert len(chat.log()) < QUERIES * WHOLE


def test_a_budget_that_buys_nothing_is_named(made: Made, port: int) -> None:
    chat = talking(port, "poor")
    api = {"kind": "api", "name": "llm", "endpoint": chat.config().model_dump()}
    with pytest.raises(BudgetError, match=r"budget \(calls 10\)"):
        run(made, "poor", api, budget={"calls": 10})
    assert not chat.log()


def test_a_spend_log_that_cannot_be_written_is_one_message_and_keeps_what_was_bought(
    made: Made, tmp_path: Path, port: int
) -> None:
    chat = talking(port, "unwritable")
    api = of_letters(chat)
    spend = made[0] / "spend"
    spend.mkdir(exist_ok=True)
    spend.rename(tmp_path / "spend")
    spend.write_text("")  # a file where a folder must be
    try:
        with pytest.raises(StoreError) as caught:
            run(made, "unwritable", api)
    finally:
        spend.unlink()
        (tmp_path / "spend").rename(spend)
    assert type(caught.value) is StoreError
    assert "expected a folder, got a file" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not chat.log()
    assert asked(run(made, "unwritable", api), "llm")["failed"] == 0


def test_actors_share_a_judges_concurrency(port: int) -> None:
    endpoint = Chat(port, "unused").config(requests_per_minute=90, concurrency=7)
    config = JudgeConfig.model_validate({"judges": [{"kind": "api", "name": "a", "endpoint": endpoint.model_dump()}]})
    (judge,) = kinds.reading(config)
    shared = judge.one_of(3)
    assert shared.server is not None
    assert (shared.server.requests_per_minute, shared.server.concurrency) == (90, 2)  # the budget actor keeps the rate
    assert shared.identity == judge.identity


@pytest.mark.parametrize("settings", [{"key_env": "ANMI_NO_SUCH_KEY"}, {"base_url": "http://127.0.0.1:9/v1"}])
def test_what_the_user_has_to_mend_comes_out_as_itself(made: Made, port: int, settings: dict[str, object]) -> None:
    chat = Chat(port, "unused")
    api = {"kind": "api", "name": "llm", "endpoint": chat.config(retries=0, **settings).model_dump()}
    with pytest.raises((ConfigError, JudgeError)) as caught:
        run(made, f"mend-{len(settings)}", api)
    assert caught.value.remedy
    assert json.dumps(caught.value.args)
