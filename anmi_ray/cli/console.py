"""What several commands print: tables, and a bar that moves on a terminal, plain lines elsewhere.

Names and ids of others are printed through `stdout` and `note` alone: as they are, control characters made visible.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from anmi_ray.core.errors import visible
from anmi_ray.core.redaction import shown
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow

if TYPE_CHECKING:
    from anmi_ray.evaluation.judged import ByJudges
    from anmi_ray.stages.elsewhere import Elsewhere

_PLAIN_WIDTH = 200  # characters of a line where nobody looks at a terminal
_QUIET_S = 15.0  # plain output says how far a stage is at most this often


class ConsoleReporter(Reporter):
    """Shows the stages of a run as they go by."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._printed_s = 0.0

    def stage(self, name: str, does: str) -> None:
        """Say what starts."""
        self._name = name
        self._console.print(Text.assemble((name, "bold"), f"  {does}"))

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Move the bar, or print a line now and then."""
        if self._console.is_terminal:
            self._draw(done, total, f"{unit}  {note}".rstrip())
        elif time.monotonic() - self._printed_s > _QUIET_S:
            self._printed_s = time.monotonic()
            line = f"  {self._name}: {done:,} of {total:,} {unit}" + (f", {note}" if note else "")
            self._console.print(line, highlight=False, markup=False)

    def notice(self, text: str) -> None:
        """A line of its own, which stays."""
        place = f"{self._name}: " if self._name else ""
        self._console.print(f"  {place}{shown(text)}", highlight=False, markup=False)

    def _draw(self, done: int, total: int, unit: str) -> None:
        if self._bar is None:
            self._bar = bar(self._console, MofNCompleteColumn())
            self._bar.start()
            self._task = self._bar.add_task(unit, total=total)
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=total, description=unit)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """One line per finished stage: time, or that it was there already, and its rows."""
        self.close()
        took = "reused" if seconds is None else f"{seconds:.1f} s"
        self._console.print(Text.assemble(("✓", "green"), f" {name:10} {took:>8}   {rows(flows)}"))
        self._name = ""  # what is said before the next stage is not of this one


def bar(console: Console, *counts: ProgressColumn) -> Progress:
    """What moves on a terminal while something is done, and then goes away."""
    columns = (TextColumn("  {task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def rows(flows: Iterable[Flow]) -> str:
    """Rows across a boundary, in words: what came in, went out, and was rejected."""
    counts: list[str] = []
    for flow in flows:
        rejected = f" = {flow.rows_out:,} + {flow.rejected:,} rejected" if flow.rejected else ""
        counts.append(f"{flow.unit} {flow.rows_in:,}{rejected}")
    return ", ".join(counts)


def table(*heads: str, right: Collection[str] = ()) -> Table:
    """An empty table; the columns in `right` hold numbers."""
    made = _Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", overflow="fold")
    return made


def filled_table(
    head: str,
    named: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
) -> Table:
    """A row for each name, its cells by `columns`; those that no row fills are left out."""
    cells = {column: [cell(figures) for figures in named.values()] for column, cell in columns.items()}
    cells = {column: texts for column, texts in cells.items() if any(texts)}
    made = table(head, *cells, right=cells)
    for name, *texts in zip(named, *cells.values(), strict=True):
        made.add_row(name or "(unnamed)", *texts)
    return made


def systems_table(rows: Sequence[Mapping[str, Any]], measures: Sequence[str], baseline: str, depth: int = 0) -> Table:
    """Systems by measure, with intervals, and the difference of the first measure to the baseline.

    depth: of the top documents whose share with a label, or a judge's answer, the rows have; 0: they have none.
    """
    numbers = [*measures, f"{measures[0]} − {baseline}", "p", *([f"Judged@{depth} %"] if depth else [])]
    made = table("system", *numbers, right=numbers)
    queries = max((row["queries"] for row in rows), default=0)
    for system in dict.fromkeys(row["system"] for row in rows):
        by_measure = {row["measure"]: row for row in rows if row["system"] == system}
        measured = [by_measure[measure] for measure in measures]
        means = [_level(row) for row in measured]
        first = by_measure[measures[0]]
        if first["queries"] < queries:
            system = f"{system} (on {first['queries']:,} of {queries:,} queries)"
        made.add_row(system, *means, *_difference(first), *([percent(first.get("judged"))] if depth else []))
    return made


def _level(row: Mapping[str, Any]) -> str:
    """A system's mean with its interval."""
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _difference(row: Mapping[str, Any]) -> tuple[str, str]:
    """Its difference to the baseline with interval, and the p-value; nothing of the baseline itself."""
    if row["difference"] is None:
        return "", ""
    ends = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
    return f"{row['difference']:+.3f} {ends}", f"{row['p']:.4f}"


