"""`anmi rerank`: a TREC run through a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rerank(
    model: Annotated[Path, typer.Option("--model", help="folder of a trained model")],
    collection: Annotated[Path, typer.Option("--collection", help="folder in BEIR layout (corpus, queries)")],
    run_file: Annotated[Path, typer.Option("--run", help="TREC run file to rerank")],
    out_file: Annotated[Path, typer.Option("--out", help="TREC run file to write")],
    depth: Annotated[int, typer.Option("--depth", min=1, help="documents per query to score, from the top")] = 100,
    threads: Annotated[int, typer.Option("--threads", min=0, help="threads; 0: all cores")] = 0,
) -> None:
    """Rerank a TREC run with a trained model."""
    from anmi_ray.api import reranking
    from anmi_ray.cli import console

    queries = reranking.rerank_run(model, collection, run_file, out_file, depth, threads)
    counts = f"{queries.rows_in:,} queries, {queries.rows_out:,} reranked, {queries.rejected:,} rejected"
    console.stdout().print(f"{counts} -> {out_file}")
