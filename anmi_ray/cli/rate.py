"""`anmi rate`: a file of preferences in, files of ratings, fits, gaps and rejects and a summary out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anmi_ray.cli.flags import COMMAND_LINE, ColumnsOption, MaxRejectsOption, RejectsOption, columns_of
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table

    from anmi_ray.api.preferences import Rated
    from anmi_ray.config.rate import RateConfig

_PRINTED = 50  # documents of the table that is printed without --out

FileArg = Annotated[
    Path, typer.Argument(metavar="FILE", help="preferences: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="ratings to write: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, or -; printed if not given"
    ),
]
ModelOption = Annotated[
    Literal["thurstone", "bradley-terry"], typer.Option("--model", help="link of the win probability")
]
PriorOption = Annotated[
    str, typer.Option(help="empirical-bayes, none (maximum likelihood), or the ratings' SD in probits or logits")
]
TiesOption = Annotated[
    Literal["half", "davidson"], typer.Option(help="what a preference of .5 is: half a win, or a tie of its own kind")
]
TieWidthOption = Annotated[
    str, typer.Option(help="davidson's nu, the odds of a tie between equal documents: fitted, or a NUMBER")
]
JudgeOffsetsOption = Annotated[
    bool, typer.Option("--judge-offsets", help="fit each judge's leaning towards the document shown first, doc_a")
]
DispersionOption = Annotated[
    str, typer.Option(help="variance of an answer over a fair coin's: pooled, pearson, or a NUMBER (1: as it stands)")
]
EstimateOption = Annotated[
    Literal["mean", "mode"], typer.Option(help="point of the posterior; without a prior always its mode")
]
AnchorsOption = Annotated[
    Path | None, typer.Option(help="file of known positives (query_id, doc_id): gaps are measured to them")
]
FitsOption = Annotated[Path | None, typer.Option(help="write a row about every query's fit: converged, connected, ...")]
GapsOption = Annotated[Path | None, typer.Option(help="write gaps to the anchors, else to the best, with errors")]
OneQueryOption = Annotated[
    bool, typer.Option("--all-one-query", help="one query: query_id is not needed, and not read")
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="threads, over queries; 0: all cores")]


def rate(
    file: FileArg,
    out: OutOption = None,
    model: ModelOption = "thurstone",
    prior: PriorOption = "empirical-bayes",
    ties: TiesOption = "half",
    tie_width: TieWidthOption = "fitted",
    judge_offsets: JudgeOffsetsOption = False,
    dispersion: DispersionOption = "pooled",
    estimate: EstimateOption = "mean",
    anchors: AnchorsOption = None,
    fits: FitsOption = None,
    gaps: GapsOption = None,
    rejects: RejectsOption = None,
    max_reject_fraction: MaxRejectsOption = 0.1,
    all_one_query: OneQueryOption = False,
    columns: ColumnsOption = "",
    threads: ThreadsOption = 0,
) -> None:
    """Rate documents from pairwise preferences that you have, with standard errors.

    Columns of FILE: query_id, doc_a, doc_b (text or integers), preference (of doc_a, 0 to 1); and, if there are, games
    (how many games the row counts for; default 1, 0 carries nothing), judge (text), error
    and order as of anmi audit; without order doc_a was shown first. Every row is games of its own, so rows that repeat
    count again. Rows that cannot be used are counted. Without --out ratings are printed. - is standard input or output:
    read as Parquet or JSON lines where it begins like these, else as CSV; written as CSV, and what is said goes to
    standard error.
    """
    from anmi_ray.api.preferences import rate_with
    from anmi_ray.cli.output import working
    from anmi_ray.tables import formats
    from anmi_ray.tables.preferences import GAMES

    _refuse_contradictions(ties, tie_width)
    config = config_of(
        {
            "model": model,
            "prior": _word_or_number("prior", prior, {"none": None, "empirical-bayes": "empirical-bayes"}),
            "ties": ties,
            "tie_width": _word_or_number("tie-width", tie_width, {"fitted": "fitted"}),
            "judge_offsets": judge_offsets,
            "dispersion": _word_or_number("dispersion", dispersion, {"pooled": "pooled", "pearson": "pearson"}),
            "estimate": estimate,
        }
    )
    outputs = {"out": out, "fits": fits, "gaps": gaps, "rejects": rejects}
    formats.check_outputs(outputs, [path for path in (file, anchors) if path is not None])
    named = columns_of(columns, GAMES.columns)
    with working(f"rates {file.name}"):
        rated = rate_with(config, file, anchors, all_one_query, max_reject_fraction, rejects, threads, named)
    _write(rated, outputs)
    _print(rated, outputs)


def _print(rated: Rated, outputs: Mapping[str, Path | None]) -> None:
    """Print the summary, where the files are, and the ratings if they are not written."""
    from anmi_ray.cli import console

    stream = console.beside(outputs)
    for line in (str(rated), *_outputs(outputs)):
        print(line, file=stream)
    if outputs["out"] is None:
        for block in _table(rated.ratings):
            console.stdout(stream).print(block, highlight=False, markup=False)


def _write(rated: Rated, outputs: Mapping[str, Path | None]) -> None:
    from anmi_ray.tables import formats

    for option, table in {"out": rated.ratings, "fits": rated.fits, "gaps": rated.gaps}.items():
        if (path := outputs[option]) is not None:
            formats.write_table(table, path)


def _table(ratings: pa.Table) -> Iterator[Table | str]:
    """The first ratings with 95 % intervals, as a table, and how many more there are."""
    from anmi_ray.cli import console
    from anmi_ray.core.scale import Z95

    shown = console.table("query", "document", "rating", "95 % interval", right=("rating", "95 % interval"))
    for row in ratings.slice(0, _PRINTED).to_pylist():
        rating = row["rating_elo"]
        reach = Z95 * row["std_err_elo"]
        interval = f"[{rating - reach:+.0f}, {rating + reach:+.0f}]"
        shown.add_row(row["query_id"], row["doc_id"], f"{rating:+.0f}", interval)
    yield shown
    if ratings.num_rows > _PRINTED:
        yield f"{ratings.num_rows - _PRINTED:,} more documents; --out FILE writes all"


def _refuse_contradictions(ties: str, tie_width: str) -> None:
    if tie_width != "fitted" and ties == "half":
        raise ConfigError("--tie-width is for a model of ties", COMMAND_LINE, "add --ties davidson, or leave it out")


def config_of(settings: Mapping[str, Any]) -> RateConfig:
    """The settings that the options stand for. Raises ConfigError where a value is none that may be."""
    from pydantic import ValidationError

    from anmi_ray.config.rate import RateConfig

    try:
        return RateConfig(**settings)
    except ValidationError as error:
        detail = error.errors(include_url=False)[-1]  # of a choice of forms the last is the number's
        what = str(detail["msg"]).removeprefix("Value error, ")
        if detail["loc"]:
            what = f"--{str(detail['loc'][0]).replace('_', '-')} {detail.get('input')}: {what}"
        raise ConfigError(what, COMMAND_LINE, "anmi rate --help says what is allowed") from None


def _word_or_number(option: str, text: str, words: Mapping[str, Any]) -> Any:
    from anmi_ray.tables.rows import real_of

    if text in words:
        return words[text]
    value = real_of(text)
    if value is None:
        allowed = " or ".join([*words, "a number"])
        near = difflib.get_close_matches(text, words, n=1, cutoff=0.6)
        remedy = f"did you mean --{option} {near[0]}?" if near else "anmi rate --help says what each means"
        raise ConfigError(f"--{option} must be {allowed}, not '{text}'", COMMAND_LINE, remedy)
    return value


def _outputs(outputs: Mapping[str, Path | None]) -> Iterator[str]:
    """The path of each file."""
    for option, path in outputs.items():
        if path is not None:
            yield f"{'ratings' if option == 'out' else option:14} -> {path}"