def elsewhere_table(found: Sequence[Elsewhere]) -> Table:
    """Other collections a row each: the first stage, the model before training and after it, and what lies between."""
    numbers = ("queries", "hybrid", "start", found[0].trained.measure, "difference", "p")
    made = table("collection", *numbers, right=numbers)
    for one in found:
        row = asdict(one.trained)
        start = "" if one.start is None else f"{one.start:.3f}"
        before = (f"{row['queries']:,}", f"{one.first_stage:.3f}", start)
        made.add_row(one.collection, *before, _level(row), *_difference(row))
    if len(found) > 1:
        first = _mean(one.first_stage for one in found)
        start = "" if any(one.start is None for one in found) else _mean(one.start or 0.0 for one in found)
        made.add_row(f"mean of {len(found)}", "", first, start, _mean(one.trained.mean for one in found), "", "")
    return made


def _mean(values: Iterable[float]) -> str:
    return f"{fmean(values):.3f}"


def judged_lines(found: ByJudges, baseline: str) -> list[str | Table]:
    """What judges measured: their table, beside it that judges gave it, and how they agree with labels."""
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
    if found.agreement is not None:
        agreed = found.agreement
        named = {"AUC": agreed.auc, "kappa": agreed.kappa, "Kendall's tau of the systems' order": agreed.tau}
        figures = ", ".join(f"{name} {value:.2f}" for name, value in named.items() if value is not None)
        made.append(f"judges and labels on {agreed.queries:,} queries: {figures}")
    return [*made, *([f"by judges: {found.fault}"] if found.fault else [])]


def judges_table(judges: Mapping[str, Mapping[str, Any]]) -> Table:
    """A judge a row of `judging.audit`: shares in %, with 95 % intervals; columns that no judge fills are left out."""
    return filled_table("judge", judges, _AUDIT)


def percent(value: float | None, ends: Sequence[float] | None = None, sign: str = "") -> str:
    """A share in %, with its interval."""
    if value is None:
        return ""
    interval = "" if ends is None else f" [{100 * ends[0]:{sign}.1f}, {100 * ends[1]:{sign}.1f}]"
    return f"{100 * value:{sign}.1f}{interval}"


def share(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    """An estimated share (mean, low, high) in % with its interval, a place more where it is small."""
    if estimate is None or estimate["mean"] is None:
        return ""
    values = [estimate["mean"]] if estimate["low"] is None else [estimate[name] for name in ("mean", "low", "high")]
    places = 1 if abs(estimate["mean"]) >= 0.00995 else 2
    mean, *ends = (f"{100 * value:{sign}.{places}f}" for value in values)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _share_of(name: str, interval: bool = True) -> Callable[[Mapping[str, Any]], str]:
    def cell(judge: Mapping[str, Any]) -> str:
        return percent(judge.get(name), judge.get("intervals", {}).get(name) if interval else None)

    return cell


def _bias_of(group: str, name: str, sign: str = "") -> Callable[[Mapping[str, Any]], str]:
    def cell(judge: Mapping[str, Any]) -> str:
        bias = judge.get(group, {})
        return percent(bias.get(name), bias.get("interval"), sign)

    return cell


def _sides(judge: Mapping[str, Any]) -> str:
    bias = judge["position_bias"]
    if bias.get("first_preferred") is None:
        return ""
    return f"{bias['first_preferred']:,} : {bias['second_preferred']:,}"


_AUDIT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "asked": lambda judge: f"{judge['n']:,}",
    "failed %": _share_of("failure_rate", interval=False),
    "ties %": _share_of("tie_rate", interval=False),
    "orders differ %": _share_of("order_inconsistent_rate"),
    "position bias %": _bias_of("position_bias", "probability", "+"),
    "first : second": _sides,
    "cycles %": _share_of("cycle_rate"),
    "longer wins %": _bias_of("length_bias", "longer"),
    "right, both orders %": _share_of("accuracy_both_orders"),
}


def stdout(stream: TextIO | None = None) -> Console:
    """Standard output, or another stream. Plain output is not folded: other programs read it."""
    file = stream or sys.stdout
    terminal = file.isatty()
    width = None if terminal else _PLAIN_WIDTH
    return _Console(file=file, width=width, soft_wrap=not terminal, markup=False, emoji=False)


def beside(outputs: Mapping[str, Path | None]) -> TextIO:
    """Where a command says what it has done: standard output, or standard error where a table goes to the former."""
    from anmi_ray.tables.streams import STANDARD

    return sys.stderr if STANDARD in outputs.values() else sys.stdout


def note(text: str) -> None:
    """A line on standard error, beside what a command prints."""
    print(shown(text), file=sys.stderr, flush=True)


class _Console(Console):
    """A console that prints text as it is: what looks like markup, and control characters as `visible` shows them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)  # here, so that columns are as wide as what is shown

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Table(Table):
    """A table whose rows are a line each, but where a cell is too wide for its column."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        super().add_row(*(cell.replace("\n", "\\n") if isinstance(cell, str) else cell for cell in cells), **how)
