"""Checkpoints in a folder, for trainings without Ray Train."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from anmi_ray.core.errors import from_os_error


class FolderCheckpoints:
    """Checkpoints in a local folder that all workers of torch.distributed share; one appears whole or not at all."""

    def __init__(self, folder: Path, kept: int = 2) -> None:
        self.folder = folder
        self.kept = kept

    def names(self) -> list[str]:
        """The folders' names."""
        return sorted((path.name for path in self.folder.glob("step-*")), reverse=True)

    def open(self, name: str) -> Path:
        """The folder itself."""
        return self.folder / name

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Write beside, merge, then rename; the oldest beyond `kept` go."""
        merged = self.folder / f".merging-{step:09d}"
        try:
            if _rank() == 0:
                for left in self.folder.glob(".*ing-*"):  # of a save that a kill cut short
                    shutil.rmtree(left)
                merged.mkdir(parents=True)
            _wait()
            scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.folder))
            write(scratch)
            for path in [path for path in scratch.rglob("*") if path.is_file()]:
                target = merged / path.relative_to(scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
            shutil.rmtree(scratch)
            _wait()
            if _rank() == 0:
                shutil.rmtree(self.folder / f"step-{step:09d}", ignore_errors=True)
                os.replace(merged, self.folder / f"step-{step:09d}")
                for old in self.names()[self.kept :]:
                    shutil.rmtree(self.folder / old)
        except OSError as error:
            raise from_os_error(error, str(self.folder)) from error

    def wanted(self) -> bool:
        """Nobody tells a folder of what will be stopped."""
        return False


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()
