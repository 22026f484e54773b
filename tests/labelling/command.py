"""`anmi label` as a process of its own, as people leave it open."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interrupts import heeding


class LabelCommand:
    """The command over run `made` under a root; when the block begins its page is open at `address`."""

    def __init__(self, root: Path, *options: str) -> None:
        self._command = heeding([sys.executable, "-m", "anmi_ray", "label", "made", "--root", root, *options])
        self.address = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\S+", line):
                self.address = found[0]
                return self
        raise AssertionError(said)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as a lost machine does."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def end(self) -> str:
        """End it as Ctrl-C does; what it says then."""
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said
        return said
