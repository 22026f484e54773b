"""Ask many questions with bounded concurrency and publish results in batches, even if interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from anmi_ray.judging.http.client import ChatClient, Failed, Reply
from anmi_ray.judging.http.completion import Completion, Message
from anmi_ray.judging.questions import AT_ONCE

Question: TypeAlias = tuple[bytes, Sequence[Message]]
Result: TypeAlias = tuple[bytes, Reply[Completion] | Failed]
Publish: TypeAlias = Callable[[list[Result]], None]


async def ask_all(
    client: ChatClient,
    questions: AsyncIterator[Question],
    publish: Publish,
    every: int = AT_ONCE,
    seconds: float = 5.0,
) -> None:
    """Ask every (key, messages) once and pass each (key, result) to `publish` once.

    A batch has at most `every` results and waits at most `seconds`. `publish` runs in a thread, one call at a time,
    while asking continues; if `every` + concurrency results are waiting for it, asking waits as well.

    If something raises (a JudgeError, `questions`, `publish`) or this is cancelled (Ctrl-C), requests in flight are
    cancelled, and results so far are published before the error is raised, unless `publish` itself raised.
    """
    outbox = _Outbox(publish, every, seconds)
    turn = asyncio.Lock()  # an async generator yields to one caller at a time

    async def work() -> None:
        while True:
            async with turn:
                question = await anext(questions, None)
            if question is None:
                return
            key, messages = question
            await outbox.put((key, await client.ask(messages, key)))

    workers = [asyncio.create_task(work()) for _ in range(client.config.concurrency)]
    timer = asyncio.create_task(outbox.tick())
    everything = asyncio.gather(*workers)
    try:
        done, _ = await asyncio.wait({everything, timer}, return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            finished.result()
    finally:
        tasks = [*workers, timer]
        for task in tasks:
            task.cancel()
        await _to_the_end(_settled(tasks, everything, outbox))


async def _settled(
    tasks: Sequence[asyncio.Task[None]], everything: asyncio.Future[list[None]], outbox: _Outbox
) -> None:
    await asyncio.wait({*tasks, everything})
    for task in (*tasks, everything):  # retrieve errors, or asyncio logs them
        if not task.cancelled():
            task.exception()
    await outbox.flush()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end; if this task is cancelled meanwhile, raise the cancellation after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.result()
        raise


class _Outbox:
    """Results that wait to be published; none are published after an error of `publish`."""

    def __init__(self, publish: Publish, every: int, seconds: float) -> None:
        self._publish = publish
        self._every = every
        self._seconds = seconds
        self._results: list[Result] = []
        self._turn = asyncio.Lock()
        self._broken = False

    async def put(self, result: Result) -> None:
        """Add a result; publish when a batch is full. The caller waits, which bounds the number of waiting results."""
        self._results.append(result)
        if len(self._results) >= self._every:
            await _to_the_end(self.flush(self._every))

    async def tick(self) -> None:
        """Publish every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await _to_the_end(self.flush())

    async def flush(self, least: int = 1) -> None:
        """Publish while at least `least` results wait."""
        async with self._turn:
            while len(self._results) >= least and not self._broken:
                batch = self._results[: self._every]
                self._results = self._results[self._every :]
                try:
                    await asyncio.to_thread(self._publish, batch)
                except BaseException:
                    self._broken = True
                    raise
