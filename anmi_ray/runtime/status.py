"""Status of training workers for the driver: an actor with the newest row, notices and the failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.core.errors import AnmiError, flatten, rebuild
from anmi_ray.training.loop import Row
from anmi_ray.training.tracking import Curves

_LOG = logging.getLogger(__name__)
GROUP = "placement_group"  # key of a row: id of the workers' placement group, in hexadecimal digits


@ray.remote(num_cpus=0)
class Board:
    """Written by workers, read by the driver."""

    def __init__(self) -> None:
        self._row: Row = {}
        self._measured: list[Row] = []
        self._notices: dict[str, None] = {}
        self._failure: str | None = None

    def write(self, row: Row) -> None:
        """The newest row of the log."""
        self._row = row
        if row["dev"] is not None:
            self._measured.append(row)

    def notice(self, text: str) -> None:
        """Add a notice for the user, once."""
        self._notices[text] = None

    def fail(self, failure: str) -> None:
        """Set the permanent failure (from `flatten`); the first one stays."""
        self._failure = self._failure or failure

    def read(self) -> tuple[Row, list[Row], list[str]]:
        """Return the newest row, all rows with a dev measure, and all notices."""
        return self._row, self._measured, list(self._notices)

    def failure(self) -> str | None:
        """Return the permanent failure."""
        return self._failure


def new_board() -> ActorHandle:
    """Start a board on the driver's node."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Board.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]


def tell(board: ActorHandle, error: AnmiError) -> None:
    """Put a permanent error on the board."""
    ray.get(board.fail.remote(flatten(error)))


def failed(board: ActorHandle) -> AnmiError | None:
    """The error on the board."""
    error: Any = ray.get(board.failure.remote())
    return None if error is None else rebuild(error)


class Report:
    """Send rank 0's rows to the trackers, and to the board one a second and every row with a dev measure."""

    def __init__(self, board: ActorHandle, curves: Curves) -> None:
        self._board, self._curves, self._next = board, curves, 0.0
        group = get_current_placement_group()
        self._group = None if group is None else group.id.hex()

    def __call__(self, row: Row) -> None:
        """Report a row of the log."""
        self._curves(row)
        if row["dev"] is not None:
            _LOG.info("dev measured", extra={"log": row})
        now = time.monotonic()
        if row["dev"] is not None or now >= self._next:
            self._next = now + 1.0
            self._board.write.remote({**row, GROUP: self._group})

    def notice(self, text: str) -> None:
        """Give the user a notice."""
        self._board.notice.remote(text)


@contextmanager
def shown(board: ActorHandle, on_row: Callable[[Row], None], on_notice: Callable[[str], None]) -> Iterator[None]:
    """Pass on new notices, rows with a dev measure and the newest row about once a second, in a thread."""
    done = threading.Event()

    def follow() -> None:
        last: Row = {}
        shown_notices = seen = 0
        ended = False
        while not ended:
            ended = done.wait(1.0)
            row, measured, notices = ray.get(board.read.remote())
            for text in notices[shown_notices:]:
                on_notice(text)
            shown_notices = len(notices)
            fresh = [*measured[seen:], row]
            seen = len(measured)
            for fresh_row in fresh:
                if fresh_row != last:
                    on_row(fresh_row)
                last = fresh_row

    def until_ray_ends() -> None:
        with suppress(RayActorError):
            follow()

    thread = threading.Thread(target=copy_context().run, args=(until_ray_ends,), name="training-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10.0)
