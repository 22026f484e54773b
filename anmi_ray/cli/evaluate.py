"""`anmi evaluate`: TREC runs, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE, OwnDocumentOption, wants_json
from anmi_ray.core.errors import ConfigError


def evaluate(
    context: typer.Context,
    run_files: Annotated[list[Path], typer.Option("--run", help="TREC run file, or -; may be given several times")],
    collection: Annotated[Path | None, typer.Option("--collection", help="folder in BEIR layout with qrels/")] = None,
    qrels: Annotated[
        Path | None, typer.Option("--qrels", metavar="FILE", help="grades, TREC qrels or BEIR's .tsv, or -")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="which qrels of the collection: qrels/<split>.tsv")] = "test",
    measures: Annotated[str, typer.Option("--measures", help="comma-separated")] = "nDCG@10,MRR@10,Recall@100",
    own_document: OwnDocumentOption = "same-text",
) -> None:
    """Measure TREC runs, with intervals; several systems are compared with the first by a paired test.

    Grades come from --qrels, or from qrels/<split>.tsv of the collection, against whose ids those of runs are checked.
    A system is a tag of a file, called by the tag, or FILE:TAG where several files have it. Scores decide, not the
    written ranks; equal scores go as in trec_eval: read as 32 bits, by document id, the last first.
    """
    from anmi_ray.api import measuring
    from anmi_ray.cli import console
    from anmi_ray.cli.output import as_json, working

    names = list(dict.fromkeys(name.strip() for name in measures.split(",") if name.strip()))
    if not names:
        raise ConfigError("--measures names none", COMMAND_LINE, "name some, such as nDCG@10,AP, or leave it out")
    with working("measures"):
        result = measuring.evaluate(collection, run_files, split, names, console.note, qrels, own_document)
    if wants_json(context):
        facts = {"measures": result.measures, "baseline": result.baseline, "systems": result.comparisons}
        print(as_json(facts))
        return
    console.stdout().print(console.systems_table(result.comparisons, result.measures, result.baseline))
