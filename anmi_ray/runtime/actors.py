"""A pool of actors, each of which keeps what is dear to make: buckets go to whoever is free.

An actor that dies is replaced, and its bucket, which commits itself, goes to the next one that is free. Only actors
that have started get work, so a pool may be larger than what there is room for, and no bucket waits for one that still
compiles.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from anmi_ray.core import logs
from anmi_ray.core.schema import Record
from anmi_ray.runtime.tasks import Context, call_logged, seal_buckets
from anmi_ray.store import Artifact, Flow

Task = Callable[[Artifact, int], list[Flow]]


@ray.remote(scheduling_strategy="DEFAULT")  # anywhere, as tasks
class _Worker:
    def __init__(self, start: Callable[..., Task], args: tuple[Any, ...]) -> None:
        self._task = start(*args)

    def started(self) -> None:
        """Answered when `start` is over."""

    def carry_out(self, artifact: Artifact, bucket: int, where: dict[str, Any]) -> list[Flow]:
        return call_logged(self._task, (artifact, bucket), where)


def run_buckets(
    context: Context,
    artifact: Artifact,
    seal: tuple[str, Record],
    start: Callable[..., Task],
    *args: Any,
    actors: int = 0,
) -> list[Flow]:
    """`tasks.run_buckets` by a pool: each actor makes its task, `start(*args)`, once, and carries out buckets with it.

    `args` go into the object store once. actors: how many; 0: as many as there are cores, and in a cluster, which may
    grow, not fewer than the window of tasks. A bucket, or an actor's start, whose process died is tried again
    `execution.task_retries` times.
    """
    cores = int(ray.cluster_resources().get("CPU", 0.0) / context.cpus_per_core)
    size = actors or max(cores, 1 if context.execution.address is None else context.window)

    def carry_out(missing: list[int]) -> Iterator[tuple[int, list[Flow]]]:
        held = ray.put(args)
        worker = _Worker.options(num_cpus=context.cpus_per_core)
        return _over(artifact, missing, size, lambda: worker.remote(start, held), context.execution.task_retries)

    return seal_buckets(context, artifact, seal, carry_out)


def _over(
    artifact: Artifact, buckets: Sequence[int], size: int, start_worker: Callable[[], Any], retries: int
) -> Iterator[tuple[int, list[Flow]]]:
    """Every bucket with what its task returned, as they end."""
    waiting = collections.deque(buckets)
    left = len(waiting)
    died = collections.Counter[int | None]()
    # By reference, who works and at what: a bucket, or None for the start. No other variable holds a worker for long,
    # so it ends, and gives its core back, when there is nothing more for it.
    under_way: dict[Any, tuple[Any, int | None]] = {}
    missing_workers = min(size, left)
    while left:
        for _ in range(missing_workers):
            worker = start_worker()
            under_way[worker.started.remote()] = worker, None
        missing_workers = 0
        [reference], _ = ray.wait(list(under_way), num_returns=1)
        worker, bucket = under_way.pop(reference)
        try:
            flows = ray.get(reference)
        except RayActorError:
            died[bucket] += 1
            if died[bucket] > retries:
                raise
            if bucket is not None:
                waiting.appendleft(bucket)
            missing_workers = 1
            continue
        if bucket is not None:
            left -= 1
            yield bucket, flows
        if waiting:
            bucket = waiting.popleft()
            where = {**logs.context(), "bucket": bucket}
            under_way[worker.carry_out.remote(artifact, bucket, where)] = worker, bucket
        del worker
