"""What the commands print: a bar that moves on a terminal, plain lines elsewhere. Numbers carry their units."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from anmi_ray.judging.audit.pilot import BIAS, DOLLARS, PilotGate, Verdict
from anmi_ray.pipeline.submission import OURS
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow

_QUIET_S = 15.0  # plain output says how far a stage is at most this often


class ConsoleReporter(Reporter):
    """Shows the stages of a run as they go by."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name, self._spoken = "", 0.0

    def stage(self, name: str, does: str) -> None:
        """Say what starts."""
        self._name = name
        self._console.print(f"[bold]{name}[/bold]  {does}", highlight=False)

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Move the bar, or print a line now and then."""
        if self._console.is_terminal:
            self._draw(done, total, f"{unit}  {note}".rstrip())
        elif time.monotonic() - self._spoken > _QUIET_S:
            self._spoken = time.monotonic()
            said = f"  {self._name}: {done:,} of {total:,} {unit}" + (f", {note}" if note else "")
            self._console.print(said, highlight=False)

    def notice(self, text: str) -> None:
        """A line of its own, which stays."""
        self._console.print(f"  {self._name}: {text}", highlight=False, markup=False)

    def _draw(self, done: int, total: int, unit: str) -> None:
        if self._bar is None:
            columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
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
        self._console.print(f"[green]✓[/green] {name:10} {took:>8}   {rows(flows)}", highlight=False)


def rows(flows: Iterable[Flow]) -> str:
    """Rows across a boundary, in words: what came in, went out, and was rejected."""
    said = []
    for flow in flows:
        if flow.rejected:
            said.append(f"{flow.unit} {flow.rows_in:,} = {flow.rows_out:,} + {flow.rejected:,} rejected")
        else:
            said.append(f"{flow.unit} {flow.rows_in:,}")
    return ", ".join(said)


def systems_table(rows_: Sequence[Mapping[str, Any]], measures: Sequence[str], baseline: str) -> Table:
    """Systems by measure, with intervals, and the difference of the first measure to the baseline."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("system")
    for measure in measures:
        table.add_column(measure, justify="right")
    table.add_column(f"{measures[0]} − {baseline}", justify="right")
    table.add_column("p", justify="right")
    queries = max((row["queries"] for row in rows_), default=0)
    for system in dict.fromkeys(row["system"] for row in rows_):
        of = {row["measure"]: row for row in rows_ if row["system"] == system}
        cells = [f"{of[m]['mean']:.3f} [{of[m]['low']:.3f}, {of[m]['high']:.3f}]" for m in measures]
        head = of[measures[0]]
        if head["queries"] < queries:
            system = f"{system} (on {head['queries']:,} of {queries:,} queries)"
        if head["difference"] is None:
            table.add_row(system, *cells, "", "")
        else:
            gap = f"{head['difference']:+.3f} [{head['difference_low']:+.3f}, {head['difference_high']:+.3f}]"
            table.add_row(system, *cells, gap, f"{head['p']:.4f}")
    return table


def judges_table(judges: Mapping[str, Mapping[str, Any]]) -> Table:
    """A judge a row of `judging.audit`: shares in %, with 95 % intervals; columns that no judge fills are left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("judge", overflow="fold")
    columns = [(head, [cell(found) for found in judges.values()]) for head, cell in _AUDIT.items()]
    columns = [(head, cells) for head, cells in columns if any(cells)]
    for head, _ in columns:
        table.add_column(head, justify="right")
    for name, *cells in zip(judges, *(cells for _, cells in columns), strict=True):
        table.add_row(escape(name) or "(unnamed)", *map(escape, cells))
    return table


def _percent(value: float | None, ends: Sequence[float] | None = None, sign: str = "") -> str:
    if value is None:
        return ""
    interval = "" if ends is None else f" [{100 * ends[0]:{sign}.1f}, {100 * ends[1]:{sign}.1f}]"
    return f"{100 * value:{sign}.1f}{interval}"


def _share_of(name: str, interval: bool = True) -> Callable[[Mapping[str, Any]], str]:
    def cell(found: Mapping[str, Any]) -> str:
        return _percent(found.get(name), found.get("intervals", {}).get(name) if interval else None)

    return cell


def _sides(found: Mapping[str, Any]) -> str:
    bias = found["position_bias"]
    return (
        f"{bias['first_preferred']:,} : {bias['second_preferred']:,}" if bias.get("first_preferred") is not None else ""
    )


_AUDIT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "asked": lambda found: f"{found['n']:,}",
    "failed %": _share_of("failure_rate", interval=False),
    "ties %": _share_of("tie_rate", interval=False),
    "orders differ %": _share_of("order_inconsistent_rate"),
    "position bias %": lambda found: _percent(
        found["position_bias"].get("probability"), found["position_bias"].get("interval"), "+"
    ),
    "first : second": _sides,
    "cycles %": _share_of("cycle_rate"),
    "longer wins %": lambda found: _percent(
        found.get("length_bias", {}).get("longer"), found.get("length_bias", {}).get("interval")
    ),
    "right, both orders %": _share_of("accuracy_both_orders"),
}


def pilot_table(verdicts: Iterable[Verdict]) -> Table:
    """Every judge's gates: what was measured, with its 95 % interval, against the bound."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, right in (("judge", 0), ("gate", 0), ("pairs", 1), ("measured", 1), ("must be", 1), ("", 0)):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for verdict in verdicts:
        name = escape(verdict.judge) or "(unnamed)"
        for gate in verdict.gates:
            value, bound = _gate(gate)
            bounds = f"{'at least' if gate.least else 'at most'} {bound}"
            more = f", about {gate.more:,} more pairs would" if gate.more is not None else ""
            table.add_row(name, gate.name, f"{gate.pairs:,}", escape(value), bounds, f"{gate.outcome}{more}")
            name = ""
    return table


