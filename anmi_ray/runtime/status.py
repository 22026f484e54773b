"""How the driver of a training run learns of its workers: an actor with the newest row, notices and the failure."""

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
GROUP = "placement_group"  # in a row that is told: the group that holds the workers' resources, in hexadecimal digits


@ray.remote(num_cpus=0)
class Board:
    """What workers write and the driver reads."""

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
        """Something for the user to read, once however often it is said."""
        self._notices[text] = None

    def fail(self, failure: str) -> None:
        """What no retry can change, as `flatten` gives it; the first one stays."""
        self._failure = self._failure or failure

    def read(self) -> tuple[Row, list[Row], list[str]]:
        """The newest row, all with a dev measure, and all notices."""
        return self._row, self._measured, list(self._notices)

    def failure(self) -> str | None:
        """What no retry can change."""
        return self._failure


def new_board() -> ActorHandle:
    """A board beside the driver: it lives as long as who reads it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Board.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]


def tell(board: ActorHandle, error: AnmiError) -> None:
    """Put an error that no retry can change on the board."""
    ray.get(board.fail.remote(flatten(error)))


def failed(board: ActorHandle) -> AnmiError | None:
    """The error on the board."""
    found: Any = ray.get(board.failure.remote())
    return None if found is None else rebuild(found)


class Report:
    """Where rank 0's rows go: all to the trackers; to the board one a second, and every row with a dev measure."""

    def __init__(self, board: ActorHandle, curves: Curves) -> None:
        self._board, self._curves, self._next = board, curves, 0.0
        held = get_current_placement_group()
        self._group = None if held is None else held.id.hex()

    def __call__(self, row: Row) -> None:
        """A row of the log."""
        self._curves(row)
        if row["dev"] is not None:
            _LOG.info("dev measured", extra={"log": row})
        now = time.monotonic()
        if row["dev"] is not None or now >= self._next:
            self._next = now + 1.0
            self._board.write.remote({**row, GROUP: self._group})

    def notice(self, text: str) -> None:
        """Something for the user to read."""
        self._board.notice.remote(text)


@contextmanager
def shown(board: ActorHandle, on_row: Callable[[Row], None], on_notice: Callable[[str], None]) -> Iterator[None]:
    """While inside, a thread hands over what is new on the board about once a second: notices, rows with a dev measure,
    and the newest row."""
    done = threading.Event()

    def follow() -> None:
        last: Row = {}
        said = seen = 0
        ended = False
        while not ended:
            ended = done.wait(1.0)
            row, measured, notices = ray.get(board.read.remote())
            for text in notices[said:]:
                on_notice(text)
            said = len(notices)
            fresh = [*measured[seen:], row]
            seen = len(measured)
            for found in fresh:
                if found != last:
                    on_row(found)
                last = found

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
