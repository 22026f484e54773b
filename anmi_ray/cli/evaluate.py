"""`anmi evaluate`: TREC runs, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    collection: Annotated[Path, typer.Option("--collection", help="folder in BEIR layout with qrels/")],
    run_files: Annotated[list[Path], typer.Option("--run", help="TREC run file; may be given several times")],
    split: Annotated[str, typer.Option("--split", help="which qrels: qrels/<split>.tsv")] = "test",
    measures: Annotated[str, typer.Option("--measures", help="comma-separated")] = "nDCG@10,MRR@10,Recall@100",
) -> None:
    """Measure TREC runs, with intervals; several runs are compared with the first by a paired test."""
    from anmi_ray.api import reranking
    from anmi_ray.cli import console
    from anmi_ray.cli.output import working

    names = [name.strip() for name in measures.split(",") if name.strip()]
    with working("measures"):
        result = reranking.evaluate(collection, run_files, split, names)
    console.stdout().print(console.systems_table(result.comparisons, result.measures, result.baseline))
