"""`anmi label`: let people check a run's judges, on a page of this machine or with another tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, RunRootOption
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.api.labelling import Labelling


def label(
    run: Annotated[str, typer.Argument(metavar="RUN", help="name of a judged run")],
    people: Annotated[str, typer.Option(metavar="NAMES", help="open the page for these people: ana,ben")] = "",
    pairs: Annotated[
        int | None, typer.Option(min=1, help="number of pairs to ask about (default: as before, else 200)")
    ] = None,
    overlap: Annotated[
        float | None, typer.Option(min=0, max=1, help="share that everyone answers (default: as before, else 0.2)")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0: a free one")] = 0,
    import_: Annotated[
        Path | None, typer.Option("--import", help="import answers: the filled in .csv, or Label Studio's .json")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="write the pairs: .csv with the answers so far, or Label Studio's .json")
    ] = None,
    preferences: Annotated[
        Path | None, typer.Option(help="write the answers as preferences: .csv, .tsv, .jsonl or .parquet")
    ] = None,
    root: RunRootOption = "results",
) -> None:
    """Ask people about some of a run's judged pairs; anmi audit RUN then shows how each judge agrees with them.

    Half of the pairs are random, so agreement on them estimates agreement on all pairs; on the other half judges, or a
    judge's two orders, disagree. The page is for this machine only. Each answer is stored at once, and the same command
    continues. Ctrl-C stops it.
    """
    from anmi_ray.api.labelling import Labelling
    from anmi_ray.api.runs import Run
    from anmi_ray.cli import console
    from anmi_ray.labelling import exchange
    from anmi_ray.tables import formats

    outputs = {"export": export, "preferences": preferences}
    names = [name.strip() for name in people.split(",")] if people else []
    if not names and not any((import_, export, preferences)):
        what = "expected --people, --import, --export or --preferences"
        raise ConfigError(what, COMMAND_LINE, "add --people ana,ben")
    if len(names) == 1 and names[0].lstrip("-").isdigit():
        raise ConfigError(f"expected names, got {people}", "--people", "write --people ana,ben")
    if export is not None:
        exchange.kind_of(export)
    formats.check_outputs(outputs, [] if import_ is None else [import_], ("export",))
    out = console.stdout(console.beside(outputs))
    labelling = Labelling(Run(run, root), pairs, overlap)
    for notice in labelling.notices:
        out.print(f"note           {notice}")
    if import_ is not None:
        new, known = labelling.take(import_)
        out.print(f"import         {new:,} new answers of {import_}" + (f", {known:,} already known" if known else ""))
    if names:
        _serve(labelling, names, port, out)
    if export is not None:
        out.print(f"export         {labelling.export(export):,} pairs -> {export}")
    if preferences is not None:
        out.print(f"preferences    {labelling.preferences(preferences):,} answers -> {preferences}")


def _serve(labelling: Labelling, names: list[str], port: int, out: Console) -> None:
    """Serve the page until Ctrl-C."""
    page = labelling.page(names, port)
    everyone = sum(one.everyone for one in labelling.pairs)
    out.print(f"pairs          {len(labelling.pairs):,}, everyone answers {everyone:,}")
    out.print(f"page           {page.address}")
    out.print("               for this machine only; anyone with the address may answer. Ctrl-C stops it")
    try:
        page.serve()
    except KeyboardInterrupt:
        out.print("")
    out.print(f"answers        {len(labelling.answers):,}; anmi audit {labelling.run.name} compares judges with people")


def people_blocks(figures: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what `anmi audit` prints about people: their answers, agreement with judges and among them."""
    from anmi_ray.api.labelling import EVERYONE
    from anmi_ray.cli.console import percent, table

    counts = ", ".join(f"{name} {count:,}" for name, count in figures["answers"].items())
    gone = f"; {figures['gone']:,} to pairs that the run no longer has" if figures["gone"] else ""
    yield f"people         answers: {counts}{gone}"
    heads = {"random": ("agree on random pairs %", "pairs"), "all": ("on all answered %", "all pairs")}
    rows: dict[str, dict[str, str]] = {}
    for part, (head, number) in heads.items():
        agreement = (figures[part] or {"panel": {}})["panel"].get("agreement_pairs", {})
        for name, share in agreement.items():
            persons = name.count(" (person)")
            if share["pairs"] and (persons == 2 or (persons == 0 and EVERYONE in name)):
                cells = {head: percent(share["share"], share["interval"]), number: f"{share['pairs']:,}"}
                rows.setdefault(name, {"judge": name}).update(cells)
    yield table(rows.values())
    yield "               Random pairs estimate agreement on all pairs of the run; the others were selected as disputed"