def _gate(gate: PilotGate) -> tuple[str, str]:
    """What was measured, and its bound."""
    if gate.name not in DOLLARS:
        sign = "+" if gate.name == BIAS else ""
        bound = f"{'±' if sign else ''}{_percent(gate.bound)} %"
        return (f"{_percent(gate.value, gate.interval, sign)} %" if gate.value is not None else ""), bound
    if gate.value is None:
        return "no prices", f"{gate.bound:,.2f}"
    ends = "" if gate.interval is None else f" [{gate.interval[0]:,.2f}, {gate.interval[1]:,.2f}]"
    return f"{gate.value:,.2f}{ends}", f"{gate.bound:,.2f}"


def mined(
    run: str, composition: str, summary: Mapping[str, Any], flows: Iterable[Mapping[str, Any]]
) -> Iterator[str | Table]:
    """What there is to say of the examples of a run: its categories, counts, gaps and false negatives."""
    yield f"run {run}: {composition}\n"
    yield _categories(summary["categories"])
    each, gap = summary["negatives_per_example"], summary["mean_gap_elo"]
    yield "\n" + rows(Flow(**flow) for flow in flows)
    negatives = f", {each:.1f} negatives each" if each is not None else ""
    yield f"{summary['examples']:,} examples of {summary['queries']:,} queries{negatives}"
    if gap is None:
        yield "no rated negative has weight"
        return
    rate, every = summary["false_negative_rate"], summary["false_negative_rate_unweighted"]
    yield f"gaps: mean {gap:.0f} Elo, known to ± {summary['mean_gap_se_elo']:.0f} Elo"
    yield (
        f"false negatives (true gap below {summary['false_negative_gap_elo']:g} Elo), estimated, in %: "
        f"{_share(rate)} of the weight, {_share(every)} of the documents"
    )
    if "mixture" in summary:
        yield f"mixture: {summary['mixture']}"
    for rule, counts in summary.get("verdicts", {}).items():
        yield f"{rule}: " + ", ".join(f"{name.replace('_', '-')} {count:,}" for name, count in counts.items())


def _categories(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row per category: documents of the pool, negatives taken, their mean weight, extras."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("category", "rated", "negatives", "mean weight", "for the regression only"):
        table.add_column(column, justify="left" if column == "category" else "right")
    for name, row in found.items():
        weight = "" if row["mean_weight"] is None else f"{row['mean_weight']:.2f}"
        pool = "" if name == "random" else f"{row['pool']:,}"
        table.add_row(name, pool, f"{row['negatives']:,}", weight, f"{row['extra']:,}")
    return table


_HELD_OUT = {
    "accuracy_consensus": "right where all agree %",
    "brier": "Brier",
    "ece": "calibration error",
}
_OF_SAMPLE = {
    "pairs": "pairs",
    "queries": "queries",
    "judgments": "judgments of the ensemble",
    "test_pairs": "held-out pairs",
    "temperature": "temperature",
}


def distilled(summary: Mapping[str, Any]) -> Iterator[str | Table]:
    """What there is to say of a distilled judge by its summary.json: on held-out pairs, beside what needs no training.

    Figures that are not there are left out, and those without a name here keep their own.
    """
    rows_ = {"distilled judge": summary, **summary.get("baselines", {})}
    extra = (key for row in list(rows_.values())[1:] for key in row if key not in _HELD_OUT)
    names = {**_HELD_OUT, **{key: key.replace("_", " ") for key in extra}}
    names = {key: head for key, head in names.items() if any(_figure(row.get(key)) for row in rows_.values())}
    if names:
        yield ""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("on held-out pairs")
        for head in names.values():
            table.add_column(head, justify="right")
        for name, row in rows_.items():
            table.add_row(Text(name), *(_figure(row.get(key), 100 if "%" in names[key] else 1) for key in names))
        yield table
    said = {name: summary[key] for key, name in _OF_SAMPLE.items() if _figure(summary.get(key))}
    if said:
        yield ", ".join(f"{name} {_figure(value)}" for name, value in said.items())
    if _figure(summary.get("saved")):
        yield f"saved: {_figure(summary['saved'], 100)} % of the ensemble's judgments"


def _figure(found: Any, times: int = 1) -> str:
    """A number, with its interval where it is an estimate; nothing for anything else."""
    if isinstance(found, Mapping):
        value, ends = found.get("mean"), [found.get("low"), found.get("high")]
    elif isinstance(found, Sequence) and not isinstance(found, str) and len(found) == 3:
        value, *ends = found
    else:
        value, ends = found, []
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int) and times == 1:
        return f"{value:,}"
    places = 1 if times == 100 else 3
    numbers = [f"{times * one:.{places}f}" for one in ends if isinstance(one, int | float)]
    return f"{times * value:.{places}f}" + (f" [{', '.join(numbers)}]" if len(numbers) == 2 else "")


