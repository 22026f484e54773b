"""A pool of actors that keep expensive state; calls go to idle actors.

An actor that dies is replaced, and its call, which must be repeatable, goes to the next idle one. Only actors that have
started get calls: a pool may be larger than the room for it, and nothing waits for one that compiles.

Rerankers on GPUs score in such actors: the process of a plain task outlives it, and keeps its model on a GPU that Ray
considers free, or on another GPU than that of its next task.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import ray
from ray.exceptions import RayActorError

from anmi_ray.config.execution import ExecutionConfig, ScoreExecution
from anmi_ray.core import logs
from anmi_ray.core.errors import gpu_memory_named
from anmi_ray.core.schema import Record
from anmi_ray.runtime.capacity import in_flight
from anmi_ray.runtime.tasks import TASK_RETRIES, Carrier, Context, call_logged, our_errors, seal_buckets, windowed
from anmi_ray.store import Artifact, Flow

_FULL = "raise it, so that fewer scorers share a GPU, or have texts cut shorter by max_tokens"
_START = -1  # instead of a bucket
_NO_BUCKET = -2


@ray.remote(scheduling_strategy="DEFAULT")  # anywhere, as tasks
class _Actor:
    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._worker = make(*args)

    def started(self) -> None:
        """Return when the worker is made."""

    def call(self, method: str, where: Mapping[str, Any], *args: Any) -> Any:
        return call_logged(getattr(self._worker, method), args, where)


class ActorPool:
    """Actors that each hold a worker, `make(*args)`, from the first call to the end of the block.

    A call, or an actor's start, whose process died is retried three times.

    actors: number of actors; 0: one per core or share of a GPU, on a cluster as many as `capacity.in_flight` allows.
    cores: that an actor keeps busy.
    score: share of a GPU that it holds.
    """

    def __init__(
        self,
        context: Context,
        make: Callable[..., Any],
        *args: Any,
        actors: int = 0,
        cores: float = 1.0,
        score: ScoreExecution | None = None,
    ) -> None:
        self._asked: dict[str, Any] = {"num_cpus": cores * context.cpus_per_core}
        if score is not None:
            self._asked |= {"num_gpus": score.gpus, "label_selector": score.on or None}
        self._given = actors
        self._share = None if score is None else score.gpus
        self._context = context
        self._make: tuple[Callable[..., Any], tuple[Any, ...]] = make, args
        self._actors: set[Any] = set()
        self._idle: list[Any] = []
        self._under_way: dict[Any, tuple[Any, int]] = {}  # by reference: the actor and its bucket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the actors: a traceback may keep their handles, and the next pool would wait for their CPUs."""
        for actor in self._actors:
            ray.kill(actor)

    @property
    def _size(self) -> int:
        """Return the number of actors to have now."""
        if self._given:
            return self._given
        resource, each = ("CPU", self._context.cpus_per_core) if self._share is None else ("GPU", self._share)
        if self._context.execution.address is not None:
            return max(1, int(in_flight(self._context.execution, resource) / each))
        return max(1, int(ray.cluster_resources().get(resource, 0.0) / each))

    def run_task(self, stage: str, method: str, *args: Any) -> Any:
        """Return the result of one call of a worker's method."""
        with our_errors(stage):
            [(_, result)] = self.over(method, {_NO_BUCKET: args})
        return result

    def run_buckets(self, artifact: Artifact, seal: tuple[str, Record], method: str, *args: Any) -> list[Flow]:
        """`tasks.run_buckets` by the worker's method of (artifact, bucket, *args); args go to the object store once."""

        def commit(missing: list[int]) -> Iterator[tuple[int, list[Flow]]]:
            references = [ray.put(arg) for arg in args]
            return self.over(method, {bucket: (artifact, bucket, *references) for bucket in missing})

        return seal_buckets(self._context, artifact, seal, commit)

    def over(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], what: str = "bucket"
    ) -> Iterator[tuple[int, Any]]:
        """Yield (bucket, result) of every call as they end; what: name of a call's number in log lines."""
        waiting = collections.deque(calls)
        left = len(waiting)
        died = collections.Counter[int]()
        while left:
            # no more than calls: each may start a node
            size = min(self._size, left) if waiting else 0
            while len(self._idle) + len(self._under_way) < size:
                actor: Any = _Actor.options(**self._asked).remote(*self._make)
                self._actors.add(actor)
                self._under_way[actor.started.remote()] = actor, _START
            while waiting and self._idle:
                bucket = waiting.popleft()
                actor = self._idle.pop(0)
                where = logs.context() if bucket == _NO_BUCKET else {**logs.context(), what: bucket}
                self._under_way[actor.call.remote(method, where, *calls[bucket])] = actor, bucket
            [reference], _ = ray.wait(list(self._under_way), num_returns=1)
            actor, bucket = self._under_way.pop(reference)
            try:
                result = ray.get(reference)
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
                died[_START] = 0  # over a long run many may be lost
                continue
            left -= 1
            yield bucket, result


def scorers(execution: ExecutionConfig) -> Carrier:
    """Choose how to run calls that score with a model: with GPUs in actors that keep the model."""
    return _by_scorers if execution.score.gpus else windowed


class _Scorer:
    """Run tasks in a process that keeps what they load. Raises ConfigError if a GPU's memory is full."""

    def run(self, task: Callable[..., Any], *args: Any) -> Any:
        with gpu_memory_named("execution.score.gpus", _FULL):
            return task(*args)


def _by_scorers(
    context: Context,
    calls: Iterable[tuple[int, Callable[..., Any], tuple[Any, ...]]],
    cores: float = 1.0,
    what: str = "bucket",
) -> Iterator[tuple[int, Any]]:
    with ActorPool(context, _Scorer, cores=cores, score=context.execution.scoring) as pool:
        yield from pool.over("run", {number: (task, *args) for number, task, args in calls}, what)
