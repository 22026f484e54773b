"""SIGTERM as a notice: a machine that is taken away says so first, and a checkpoint saved at once loses nothing.

The process goes on, because only who sent the signal knows when it must end; after the checkpoint the next SIGTERM does
what it did before. Signals are a process's, so there is one `NOTICE`; a handler can be set by the main thread alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Notice:
    """Whether this process has been told that it will be stopped, and whether that was answered."""

    def __init__(self) -> None:
        self._told = self._saved = False
        self._before: Any = None

    def __bool__(self) -> bool:
        """A checkpoint is asked for."""
        return self._told and not self._saved

    def saved(self) -> None:
        """A checkpoint is written."""
        self._saved = self._told

    def listen(self) -> None:
        """Take SIGTERM over, for the rest of the process. Call it from the main thread."""
        if signal.getsignal(signal.SIGTERM) != self._on_signal:
            self._told = self._saved = False
            self._before = signal.signal(signal.SIGTERM, self._on_signal)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM over while inside. Another thread than the main one leaves it as it is."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.listen()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._saved:
            self._told = True
        elif callable(self._before):
            self._before(number, frame)
        elif self._before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


NOTICE = Notice()


def listen() -> None:
    """Let `NOTICE` take SIGTERM over."""
    NOTICE.listen()
