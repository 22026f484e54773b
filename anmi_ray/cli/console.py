"""Print tables, progress, and results: as text for people, or as JSON lines only (`execution.log_format: json`).

Print untrusted names and ids only through `stdout` and `note`, which make control characters visible.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from anmi_ray.core.errors import visible
from anmi_ray.core.redaction import shown
from anmi_ray.runtime.reporter import LineReporter, Reporter
from anmi_ray.store import Flow, public_root

if TYPE_CHECKING:
    from anmi_ray.config.execution import ExecutionConfig
    from anmi_ray.evaluation.judged import ByJudges
    from anmi_ray.stages.elsewhere import Elsewhere

_PLAIN_WIDTH = 200  # characters per line if the output is not a terminal
_LOG = logging.getLogger(__name__)


class ConsoleReporter(LineReporter):
    """Show the stages of a run: a progress bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def say(self, text: str, lead: int = 0) -> None:
        """Print a line; the name of a stage is bold, and the mark of a finished one green."""
        line = Text(text)
        line.stylize("green" if text.startswith("✓") else "bold", 0, lead)
        self._console.print(line, highlight=False)

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Update the bar, or print a line if the last one is old enough."""
        if not self._console.is_terminal:
            super().progress(done, total, unit, note)
            return
        if self._bar is None:
            self._bar = bar(self._console, MofNCompleteColumn())
            self._bar.start()
            self._task = self._bar.add_task(unit, total=total)
        self._bar.update(self._task, completed=done, total=total, description=f"{unit}  {note}".rstrip())

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """Print a finished stage: its time, or that it was reused, and its rows."""
        self.close()
        super().finished(name, seconds, flows)

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@dataclass(frozen=True)
class Output:
    """Where a command prints.

    console: prints nothing if `json`
    reporter: receives the progress of stages
    json: True if results are log lines
    """

    console: Console
    reporter: Reporter
    json: bool

    def heading(self, kind: str, name: str, root: str, more: str = "") -> None:
        """Print what runs, and its root."""
        self.console.print(Text.assemble(f"{kind} ", (name, "bold"), f"{more} under {public_root(root)}"))

    def show(self, *blocks: RenderableType) -> None:
        """Print texts, as they are, and tables, each on a new line, without the bar of a stage."""
        if isinstance(self.reporter, ConsoleReporter):
            self.reporter.close()
        for block in blocks:
            self.console.print(block, highlight=False, markup=False)

    def log(self, event: str, **facts: Any) -> None:
        """Log a result as JSON; as text, `show` prints it."""
        if self.json:
            _LOG.info(event, extra=facts)


@contextmanager
def output_of(execution: ExecutionConfig) -> Iterator[Output]:
    """Return where a command with these settings prints."""
    if execution.log_format == "json":
        from anmi_ray.core import logs

        logs.set_up(sys.stdout)
        yield Output(Console(quiet=True), Reporter(), json=True)
        return
    out = stdout()
    with closing(ConsoleReporter(out)) as reporter:
        yield Output(out, reporter, json=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a bar with the elapsed time on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with bar(Console(stderr=True)) as progress:
        progress.add_task(what, total=None)
        yield


def bar(console: Console, *counts: ProgressColumn) -> Progress:
    """Return a progress bar that disappears at the end."""
    columns = (TextColumn("  {task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def as_json(figures: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return figures as JSON text."""
    return json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False)


def write_json(figures: Mapping[str, Any], path: Path | None) -> None:
    """Write figures to a file, if one is requested."""
    from anmi_ray.tables import formats

    if path is not None:
        formats.write_text(as_json(figures) + "\n", path)


def stdout(stream: TextIO | None = None) -> Console:
    """Return a console for standard output or another stream; lines are not wrapped unless it is a terminal."""
    file = stream or sys.stdout
    terminal = file.isatty()
    width = None if terminal else _PLAIN_WIDTH
    return _Console(file=file, width=width, soft_wrap=not terminal, markup=False, emoji=False)


def beside(outputs: Mapping[str, Path | None]) -> TextIO:
    """Return the stream for messages: standard error if a table goes to standard output."""
    from anmi_ray.tables.streams import STANDARD

    return sys.stderr if STANDARD in outputs.values() else sys.stdout


def written(outputs: Mapping[str, Path | None]) -> list[str]:
    """Return a line for each file that was written, by its option."""
    return [f"{option:14} -> {path}" for option, path in outputs.items() if path is not None]


def note(text: str) -> None:
    """Print a line to standard error."""
    print(shown(text), file=sys.stderr, flush=True)


class _Console(Console):
    """A console that prints text literally: no markup, and control characters as `visible` shows them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)  # before the widths of columns are computed

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table(rows: Iterable[Mapping[str, str | Text]]) -> Table:
    """Return a table of rows, by column name. Empty columns are left out; columns without letters are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    rows = list(rows)
    columns: list[list[str | Text]] = []
    for head in dict.fromkeys(head for row in rows for head in row):
        cells = [row.get(head, "") for row in rows]
        text = "".join(map(str, cells))
        if text:
            letters = any(map(str.isalpha, text))
            made.add_column(head, justify="left" if letters or not columns else "right", overflow="fold")
            columns.append([cell.replace("\n", "\\n") if isinstance(cell, str) else cell for cell in cells])
    for cells in zip(*columns, strict=True):
        made.add_row(*cells)
    return made


