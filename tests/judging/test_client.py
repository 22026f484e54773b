"""One question at a time against a real server in another process: replies, named failures, errors for the user."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.core.errors import AnmiError, JudgeError
from anmi_ray.judging.http.client import ChatClient, Failed, Reply
from anmi_ray.judging.http.completion import Completion, TokenCounts
from anmi_ray.store.spend_log import Spend
from tests.judging.serving import Chat, ask, serving


def asked(config: EndpointConfig, texts: Sequence[str]) -> tuple[list[object], Spend]:
    """Results of `texts`, all at once, errors for the user among them, and what was spent."""

    async def main() -> tuple[list[object], Spend]:
        async with ChatClient(config) as client:
            results = await asyncio.gather(*(client.ask(ask(text)) for text in texts), return_exceptions=True)
            return list(results), client.spend

    return asyncio.run(main())


def only(config: EndpointConfig, text: str) -> Reply[Any] | Failed:
    (result,), _ = asked(config, [text])
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Reply | Failed)
    return result


def test_a_reply_has_all_that_the_server_says(chat: Chat) -> None:
    config = chat.config(logprobs=3, input_price=1.0, cached_price=0.1, output_price=10.0)
    (reply,), spend = asked(config, ["which one?"])
    assert isinstance(reply, Reply)
    logprobs = {"A": -0.1, "B": -2.4, " A": -9999.0}
    assert reply.answer == Completion("A", logprobs, TokenCounts(prompt=100, cached=40, answer=2))
    assert reply.attempts == 1
    assert reply.seconds > 0
    assert (spend.requests, spend.prompt_tokens, spend.cached_tokens, spend.answer_tokens) == (1, 100, 40, 2)
    assert spend.dollars == pytest.approx((60 * 1.0 + 40 * 0.1 + 2 * 10.0) / 1e6)


def test_without_prices_dollars_are_unknown_and_logprobs_come_only_when_asked(chat: Chat) -> None:
    (reply,), spend = asked(chat.config(), ["which one?"])
    assert isinstance(reply, Reply)
    assert reply.answer.logprobs is None
    assert spend.dollars is None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "http 500"),
        ("429", "http 429"),
        ("503:0", "http 503"),
        ("408", "http 408"),
        ("reset", "connection reset"),
        ("invalid", "invalid JSON"),
        ("nochoices", "no choices"),
        ("empty", "empty answer"),
    ],
)
def test_passing_troubles_are_tried_again_and_named_when_they_stay(chat: Chat, fault: str, reason: str) -> None:
    reply = only(chat.config(), f"script {fault} {fault} ok")
    assert isinstance(reply, Reply)
    assert reply.attempts == 3
    failed = only(chat.config(retries=2), f"script {fault} {fault} {fault} ok")
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.transient, failed.attempts) == (reason, True, 3)


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_the_time_limit_holds_for_the_last_byte(chat: Chat, fault: str) -> None:
    failed = only(chat.config(timeout_s=0.5, retries=1), f"script {fault}")
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.transient, failed.attempts) == ("timeout", True, 2)
    assert 1.0 <= failed.seconds < 15  # the drip alone would take longer


def test_the_deadline_ends_retries(chat: Chat) -> None:
    failed = only(chat.config(timeout_s=0.2, retries=100), "script hang")
    assert isinstance(failed, Failed)
    assert failed.reason == "timeout"
    assert 2 <= failed.attempts <= 6


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("context", "context length"),
        ("filtered", "refused: content filter"),
        ("cut", "max_tokens before an answer"),
        ("400", "http 400"),
    ],
)
def test_lasting_failures_are_not_tried_again(chat: Chat, fault: str, reason: str) -> None:
    results, spend = asked(chat.config(concurrency=1), ["fine", f"script {fault}"])
    failed = results[1]
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.transient, failed.attempts) == (reason, False, 1)
    assert spend.requests == 2 == len(chat.log())


@pytest.mark.parametrize(
    ("fault", "word"),
    [("404", "has no model"), ("403", "refuses"), ("quota", "payment"), ("redirect", "redirects"), ("402", "payment")],
)
def test_what_the_user_must_mend_stops_everything(chat: Chat, fault: str, word: str) -> None:
    results, spend = asked(chat.config(), [f"script {fault}", *(f"question {i}" for i in range(50))])
    assert all(isinstance(result, JudgeError) for result in results)
    assert word in str(results[0])
    assert "judge judge at http://127.0.0.1" in str(results[0])
    assert "remedy" in str(results[0])
    assert spend.requests == len(chat.log()) == 1  # the first question goes alone


def test_refused_settings_stop_after_three_questions_of_nothing_else(chat: Chat) -> None:
    chat.setup(faults={"400": 1.0})
    results, spend = asked(chat.config(concurrency=1), [f"question {i}" for i in range(20)])
    assert [type(result) for result in results] == [Failed, Failed, *[JudgeError] * 18]
    assert isinstance(results[0], Failed)
    assert results[0].transient  # not a fact about the question
    assert "Unsupported parameter" in str(results[2])
    assert spend.requests == 3


def test_a_late_403_is_about_its_question(chat: Chat) -> None:
    results, _ = asked(chat.config(concurrency=1), ["fine", "script 403", "fine too"])
    assert [type(result) for result in results] == [Reply, Failed, Reply]
    assert isinstance(results[1], Failed)
    assert (results[1].reason, results[1].transient) == ("http 403", True)


def test_no_server_stops_at_first_contact() -> None:
    with socket.socket() as taken:  # bound, not listening: refuses, and nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        results, spend = asked(EndpointConfig(base_url=url, model="m"), ["a", "b"])
    assert all(isinstance(result, JudgeError) for result in results)
    assert "cannot be reached" in str(results[0])
    assert spend.requests == 0


def test_a_server_that_goes_away_is_tried_again_and_named() -> None:
    async def main() -> tuple[Reply[Any] | Failed, Reply[Any] | Failed, Spend]:
        with serving() as port:
            chat = Chat(port, "leaving")
            chat.setup()
            client = ChatClient(chat.config(retries=2))
            await client.__aenter__()
            first = await client.ask(ask("before"))
        second = await client.ask(ask("after"))
        await client.__aexit__(None, None, None)
        return first, second, client.spend

    first, second, spend = asyncio.run(main())
    assert isinstance(first, Reply)
    assert isinstance(second, Failed)
    assert (second.reason, second.transient, second.attempts) in {
        ("no connection", True, 3),
        ("connection reset", True, 3),  # the connection from before may still be taken for a good one, at first
    }
    assert spend.requests <= 2


@pytest.mark.slow
def test_retry_after_is_waited_for_and_capped(chat: Chat) -> None:
    for text, least in (("script 429:1 ok", 1.0), ("script date:3 ok", 1.9), ("script 500:1 ok", 1.0)):
        chat.setup()
        assert isinstance(only(chat.config(max_wait_s=9.0), text), Reply)
        first, second = chat.log()
        assert second["t"] - first["t"] >= least  # a date is whole seconds: up to one less
    chat.setup()
    reply = only(chat.config(max_wait_s=0.1), "script 429:1000 ok")
    assert isinstance(reply, Reply)


def test_an_overload_pauses_the_whole_client(chat: Chat) -> None:
    chat.setup(latency_s=0.01)
    questions = [f"question {i}" for i in range(30)]
    asked(chat.config(max_wait_s=5.0, concurrency=8), [*questions, "script 429:2 ok", *(q + "'" for q in questions)])
    log = chat.log()
    stop = next(entry["t"] for entry in log if entry["action"] == "429:2")
    early = [entry for entry in log if stop < entry["t"] < stop + 2]
    # what was in flight, and once more as many that a slow loop may have sent before it read the 429
    assert len(early) <= 16
    assert len(log) == 62


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 5])
def test_in_flight_never_exceeds_the_bound(chat: Chat, bound: int) -> None:
    chat.setup(latency_s=0.01, faults={"429": 0.05, "500": 0.1, "invalid": 0.1})
    results, _ = asked(chat.config(concurrency=bound), [f"question {i}" for i in range(150)])
    assert all(isinstance(result, Reply | Failed) for result in results)
    assert bound / 2 < max(entry["active"] for entry in chat.log()) <= bound


def test_wrong_key_stops_with_the_first_request(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.setup(key="the right key of this server")
    monkeypatch.setenv("WRONG_KEY", "sk-wrong-key-of-somebody")
    results, spend = asked(chat.config(key_env="WRONG_KEY"), [f"question {i}" for i in range(100)])
    assert all(isinstance(result, AnmiError) for result in results)
    assert "WRONG_KEY" in str(results[0])
    assert spend.requests == len(chat.log()) == 1
