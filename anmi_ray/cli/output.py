"""Where a command prints: in lines for people, or in JSON lines alone (`execution.log_format`)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from anmi_ray.config.execution import ExecutionConfig
    from anmi_ray.runtime.reporter import Reporter

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Output:
    """The console, and who is told of the stages. In JSON nothing is printed, and `told` is a line."""

    console: Console
    reporter: Reporter
    json: bool

    def heading(self, kind: str, name: str, root: str, more: str = "") -> None:
        """What is carried out, and where it is kept."""
        from rich.text import Text

        from anmi_ray.store import public_root

        self.console.print(Text.assemble(f"{kind} ", (name, "bold"), f"{more} under {public_root(root)}"))

    def show(self, *blocks: RenderableType) -> None:
        """Texts, as they are, and tables, each from a new line."""
        for block in blocks:
            self.console.print(block, highlight=False, markup=False)

    def told(self, event: str, **facts: Any) -> None:
        """Log a result, which is printed otherwise."""
        if self.json:
            _LOG.info(event, extra=facts)

    def make_room(self) -> None:
        """Take the stages' bar off the screen: something is printed while they are under way."""
        close = getattr(self.reporter, "close", None)
        if close is not None:
            close()


@contextmanager
def working(what: str) -> Iterator[None]:
    """A bar with the seconds that have passed, on standard error where that is a terminal, while inside."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from anmi_ray.cli import console

    with console.bar(Console(stderr=True)) as bar:
        bar.add_task(what, total=None)
        yield


def write_figures(figures: Mapping[str, Any], path: Path) -> None:
    """Write every figure of a command as JSON (`--json`)."""
    from anmi_ray.tables import formats

    formats.write_text(as_json(figures) + "\n", path)


def as_json(figures: Mapping[str, Any]) -> str:
    """Figures as JSON."""
    return json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False)


@contextmanager
def output_of(execution: ExecutionConfig) -> Iterator[Output]:
    """Where a command with these settings prints while inside."""
    from anmi_ray.cli import console
    from anmi_ray.core import logs
    from anmi_ray.runtime.reporter import Reporter

    if execution.log_format == "json":
        from rich.console import Console

        logs.set_up(sys.stdout)
        yield Output(Console(quiet=True), Reporter(), json=True)
        return
    out = console.stdout()
    with closing(console.ConsoleReporter(out)) as reporter:
        yield Output(out, reporter, json=False)
