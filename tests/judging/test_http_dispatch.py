"""Many questions: a server that fails three calls in ten, batches, back-pressure, and being cut short."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http.client import ChatClient, Failed, Reply
from anmi_ray.judging.http.dispatch import Question, Result, ask_all
from anmi_ray.store.spend_log import Spend
from tests.interrupts import heeding
from tests.judging.serving import Chat, ask, one_by_one

ROOT = Path(__file__).parents[2]
FAULTS = {"500": 0.07, "429:0": 0.03, "reset": 0.06, "invalid": 0.06, "empty": 0.04, "wrong": 0.03}
STUCK = {"hang": 0.002, "drip": 0.002}


def questions(count: int, text: str = "question") -> Iterator[Question]:
    for i in range(count):
        yield i.to_bytes(4, "big"), ask(f"{text} {i}")


def run(client: ChatClient, asked: Iterable[Question] | AsyncIterator[Question], *args: Any, **kwargs: Any) -> Spend:
    async def main() -> Spend:
        async with client:
            await ask_all(client, asked if isinstance(asked, AsyncIterator) else one_by_one(asked), *args, **kwargs)
        return client.spend

    return asyncio.run(main())


@pytest.mark.slow
def test_three_calls_in_ten_fail_and_every_question_ends_once(chat: Chat) -> None:
    count = 2000
    chat.setup(faults=FAULTS | STUCK)
    got: list[Result] = []
    # few retries, so that some questions end as failures; a time limit that a healthy call does not meet
    spend = run(ChatClient(chat.config(retries=2, timeout_s=2.0, concurrency=64)), questions(count), got.extend)

    assert sorted(key for key, _ in got) == [key for key, _ in questions(count)]
    replies = [result for _, result in got if isinstance(result, Reply)]
    failures = [result for _, result in got if isinstance(result, Failed)]
    assert len(replies) + len(failures) == count
    assert {reply.answer.text for reply in replies} == {"A", "wrong letters"}
    named = {"http 500", "http 429", "connection reset", "invalid JSON", "empty answer", "timeout"}
    assert {failed.reason for failed in failures} <= named
    assert all(failed.transient and failed.attempts == 3 for failed in failures)
    assert 0 < len(failures) < count * 0.05  # about .27³ of them

    log = chat.log()
    actions = Counter(entry["action"] for entry in log)
    assert set(actions) == {"ok", *FAULTS, *STUCK}
    assert 0.2 < 1 - actions["ok"] / len(log) < 0.4
    # Requests that end without a count of tokens are the server's time-outs, resets and broken bodies. On a machine so
    # busy that a healthy call takes 2 s there are more, and some of those the server never saw.
    silent = actions["hang"] + actions["drip"] + actions["reset"] + actions["invalid"]
    assert 0 <= spend.requests - len(log) <= spend.unreported - silent
    assert spend.prompt_tokens <= 100 * (actions["ok"] + actions["wrong"] + actions["empty"])
    assert sum(result.attempts for _, result in got) == spend.requests
    assert max(entry["visit"] for entry in log) <= 2


def test_batches_are_bounded_in_size_and_complete(chat: Chat) -> None:
    batches: list[list[Result]] = []
    run(ChatClient(chat.config()), questions(100), batches.append, every=16, seconds=60.0)
    assert [len(batch) for batch in batches] == [16] * 6 + [4]
    assert len({key for batch in batches for key, _ in batch}) == 100


def test_results_are_not_kept_waiting_for_a_full_batch(chat: Chat) -> None:
    chat.setup(latency_s=0.0)
    batches: list[int] = []

    async def slow() -> AsyncIterator[Question]:
        for question in questions(3):
            yield question
            seen = len(batches)
            while len(batches) == seen:  # no more questions before this one's answer is handed over
                await asyncio.sleep(0.01)

    run(ChatClient(chat.config()), slow(), lambda batch: batches.append(len(batch)), every=256, seconds=0.05)
    assert batches == [1, 1, 1]


def test_a_slow_publisher_makes_asking_wait(chat: Chat) -> None:
    drawn, handed = 0, 0
    most = 0

    def counted() -> Iterator[Question]:
        nonlocal drawn, most
        for question in questions(200):
            drawn += 1
            most = max(most, drawn - handed)
            yield question

    def publish(batch: list[Result]) -> None:
        nonlocal handed
        time.sleep(0.05)
        handed += len(batch)

    run(ChatClient(chat.config(concurrency=8)), counted(), publish, every=10, seconds=60.0)
    assert handed == drawn == 200
    # one batch being published, one that waits, and one result in every worker's hands
    assert most <= 2 * 10 + 2 * 8


def test_no_questions(chat: Chat) -> None:
    batches: list[list[Result]] = []
    assert run(ChatClient(chat.config()), [], batches.append).requests == 0
    assert batches == []


def test_an_error_for_the_user_hands_over_what_arrived(chat: Chat) -> None:
    got: list[Result] = []
    bad = [(b"bad", ask("script 404"))]
    with pytest.raises(JudgeError, match="http 404"):
        run(ChatClient(chat.config(concurrency=4)), [*questions(40), *bad, *questions(4000)], got.extend, every=1000)
    assert 20 <= len(got) < 400
    assert all(isinstance(result, Reply) for _, result in got)


def test_an_error_of_publish_stops_asking(chat: Chat) -> None:
    calls: list[int] = []

    def publish(batch: list[Result]) -> None:
        calls.append(len(batch))
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(ChatClient(chat.config()), questions(4000), publish, every=10)
    assert calls == [10]
    assert len(chat.log()) < 400


def test_an_error_of_the_questions_hands_over_what_arrived(chat: Chat) -> None:
    def broken() -> Iterator[Question]:
        yield from questions(20)
        raise ValueError("unreadable file")

    got: list[Result] = []
    with pytest.raises(ValueError, match="unreadable file"):
        run(ChatClient(chat.config(concurrency=1)), broken(), got.extend, every=1000)
    assert len(got) == 20


CHILD = """
import asyncio, json, sys
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.judging.http.dispatch import ask_all
from anmi_ray.judging.http.client import ChatClient

async def endless():
    i = 0
    while True:
        yield i.to_bytes(4, "big"), [{"role": "user", "content": f"question {i}"}]
        i += 1

def publish(batch):
    for key, result in batch:
        print(json.dumps([key.hex(), result.answer.text]), flush=True)

async def main():
    async with ChatClient(EndpointConfig(base_url=sys.argv[1], model="judge", concurrency=8)) as client:
        await ask_all(client, endless(), publish, every=100_000, seconds=3600)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_hands_over_what_arrived(chat: Chat) -> None:
    chat.setup(latency_s=0.02)
    command = heeding([sys.executable, "-c", CHILD, chat.config().base_url])
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            for _ in range(600):
                if len(chat.log()) >= 60:
                    break
                time.sleep(0.1)
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    *lines, last = out.splitlines()
    assert last == "interrupted"
    keys = [json.loads(line)[0] for line in lines]
    asked = len(chat.log())
    assert len(keys) == len(set(keys))
    assert 60 - 2 * 8 <= len(keys) <= asked  # all but what was in flight, on the way back perhaps
    assert asked - len(keys) <= 2 * 8
