"""Training workers: their checkpoints through Ray Train, and their status for the driver.

Checkpoints are written on Ray Train's preemption notices and on SIGTERM to a worker, too. They are listed from the
storage instead of Ray Train's list: an earlier one can then be used, and a kill may leave the list incomplete.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import ray
import ray.train
import torch.distributed as dist
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig, get_device
from ray.train.torch.config import _TorchBackend  # pyright: ignore[reportPrivateUsage]
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from safetensors import SafetensorError

from anmi_ray.core.errors import AnmiError, TrainingError, disk_is_full, flatten, from_os_error, rebuild
from anmi_ray.store import public_root
from anmi_ray.store.uri import filesystem
from anmi_ray.training.checkpoints import listen
from anmi_ray.training.loop import Row
from anmi_ray.training.tracking import Curves

_LOG = logging.getLogger(__name__)
GROUP = "placement_group"  # key of a row: id of the workers' placement group, in hexadecimal digits
KEPT = 2  # checkpoints on storage: the newest, and the one before it in case the newest is damaged
_LIST = "checkpoint_manager_snapshot.json"


class RayCheckpoints:
    """Checkpoints below `storage`, a folder or URI: every worker writes its part and reports, which is a barrier."""

    def __init__(self, storage: str, stack: ExitStack, before: Callable[[], None]) -> None:
        self._storage, self._stack, self._before = storage, stack, before
        self._filesystem, self._folder = filesystem(storage)
        self._answered: Any = None

    def names(self) -> list[str]:
        """Return the names, newest first; they begin with the step."""
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        try:
            entries = self._filesystem.get_file_info(selector)
        except OSError as error:
            raise from_os_error(error, public_root(self._storage)) from error
        folders = (info.base_name for info in entries if info.type is pafs.FileType.Directory)
        return sorted((name for name in folders if name.startswith("checkpoint_")), reverse=True)

    def open(self, name: str) -> Path:
        """Return the folder, or a copy on this node that its workers share."""
        checkpoint = ray.train.Checkpoint(f"{self._folder}/{name}", self._filesystem)
        try:
            return Path(self._stack.enter_context(checkpoint.as_directory()))
        except OSError as error:
            raise from_os_error(error, f"{public_root(self._storage)}/{name}") from error

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Upload every worker's folder into one; call `before` first, so that curves are as new as checkpoints.

        Raises TrainingError if a disk is full, and removes the incomplete checkpoint.
        """
        self._before()
        names = [f"checkpoint_{step:09d}_{time.time_ns()}"]
        dist.broadcast_object_list(names, src=0, device=get_device())
        [name] = names
        with tempfile.TemporaryDirectory(prefix="anmi-checkpoint-", ignore_cleanup_errors=True) as scratch:
            with room_named("a checkpoint", scratch, "TMPDIR"):
                write(Path(scratch))
            dist.barrier()
            try:
                ray.train.report(
                    {"step": step} | ({} if dev is None else {"dev": dev}),
                    checkpoint=ray.train.Checkpoint.from_directory(scratch),
                    checkpoint_dir_name=name,
                )
            except OSError as error:
                if not disk_is_full(error):
                    raise
                with suppress(OSError):
                    self._filesystem.delete_dir(f"{self._folder}/{name}")
                what = f"a checkpoint; the newest {KEPT} are kept while another is written"
                raise _no_room(what, public_root(self._storage), "execution.train.storage_path") from error

    def wanted(self) -> bool:
        """Return whether Ray Train has a new notice that nodes of this run will be preempted."""
        notice = ray.train.get_preemption_info()
        if notice is None or notice == self._answered:
            return False
        self._answered = notice
        return True