def percent(value: float | None, ends: Sequence[float] | None = None, sign: str = "", places: int = 1) -> str:
    """Return a share in %, with its interval."""
    if value is None:
        return ""
    interval = "" if ends is None else f" [{', '.join(f'{100 * end:{sign}.{places}f}' for end in ends)}]"
    return f"{100 * value:{sign}.{places}f}{interval}"


def share(estimate: Mapping[str, Any] | None) -> str:
    """Return an estimated share (mean, low, high) in % with its interval, with one more digit if it is small."""
    if estimate is None or estimate["mean"] is None:
        return ""
    ends = None if estimate["low"] is None else (estimate["low"], estimate["high"])
    return percent(estimate["mean"], ends, places=1 if abs(estimate["mean"]) >= 0.00995 else 2)


def systems_table(rows: Sequence[Mapping[str, Any]], measures: Sequence[str], baseline: str, depth: int = 0) -> Table:
    """Return systems by measure with intervals, and the difference from the baseline in the first measure.

    depth: number of top documents whose share of labelled or judged ones the rows have; 0: they have none
    """
    queries = max((row["queries"] for row in rows), default=0)
    made: list[dict[str, str]] = []
    for system in dict.fromkeys(row["system"] for row in rows):
        by_measure = {row["measure"]: row for row in rows if row["system"] == system}
        first = by_measure[measures[0]]
        part = f" (on {first['queries']:,} of {queries:,} queries)" if first["queries"] < queries else ""
        levels = {measure: _level(by_measure[measure]) for measure in measures}
        made.append({"system": f"{system}{part}", **levels, **_difference(first, f"{measures[0]} − {baseline}")})
        made[-1] |= {f"Judged@{depth} %": percent(first.get("judged"))} if depth else {}
    return table(made)


def _level(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _difference(row: Mapping[str, Any], head: str) -> dict[str, str]:
    """Return the cells of a system's difference from the baseline; they are empty for the baseline."""
    if row["difference"] is None:
        return {head: "", "p": ""}
    ends = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
    return {head: f"{row['difference']:+.3f} {ends}", "p": f"{row['p']:.4f}"}


def elsewhere_table(found: Sequence[Elsewhere]) -> Table:
    """Return a row for each other collection: the first stage, the model before and after training, the difference."""
    measure = found[0].trained.measure
    made: list[dict[str, str]] = []
    for one in found:
        row = asdict(one.trained)
        start = "" if one.start is None else f"{one.start:.3f}"
        before = {"queries": f"{row['queries']:,}", "hybrid": f"{one.first_stage:.3f}", "start": start}
        made.append({"collection": one.collection, **before, measure: _level(row), **_difference(row, "difference")})
    if len(found) > 1:
        starts = [one.start for one in found if one.start is not None]
        means = {
            "hybrid": f"{fmean(one.first_stage for one in found):.3f}",
            "start": f"{fmean(starts):.3f}" if len(starts) == len(found) else "",
            measure: f"{fmean(one.trained.mean for one in found):.3f}",
        }
        made.append({"collection": f"mean of {len(found)}", **means})
    return table(made)


def judged_lines(found: ByJudges, baseline: str) -> list[str | Table]:
    """Return what judges measured: a table, which judges, win rates, and their agreement with labels."""
    from anmi_ray.evaluation.measures import depth_of

    made: list[str | Table] = []
    if found.comparisons:
        rows = [asdict(row) for row in found.comparisons]
        made.append(systems_table(rows, [found.measure], baseline, depth_of(found.measure)))
    made.append(f"by judges, on {found.queries:,} of {found.asked:,} test queries: {found.said()}")
    rates = (found.win_rates or {}).items()
    wins = [f"{name} {percent(others[baseline])} %" for name, others in rates if baseline in others]
    if wins:
        made.append(f"better lists than {baseline}'s by judges, share of queries: {', '.join(wins)}")
    if (agreed := found.agreement) is not None:
        named = {"AUC": agreed.auc, "kappa": agreed.kappa, "Kendall's tau of the systems' order": agreed.tau}
        figures = ", ".join(f"{name} {value:.2f}" for name, value in named.items() if value is not None)
        made.append(f"judges and labels on {agreed.queries:,} queries: {figures}")
    return [*made, *([f"by judges: {found.fault}"] if found.fault else [])]


def judges_table(judges: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the figures of `judging.audit` by judge: shares in %, with 95 % intervals."""
    made: list[dict[str, str]] = []
    for name, judge in judges.items():
        ends = judge.get("intervals", {})
        position, length = judge["position_bias"], judge.get("length_bias", {})
        sides = [position.get("first_preferred"), position.get("second_preferred")]
        row = {
            "judge": name or "(unnamed)",
            "asked": f"{judge['n']:,}",
            "failed %": percent(judge.get("failure_rate")),
            "ties %": percent(judge.get("tie_rate")),
            "orders differ %": percent(judge.get("order_inconsistent_rate"), ends.get("order_inconsistent_rate")),
            "position bias %": percent(position.get("probability"), position.get("interval"), "+"),
            "first : second": "" if sides[0] is None else f"{sides[0]:,} : {sides[1]:,}",
            "cycles %": percent(judge.get("cycle_rate"), ends.get("cycle_rate")),
            "longer wins %": percent(length.get("longer"), length.get("interval")),
            "right, both orders %": percent(judge.get("accuracy_both_orders"), ends.get("accuracy_both_orders")),
        }
        made.append(row)
    return table(made)
