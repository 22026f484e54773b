"""`anmi audit`: how far to trust each judge, from a file of answers or from what a run has stored of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from anmi_ray.cli.flags import (
    COMMAND_LINE,
    ColumnsOption,
    FiguresOption,
    MaxRejectsOption,
    RunRootOption,
    columns_of,
    wants_json,
)
from anmi_ray.core.errors import ConfigError

_REASONS = 5  # failures named in the summary


def audit(
    context: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="name of a run, or answers: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -"
        ),
    ],
    json_: FiguresOption = None,
    grades: Annotated[
        Path | None, typer.Option(metavar="QRELS", help="known grades, TREC qrels or BEIR's .tsv: accuracy (FILE only)")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(help="write the rows that were refused, with place and reason (FILE only)")
    ] = None,
    max_reject_fraction: MaxRejectsOption = 0.1,
    columns: ColumnsOption = "",
    root: RunRootOption = "results",
) -> None:
    """Say how far to trust each judge: failures, ties, position and length bias, cycles, agreement, accuracy.

    Columns of FILE: query_id, doc_a, doc_b, preference (of doc_a, 0 to 1); and, if there are, judge, order (ab: doc_a
    was shown first, ba: doc_b was; without the column doc_a was), error (why the judge failed; such a row needs no
    preference), round (a whole number: the same question asked again), length_a and length_b (of the texts, any unit).
    Of rows with the same query, documents, judge, order and round the first counts. A RUN has stored its audit.
    - is standard input or output, as of anmi rate.
    """
    from anmi_ray.cli import console
    from anmi_ray.cli.label import people_blocks
    from anmi_ray.cli.output import as_json, working, write_figures
    from anmi_ray.tables import formats

    outputs = {"json": json_, "rejects": rejects}
    for_files = {"grades": grades, "rejects": rejects, "columns": columns}
    is_file = _is_file(subject)
    formats.check_outputs(outputs, [Path(path) for path in (subject if is_file else None, grades) if path is not None])
    if is_file:
        with working(f"audits {Path(subject).name}"):
            lines, figures = _of_file(Path(subject), grades, max_reject_fraction, rejects, columns)
    elif of_files := [name for name, value in for_files.items() if value]:
        raise ConfigError(f"--{of_files[0]} is for a file, and {subject} names a run", COMMAND_LINE, "leave it out")
    else:
        lines, figures = _of_run(subject, root)
    if json_ is not None:
        write_figures(figures, json_)
    if wants_json(context):
        print(as_json(figures))
        return
    written = [f"{option:14} -> {path}" for option, path in outputs.items() if path is not None]
    out = console.stdout(console.beside(outputs))
    people = people_blocks(figures["people"]) if "people" in figures else ()
    for block in (*lines, console.judges_table(figures["judges"]), *_summary(figures), *people, *written):
        out.print(block, highlight=False, markup=False)


def _is_file(subject: str) -> bool:
    """Whether RUN|FILE names a file: there is one, or the name ends like one."""
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
    """What to say of a file's answers before the table, and the figures."""
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
    """The same of a run: the audit that its judge stage stored, over a sample of its queries, and what people say."""
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
    """What stands below the table: failures by reason, agreement, and how intervals came to be."""
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
        shares = {name: pair["share"] for name, pair in panel.get("agreement_pairs", {}).items()}
        shares = {name: share for name, share in shares.items() if share is not None}
        if shares:
            low = min(shares, key=shares.__getitem__)
            high = max(shares, key=shares.__getitem__)
            ends = f"{100 * shares[low]:.1f} % ({low}) to {100 * shares[high]:.1f} % ({high})"
            yield f"               decided alike: {ends}"
    if "intervals" in figures:
        yield f"intervals      {figures['intervals']}"
