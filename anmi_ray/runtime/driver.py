"""Restore what Ray changes in the driver's process: handlers of SIGTERM and of faults, standard error."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

FOLDER = os.path.join(tempfile.gettempdir(), f"anmi-{os.getuid()}")  # of a local Ray
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the handlers that Ray replaces at its start and end: of SIGTERM, and of faults, which Java relies on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    library, actions = ctypes.CDLL(None), [ctypes.create_string_buffer(256) for _ in _FAULTS]  # sizeof(sigaction): 152
    for fault, action in zip(_FAULTS, actions, strict=True):
        library.sigaction(fault, None, action)
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM and callable(handler):
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
        for fault, action in zip(_FAULTS, actions, strict=True):
            library.sigaction(fault, action, None)


@contextmanager
def own_stderr() -> Iterator[None]:
    """Give Python's standard error another descriptor inside, so that `native_apart` can redirect that of C code."""
    before = sys.stderr
    if _descriptor(before) != 2:
        yield
        return
    with open(os.dup(2), "w", buffering=1, encoding=before.encoding, errors=before.errors) as apart:
        sys.stderr = apart
        try:
            yield
        finally:
            sys.stderr = before


@contextmanager
def native_apart() -> Iterator[None]:
    """Send standard error of C code (Ray's) to `driver.err` below FOLDER, if Python's has another descriptor."""
    if _descriptor(sys.stderr) in (None, 2):
        yield
        return
    try:
        os.makedirs(FOLDER, exist_ok=True)
        sink = os.open(os.path.join(FOLDER, "driver.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # reported where the folder is needed
        yield
        return
    kept = os.dup(2)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # in notebooks and tests
        return None
