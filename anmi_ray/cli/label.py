"""`anmi label`: people check a run's judges, on a page of this machine or with a tool of their own."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, FiguresOption, RunRootOption
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.api.labelling import Labelling


def label(
    run: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that is judged")],
    people: Annotated[
        str | None, typer.Option(metavar="N|NAMES", help="open the page for so many people, or for ana,ben")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="how many pairs to ask about: 200, or as many as chosen before")
    ] = None,
    overlap: Annotated[
        float | None, typer.Option(help="share of the pairs that everyone answers: 0.2, or as chosen before")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0 takes a free one")] = 0,
    import_: Annotated[
        Path | None, typer.Option("--import", help="take answers: the .csv filled in, or Label Studio's .json")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="write the pairs: .csv with the answers so far, or Label Studio's .json")
    ] = None,
    preferences: Annotated[
        Path | None, typer.Option(help="write the answers as preferences: .csv, .tsv, .jsonl or .parquet")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="say how judges agree with people")] = False,
    least: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="name judges whose agreement is surely below this share")
    ] = 0.6,
    json_: FiguresOption = None,
    root: RunRootOption = "results",
) -> None:
    """Ask people about a share of a run's judged pairs, and say how each judge agrees with them.

    Half of the pairs are a random share, which tells the agreement over all pairs; the others are those about which
    judges, or their two orders, contradict each other, or that decide whether a document is a negative. The page is for
    this machine alone. Every answer is kept at once; the same command goes on. Ctrl-C ends it with the summary.
    """
    from anmi_ray.api.labelling import Labelling
    from anmi_ray.api.runs import Run
    from anmi_ray.cli import console

    if people is None and not summary and not any((import_, export, preferences, json_)):
        raise ConfigError("says neither who answers nor what to do with answers", COMMAND_LINE, "add --people 2")
    outputs = {"export": export, "preferences": preferences, "json": json_}
    _check_outputs(outputs, import_)
    out = console.stdout(console.beside(outputs))

    def say(*lines: Any) -> None:
        for line in lines:
            out.print(line, highlight=False, markup=False)

    labelling = Labelling(Run(run, root), pairs, overlap)
    taken = None if import_ is None else labelling.take(import_)
    say(*(f"note           {notice}" for notice in labelling.notices))
    if taken is not None:
        new, known = taken
        say(f"import         {new:,} new answers of {import_}" + (f", {known:,} known already" if known else ""))
    if people is not None:
        _serve(labelling, people, port, say)
    _write(labelling, outputs, least, say, people is not None or summary)


def _check_outputs(outputs: Mapping[str, Path | None], read: Path | None) -> None:
    """ConfigError for a file that cannot be written, before people have answered."""
    from anmi_ray.labelling import exchange
    from anmi_ray.tables import formats

    if (export := outputs["export"]) is not None:
        exchange.kind_of(export)
    formats.check_outputs(outputs, [] if read is None else [read], ("json", "export"))


def _write(labelling: Labelling, outputs: Mapping[str, Path | None], least: float, say: Any, summary: bool) -> None:
    """Write what is asked for, and say the summary where that is."""
    from anmi_ray.cli.output import write_figures

    if (export := outputs["export"]) is not None:
        say(f"export         {labelling.export(export):,} pairs -> {export}")
    if (preferences := outputs["preferences"]) is not None:
        say(f"preferences    {labelling.preferences(preferences):,} answers -> {preferences}")
    if (figures_to := outputs["json"]) is None and not summary:
        return
    figures = labelling.summary(least)
    if figures_to is not None:
        write_figures(figures, figures_to)
    say(*told(figures))


def _serve(labelling: Labelling, people: str, port: int, say: Any) -> None:
    """Serve the page until Ctrl-C."""
    names = [] if re.fullmatch("-?[0-9]{1,9}", people) else [name.strip() for name in people.split(",")]
    server = labelling.server(len(names) if names else int(people), names, port)
    everyone = sum(one.everyone for one in labelling.pairs)
    say(
        f"pairs          {len(labelling.pairs):,}, of which everyone answers {everyone:,}",
        f"page           {server.address}",
        "               for this machine alone; whoever has the address may answer. Ctrl-C ends it",
    )
    try:
        with server.serving():
            threading.Event().wait()
    except KeyboardInterrupt:
        say("")


def told(figures: Mapping[str, Any]) -> Iterator[Any]:
    """The summary: who answered, how judges agree with them, and they with each other."""
    from anmi_ray.labelling.agreement import named_below

    yield f"answered       {figures['answered']:,} of {figures['chosen']:,} pairs, {figures['answers']:,} answers"
    if figures["gone"]:
        yield f"               {figures['gone']:,} answers are about pairs that the run has no more; they count nowhere"
    for name, person in figures["by_person"].items():
        unsure = f", {person['unsure']:,} unsure" if person["unsure"] else ""
        twice = f", contradicts themselves about {person['contradictions']:,} pairs" if person["contradictions"] else ""
        yield f"               {name}: {person['answers']:,} answers{unsure}{twice}"
    if figures["judges"]:
        yield from _of_judges(figures)
    if figures["people"]["together"] is not None:
        yield from _of_people(figures["people"])
    for name in named_below(figures):
        high = f"{100 * figures['judges'][name]['random']['high']:.1f} %"
        least = f"{100 * figures['least']:.0f} %"
        yield f"below          {name} agrees with people on at most {high} of all pairs, less than {least}"


def _of_judges(figures: Mapping[str, Any]) -> Iterator[Any]:
    from anmi_ray.cli.console import filled_table
    from anmi_ray.labelling.agreement import KINDS, TERCILES

    columns = {
        "agrees, random share %": lambda judge: _share(judge["random"]),
        "pairs": lambda judge: f"{judge['random']['n']:,}",
        "all answered %": lambda judge: _share(judge["all"]),
        "kappa": lambda judge: _kappa(judge["kappa"]),
        "ties": lambda judge: f"{judge['ties']:,}" if judge["ties"] else "",
    }
    gaps = figures["gaps"]
    for name in TERCILES if gaps is not None else ():
        columns[f"{name} gap %"] = lambda judge, name=name: _share(judge["by_gap"][name])
    yield filled_table("judge", figures["judges"], columns)
    yield "               The random share tells the agreement over all pairs without bias; the others were chosen for"
    yield "               being disputed or deciding. Unsure and ties take no side. Intervals: 95 %, over queries"
    if gaps is not None:
        apart = f"less than {gaps[0]:.0f} points apart, less than {gaps[1]:.0f}, or more"
        yield f"               gap: the two documents' ratings are {apart}"
    asked = [name for name in KINDS if any(judge["by_kind"][name]["n"] for judge in figures["judges"].values())]
    if len(asked) > 1:
        kinds = {f"{name} %": lambda judge, name=name: _share(judge["by_kind"][name]) for name in asked}
        yield filled_table("by kind of query", figures["judges"], kinds)


def _of_people(figures: Mapping[str, Any]) -> Iterator[Any]:
    from anmi_ray.cli.console import filled_table

    each = figures["each"] if len(figures["each"]) > 1 else {}
    columns = {
        "agree %": lambda two: _share(two["share"]),
        "pairs": lambda two: f"{two['share']['n']:,}",
        "kappa": lambda two: _kappa(two["kappa"]),
    }
    yield filled_table("people", {**each, "each two, together": figures["together"]}, columns)


def _share(estimate: Mapping[str, Any]) -> str:
    from anmi_ray.cli.console import percent

    ends = None if estimate["low"] is None else (estimate["low"], estimate["high"])
    return percent(estimate["mean"], ends)


def _kappa(estimate: Mapping[str, Any]) -> str:
    if estimate["mean"] is None:
        return ""
    ends = "" if estimate["low"] is None else f" [{estimate['low']:.2f}, {estimate['high']:.2f}]"
    return f"{estimate['mean']:.2f}{ends}"
