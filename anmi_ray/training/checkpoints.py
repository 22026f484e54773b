"""Where the state of a training run goes while it is under way: an interface, and a local folder behind it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anmi_ray.errors import from_os_error


class Checkpoints(Protocol):
    """All workers call both methods at the same steps."""

    def latest(self) -> Path | None:
        """A local folder with the newest whole checkpoint, None where training starts anew."""
        ...

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Let `write` fill a folder and keep it as the checkpoint after `step` steps."""
        ...


class FolderCheckpoints:
    """Checkpoints of one process in a local folder; one appears whole or not at all."""

    def __init__(self, folder: Path, kept: int = 2) -> None:
        self.folder, self.kept = folder, kept

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return self._whole()[-1] if self._whole() else None

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Write beside, then rename; the oldest beyond `kept` go."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.folder))
            write(scratch)
            target = self.folder / f"step-{step:09d}"
            shutil.rmtree(target, ignore_errors=True)
            os.replace(scratch, target)
            for old in self._whole()[: -self.kept]:
                shutil.rmtree(old)
        except OSError as error:
            raise from_os_error(error, str(self.folder)) from error

    def _whole(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))
