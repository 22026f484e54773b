"""How a command speaks: in lines for people, or in JSON lines alone (`execution.log_format`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.config.execution import ExecutionConfig
    from anmi_ray.runtime.reporter import Reporter

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Voice:
    """Where a command prints, and who is told of its stages. In JSON nothing is printed, and `told` is a line."""

    out: Console
    reporter: Reporter
    json: bool

    def told(self, what: str, **facts: Any) -> None:
        """A result, which is printed otherwise."""
        if self.json:
            _LOG.info(what, extra=facts)

    def between(self) -> None:
        """Something is printed while stages are under way: their bar makes room."""
        close = getattr(self.reporter, "close", None)
        if close is not None:
            close()


@contextmanager
def speaking(execution: ExecutionConfig) -> Iterator[Voice]:
    """How a command with these settings speaks while inside."""
    from anmi_ray.cli import console
    from anmi_ray.core import logs
    from anmi_ray.runtime.reporter import Reporter

    if execution.log_format == "json":
        from rich.console import Console

        logs.set_up(sys.stdout)
        yield Voice(Console(quiet=True), Reporter(), json=True)
        return
    out, _ = console.consoles()
    with closing(console.ConsoleReporter(out)) as reporter:
        yield Voice(out, reporter, json=False)
