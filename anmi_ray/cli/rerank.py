"""`anmi rerank`: a TREC run through a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from anmi_ray.cli.flags import OwnDocumentOption, PrecisionOption, RunRootOption
from anmi_ray.core.errors import ConfigError

_DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--device", help="where the model is computed; auto: on a GPU where there is one"),
]
_FuseOption = Annotated[
    list[str] | None,
    typer.Option("--fuse", metavar="NAME=FILE", help="TREC run of a system that the model's fusion names"),
]


def rerank(
    model: Annotated[
        str, typer.Option("--model", help="folder of a trained model, a run, or a reranker or embedder: org/model")
    ],
    collection: Annotated[Path, typer.Option("--collection", help="folder in BEIR layout (corpus, queries)")],
    run_file: Annotated[Path, typer.Option("--run", help="TREC run file to rerank, or -")],
    out_file: Annotated[Path, typer.Option("--out", help="TREC run file to write, or -")],
    depth: Annotated[int, typer.Option("--depth", min=1, help="documents per query to score, from the top")] = 100,
    fuse: _FuseOption = None,
    min_relevance: Annotated[
        float | None,
        typer.Option(
            "--min-relevance", min=0, max=1, metavar="P", help="leave out documents whose P(relevant) is below P"
        ),
    ] = None,
    table_file: Annotated[
        Path | None,
        typer.Option(
            "--table", help="also write the ranking, with P(relevant) (relevance) if known: Parquet, CSV, JSONL, or -"
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=0, help="threads; 0: all cores")] = 0,
    device: _DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    own_document: OwnDocumentOption = "same-text",
    root: RunRootOption = "results",
) -> None:
    """Rerank a TREC run with a trained model, its scores fused with the first stage's where --fuse gives them.

    The scores of the run decide what its top is, not the written ranks; of equal scores the lower rank stands first.
    P(relevant) is what the model's own score is worth by the folder's relevance.json, or by the run.
    """
    from anmi_ray.api import reranking
    from anmi_ray.cli import console
    from anmi_ray.cli.output import working
    from anmi_ray.tables import formats

    partners = _named(fuse or ())
    outputs = {"out": out_file, "table": table_file}
    formats.check_outputs(outputs, [run_file, *partners.values()], any_name=("out",))
    with working(f"reranks {run_file.name}"):
        queries = reranking.rerank_run(
            model,
            collection,
            run_file,
            out_file,
            depth,
            threads,
            partners,
            console.note,
            min_relevance=min_relevance,
            table_file=table_file,
            device=device,
            precision=precision,
            root=root,
            own_document=own_document,
        )
    counts = f"{queries.rows_in:,} queries, {queries.rows_out:,} reranked, {queries.rejected:,} rejected"
    print(f"{counts} -> {out_file}", file=console.beside(outputs))


def _named(options: Sequence[str]) -> dict[str, Path]:
    """The files of --fuse by name. Raises ConfigError."""
    found: dict[str, Path] = {}
    for text in options:
        name, _, path = text.partition("=")
        if not name or not path or name in found:
            raise ConfigError(
                f"{text!r} is not NAME=FILE, or its name stands twice", "--fuse", "such as bm25=bm25.trec"
            )
        found[name] = Path(path)
    return found
