"""Many questions: as many in flight as the client takes, handed over in batches, even when cut short."""

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
    """Ask every (key, messages) once and hand each (key, result) to `publish` once.

    A batch has at most `every` results, and waits `seconds` at most. `publish` runs in a thread, one call at a time,
    while questions go on; results that wait for it are at most `every` + concurrency, then asking waits as well.

    When something raises (a JudgeError, `questions`, `publish`) or this is cancelled (Ctrl-C), what is in flight is
    cancelled, and what has arrived is handed over before the error goes on; not so after `publish` itself raised.
    """
    outbox = _Outbox(publish, every, seconds)
    turn = asyncio.Lock()  # an async generator gives one question at a time

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
    for task in (*tasks, everything):  # looked at, so that asyncio does not complain of errors nobody saw
        if not task.cancelled():
            task.exception()
    await outbox.flush()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end though this task be cancelled meanwhile; the cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.result()
        raise


class _Outbox:
    """Results that wait to be handed over. After an error of `publish` nothing more is handed over."""

    def __init__(self, publish: Publish, every: int, seconds: float) -> None:
        self._publish = publish
        self._every = every
        self._seconds = seconds
        self._results: list[Result] = []
        self._turn = asyncio.Lock()
        self._broken = False

    async def put(self, result: Result) -> None:
        """Add a result; hand over when a batch is full. Whoever fills it up waits: this bounds what waits."""
        self._results.append(result)
        if len(self._results) >= self._every:
            await _to_the_end(self._hand_over(self._every))

    async def tick(self) -> None:
        """Hand over every so many seconds, for ever."""
        while True:
            await asyncio.sleep(self._seconds)
            await _to_the_end(self._hand_over(1))

    async def flush(self) -> None:
        """Hand over all that is left."""
        await self._hand_over(1)

    async def _hand_over(self, least: int) -> None:
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
