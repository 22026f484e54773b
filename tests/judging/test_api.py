"""The engine of a judge behind an endpoint, chunk after chunk: what one text of a chunk may not do to the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.judge import ApiJudgeConfig, BudgetConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.asking import LocalAsker
from anmi_ray.judging.budget import BudgetSession
from anmi_ray.judging.http.completion import NOT_ALIGNED
from anmi_ray.judging.kinds.api import ApiEngine, ApiJudge
from anmi_ray.judging.questions import TextQuestions
from anmi_ray.store import Store
from anmi_ray.store.answer_log import AnswerLog
from anmi_ray.store.spend_log import SpendLog
from tests.judging.serving import Chat
from tests.judging.test_questions import world

LETTERS = {"template": "letters", "readout": "sign"}
BLOCKED = "text 3"


def judge(chat: Chat, prompt: dict[str, str] = LETTERS, **endpoint: Any) -> ApiJudgeConfig:
    settings = chat.config(**{"concurrency": 1, "retries": 0, **endpoint})
    return ApiJudgeConfig.model_validate({"kind": "api", "name": "llm", "endpoint": settings, "prompt": prompt})


def ask(engine: ApiEngine, questions: TextQuestions, *which: int) -> pa.Table:
    """Rows of one chunk of the questions `which`, or of all."""
    handed: list[pa.Table] = []
    rows = np.array(which or range(len(questions.query)))
    engine.ask(questions, iter([rows]), handed.append)
    return pa.concat_tables(handed)


def about(questions: TextQuestions, document: int) -> list[int]:
    """Questions that show a document first or second."""
    row = questions.texts["text"].to_pylist().index(f"text {document}")
    return np.flatnonzero((questions.first == row) | (questions.second == row)).tolist()


@pytest.mark.parametrize("status", ["403", "422"])
def test_a_text_that_is_always_refused_stops_no_chunk_once_another_was_answered(chat: Chat, status: str) -> None:
    chat.setup(blocked={BLOCKED: status})
    questions = world([(0, a, b) for a in range(6) for b in range(a)])
    refused = about(questions, 3)
    others = [q for q in range(len(questions.query)) if q not in refused]
    engine = ApiEngine(judge(chat))
    assert ask(engine, questions, others[0])["error"].null_count == 1
    for one in (engine, ApiEngine(judge(chat), answered=True)):  # the same actor, and that of a later pass or run
        assert Counter(ask(one, questions, *refused)["error"].to_pylist()) == {f"http {status}": len(refused)}
        head = ask(one, questions, *refused, *others)
        assert Counter(head["error"].to_pylist()) == {f"http {status}": len(refused), None: len(others)}
        assert all(head["transient"].to_pylist()[: len(refused)])  # no answer has come before: the settings may be it
    with pytest.raises(JudgeError, match="refuses"):  # a judge of which there is no answer yet
        ask(ApiEngine(judge(chat)), questions, *refused)


def test_a_text_that_is_always_refused_stops_no_later_pass_and_no_later_run(chat: Chat, tmp_path: Path) -> None:
    chat.setup(blocked={BLOCKED: "403"})
    questions = world([(0, a, b) for a in range(6) for b in range(a)])
    refused = len(about(questions, 3))
    asker = ApiJudge(judge(chat))
    store = Store(str(tmp_path))
    for campaign, asked in (("one", len(questions.query) + refused), ("another", 2 * refused)):
        session = BudgetSession(SpendLog(store, campaign), BudgetConfig(), asker, [asker], "remedy")
        log = AnswerLog(store, asker.identity)
        held = LocalAsker(asker, log, session, 1, passes=1, max_failures=0.5, say=lambda _: None).ask(questions)
        assert session.report(final=True).spent.questions == asked
        assert held.table["error"].drop_null().to_pylist() == ["http 403"] * refused


def test_what_failures_and_retries_took_is_theirs(chat: Chat) -> None:
    refused = {"text 1": "cut", "text 2": "empty", "text 3": "invalid", "text 4": "uncounted", "text 5": "403"}
    chat.setup(blocked=refused)
    questions = world([(0, 0, b) for b in range(1, 7)])
    config = judge(chat, retries=1, input_price=10.0, output_price=50.0)
    engine = ApiEngine(config)
    order = [q for document in (6, 1, 2, 3, 4, 5) for q in about(questions, document)]
    rows = ask(engine, questions, *order)
    assert rows["error"].to_pylist()[::2] == [
        None, "max_tokens before an answer", "empty answer", "invalid JSON", None, "http 403"
    ]  # fmt: skip
    assert rows["prompt_tokens"].to_pylist()[::2] == [100, 100, 200, 0, 0, 0]
    assert rows["answer_tokens"].to_pylist()[::2] == [2, 2, 4, 0, 0, 0]
    assert sum(rows["dollars"].to_pylist()) == pytest.approx(engine.spend.cost)
    each = (100 * 10.0 + 2 * 50.0) / 1e6
    paid = ApiJudge(config).paid(rows)
    assert paid is not None
    max_dollars = ApiJudge(config).max_dollars
    assert paid[0][::2].tolist() == pytest.approx([each, each, 2 * each, 0, 0, 0])
    assert (paid[1] - paid[0])[::2].tolist() == pytest.approx([0, 0, 0, 2 * max_dollars, max_dollars, 0])


def test_an_answer_that_was_cut_is_no_vote_but_where_nothing_could_follow(chat: Chat) -> None:
    said = {1: "A is better in one respect, but", 2: "A", 3: '{"answer": "B"}', 4: '{"answer": "B", "why": "it'}
    chat.setup(blocked={f"text {document}": f"cut:{text}" for document, text in said.items()})
    questions = world([(0, 0, b) for b in range(1, 5)])
    rows = ask(ApiEngine(judge(chat)), questions, *(about(questions, document)[0] for document in said))
    assert rows["text"].to_pylist() == [None, "A", '{"answer": "B"}', None]
    assert rows["error"].to_pylist() == ["cut short", None, None, "cut short"]
    assert not any(rows["transient"].to_pylist())
    assert set(rows["prompt_tokens"].to_pylist()) == {100}
    by_letters = judge(chat, {**LETTERS, "readout": "logprob"}, logprobs=5)
    rows = ask(ApiEngine(by_letters), questions, *(about(questions, document)[0] for document in (1, 2)))
    assert rows["error"].to_pylist() == ["neither letter", None]  # a sentence that a letter begins; the letter alone
    assert rows["log_second"].to_pylist() == [None, -2.4]


def test_answers_without_log_probabilities_stop_a_judge_that_has_been_answered_once(chat: Chat) -> None:
    """They cost money; a server may have been exchanged since."""
    chat.setup(faults={"plain": 1.0})
    engine = ApiEngine(judge(chat, {**LETTERS, "readout": "logprob"}, logprobs=5), answered=True)
    with pytest.raises(JudgeError, match="no log-probabilities"):
        ask(engine, world([(0, a, b) for a in range(6) for b in range(a)]))
    assert len(chat.log()) == 3


@pytest.mark.parametrize("documents", [1, 2])
def test_log_probabilities_are_read_where_the_answer_stands_behind_reasoning(chat: Chat, documents: int) -> None:
    """Comparisons and questions about one document: the reasoning's first token would be the other answer."""
    chat.setup(faults={"reasoned": 1.0}, mixed=True)
    config = judge(chat, {**LETTERS, "readout": "logprob"}, logprobs=5)
    questions = world([(0, a, b) for a in range(4) for b in range(a)])
    engine = ApiJudge(config if documents == 2 else config.direct).engine()
    rows = ask(engine, questions)
    said = [entry["said"] for entry in chat.log()]
    assert {*said} == ({"A", "B"} if documents == 2 else {"yes", "no"})
    log_first = Counter(round(value, 1) for value in rows["log_first"].to_pylist())
    assert log_first == Counter(-0.1 if word in ("A", "yes") else -2.4 for word in said)


