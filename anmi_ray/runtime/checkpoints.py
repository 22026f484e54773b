"""Checkpoints of a training run through Ray Train, on its preemption notices and on SIGTERM to a worker.

Checkpoints are listed from the storage instead of Ray Train's list: an earlier one can then be used, and a kill may
leave the list incomplete.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import ray.train
import torch.distributed as dist
from ray.train.torch import TorchConfig, get_device
from ray.train.torch.config import _TorchBackend  # pyright: ignore[reportPrivateUsage]
from safetensors import SafetensorError

from anmi_ray.core.errors import TrainingError, disk_is_full, from_os_error
from anmi_ray.store import public_root
from anmi_ray.store.uri import filesystem
from anmi_ray.training.checkpoints import listen

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
