"""`anmi rate`: rate documents from a file of preferences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anmi_ray.cli.flags import ColumnsOption, MaxRejectsOption, RejectsOption, columns_of

if TYPE_CHECKING:
    import pyarrow as pa


_PRINTED = 50  # documents to print without --out
_SETTINGS = ("model", "prior", "ties", "judge_offsets", "dispersion", "estimate")

FileArg = Annotated[
    Path, typer.Argument(metavar="FILE", help="preferences: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -")
]
ModelOption = Annotated[Literal["thurstone", "bradley-terry"], typer.Option(help="link of the win probability")]
PriorOption = Annotated[
    str, typer.Option(help="empirical-bayes, none (maximum likelihood), or the ratings' SD in probits or logits")
]
TiesOption = Annotated[
    Literal["half", "davidson"], typer.Option(help="a preference of .5: half a win, or a tie (bradley-terry only)")
]
DispersionOption = Annotated[str, typer.Option(help="variance of an answer over a fair coin's: pooled, or a NUMBER")]
EstimateOption = Annotated[
    Literal["mean", "mode"], typer.Option(help="point of the posterior; without a prior always the mode")
]
AnchorsOption = Annotated[
    Path | None, typer.Option(help="known positives (query_id, doc_id), from which gaps are measured")
]


def rate(
    context: typer.Context,
    file: FileArg,
    out: Annotated[
        Path | None, typer.Option(help="write ratings: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -")
    ] = None,
    model: ModelOption = "thurstone",
    prior: PriorOption = "empirical-bayes",
    ties: TiesOption = "half",
    judge_offsets: Annotated[
        bool, typer.Option("--judge-offsets", help="fit each judge's bias towards the document shown first")
    ] = False,
    dispersion: DispersionOption = "pooled",
    estimate: EstimateOption = "mean",
    anchors: AnchorsOption = None,
    fits: Annotated[Path | None, typer.Option(help="write a row per query: converged, connected, ...")] = None,
    gaps: Annotated[Path | None, typer.Option(help="write gaps to anchors, or to the best, with errors")] = None,
    rejects: RejectsOption = None,
    max_reject_fraction: MaxRejectsOption = 0.1,
    all_one_query: Annotated[bool, typer.Option("--all-one-query", help="ignore query_id: one query")] = False,
    columns: ColumnsOption = "",
    threads: Annotated[int, typer.Option(min=0, help="threads, over queries; 0: all cores")] = 0,
) -> None:
    """Rate documents from pairwise preferences, with standard errors.

    Columns of FILE: query_id, doc_a, doc_b (text or integers), preference (for doc_a, 0 to 1). Optional: games (weight
    of the row, default 1), judge, and error and order as in anmi audit; without order doc_a was shown first. Repeated
    rows count each time. Unusable rows are counted. Without --out ratings are printed. - is standard input (Parquet or
    JSON lines if it starts like these, else CSV) or standard output (CSV; messages then go to standard error).
    """
    from anmi_ray.api import preferences
    from anmi_ray.cli import console
    from anmi_ray.tables import formats
    from anmi_ray.tables.preferences import GAMES

    outputs = {"out": out, "fits": fits, "gaps": gaps, "rejects": rejects}
    formats.check_outputs(outputs, [path for path in (file, anchors) if path is not None])
    settings = {name: context.params[name] for name in _SETTINGS}
    settings["prior"] = None if prior == "none" else prior
    with console.working(f"rating {file.name}"):
        rated = preferences.rate(
            file,
            anchors,
            one_query=all_one_query,
            max_reject_fraction=max_reject_fraction,
            rejects=rejects,
            threads=threads,
            columns=columns_of(columns, GAMES.columns),
            **settings,
        )
    for path, table in ((out, rated.ratings), (fits, rated.fits), (gaps, rated.gaps)):
        if path is not None:
            formats.write_table(table, path)
    screen = console.stdout(console.beside(outputs))
    for block in (str(rated), *console.written(outputs), *(_table(rated.ratings) if out is None else ())):
        screen.print(block, highlight=False, markup=False)


def _table(ratings: pa.Table) -> Iterator[object]:
    """Yield the first ratings with 95 % intervals as a table, and the number of others."""
    from anmi_ray.cli import console
    from anmi_ray.core.scale import Z95

    yield console.table(
        {
            "query": row["query_id"],
            "document": row["doc_id"],
            "rating": f"{row['rating_elo']:+.0f}",
            "95 % interval": f"[{row['rating_elo'] - Z95 * row['std_err_elo']:+.0f}, "
            f"{row['rating_elo'] + Z95 * row['std_err_elo']:+.0f}]",
        }
        for row in ratings.slice(0, _PRINTED).to_pylist()
    )
    if ratings.num_rows > _PRINTED:
        yield f"{ratings.num_rows - _PRINTED:,} more documents; --out FILE writes all"