@contextmanager
def room_named(what: str, place: str, setting: str) -> Iterator[None]:
    """Raise TrainingError if the disk at `place` is full, for errors of torch and safetensors."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not disk_is_full(error, place):
            raise
        raise _no_room(what, place, setting) from error


def _no_room(what: str, place: str, setting: str) -> TrainingError:
    remedy = f"free space, or give another place by {setting}; running again resumes"
    return TrainingError(f"no space left for {what}", place, remedy)


def mend_list(storage: str, notice: Callable[[str], None]) -> None:
    """Remove Ray Train's list of checkpoints if it is damaged: Ray Train would not start with it."""
    files, folder = filesystem(storage)
    path = f"{folder}/{_LIST}"
    if files.get_file_info(path).type is not pafs.FileType.File:
        return
    try:
        with files.open_input_stream(path) as stream:
            names = [entry["checkpoint_dir_name"] for entry in json.loads(stream.read())["checkpoint_results"]]
    except (ValueError, KeyError, TypeError):
        wrong = "it cannot be read"
    else:
        entries = files.get_file_info([f"{folder}/{name}" for name in names])
        missing = [info.base_name for info in entries if info.type is not pafs.FileType.Directory]
        if not missing:
            return
        wrong = f"{missing[0]} is missing"
    files.delete_file(path)
    notice(f"the list of checkpoints is broken and left out: {wrong}")


class _Listening(_TorchBackend):
    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(listen)  # in the main thread of every worker; the loop runs in another


@dataclass
class ListeningTorchConfig(TorchConfig):
    """Make workers treat SIGTERM as a notice."""

    @property
    def backend_cls(self) -> type[_Listening]:
        """Return the class that sets up the workers."""
        return _Listening


@ray.remote(num_cpus=0)
class Board:
    """Written by workers, read by the driver."""

    def __init__(self) -> None:
        self._row: Row = {}
        self._measured: list[Row] = []
        self._notices: dict[str, None] = {}
        self._failure: str | None = None

    def write(self, row: Row) -> None:
        """The newest row of the log."""
        self._row = row
        if row["dev"] is not None:
            self._measured.append(row)

    def notice(self, text: str) -> None:
        """Add a notice for the user, once."""
        self._notices[text] = None

    def fail(self, failure: str) -> None:
        """Set the permanent failure (from `flatten`); the first one stays."""
        self._failure = self._failure or failure

    def read(self) -> tuple[Row, list[Row], list[str]]:
        """Return the newest row, all rows with a dev measure, and all notices."""
        return self._row, self._measured, list(self._notices)

    def failure(self) -> str | None:
        """Return the permanent failure."""
        return self._failure


def new_board() -> ActorHandle:
    """Start a board on the driver's node."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Board.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]


def tell(board: ActorHandle, error: AnmiError) -> None:
    """Put a permanent error on the board."""
    ray.get(board.fail.remote(flatten(error)))


def failed(board: ActorHandle) -> AnmiError | None:
    """The error on the board."""
    error: Any = ray.get(board.failure.remote())
    return None if error is None else rebuild(error)


class Report:
    """Send rank 0's rows to the trackers, and to the board one a second and every row with a dev measure."""

    def __init__(self, board: ActorHandle, curves: Curves) -> None:
        self._board, self._curves, self._next = board, curves, 0.0
        group = get_current_placement_group()
        self._group = None if group is None else group.id.hex()

    def __call__(self, row: Row) -> None:
        """Report a row of the log."""
        self._curves(row)
        if row["dev"] is not None:
            _LOG.info("dev measured", extra={"log": row})
        now = time.monotonic()
        if row["dev"] is not None or now >= self._next:
            self._next = now + 1.0
            self._board.write.remote({**row, GROUP: self._group})

    def notice(self, text: str) -> None:
        """Give the user a notice."""
        self._board.notice.remote(text)


@contextmanager
def shown(board: ActorHandle, on_row: Callable[[Row], None], on_notice: Callable[[str], None]) -> Iterator[None]:
    """Pass on new notices, rows with a dev measure and the newest row about once a second, in a thread."""
    done = threading.Event()

    def follow() -> None:
        last: Row = {}
        shown_notices = seen = 0
        ended = False
        while not ended:
            ended = done.wait(1.0)
            row, measured, notices = ray.get(board.read.remote())
            for text in notices[shown_notices:]:
                on_notice(text)
            shown_notices = len(notices)
            fresh = [*measured[seen:], row]
            seen = len(measured)
            for fresh_row in fresh:
                if fresh_row != last:
                    on_row(fresh_row)
                last = fresh_row

    def until_ray_ends() -> None:
        with suppress(RayActorError):
            follow()

    thread = threading.Thread(target=copy_context().run, args=(until_ray_ends,), name="training-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10.0)
