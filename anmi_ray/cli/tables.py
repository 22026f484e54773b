"""Commands about files of the user's own: preferences, TREC runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anmi_ray.cli.app import app
from anmi_ray.core.errors import ConfigError


@app.command()
def rate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="preferences: .csv, .jsonl (also .gz, .zst), .parquet")],
    out: Annotated[Path, typer.Option("--out", help="ratings to write: .csv, .jsonl (also .gz, .zst), .parquet")],
    model: Annotated[
        Literal["thurstone", "bradley-terry"], typer.Option("--model", help="link of the win probability")
    ] = "thurstone",
    prior: Annotated[
        str,
        typer.Option(help="empirical-bayes, none (maximum likelihood), or the ratings' SD in probits or logits"),
    ] = "empirical-bayes",
    ties: Annotated[
        Literal["half", "davidson", "rao-kupper", "glenn-david"], typer.Option(help="what a preference of .5 is")
    ] = "half",
    tie_width: Annotated[
        str, typer.Option(help="how wide ties reach: fitted, or the model's NUMBER (nu of davidson, eta of the others)")
    ] = "fitted",
    lapse: Annotated[
        str, typer.Option(help="share of answers that are blind guesses: none, fitted, or a RATE")
    ] = "none",
    judge_offsets: Annotated[
        bool, typer.Option("--judge-offsets", help="fit each judge's leaning towards the document shown first, doc_a")
    ] = False,
    dispersion: Annotated[
        str,
        typer.Option(help="variance of an answer over a fair coin's: pooled, pearson, or a NUMBER (1: as it stands)"),
    ] = "pooled",
    estimate: Annotated[
        Literal["mean", "mode"], typer.Option(help="point of the posterior; without a prior always its mode")
    ] = "mean",
    strength: Annotated[
        str,
        typer.Option(help="how many games a row is worth: unit, linear, sqrt, squared (in E|C|), information, learned"),
    ] = "unit",
    anchors: Annotated[
        Path | None, typer.Option(help="file of known positives (query_id, doc_id): gaps are measured to them")
    ] = None,
    fits: Annotated[
        Path | None, typer.Option(help="write a row about every query's fit: converged, connected, ...")
    ] = None,
    gaps: Annotated[Path | None, typer.Option(help="write gaps to the anchors, else to the best, with errors")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw ratings with 95 % intervals: .svg or .html")] = None,
    plot_query: Annotated[str | None, typer.Option(metavar="ID", help="the query to draw; else the first few")] = None,
    rejects: Annotated[
        Path | None, typer.Option(help="write the rows that were refused, with place and reason")
    ] = None,
    max_reject_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="fail if a larger share of the rows is refused")
    ] = 0.1,
    all_one_query: Annotated[
        bool, typer.Option("--all-one-query", help="one query: query_id is not needed, and not read")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, help="threads, over queries; 0: all cores")] = 0,
) -> None:
    """Rate documents from pairwise preferences that you have, with standard errors.

    Columns of FILE: query_id, doc_a, doc_b (text or integers), preference (of doc_a, 0 to 1); and, if there are, games
    (how many games the row counts for; default 1, 0 carries nothing), judge (text) and tie (a model's probability of a
    tie). doc_a is the document that was shown first. Every row is games of its own, so rows that repeat count again.
    Rows that cannot be used are counted.
    """
    from anmi_ray.cli import rate_file

    options = rate_file.ModelOptions(
        model, prior, ties, tie_width, lapse, judge_offsets, dispersion, estimate, strength
    )
    outputs = rate_file.Outputs(out, fits, gaps, rejects, plot)
    for said in rate_file.rate_file(
        file, options, outputs, anchors, plot_query, all_one_query, max_reject_fraction, threads
    ):
        print(said)


@app.command()
def audit(
    subject: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help="name of a run, or answers: .csv, .jsonl (also .gz, .zst), .parquet"),
    ],
    json_: Annotated[Path | None, typer.Option("--json", help="write every figure as JSON")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw position bias and agreement between judges: .svg or .html")
    ] = None,
    grades: Annotated[
        Path | None, typer.Option(metavar="QRELS", help="known grades, TREC qrels or BEIR's .tsv: accuracy (FILE only)")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(help="write the rows that were refused, with place and reason (FILE only)")
    ] = None,
    max_reject_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="fail if a larger share of the rows is refused")
    ] = 0.1,
    root: Annotated[str, typer.Option("--root", help="folder or URI that holds the run")] = "results",
) -> None:
    """Say how far to trust each judge: failures, ties, position and length bias, cycles, agreement, accuracy.

    Columns of FILE: query_id, doc_a, doc_b, preference (of doc_a, 0 to 1); and, if there are, judge, order (ab: doc_a
    was shown first, ba: doc_b was; without the column doc_a was), error (why the judge failed; such a row needs no
    preference), round (a whole number: the same question asked again), length_a and length_b (of the texts, any unit).
    Of rows with the same query, documents, judge, order and round the first counts. A RUN has stored its audit.
    """
    from anmi_ray.cli import audit_file, console

    outputs = audit_file.Outputs(json_, plot, rejects)
    if audit_file.is_file(subject):
        found = audit_file.audit_file(Path(subject), outputs, grades, max_reject_fraction)
    elif grades is not None or rejects is not None:
        option = "--grades" if grades is not None else "--rejects"
        raise ConfigError(f"{option} is for a file, and {subject} names a run", "command line", "leave it out")
    else:
        found = audit_file.audit_run(subject, root, outputs)
    out, _ = console.consoles()
    for said in found.said:
        out.print(said, highlight=False, markup=False)
    out.print(console.judges_table(found.figures["judges"]))
    written = [f"{option:14} -> {path}" for option, path in vars(outputs).items() if path is not None]
    for said in (*audit_file.summary(found.figures), *written):
        out.print(said, highlight=False, markup=False)


@app.command()
def rerank(
    model: Annotated[Path, typer.Option("--model", help="folder of a trained model")],
    collection: Annotated[Path, typer.Option("--collection", help="folder in BEIR layout (corpus, queries)")],
    run_file: Annotated[Path, typer.Option("--run", help="TREC run file to rerank")],
    out_file: Annotated[Path, typer.Option("--out", help="TREC run file to write")],
    depth: Annotated[int, typer.Option("--depth", min=1, help="documents per query to score, from the top")] = 100,
    threads: Annotated[int, typer.Option("--threads", min=0, help="threads; 0: all cores")] = 0,
) -> None:
    """Rerank a TREC run with a trained model."""
    from anmi_ray.cli import console, standalone

    out, _ = console.consoles()
    count = standalone.rerank(model, collection, run_file, out_file, depth, threads)
    out.print(f"{count.rows_in:,} queries, {count.rows_out:,} reranked, {count.rejected:,} rejected -> {out_file}")


@app.command()
def evaluate(
    collection: Annotated[Path, typer.Option("--collection", help="folder in BEIR layout with qrels/")],
    run_files: Annotated[list[Path], typer.Option("--run", help="TREC run file; may be given several times")],
    split: Annotated[str, typer.Option("--split", help="which qrels: qrels/<split>.tsv")] = "test",
    measures: Annotated[str, typer.Option("--measures", help="comma-separated")] = "nDCG@10,MRR@10,Recall@100",
) -> None:
    """Measure TREC runs, with intervals; several runs are compared with the first by a paired test."""
    from anmi_ray.cli import console, standalone

    out, _ = console.consoles()
    names = [name.strip() for name in measures.split(",") if name.strip()]
    result = standalone.evaluate(collection, run_files, split, names)
    out.print(console.systems_table(result.comparisons, result.measures, result.baseline))
