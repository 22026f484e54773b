"""A pool of actors, each of which keeps what is dear to make: calls go to whoever is free.

An actor that dies is replaced, and its call, which must bear repetition, goes to the next that is free. Only actors
that have started get calls: a pool may be larger than what there is room for, and nothing waits for one that compiles.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import ray
from ray.exceptions import RayActorError

from anmi_ray.core import logs
from anmi_ray.core.schema import Record
from anmi_ray.runtime.tasks import TASK_RETRIES, Context, call_logged, our_errors, seal_buckets
from anmi_ray.store import Artifact, Flow

_START = -1  # in the place of a bucket
_NO_BUCKET = -2


@ray.remote(scheduling_strategy="DEFAULT")  # anywhere, as tasks
class _Actor:
    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._worker = make(*args)

    def started(self) -> None:
        """Answered when the worker is made."""

    def call(self, method: str, where: Mapping[str, Any], *args: Any) -> Any:
        return call_logged(getattr(self._worker, method), args, where)


class ActorPool:
    """Actors that each hold a worker, `make(*args)`, begun at the first call, and gone when its block is left.

    actors: how many; 0: as many as there are cores, and in a cluster, which may grow, not fewer than the window of
    tasks. A call, or an actor's start, whose process died is tried again three times.
    """

    def __init__(self, context: Context, make: Callable[..., Any], *args: Any, actors: int = 0) -> None:
        cores = int(ray.cluster_resources().get("CPU", 0.0) / context.cpus_per_core)
        size = actors or max(cores, 1 if context.execution.address is None else context.window)
        self._size = min(size, context.buckets)
        self._context = context
        self._make: tuple[Callable[..., Any], tuple[Any, ...]] = make, args
        self._actors: set[Any] = set()
        self._idle: list[Any] = []
        self._under_way: dict[Any, tuple[Any, int]] = {}  # by reference: the actor, and its bucket or what it is at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the actors: an error's traceback may keep their handles, for whose CPUs the next pool would wait."""
        for actor in self._actors:
            ray.kill(actor)

    def run_task(self, stage: str, method: str, *args: Any) -> Any:
        """What one call of a worker's method returns."""
        with our_errors(stage):
            [(_, result)] = self._over(method, {_NO_BUCKET: args})
        return result

    def run_buckets(self, artifact: Artifact, seal: tuple[str, Record], method: str, *args: Any) -> list[Flow]:
        """`tasks.run_buckets` by the worker's method of (artifact, bucket, *args); args go to the object store once."""

        def carry_out(missing: list[int]) -> Iterator[tuple[int, list[Flow]]]:
            held = [ray.put(arg) for arg in args]
            return self._over(method, {bucket: (artifact, bucket, *held) for bucket in missing})

        return seal_buckets(self._context, artifact, seal, carry_out)

    def _over(self, method: str, calls: Mapping[int, tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """(bucket, result) of every call as they end."""
        waiting = collections.deque(calls)
        left = len(waiting)
        died = collections.Counter[int]()
        while left:
            while waiting and len(self._idle) + len(self._under_way) < self._size:
                actor: Any = _Actor.options(num_cpus=self._context.cpus_per_core).remote(*self._make)
                self._actors.add(actor)
                self._under_way[actor.started.remote()] = actor, _START
            while waiting and self._idle:
                bucket = waiting.popleft()
                actor = self._idle.pop(0)
                where = logs.context() if bucket == _NO_BUCKET else {**logs.context(), "bucket": bucket}
                self._under_way[actor.call.remote(method, where, *calls[bucket])] = actor, bucket
            [reference], _ = ray.wait(list(self._under_way), num_returns=1)
            actor, bucket = self._under_way.pop(reference)
            try:
                found = ray.get(reference)
            except RayActorError:
                self._actors.remove(actor)
                died[bucket] += 1
                if died[bucket] > TASK_RETRIES:
                    raise
                if bucket != _START:
                    waiting.appendleft(bucket)
                continue
            self._idle.append(actor)
            if bucket == _START:
                died[_START] = 0  # many may be lost over a long run, as nodes come and go
                continue
            left -= 1
            yield bucket, found
