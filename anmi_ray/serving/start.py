"""A service on this machine, from its first check to its last answer."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError, LostError, first_line, from_os_error
from anmi_ray.serving.settings import ServiceSettings

_APP = "anmi"
_LOOK_S = 5.0  # between two checks of the service
_POLL_S = 0.1
_REMEDY = "run the same command again; Ray Serve's logs are in logs/serve of Ray's session folder"


def serve(settings: ServiceSettings, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve a model until Ctrl-C or SIGTERM, then answer pending requests and return. `port` 0: any free port.

    `say` gets the address once requests are answered. A second Ctrl-C ends at once (KeyboardInterrupt). Raises
    ConfigError if Ray Serve is not installed, the port is taken, the key's variable is not set, or GPUs are missing;
    the errors of `rerank` without a model; LostError if Ray or the service does not start or is lost.
    """
    need_serve()
    settings.key()
    if settings.gpus:
        _check_gpus(settings)
    with _held(host, port) as taken:
        _run(settings, host, taken, say)


def need_serve() -> None:
    """Raise ConfigError if Ray Serve or its dependencies are not installed."""
    needed = ("fastapi", "prometheus_client", "uvicorn")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        what = f"Ray Serve is not installed ({', '.join(missing)} missing)"
        raise ConfigError(what, "anmi serve", environment.install("serve"))


def _check_gpus(settings: ServiceSettings) -> None:
    """Raise ConfigError if this machine lacks the requested GPUs: Ray would wait for them forever."""
    import torch

    from anmi_ray.models.reranker import resolve_device

    resolve_device("cuda", "leave --gpus out")
    room = torch.cuda.device_count() * int(1 / settings.gpus + 1e-9)
    if settings.most > room:
        what = f"of {settings.most} processes with {settings.gpus:g} of a GPU each this machine has room for {room}"
        raise ConfigError(what, "service, gpus", "lower --gpus, --replicas or --most-replicas")


@contextmanager
def _held(host: str, port: int) -> Iterator[int]:
    """Hold the port, bound but not listening, until Ray has started; Ray Serve binds it too (SO_REUSEPORT)."""
    place = f"{host}:{port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"no such address ({error.strerror})", place, "give --host one of this machine's") from None
    try:
        with socket.socket(family, kind) as alone:
            if port:
                # else a service that has just ended blocks it
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            taken = alone.getsockname()
    except PermissionError:
        raise ConfigError("permission denied for this port", place, "choose a port above 1023") from None
    except OSError as error:
        remedy = "stop the process that listens there, choose another --port, or 0 for any free one"
        raise ConfigError(f"cannot listen: {error.strerror}", place, remedy) from None
    with socket.socket(family, kind) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(taken)
        except OSError as error:
            raise from_os_error(error, place) from None
        yield int(taken[1])


def _run(settings: ServiceSettings, host: str, port: int, say: Callable[[str], None]) -> None:
    import ray.serve  # sets its logger's level
    from ray.exceptions import RayError

    from anmi_ray.api import reranking
    from anmi_ray.api.runs import Run
    from anmi_ray.config.execution import ExecutionConfig
    from anmi_ray.runtime.tasks import ray_session
    from anmi_ray.serving import searcher
    from anmi_ray.serving.app import application
    from anmi_ray.serving.scorer import model_info

    run = settings.model if reranking.names_run(settings.model) else None
    if run is not None:
        searcher.check(found := Run(run, settings.root))
        if (verdict := found.verdict()) and not verdict.startswith("Deploy"):
            say(verdict)
    # absolute paths: replicas run in other folders
    model = os.path.realpath(settings.model) if os.path.isdir(settings.model) else settings.model
    root = settings.root if "://" in settings.root else os.path.abspath(settings.root)
    settings = settings.model_copy(update={"model": model, "root": root, "threads": settings.threads_each})
    # load the model once, on the CPU: replicas would only retry
    reranking.load(reranking.model_of(model, root)[1], settings.threads)
    name = model_info(settings).name
    logging.getLogger(ray.serve.__name__).setLevel(logging.ERROR)
    with ray_session(ExecutionConfig(logical_cpus=settings.threads_each * settings.most)):
        try:
            logs = {"enable_access_log": False, "log_level": "WARNING"}
            ray.serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=logs)
            handle = ray.serve.run(application(settings, run), name=_APP, route_prefix="/", blocking=False)
            _say_notes(run, say)
        except (RayError, RuntimeError, TimeoutError) as error:
            raise LostError(f"the service did not start: {first_line(error)}", "this machine", _REMEDY) from None
        shown = f"[{host}]" if ":" in host else host
        try:
            say(f"serving {name} at http://{shown}:{port}; Ctrl-C ends it")
            if run is not None:
                say(f"search its documents at http://{shown}:{port}/")
            _watch()
        except KeyboardInterrupt:
            _drain(handle, settings.timeout_s)


def _say_notes(run: str | None, say: Callable[[str], None]) -> None:
    """Report rebuilt indexes. Raises an AnmiError if the run's documents cannot be searched."""
    from ray import serve

    if run is None:
        return
    notes = serve.get_deployment_handle("SearchReplica", _APP).notes.remote().result()
    if isinstance(notes, AnmiError):
        raise notes
    for note in notes:
        say(note)


def _watch() -> NoReturn:
    """Wait for Ctrl-C. Raises LostError if the service is gone."""
    from ray import serve
    from ray.exceptions import RayError

    while True:
        time.sleep(_LOOK_S)
        try:
            status = serve.status().applications[_APP].status
        except (RayError, KeyError, RuntimeError) as error:
            status = type(error).__name__
        if status not in ("RUNNING", "DEPLOYING", "UNHEALTHY"):
            raise LostError(f"the service was lost ({status})", "this machine", "start it again")


def _drain(handle: Any, timeout_s: float) -> None:
    """Refuse new requests, wait for pending answers, and delete the application."""
    from ray import serve
    from ray.exceptions import RayError

    end = time.monotonic() + timeout_s
    try:
        while handle.drain.remote().result(timeout_s=timeout_s) and time.monotonic() < end:
            time.sleep(_POLL_S)
        serve.delete(_APP)  # not serve.shutdown(), whose clients would print errors
    except (RayError, RuntimeError, TimeoutError):
        return  # the service is lost
