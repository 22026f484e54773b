"""Batch texts of concurrent requests, first come, first served, in one bounded queue; Prometheus metrics."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from anmi_ray.serving.scorer import Computed, Task
from anmi_ray.serving.settings import ServiceSettings
from anmi_ray.serving.wire import RefusalError

_BATCH_CHARACTERS = 1_000_000
_SMOOTHING = 0.2  # weight of the newest batch in the rate
_MAX_RETRY_S = 60
_WAITING_SHARE = 0.65  # of the time limit; the rest is for running batches and falling rates
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Compute = Callable[[Task, list[str], list[str]], Awaitable[Computed]]


class ServiceMeters:
    """Counters of one service, in their own registry."""

    def __init__(self, waiting: Callable[[], int], inside: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        r = self._registry
        self._requests = Counter("anmi_requests", "Requests answered", ("path", "status"), registry=r)
        self._seconds = Histogram(
            "anmi_request_seconds", "Seconds from a request to its answer", ("path",), buckets=_SECONDS, registry=r
        )
        self._texts = Counter("anmi_texts", "Texts computed: pairs scored, and texts embedded", registry=r)
        self._tokens = Counter("anmi_tokens", "Tokens of these texts that the model has read", registry=r)
        self._batches = Histogram("anmi_batch_texts", "Texts of a batch", buckets=_TEXTS, registry=r)
        self._batch_seconds = Histogram("anmi_batch_seconds", "Seconds of a batch", buckets=_SECONDS, registry=r)
        Gauge("anmi_waiting_texts", "Texts that wait for a batch", registry=r).set_function(waiting)
        Gauge("anmi_requests_inside", "Requests that have no answer yet", registry=r).set_function(inside)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a computed batch."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._batches.observe(texts)
        self._batch_seconds.observe(seconds)

    def page(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(eq=False)
class _Part:
    """Texts of one request that fit into a batch."""

    task: Task
    query: str
    texts: Sequence[str]
    done: asyncio.Future[Computed]

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class BatchQueue:
    """Compute texts of concurrent requests together, `workers` batches at a time."""

    def __init__(self, compute: Compute, settings: ServiceSettings, workers: int, meters: ServiceMeters) -> None:
        self._compute = compute
        self._settings = settings
        self._meters = meters
        self._workers = workers
        self._parts: deque[_Part] = deque()
        self._filled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rate = 0.0  # texts a second

    @property
    def waiting(self) -> int:
        """Texts that are in no batch yet."""
        return sum(len(part.texts) for part in self._parts)

    async def computed(self, task: Task, query: str, texts: Sequence[str]) -> Computed:
        """Compute one text or more. Raises RefusalError 429 if too many texts wait, or would wait too long."""
        self._admit(len(texts))
        found = await self._in_parts(task, query, texts)
        if any(one.model != found[0].model for one in found):  # one is being replaced: a single process is asked
            return await self._compute(task, [query] * len(texts), list(texts))
        values = [one.values for one in found if one.values is not None]
        tokens = np.concatenate([one.tokens for one in found])
        return replace(found[0], values=np.concatenate(values) if values else None, tokens=tokens)

    def _admit(self, count: int) -> None:
        waiting = self.waiting
        limit = _WAITING_SHARE * self._settings.timeout_s * self._rate  # in texts; 0: unknown
        too_long = 0 < limit < waiting + count
        if waiting and (too_long or waiting + count > self._settings.max_waiting):  # a lone request is always served
            retry_s = min(_MAX_RETRY_S, max(1, math.ceil(waiting / self._rate if self._rate else 1)))
            raise RefusalError(429, f"{waiting:,} texts wait already: send it again in {retry_s} s", retry_s)

    async def _in_parts(self, task: Task, query: str, texts: Sequence[str]) -> list[Computed]:
        loop = asyncio.get_running_loop()
        self._tasks = [one for one in self._tasks if not one.done()]
        while len(self._tasks) < self._workers:
            # new context: Ray Serve cancels calls made in the context of a request whose client has left
            self._tasks.append(loop.create_task(self._work(), context=contextvars.Context()))
        parts = [_Part(task, query, part, loop.create_future()) for part in self._split(texts)]
        self._parts.extend(parts)
        self._filled.set()
        try:
            return await asyncio.gather(*(part.done for part in parts))
        finally:
            if any(part in self._parts for part in parts):  # the client left, or another part failed
                self._parts = deque(part for part in self._parts if part not in parts)

    def _split(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Consecutive texts, as many as a batch may hold."""
        bounds, characters = [0], 0
        for at, text in enumerate(texts):
            characters += len(text)
            if at - bounds[-1] == self._settings.batch_texts or (characters > _BATCH_CHARACTERS and at > bounds[-1]):
                bounds.append(at)
                characters = len(text)
        return [texts[first:end] for first, end in zip(bounds, [*bounds[1:], len(texts)], strict=True)]

    async def _work(self) -> None:
        while True:
            while not self._parts:
                self._filled.clear()
                await self._filled.wait()
            batch = self._next()
            try:
                await self._compute_batch(batch)
            except asyncio.CancelledError:
                for part in batch:
                    part.fail(RefusalError(503, "the computation of these texts was cancelled: send it again", 1))
                raise

    def _next(self) -> list[_Part]:
        """The first part, and those behind it that are of the same task and fit."""
        batch = [self._parts.popleft()]
        texts, characters = len(batch[0].texts), batch[0].characters
        while self._parts and self._parts[0].task == batch[0].task:
            texts += len(self._parts[0].texts)
            characters += self._parts[0].characters
            if texts > self._settings.batch_texts or characters > _BATCH_CHARACTERS:
                break
            batch.append(self._parts.popleft())
        return batch

    async def _compute_batch(self, batch: list[_Part]) -> None:
        begin = time.monotonic()
        is_full = bool(self._parts)  # a small batch says little about the rate under load
        queries = [part.query for part in batch for _ in part.texts]
        try:
            found = await self._compute(batch[0].task, queries, [text for part in batch for text in part.texts])
        except Exception as error:  # no request may wait for this batch forever
            if len(batch) == 1 or isinstance(error, RefusalError):
                for part in batch:
                    part.fail(error)
            else:
                for part in batch:  # a text that fails must not fail the requests of others
                    await self._compute_batch([part])
            return
        seconds = time.monotonic() - begin
        count = len(found.tokens)
        if is_full:
            rate = count * self._workers / max(seconds, 1e-6)
            self._rate = (1 - _SMOOTHING) * self._rate + _SMOOTHING * rate if self._rate else rate
        self._meters.batch(count, int(found.tokens.sum()), seconds)
        first = 0
        for part in batch:
            rows = slice(first, first + len(part.texts))
            first = rows.stop
            if not part.done.done():
                values = None if found.values is None else found.values[rows]
                part.done.set_result(replace(found, values=values, tokens=found.tokens[rows]))