def compared(figures: Mapping[str, Any], page: str) -> Iterator[str | Table]:
    """The rules of `compare-rules`, which were left out and why, and where the page stands."""
    yield ""
    yield rules_table(figures)
    yield from (f"left out: {name}: {reason}" for name, reason in figures["left_out"].items())
    yield f"page: {page}"


def rules_table(figures: Mapping[str, Any]) -> Table:
    """A rule a row of `compare-rules`: shares of false negatives in % of the weight, with 95 % intervals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rule")
    columns = [(head, [cell(rule) for rule in figures["rules"]]) for head, cell in _RULES.items()]
    columns = [(head, cells) for head, cells in columns if any(cells)]
    for head, _ in columns:
        table.add_column(head.format(baseline=figures["baseline"]), justify="right")
    for rule, *cells in zip(figures["rules"], *(cells for _, cells in columns), strict=True):
        table.add_row(rule["rule"], *map(escape, cells))
    return table


def _share(found: Mapping[str, Any] | None, sign: str = "") -> str:
    """A share in % with its interval, a place more where it is small."""
    if found is None or found["mean"] is None:
        return ""
    values = [found["mean"]] if found["low"] is None else [found["mean"], found["low"], found["high"]]
    places = 1 if abs(found["mean"]) >= 0.00995 else 2
    mean, *ends = (f"{100 * value:{sign}.{places}f}" for value in values)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _mean(found: Mapping[str, Any], places: int) -> str:
    if found["mean"] is None:
        return ""
    ends = "" if found["low"] is None else f" [{found['low']:.{places}f}, {found['high']:.{places}f}]"
    return f"{found['mean']:.{places}f}{ends}"


def _against(rule: Mapping[str, Any]) -> str:
    row = rule["against"]
    if row is None:
        return ""
    ends = (("mean", "difference"), ("low", "difference_low"), ("high", "difference_high"))
    p = "< .001" if row["p_holm"] < 0.001 else f"= {row['p_holm']:.3f}"
    return f"{_share({name: row[key] for name, key in ends}, '+')}, p {p}"


_RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "examples": lambda rule: f"{rule['examples']:,}",
    "rejected": lambda rule: f"{rule['rejected']:,}",
    "negatives": lambda rule: "" if rule["negatives_per_example"] is None else f"{rule['negatives_per_example']:.1f}",
    "mean weight": lambda rule: _mean(rule["weight"], 2),
    "mean gap": lambda rule: _mean(rule["gap"], 0),
    "estimated false %": lambda rule: _share(rule["estimated"]),
    "truly false %": lambda rule: _share(rule["true"]),
    "per query, less {baseline}": _against,
    "hidden positives %": lambda rule: _share(rule["hidden"]),
}


def stages_table(lines: Iterable[tuple[str, str, str]]) -> Table:
    """Stage, state and why, for `anmi config` and `anmi plan`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "state", "why"):
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def jobs_table(jobs: Iterable[Any]) -> Table:
    """A job of a cluster a row, as Ray's JobDetails tell of it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "status", "job", "run", "attempt", "started", "took"):
        table.add_column(column, overflow="fold", justify="right" if column in ("attempt", "took") else "left")
    for job in jobs:
        known, begun = job.metadata, (job.start_time or 0) / 1000
        ended = job.end_time / 1000 if job.end_time else time.time()
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun))
        took = f"{max(ended - begun, 0.0):,.0f} s"
        cells = (
            job.submission_id,
            job.status.lower(),
            known[OURS],
            known["run"],
            known["attempt"],
            started,
            took,
        )
        table.add_row(*map(escape, cells))
    return table


def consoles() -> tuple[Console, Console]:
    """Standard output and standard error. Plain output is not folded: other programs read it."""
    width = None if sys.stdout.isatty() else 200
    return Console(width=width, soft_wrap=not sys.stdout.isatty()), Console(stderr=True, soft_wrap=True)
