"""`anmi judge`: preview or pilot judges before a run. `anmi audit`: how reliable each judge is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import (
    COMMAND_LINE,
    ColumnsOption,
    ConfigArg,
    JsonOption,
    MaxRejectsOption,
    OverrideArg,
    RejectsOption,
    RootOption,
    RunRootOption,
    columns_of,
    load,
)
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.config.experiment import Experiment
    from anmi_ray.judging.audit.pilot import PilotGate

PILOT_EXITS = {"go": 0, "no-go": 3, "inconclusive": 4}
_REASONS = 5  # failures per judge in the summary


def judge(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print each judge's exact prompt about two documents; send nothing")
    ] = False,
    query: Annotated[str | None, typer.Option(metavar="ID", help="query of --dry-run (default: a train query)")] = None,
    first: Annotated[str | None, typer.Option(metavar="ID", help="document of --dry-run that is shown first")] = None,
    second: Annotated[str | None, typer.Option(metavar="ID", help="document of --dry-run that is shown second")] = None,
    pilot: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="ask about N pairs; 0: as many as judge.pilot.pairs")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the pilot's figures and verdicts as JSON")] = None,
) -> None:
    """Try the judges before a run: show their prompts (--dry-run), or ask about a sample of its pairs (--pilot).

    A pilot checks each judge against the gates of judge.pilot. Exit code 0: go; 3: no-go, a judge fails a gate;
    4: inconclusive, too few pairs. The run reuses the pilot's answers. anmi run CONFIG --until judge asks about all.
    """
    from anmi_ray.cli import console

    if (pilot is None) == (not dry_run):
        remedy = "add --dry-run or --pilot N; to ask about all pairs: anmi run CONFIG --until judge"
        raise ConfigError("expected one of --dry-run and --pilot", COMMAND_LINE, remedy)
    if dry_run and out is not None:
        raise ConfigError("--out needs --pilot", COMMAND_LINE, "add --pilot 300, or leave --out out")
    if pilot is not None and (query or first or second):
        raise ConfigError("--query, --first and --second need --dry-run", COMMAND_LINE, "leave them out")
    experiment = load(config, overrides, root)
    if pilot is not None:
        raise typer.Exit(_pilot(experiment, pilot, out))
    from anmi_ray.api.prompts import preview_prompts

    for line in preview_prompts(experiment, query, first, second):
        console.stdout().print(line, markup=False, highlight=False)


def _pilot(experiment: Experiment, pairs: int, out: Path | None) -> int:
    """Run a pilot, print it, and return the exit code."""
    from anmi_ray.cli import console
    from anmi_ray.judging.audit import pilot as verdicts
    from anmi_ray.pipeline import pilot
    from anmi_ray.tables import formats

    formats.check_outputs({"out": out}, [], ("out",))
    with console.output_of(experiment.execution) as output:
        piloted = pilot.run(experiment, output.reporter, pairs or None)
    console.write_json(piloted.to_json(), out)
    decision = verdicts.decision(piloted.verdicts)
    output.log("pilot is over", run=experiment.name, decision=decision)
    output.show(f"\n{piloted.pairs:,} of {piloted.of:,} pairs, in both orders")
    output.show(console.judges_table(piloted.figures["judges"]), "")
    gates = (_gate(verdict.judge, gate) for verdict in piloted.verdicts for gate in verdict.gates)
    output.show(console.table(gates), "", *map(str, piloted.verdicts))
    return PILOT_EXITS[decision]


def _gate(judge: str, gate: PilotGate) -> dict[str, str]:
    """Return a row about a gate: what was measured, with its 95 % interval, and the bound."""
    from anmi_ray.cli.console import percent
    from anmi_ray.judging.audit.pilot import BIAS, WHOLE

    if gate.name == WHOLE:
        ends = "" if gate.interval is None else f" [{gate.interval[0]:,.2f}, {gate.interval[1]:,.2f}]"
        value, bound = "no prices" if gate.value is None else f"{gate.value:,.2f}{ends}", f"{gate.bound:,.2f}"
    else:
        sign = "+" if gate.name == BIAS else ""
        value = "" if gate.value is None else f"{percent(gate.value, gate.interval, sign)} %"
        bound = f"{'±' if sign else ''}{percent(gate.bound)} %"
    return {
        "judge": judge or "(unnamed)",
        "gate": gate.name,
        "pairs": f"{gate.pairs:,}",
        "measured": value,
        "must be": f"{'at least' if gate.least else 'at most'} {bound}",
        "": gate.outcome,
    }


def audit(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="name of a run, or answers: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -"
        ),
    ],
    as_json: JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="write every figure as JSON")] = None,
    grades: Annotated[
        Path | None, typer.Option(metavar="QRELS", help="known grades for accuracy: TREC qrels or BEIR's .tsv (FILE)")
    ] = None,
    rejects: RejectsOption = None,
    max_reject_fraction: MaxRejectsOption = 0.1,
    columns: ColumnsOption = "",
    root: RunRootOption = "results",
) -> None:
    """Measure how reliable each judge is: failures, ties, position and length bias, cycles, agreement, accuracy.

    Columns of FILE: query_id, doc_a, doc_b, preference (for doc_a, 0 to 1). Optional: judge; order (ab: doc_a was
    shown first, the default; ba: doc_b); error (reason of a failure, which needs no preference); round (integer: the
    same question again); length_a and length_b (of the texts, in any unit). If query, documents, judge, order and round
    repeat, the first row counts. A RUN has stored its audit. - is standard input or output.
    """
    from anmi_ray.cli import console
    from anmi_ray.cli.label import people_blocks
    from anmi_ray.tables import formats

    outputs = {"out": out, "rejects": rejects}
    of_file = [name for name, value in (("grades", grades), ("rejects", rejects), ("columns", columns)) if value]
    is_file = _is_file(subject)
    formats.check_outputs(outputs, [path for path in (Path(subject) if is_file else None, grades) if path], ("out",))
    if is_file:
        with console.working(f"auditing {Path(subject).name}"):
            lines, figures = _of_file(Path(subject), grades, max_reject_fraction, rejects, columns)
    elif of_file:
        raise ConfigError(f"--{of_file[0]} needs a FILE, and {subject} is a run", COMMAND_LINE, "leave it out")
    else:
        lines, figures = _of_run(subject, root)
    console.write_json(figures, out)
    if as_json:
        print(console.as_json(figures))
        return
    people = people_blocks(figures["people"]) if "people" in figures else ()
    written = console.written(outputs)
    screen = console.stdout(console.beside(outputs))
    for block in (*lines, console.judges_table(figures["judges"]), *_summary(figures), *people, *written):
        screen.print(block, highlight=False, markup=False)


def _is_file(subject: str) -> bool:
    """Return whether RUN|FILE is a file: it exists, or has the name of one."""
    from anmi_ray.tables import formats
    from anmi_ray.tables.streams import STANDARD

    path = Path(subject)
    if path.is_file() or path == STANDARD:
        return True
    try:
        formats.format_of(path)
    except ConfigError:
        return False
    return True


def _of_file(
    file: Path, grades: Path | None, max_reject_fraction: float, rejects: Path | None, columns: str
) -> tuple[list[str], Mapping[str, Any]]:
    """Return the lines above the table, and the figures of a file."""
    from anmi_ray.api import preferences
    from anmi_ray.cli import console
    from anmi_ray.tables.preferences import ANSWERS

    named = columns_of(columns, ANSWERS.columns)
    audited = preferences.audit(
        file, grades=grades, max_reject_fraction=max_reject_fraction, rejects=rejects, columns=named, say=console.note
    )
    lines = audited.answers.said()
    if grades is not None:
        graded = audited.figures["panel"]["graded"]
        counts = f"{graded['comparisons']:,} comparisons of graded documents, {graded['different']:,} unlike"
        lines.append(f"grades         {counts}")
    return lines, audited.figures


def _of_run(name: str, root: str) -> tuple[list[str], Mapping[str, Any]]:
    """Return the same for a run: the stored audit of its judges, and people's answers."""
    from anmi_ray.api.runs import Run

    run = Run(name, root)
    stage, figures = run.audit()
    if stage == "judge":
        from anmi_ray.api.labelling import audit_of_people

        people = audit_of_people(run)
        figures |= {} if people is None else {"people": people}
    of = " of the ensemble" if stage == "label" else ""
    return [f"run {name}: its stored audit{of}, over a sample of {figures['queries']:,} queries"], figures


def _summary(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines below the table: failures by reason, agreement, how intervals were computed."""
    for name, judge in figures["judges"].items():
        reasons = sorted(judge["failures"].items(), key=lambda item: -item[1])
        if reasons:
            more = f", and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
            counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:_REASONS])
            yield f"failures       {name or '(unnamed)'}: {counts}{more}"
    panel = figures["panel"]
    if len(figures["judges"]) > 1 and panel.get("alpha") is not None:
        ends = panel.get("alpha_interval")
        interval = f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
        yield f"agreement      Krippendorff's α {panel['alpha']:.3f}{interval}"
        pairs = panel.get("agreement_pairs", {}).items()
        if shares := sorted((pair["share"], name) for name, pair in pairs if pair["share"] is not None):
            (low, lowest), (high, highest) = shares[0], shares[-1]
            yield f"               same decision: {100 * low:.1f} % ({lowest}) to {100 * high:.1f} % ({highest})"
    if "intervals" in figures:
        yield f"intervals      {figures['intervals']}"
