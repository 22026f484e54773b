"""`anmi judge`: the judges asked, tried on few pairs, or shown what they would be asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE, ConfigArg, OverrideArg, RootOption, load
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.config.experiment import Experiment
    from anmi_ray.judging.audit.pilot import PilotGate, Verdict

PILOT_EXITS = {"go": 0, "no-go": 3, "cannot tell": 4}


def judge(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the exact prompt of every judge about two documents, send nothing")
    ] = False,
    query: Annotated[str | None, typer.Option("--query", metavar="ID", help="the query; else a train query")] = None,
    first: Annotated[str | None, typer.Option("--first", metavar="ID", help="the document shown first")] = None,
    second: Annotated[str | None, typer.Option("--second", metavar="ID", help="the document shown second")] = None,
    pilot: Annotated[
        int | None,
        typer.Option("--pilot", min=0, metavar="N", help="try the judges on N pairs first; 0: judge.pilot.pairs"),
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="write the pilot's figures and verdicts")] = None,
) -> None:
    """Ask the judges: all stages up to judge; with --dry-run show what they would be asked.

    With --pilot ask about a sample of the run's pairs only, and hold every judge against the gates (judge.pilot).
    Exit code 0: go; 3: no-go, some judge fails a gate; 4: so few pairs cannot tell. What it buys the run has.
    """
    if pilot is not None:
        if dry_run:
            raise ConfigError("--pilot asks and --dry-run does not", COMMAND_LINE, "give one of them")
        raise typer.Exit(_pilot(load(config, overrides, root), pilot, json_))
    if json_ is not None:
        raise ConfigError("--json is for --pilot", COMMAND_LINE, "give both, or leave it out")
    if dry_run:
        from anmi_ray.api.prompts import preview_prompts
        from anmi_ray.cli import console

        out = console.stdout()
        for line in preview_prompts(load(config, overrides, root), query, first, second):
            out.print(line, markup=False, highlight=False)
        return
    if query or first or second:
        raise ConfigError("--query, --first and --second choose what --dry-run shows", COMMAND_LINE, "add it")
    from anmi_ray.cli.run import carry_out

    carry_out(load(config, overrides, root), "", "judge")


def _pilot(experiment: Experiment, pairs: int, json_: Path | None) -> int:
    """Carry out a pilot and print it; the exit code."""
    from anmi_ray.cli import console
    from anmi_ray.cli.output import output_of, write_figures
    from anmi_ray.judging.audit import pilot as verdicts
    from anmi_ray.pipeline import pilot
    from anmi_ray.tables import formats

    formats.check_outputs({"json": json_}, [])
    with output_of(experiment.execution) as output:
        piloted = pilot.run(experiment, output.reporter, pairs or None)
    if json_ is not None:
        write_figures(piloted.to_json(), json_)
    decision = verdicts.decision(piloted.verdicts)
    output.told("pilot is over", run=experiment.name, decision=decision)
    output.show(f"\n{piloted.pairs:,} of {piloted.of:,} pairs, in both orders")
    output.show(console.judges_table(piloted.figures["judges"]), "")
    output.show(gates_table(piloted.verdicts), "", *verdicts.said(piloted.verdicts))
    return PILOT_EXITS[decision]


def gates_table(verdicts: Iterable[Verdict]) -> Table:
    """Every judge's gates: what was measured, with its 95 % interval, against the bound."""
    from anmi_ray.cli import console

    table = console.table("judge", "gate", "pairs", "measured", "must be", "", right=("pairs", "measured", "must be"))
    for verdict in verdicts:
        name = verdict.judge or "(unnamed)"
        for gate in verdict.gates:
            value, bound = _gate(gate)
            bounds = f"{'at least' if gate.least else 'at most'} {bound}"
            more = f", about {gate.more:,} more pairs would" if gate.more is not None else ""
            table.add_row(name, gate.name, f"{gate.pairs:,}", value, bounds, f"{gate.outcome}{more}")
            name = ""
    return table


def _gate(gate: PilotGate) -> tuple[str, str]:
    """What was measured, and its bound."""
    from anmi_ray.cli.console import percent
    from anmi_ray.judging.audit.pilot import BIAS, DOLLARS

    if gate.name not in DOLLARS:
        sign = "+" if gate.name == BIAS else ""
        bound = f"{'±' if sign else ''}{percent(gate.bound)} %"
        return (f"{percent(gate.value, gate.interval, sign)} %" if gate.value is not None else ""), bound
    if gate.value is None:
        return "no prices", f"{gate.bound:,.2f}"
    ends = "" if gate.interval is None else f" [{gate.interval[0]:,.2f}, {gate.interval[1]:,.2f}]"
    return f"{gate.value:,.2f}{ends}", f"{gate.bound:,.2f}"
