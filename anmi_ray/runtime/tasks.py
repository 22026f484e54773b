"""Ray for all stages: the session, and one plain task per bucket with a window and retries.

A task gets paths and settings, reads, calls a domain package, and commits its bucket itself; only row counts come
back, so nothing on the driver grows with rows. Tasks that compute take `cpus_per_core` logical CPUs each, so that a
laptop's Ray, started with more logical CPUs than cores, never runs more of them than there are cores. Ray is imported
when it is first used, so describing stages does not load it.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, LostError, StoreError
from anmi_ray.core.schema import Record
from anmi_ray.runtime import driver
from anmi_ray.store import Artifact, Flow, Store

if TYPE_CHECKING:
    import ray.data

_LOG = logging.getLogger(__name__)
TASK_RETRIES = 3  # retries of a task whose process died
_NO_PROGRESS_S = 7200  # timeout of Ray Data: a first judge may wait for its machine, image and weights
_END_S = 60.0  # seconds that Ray Data's thread may take to end
_COUNT_S = 10.0  # seconds between counts of a cluster's CPUs, which may grow


class Progress(Protocol):
    """Receives the progress of a stage."""

    def __call__(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None: ...


@dataclass(frozen=True)
class Context:
    """The context of a stage, in addition to its inputs and settings; it stays on the driver.

    later: whether another active run under the root started earlier.
    """

    store: Store
    execution: ExecutionConfig
    buckets: int
    seed: int
    progress: Progress
    notice: Callable[[str], None] = lambda _: None
    measured: Callable[[int, float, float, str | None], None] = lambda *_: None
    counted: Callable[[list[Flow]], None] = lambda _: None
    later: bool = False

    @property
    def cpus_per_core(self) -> float:
        """Logical CPUs per core (a cluster's logical CPUs are its cores)."""
        if self.execution.address is not None:
            return 1.0
        return self.execution.local_cpus / self.execution.cores

    def window(self, cores: float = 1.0) -> int:
        """Return the number of tasks of `cores` cores each to submit at once; it changes as a cluster grows."""
        if self.execution.window:
            return self.execution.window
        if self.execution.address is None:
            return max(2, self.execution.local_cpus)
        from anmi_ray.runtime import capacity

        return max(2, int(capacity.in_flight(self.execution) / max(1.0, cores)))


@contextmanager
def ray_session(execution: ExecutionConfig) -> Iterator[None]:
    """Connect to the cluster, or start a Ray of our own and shut that one down at the end.

    A process that is connected already (a test, a notebook) keeps its connection.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    # only errors of Ray's libraries reach the screen, and none of Ray Data, which raises them too
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")
    for name in ("ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with driver.native_apart():
        try:
            with driver.own_signals():
                _connect(execution)
            yield
        finally:
            with driver.own_signals():
                ray.shutdown()


def _connect(execution: ExecutionConfig) -> None:
    import ray

    if execution.address is None:
        driver.start_ray(execution)
        return
    try:
        ray.init(address=execution.address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise StoreError(
            f"no Ray cluster answers: {error}", execution.address, "check execution.address, or leave it out"
        ) from None


@contextmanager
def our_errors(stage: str) -> Iterator[None]:
    """Unwrap errors of tasks: user errors are raised as themselves, Ray's with a remedy."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, AnmiError):
            raise error.cause from None
        raise
    except RayError as error:
        raise LostError(
            f"a task was lost: {type(error).__name__}: {str(error).splitlines()[0]}",
            f"stage {stage}",
            "run the same command again: finished buckets are kept; if it recurs, the machine may be short of memory",
        ) from error


@contextmanager
def data_settings(
    context: Context, on: Mapping[str, str] | None = None, cpus: float = math.inf, **more: Any
) -> Iterator[None]:
    """Configure Ray Data for datasets made and read in the block, with `more` settings of its context.

    on: labels of the nodes that run them; None: any node.
    cpus: most CPUs to use, or to ask an autoscaler for.
    """
    from ray.data import DataContext, ExecutionResources

    data = DataContext.get_current().copy()
    data.enable_progress_bars = False
    data.execution_no_progress_timeout_s = _NO_PROGRESS_S
    data.raise_original_map_exception = True  # for `our_errors`
    data.execution_options.resource_limits = ExecutionResources.for_limits(cpu=cpus)
    if on:
        data.execution_options.label_selector = dict(on)
    for name, value in more.items():
        setattr(data, name, value)
    with DataContext.current(data):
        yield


@contextmanager
def rows_of(dataset: ray.data.Dataset) -> Iterator[Iterator[dict[str, Any]]]:
    """Iterate over the rows of a dataset; the computation ends with the block.

    An iterator of Ray Data that is left early (Ctrl-C) leaves its thread running, and a thread that then finds Ray shut
    down ends the whole process with another exit status.
    """
    from ray.data._internal.execution.streaming_executor import StreamingExecutor

    before = set(threading.enumerate())
    rows = iter(dataset.iter_rows())
    try:
        yield rows
    finally:
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, StreamingExecutor):
                thread.shutdown(force=True)
                thread.join(_END_S)


@contextmanager
def watched(say: Callable[[], None], every: float = 1.0) -> Iterator[None]:
    """Call `say` every few seconds while the block runs, and once at the end."""
    from ray.exceptions import RayError

    over = threading.Event()

    def watch() -> None:
        with suppress(RayError):  # the block raises it too
            while not over.wait(every):
                say()

    thread = threading.Thread(target=copy_context().run, args=(watch,), daemon=True, name="progress")
    thread.start()
    try:
        yield
        say()
    finally:
        over.set()
        thread.join()


