"""Start a local Ray for one run, and restore what Ray changes in the driver's process.

Ray waits half a minute for its node's processes (a constant of Ray's), and leaves them running when it gives up. It
starts late on a busy machine, so it is tried more than once. It replaces the handlers of SIGTERM and of faults, and
writes to standard error.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, LostError, first_line, from_os_error

if TYPE_CHECKING:
    from anmi_ray.config.execution import ExecutionConfig

_LOG = logging.getLogger(__name__)
FOLDER = os.path.join(tempfile.gettempdir(), f"anmi-{os.getuid()}")  # of a local Ray
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_STARTS = 3
_END_S = 5.0  # seconds that a process may take to end before it is killed
_ENVIRONMENT = {
    # On a shared core, libgomp's default lets two threads wait for each other for milliseconds; no spinning costs 15 %.
    "GOMP_SPINCOUNT": "20000",
    # Ray warns at every multiple of this number of processes; the dozen of a campaign's trials wait for one another.
    "RAY_worker_maximum_startup_concurrency": "16",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "300",
}


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


def start_ray(execution: ExecutionConfig) -> None:
    """Start a Ray of `execution`'s size and connect to it.

    Raises LostError if it does not start in three tries; StoreError if its folder cannot be written; ConfigError if Ray
    refuses the size, or the folder's path is too long.
    """
    from ray.exceptions import RayError

    for name, value in {**environment.WORKERS, **_ENVIRONMENT}.items():
        os.environ.setdefault(name, value)
    os.environ.pop("RAY_ADDRESS", None)
    cause = ""
    for number in range(1, _STARTS + 1):
        try:
            _init(execution)
            return
        except Exception as error:
            _end_what_is_left()
            cause = first_line(error)
            if isinstance(error, ValueError) and "object store" in cause:
                raise ConfigError(cause, "execution.object_store_gb", "give Ray a size that it takes") from None
            if isinstance(error, OSError) and "AF_UNIX" in cause:
                raise ConfigError(
                    f"the path of {FOLDER} is too long for Ray's sockets below it", "TMPDIR", "set TMPDIR=/tmp"
                ) from None
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise from_os_error(error, error.filename or FOLDER) from None
            if type(error) is not Exception and not isinstance(error, RuntimeError | OSError | RayError):
                raise  # Ray raises a plain Exception if it starts late
            _LOG.info("Ray did not start", extra={"start": number, "error": cause})
        except BaseException:
            _end_what_is_left()
            raise
    raise LostError(
        f"Ray did not start in {_STARTS} tries: {cause}",
        "this machine",
        "run the same command again when the machine is less busy: finished buckets are kept; Ray's logs are "
        f"below {FOLDER}/session_latest/logs",
    )


def _init(execution: ExecutionConfig) -> None:
    import ray

    # hide Ray's messages about a late dashboard; failures are raised as well
    logging.getLogger("ray._private.services").setLevel(logging.CRITICAL)
    ray.init(
        address="local",  # never join a running Ray: it may be left from a killed run
        num_cpus=execution.local_cpus,
        object_store_memory=int(execution.object_store_gb * 1e9),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=FOLDER,
    )


def _end_what_is_left() -> None:
    """End children with FOLDER among their arguments: ray.shutdown() only ends those of a node that came up."""
    import psutil  # Ray brings it
    import ray

    ray.shutdown()
    left: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if FOLDER in " ".join(child.cmdline()):
                left += [*child.children(recursive=True), child]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(left, timeout=_END_S)
