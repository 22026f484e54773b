"""Log lines as JSON, one an event: time, level, logger, message, what the event is about, and where in a run it was.

Modules log with the standard library, `logging.getLogger(__name__).info("bucket ends", extra={"seconds": 3.2})`; entry
points alone (the command line, the first call in a worker's process) say by `set_up` where lines go. Until one does,
nothing is written. The context (run, stage, bucket, judge, …) is that of the code that runs: `bound` adds
to it, and `context` is what a task takes along to another process.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.contextvars import bound_contextvars, get_contextvars, merge_contextvars

from anmi_ray.core.redaction import scrub

OURS = "anmi_ray"  # parent of all loggers of this package
logging.getLogger(OURS).addHandler(logging.NullHandler())  # else Python writes warnings of a library's to the screen
_FIRST = ("time", "level", "logger", "message", "run", "stage", "bucket")


def context() -> dict[str, Any]:
    """The context that `bound` has added."""
    return get_contextvars()


@contextmanager
def bound(**where: Any) -> Iterator[None]:
    """Add to the context while inside; what is None is left out."""
    with bound_contextvars(**{name: value for name, value in where.items() if value is not None}):
        yield


def set_up(stream: TextIO | None = None) -> None:
    """Write this package's lines, from INFO on, to a stream or to standard error; called again it changes which."""
    logger = logging.getLogger(OURS)
    handler = next((present for present in logger.handlers if isinstance(present, _Handler)), None)
    if handler is None:
        handler = _Handler()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # the root's handlers would say it again, in words of their own
    handler.setStream(stream or sys.stderr)


class Span:
    """Something that begins and ends: a line for each, the seconds and `told` facts with the latter, or its error.

    The context has `where` while inside. traces: whether an error's line holds its traceback.
    """

    def __init__(self, logger: logging.Logger, what: str, traces: bool = False, **where: Any) -> None:
        self._logger = logger
        self._what = what
        self._traces = traces
        self._bound = bound(**where)
        self._facts = dict[str, Any]()
        self._began = 0.0

    def told(self, **facts: Any) -> None:
        """Add facts to the last line."""
        self._facts |= facts

    def __enter__(self) -> Span:
        self._bound.__enter__()
        self._began = time.monotonic()
        self._logger.info("%s begins", self._what)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        facts = {"seconds": round(time.monotonic() - self._began, 3), **self._facts}
        if error is None:
            self._logger.info("%s ends", self._what, extra=facts)
        elif isinstance(error, Exception):
            more = {"error_type": type(error).__name__, "error": str(error), **facts}
            self._logger.error("%s fails", self._what, extra=more, exc_info=error if self._traces else None)
        else:  # Ctrl-C, or an exit
            self._logger.warning("%s is interrupted", self._what, extra={"error_type": type(error).__name__, **facts})
        self._bound.__exit__(kind, error, trace)


class _Handler(logging.StreamHandler[TextIO]):
    """A line an event."""

    def __init__(self) -> None:
        super().__init__()
        shared: list[Any] = [
            merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
        ]
        last: list[Any] = [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _shown,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
        self.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))


def _shown(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The event as it may be shown: in order, without secrets, and JSON everywhere (which knows no NaN)."""
    first = {name: event.pop(name) for name in _FIRST if name in event}
    rest = {name: value for name, value in event.items() if not name.startswith("_")}  # Ray adds one to every record
    return cast(Mapping[str, Any], _clean({**first, **rest}))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {str(name): _clean(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else scrub(str(value))
