"""A Ray of a run's own on this machine. It starts late where the machine is busy, so it is tried more than once.

Ray waits half a minute for its node's processes, by a constant of its own, and leaves them at work when it gives up.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, LostError, first_line, from_os_error
from anmi_ray.runtime.driver import FOLDER

_LOG = logging.getLogger(__name__)
_STARTS = 3
_END_S = 5.0  # seconds that a process may take to end before it is killed
# A laptop's cores do other things too: a thread that waits for another spins for some ten microseconds only. Libgomp's
# default lets two threads on a shared core wait for each other for milliseconds; not spinning at all costs 15 %.
# And Ray prints a warning at every multiple of the processes that it starts at once, by default as many as cores; a
# campaign's trials have a dozen that wait for one another.
# The others are what Ray lets be longer of its waiting: for its head's port, and for workers that start.
_ENVIRONMENT = {
    "GOMP_SPINCOUNT": "20000",
    "RAY_worker_maximum_startup_concurrency": "16",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "300",
}


def start(execution: ExecutionConfig) -> None:
    """Start a Ray of `execution`'s size and connect to it.

    Raises LostError where it does not start in three tries, whose processes are gone then; StoreError where its folder
    cannot be written; ConfigError where Ray refuses the size, or that folder has too long a path.
    """
    from ray.exceptions import RayError

    for name, value in {**environment.WORKERS, **_ENVIRONMENT}.items():
        os.environ.setdefault(name, value)
    os.environ.pop("RAY_ADDRESS", None)
    said = ""
    for number in range(1, _STARTS + 1):
        try:
            _init(execution)
            return
        except Exception as error:
            _end_what_is_left()
            said = first_line(error)
            if isinstance(error, ValueError) and "object store" in said:
                raise ConfigError(said, "execution.object_store_gb", "give Ray a size that it takes") from None
            if isinstance(error, OSError) and "AF_UNIX" in said:
                raise ConfigError(
                    f"the path of {FOLDER} is too long for Ray's sockets below it", "TMPDIR", "set TMPDIR=/tmp"
                ) from None
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise from_os_error(error, error.filename or FOLDER) from None
            if type(error) is not Exception and not isinstance(error, RuntimeError | OSError | RayError):
                raise  # what Ray says of a late start has no class of its own
            _LOG.info("Ray did not start", extra={"start": number, "error": said})
        except BaseException:
            _end_what_is_left()
            raise
    raise LostError(
        f"Ray did not start in {_STARTS} tries: {said}",
        "this machine",
        "run the same command again when the machine is less busy: finished buckets are kept; Ray's own words are "
        f"below {FOLDER}/session_latest/logs",
    )


def _init(execution: ExecutionConfig) -> None:
    import ray

    # of a late dashboard, which nobody looks at, it says four lines; what ends a start is raised as well
    logging.getLogger("ray._private.services").setLevel(logging.CRITICAL)
    ray.init(
        address="local",  # never join a Ray that happens to run here: it may be what is left of a killed run
        num_cpus=execution.local_cpus,
        object_store_memory=int(execution.object_store_gb * 1e9),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=FOLDER,
    )


def _end_what_is_left() -> None:
    """End what a start that failed has left: all that this process started with FOLDER among its arguments.

    ray.shutdown() knows the processes of a node that came up.
    """
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