def call_logged(task: Callable[..., Any], args: tuple[Any, ...], where: Mapping[str, Any]) -> Any:
    """Run a task in a worker's process; its log lines go to Ray's log file and include `where`."""
    logs.set_up()
    where = {**where, "task": task.__name__.strip("_")}
    with logs.Span(_LOG, "bucket" if "bucket" in where else "task", traces=True, **where) as span:
        found = task(*args)
        if isinstance(found, list) and all(isinstance(one, Flow) for one in found):
            span.told(rows=[asdict(flow) for flow in found])
        return found


@cache
def _remote() -> Any:
    """Return `call_logged` as a remote function."""
    import ray

    # anywhere: a trial's driver is in a placement group with room for itself alone
    return ray.remote(scheduling_strategy="DEFAULT")(call_logged)


def _stage_of(task: Callable[..., Any]) -> str:
    """Return the name of the module or folder of `anmi_ray/stages` that has the task."""
    return (task.__module__.split(".")[2:] or [task.__module__])[0]


def run_task(context: Context, task: Callable[..., Any], *args: Any, cores: float = 1.0) -> Any:
    """Run one task away from the driver and return what it returns."""
    import ray

    options = {"num_cpus": cores * context.cpus_per_core, "max_retries": TASK_RETRIES}
    with our_errors(_stage_of(task)):
        return ray.get(_remote().options(**options).remote(task, args, logs.context()))


def windowed(
    context: Context,
    calls: Iterator[tuple[int, Callable[..., Any], tuple[Any, ...]]],
    cores: float = 1.0,
    what: str = "bucket",
) -> Iterator[tuple[int, Any]]:
    """Yield (bucket, result) of every call (bucket, task, arguments) as they end, at most `execution.window` at once.

    what: name of a call's number in log lines.
    """
    import ray

    call = _remote().options(num_cpus=cores * context.cpus_per_core, max_retries=TASK_RETRIES)
    under_way: dict[Any, int] = {}
    window, counted = context.window(cores), time.monotonic()
    while True:
        if time.monotonic() - counted > _COUNT_S:
            window, counted = context.window(cores), time.monotonic()
        for bucket, task, args in itertools.islice(calls, max(0, window - len(under_way))):
            under_way[call.remote(task, args, {**logs.context(), what: bucket})] = bucket
        if not under_way:
            return
        ready, _ = ray.wait(list(under_way), num_returns=1, timeout=_COUNT_S)
        for reference in ready:
            yield under_way.pop(reference), ray.get(reference)


Carrier = Callable[..., Iterator[tuple[int, Any]]]
"""A way to run calls: `windowed`, with a task for each, or that of `actors.scorers`, with the same parameters."""


def run_buckets(
    context: Context,
    artifact: Artifact,
    seal: tuple[str, Record],
    task: Callable[..., list[Flow]],
    *args: Any,
    cores: float = 1.0,
    by: Carrier = windowed,
) -> list[Flow]:
    """Run `task(artifact, bucket, *args)` for every bucket without a seal; return the flows of all buckets.

    A task whose process died is retried three times; it commits the same bytes.

    cores: that a task keeps busy.
    by: how to run the tasks.
    """

    def commit(missing: list[int]) -> Iterator[tuple[int, list[Flow]]]:
        return by(context, ((bucket, task, (artifact, bucket, *args)) for bucket in missing), cores)

    return seal_buckets(context, artifact, seal, commit)


def seal_buckets(
    context: Context,
    artifact: Artifact,
    seal: tuple[str, Record],
    commit: Callable[[list[int]], Iterator[tuple[int, list[Flow]]]],
) -> list[Flow]:
    """Let `commit` make the buckets without a seal and yield their flows; return the flows of all buckets."""
    part, record = seal
    flows_of = dict(enumerate(artifact.seals(part, record, context.buckets)))
    missing = [bucket for bucket, flows in flows_of.items() if flows is None]
    done = context.buckets - len(missing)
    context.progress(done, context.buckets)
    with our_errors(artifact.stage):
        for bucket, flows in commit(missing):
            flows_of[bucket] = flows
            context.counted(flows)
            done += 1
            context.progress(done, context.buckets)
    return [flow for bucket in range(context.buckets) for flow in flows_of[bucket] or []]


def over_buckets(
    context: Context,
    buckets: Iterable[int] | Mapping[int, Any],
    task: Callable[..., Any],
    *args: Any,
    cores: float = 1.0,
) -> list[Any]:
    """Return the results of `task(bucket, *args)` in the order of `buckets`; for tasks that commit nothing.

    buckets: with a mapping, each task gets its bucket's value after the bucket.
    """
    parts = {bucket: (part,) for bucket, part in buckets.items()} if isinstance(buckets, Mapping) else {}
    calls = ((bucket, task, (bucket, *parts.get(bucket, ()), *args)) for bucket in buckets)
    with our_errors(_stage_of(task)):
        results = dict(windowed(context, calls, cores))
    return [results[bucket] for bucket in buckets]


def model_room(execution: ExecutionConfig) -> tuple[int, float]:
    """Return the threads of a plain task that runs a model, and the cores that it requests.

    On a laptop there may be fewer tasks than cores, so each uses all, but requests less, or it would wait forever while
    a fraction of a core is taken. On a cluster a task requests as many cores as it has threads.
    """
    if execution.address is not None:
        return execution.model_threads, float(execution.model_threads)
    threads = min(execution.model_threads, execution.cores)
    return threads, 0.75 * threads