def test_log_probabilities_of_the_reasoning_alone_are_lasting_failures(chat: Chat) -> None:
    chat.setup(faults={"reasoning": 1.0})
    engine = ApiEngine(judge(chat, {**LETTERS, "readout": "logprob"}, logprobs=5))
    rows = ask(engine, world([(0, a, b) for a in range(4) for b in range(a)]))
    assert Counter(rows["error"].to_pylist()) == {NOT_ALIGNED: 12}
    assert not any(rows["transient"].to_pylist())
    assert min(rows["prompt_tokens"].to_pylist()) == 100


def test_a_server_without_a_system_role_or_max_tokens_is_asked_without_them(chat: Chat) -> None:
    chat.setup(system=False, max_tokens=False)
    config = judge(chat, concurrency=8)
    questions = world([(0, a, b) for a in range(6) for b in range(a)])
    engine = ApiEngine(config)
    for _ in range(2):  # the second time it is known
        assert ask(engine, questions)["error"].null_count == len(questions.query) == 30
    actions = Counter(entry["action"] for entry in chat.log())
    assert actions["ok"] == 60
    assert 1 <= actions["no system"] <= 8
    assert 1 <= actions["renamed"] <= 8
    assert engine.spend.requests == actions.total()
    answered = [entry["question"] for entry in chat.log() if entry["action"] == "ok"]
    assert all(question.startswith("You judge search results.") for question in answered)


def test_a_server_that_streams_unless_told_otherwise_is_told(chat: Chat) -> None:
    chat.setup(streams=True)
    rows = ask(ApiEngine(judge(chat)), world([(0, 0, 1)]))
    assert rows["text"].to_pylist() == ["A", "A"]
