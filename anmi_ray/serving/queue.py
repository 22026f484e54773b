"""The texts of all requests in one bounded queue, from which batches are taken, of one request or of several.

A batch is bounded by texts and characters; within it the model's own forward passes are bounded by tokens
(models/pairs.py), so the longest texts decide neither memory nor time of a batch alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anmi_ray.serving.model_version import ModelVersion
from anmi_ray.serving.refusals import RefusalError

What = Literal["score", "query", "document"]
"""A score of a query and a text; the vector of a text that is a query, or a document."""

_BATCH_CHARACTERS = 1_000_000
_SMOOTHING = 0.2  # of the newest batch in the rate
_LONGEST_RETRY_S = 60
_TRIES = 3  # of a request whose batches were computed by different models
_MARGIN = 0.65  # of the time limit that may be spent waiting: what is in batches is not counted, and rates fall


@dataclass(frozen=True)
class Computed:
    """Of N texts: values float32[N], or vectors float32[N, d]; None where the model has no such. Tokens int64[N].

    `model` says by which: another may be loaded while requests are under way. `max_tokens`: tokens of an input that it
    reads at most.
    """

    values: NDArray[np.float32] | None
    tokens: NDArray[np.int64]
    model: ModelVersion = field(default_factory=ModelVersion)
    max_tokens: int = 0


Compute = Callable[[What, list[str], list[str]], Awaitable[Computed]]


class Watcher(Protocol):
    """Who is told of every batch."""

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Texts of one batch, their tokens, and the seconds that it took."""


@dataclass(eq=False)
class _Job:
    """One request: `taken` of its texts are in batches, `left` of them are not computed yet."""

    what: What
    query: str
    texts: Sequence[str]
    done: asyncio.Future[list[Computed]]
    taken: int = 0
    left: int = 0
    parts: dict[int, Computed] = field(default_factory=dict)

    def take(self, most: int, characters: int) -> list[str]:
        """The next texts, one at least."""
        first = self.taken
        for text in self.texts[first : first + most]:
            characters -= len(text)
            if characters < 0 and self.taken > first:
                break
            self.taken += 1
        return list(self.texts[first : self.taken])

    def put(self, start: int, part: Computed) -> None:
        """Keep what was computed of the texts from `start` on; the last part ends the job."""
        self.parts[start] = part
        self.left -= len(part.tokens)
        if not self.left and not self.done.done():
            self.done.set_result([self.parts[at] for at in sorted(self.parts)])

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        if not self.done.done():
            self.done.set_exception(error)


class BatchQueue:
    """Computes texts of concurrent requests together, first come, first served; `workers` batches are under way."""

    def __init__(
        self, compute: Compute, batch_texts: int, max_waiting: int, workers: int, timeout_s: float, watcher: Watcher
    ) -> None:
        self._compute = compute
        self._batch_texts = batch_texts
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._watcher = watcher
        self._workers = workers
        self._jobs: deque[_Job] = deque()
        self._some = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rate = 0.0  # texts a second
        self.waiting = 0
        """Texts that are in no batch yet."""

    async def computed(self, what: What, query: str, texts: Sequence[str]) -> Computed:
        """What the model says of one text or more.

        Raises RefusalError 429 where too many wait, or would too long; 503 where processes have different models.
        """
        self._admit(len(texts))
        for _ in range(_TRIES):
            parts = await self._parts(what, query, texts)
            models = {part.model.asked_at for part in parts}
            if len(models) == 1:  # else two of them speak, and their scores are no ranking
                return _joined(parts)
        raise RefusalError(503, "another model is being loaded, and not every process has it: send it again", 5)

    async def _parts(self, what: What, query: str, texts: Sequence[str]) -> list[Computed]:
        """What batches say of the texts, in their order."""
        self._tasks = [task for task in self._tasks if not task.done()]
        for _ in range(self._workers - len(self._tasks)):  # not before: a loop must run
            # in a context of its own: else Ray Serve cancels what it asks for with the request that started it
            self._tasks.append(asyncio.create_task(self._work(), context=contextvars.Context()))
        job = _Job(what, query, texts, asyncio.get_running_loop().create_future(), left=len(texts))
        self._jobs.append(job)
        self.waiting += len(texts)
        self._some.set()
        try:
            return await job.done
        finally:
            if job.taken < len(texts):  # given up, or failed
                self._jobs.remove(job)
                self.waiting -= len(texts) - job.taken

    def _admit(self, count: int) -> None:
        wait_s = (self.waiting + count) / self._rate if self._rate else 0.0
        # whoever comes alone is served, however many texts it has
        if self.waiting and (self.waiting + count > self._max_waiting or wait_s > _MARGIN * self._timeout_s):
            seconds = self.waiting / self._rate if self._rate else 1.0
            retry_s = min(_LONGEST_RETRY_S, max(1, math.ceil(seconds)))
            raise RefusalError(429, f"{self.waiting:,} texts wait already: send it again in {retry_s} s", retry_s)

    async def _work(self) -> None:
        while True:
            while not self._jobs:
                self._some.clear()
                await self._some.wait()
            batch = self._next()
            try:
                await self._carry_out(batch)
            except asyncio.CancelledError:
                for job, _, _ in batch:
                    job.fail(RefusalError(503, "the computation of these texts was cancelled: send it again", 1))
                raise

    def _next(self) -> list[tuple[_Job, int, list[str]]]:
        """A batch: jobs of one kind, where the texts of each begin, and the texts."""
        batch: list[tuple[_Job, int, list[str]]] = []
        room = self._batch_texts
        characters = _BATCH_CHARACTERS
        while self._jobs and room > 0 and characters > 0:
            job = self._jobs[0]
            if batch and job.what != batch[0][0].what:
                break
            start = job.taken
            texts = job.take(room, characters)
            batch.append((job, start, texts))
            room -= len(texts)
            characters -= sum(map(len, texts))
            self.waiting -= len(texts)
            if job.taken == len(job.texts):
                self._jobs.popleft()
            else:
                break
        return batch

    async def _carry_out(self, batch: list[tuple[_Job, int, list[str]]]) -> None:
        begin = time.monotonic()
        full = bool(self._jobs)  # small batches say little of how fast many texts go
        try:
            found = await self._compute(
                batch[0][0].what,
                [job.query for job, _, texts in batch for _ in texts],
                [text for _, _, texts in batch for text in texts],
            )
        except Exception as error:  # whatever it is, nobody may wait for this batch for ever
            if len(batch) == 1 or isinstance(error, RefusalError):
                for job, _, _ in batch:
                    job.fail(error)
                return
            for one in batch:  # one request's text is nothing to the others
                await self._carry_out([one])
            return
        seconds = time.monotonic() - begin
        count = len(found.tokens)
        if full:
            rate = count * self._workers / max(seconds, 1e-6)
            self._rate = rate if not self._rate else (1 - _SMOOTHING) * self._rate + _SMOOTHING * rate
        self._watcher.batch(count, int(found.tokens.sum()), seconds)
        at = 0
        for job, start, texts in batch:
            part = slice(at, at + len(texts))
            values = None if found.values is None else found.values[part]
            job.put(start, replace(found, values=values, tokens=found.tokens[part]))
            at += len(texts)


def _joined(parts: Sequence[Computed]) -> Computed:
    tokens = np.concatenate([part.tokens for part in parts])
    values = [part.values for part in parts if part.values is not None]
    return replace(parts[0], values=np.concatenate(values) if len(values) == len(parts) else None, tokens=tokens)
