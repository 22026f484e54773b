"""The commands. Each validates, calls one function of the package, and prints; errors are one message, exit code 2."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.exceptions import TyperException

from anmi_ray import __version__
from anmi_ray.errors import AnmiError, ConfigError, DataError

app = typer.Typer(
    name="anmi",
    help="Train rerankers from pairwise preferences instead of labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PILOT_EXITS = {"go": 0, "no-go": 3, "cannot tell": 4}

ConfigArg = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file with the settings, see jobs/configs/")]
OverrideArg = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to override")]
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]


def _load(config: str, overrides: list[str] | None, root: str | None) -> Any:
    from anmi_ray.config.experiment import load

    extra = [f"execution.root={json.dumps(root)}"] if root else []
    return load(config, [*(overrides or []), *extra])


@app.command()
def run(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    first: Annotated[str, typer.Option("--from", help="first stage to carry out; those before must be there")] = "",
    last: Annotated[str, typer.Option("--until", help="last stage to carry out")] = "",
) -> None:
    """Carry out an experiment: compute what is missing, reuse the rest, write the report."""
    from anmi_ray import console, experiment

    settings = _load(config, overrides, root)
    names = experiment.names_of(settings)
    first = experiment.stage_name(first, names) if first else names[0]
    last = experiment.stage_name(last, names) if last else names[-1]
    if names.index(first) > names.index(last):
        raise ConfigError(f"--from {first} comes after --until {last}", "command line", "swap them")
    out, _ = console.consoles()
    out.print(f"run [bold]{settings.name}[/bold] under {settings.execution.root}", highlight=False)
    with closing(console.ConsoleReporter(out)) as reporter:
        record = experiment.run(settings, reporter, first, last)
    if last == names[-1]:
        from anmi_ray.stages import report

        _print_result(out, report.write(settings, record))


def _print_result(out: Any, result: Any) -> None:
    from anmi_ray import console

    out.print()
    out.print(console.systems_table(result.comparisons, result.measures, result.baseline))
    if result.simulated:
        out.print("preferences came from a simulated panel (judge.preset): figures say what the method recovers")
    out.print(f"report: {result.path}", highlight=False)


@app.command()
def plan(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print what each stage would do and cost, doing nothing."""
    from anmi_ray import console, planning

    settings = _load(config, overrides, root)
    out, _ = console.consoles()
    for block in planning.plan(settings):
        out.print(block)


@app.command("judge")
def judge_(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the exact prompt of every judge about two documents, send nothing")
    ] = False,
    query: Annotated[str | None, typer.Option("--query", metavar="ID", help="the query; else a train query")] = None,
    first: Annotated[str | None, typer.Option("--first", metavar="ID", help="the document shown first")] = None,
    second: Annotated[str | None, typer.Option("--second", metavar="ID", help="the document shown second")] = None,
    pilot: Annotated[
        int | None,
        typer.Option("--pilot", min=0, metavar="N", help="try the judges on N pairs first; 0: judge.pilot.pairs"),
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="write the pilot's figures and verdicts")] = None,
) -> None:
    """Ask the judges: all stages up to judge; with --dry-run show what they would be asked.

    With --pilot ask about a sample of the run's pairs only, and hold every judge against the gates (judge.pilot).
    Exit code 0: go; 3: no-go, some judge fails a gate; 4: so few pairs cannot tell. What it buys the run has.
    """
    from anmi_ray import console, prompting

    if pilot is not None:
        if dry_run:
            raise ConfigError("--pilot asks and --dry-run does not", "command line", "give one of them")
        _pilot(_load(config, overrides, root), pilot, json_)
    if json_ is not None:
        raise ConfigError("--json is for --pilot", "command line", "give both, or leave it out")
    if not dry_run:
        if query or first or second:
            raise ConfigError("--query, --first and --second choose what --dry-run shows", "command line", "add it")
        run(config, overrides, root, "", "judge")
        return
    out, _ = console.consoles()
    for line in prompting.dry_run(_load(config, overrides, root), query, first, second):
        out.print(line, markup=False, highlight=False)


def _pilot(settings: Any, pairs: int, json_: Path | None) -> None:
    """Carry out a pilot, print it, and exit."""
    from anmi_ray import console, files
    from anmi_ray.judging import pilot as verdicts
    from anmi_ray.stages import pilot

    files.check_outputs({"json": json_}, [])
    out, _ = console.consoles()
    with closing(console.ConsoleReporter(out)) as reporter:
        found = pilot.run(settings, reporter, pairs or None)
    if json_ is not None:
        files.write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n", json_)
    out.print(f"\n{found.pairs:,} of {found.of:,} pairs, in both orders", highlight=False)
    out.print(console.judges_table(found.figures["judges"]))
    out.print()
    out.print(console.pilot_table(found.verdicts))
    out.print()
    for said in verdicts.said(found.verdicts):
        out.print(said, highlight=False, markup=False)
    raise typer.Exit(PILOT_EXITS[verdicts.decision(found.verdicts)])


@app.command("config")
def config_(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print every setting, the fingerprints, and which stages a run would redo and why."""
    import yaml

    from anmi_ray import console, experiment

    settings = _load(config, overrides, root)
    out, _ = console.consoles()
    out.print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True), markup=False)
    resolved = experiment.resolve(settings)
    rows = (
        (f"{name}  {resolved[name].fingerprint}", state, why)
        for name, state, why in experiment.changes(settings, resolved)
    )
    out.print(console.stages_table(rows))


@app.command()
def show(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run")],
    root: Annotated[str, typer.Option("--root", help="folder or URI that holds the run")] = "results",
    rejects: Annotated[int, typer.Option("--rejects", help="print so many rejects of every stage")] = 3,
) -> None:
    """Print a run: its stages, rows in, out and rejected at every boundary, and the first rejects."""
    from anmi_ray import console, showing

    out, _ = console.consoles()
    for block in showing.show(run_name, root, rejects):
        out.print(block, highlight=False)


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
    lapse: Annotated[str, typer.Option(help="share of answers that are blind guesses: none, fitted, RATE")] = "none",
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
        str, typer.Option(help="weigh rows: unit, linear, sqrt, squared, information, learned")
    ] = "unit",
    anchors: Annotated[
        Path | None, typer.Option(help="file of known positives (query_id, doc_id): gaps are measured to them")
    ] = None,
    fits: Annotated[Path | None, typer.Option(help="write a row about every query's fit: converged, ...")] = None,
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
    (how many the row counts for; default 1, 0 carries nothing), judge (text) and tie (a model's chance of a tie).
    doc_a was shown first. Every row is games of its own; rows that repeat count again, unusable ones are counted.
    """
    from anmi_ray import rate_file

    how = rate_file.ModelOptions(model, prior, ties, tie_width, lapse, judge_offsets, dispersion, estimate, strength)
    outputs = rate_file.Outputs(out, fits, gaps, rejects, plot)
    for said in rate_file.rate_file(
        file, how, outputs, anchors, plot_query, all_one_query, max_reject_fraction, threads
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
    from anmi_ray import audit_file, console

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
def mine(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has ratings")],
    overrides: OverrideArg = None,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="NAME", help="a composition by name: table2, posterior, simans, ...")
    ] = None,
    root: Annotated[str, typer.Option("--root", help="folder or URI that holds the run")] = "results",
    json_: Annotated[Path | None, typer.Option("--json", help="write every figure as JSON")] = None,
) -> None:
    """Choose negatives anew from a run's ratings, under another rule or other settings of mine.

    They become those of a run RUN-NAME; RUN itself stays what it was. Overrides are of mine, such as mine.negatives=8.
    """
    from anmi_ray import console, files, mining_runs

    settings = mining_runs.from_run(run_name, root, rule, overrides or [])
    files.check_outputs({"json": json_}, [])
    out, _ = console.consoles()
    with closing(console.ConsoleReporter(out)) as reporter:
        mined = mining_runs.mine(settings, reporter)
    for block in console.mined(mined.run, mined.composition, mined.summary, mined.flows):
        out.print(block, highlight=False, markup=False)
    if json_ is not None:
        files.write_text(mining_runs.to_text(mined), json_)


@app.command("compare-rules")
def compare_rules(
    config: ConfigArg,
    overrides: OverrideArg = None,
    rules: Annotated[
        str | None, typer.Option("--rules", metavar="A,B,...", help="compositions by name; all when left out")
    ] = None,
    root: RootOption = None,
) -> None:
    """Mine with every named rule on the same ratings, and write a page that holds their negatives against each other.

    Stages up to rate are carried out if they are missing.
    """
    from anmi_ray import console
    from anmi_ray.stages import rules as comparing

    settings = _load(config, overrides, root)
    wanted = [name.strip() for name in rules.split(",") if name.strip()] if rules is not None else None
    out, _ = console.consoles()
    with closing(console.ConsoleReporter(out)) as reporter:
        found = comparing.run(settings, reporter, wanted)
    for block in console.compared(found.figures, found.path):
        out.print(block, highlight=False, markup=False)


@app.command()
def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has trained a model")],
    to: Annotated[Path, typer.Option("--to", help="folder to write: new, or empty")],
    license_: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="license in the card, such as apache-2.0; else none")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="the model's name in the card; else the run's")] = None,
    root: Annotated[str, typer.Option("--root", help="folder or URI that holds the run")] = "results",
) -> None:
    """Hand a model on: a checked copy of its Hugging Face folder, with a card of its data, method and results."""
    from anmi_ray import exporting

    print(f"model: {exporting.export(run_name, root, to, license_, title)}")


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
    from anmi_ray import console
    from anmi_ray.stages import standalone

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
    from anmi_ray import console
    from anmi_ray.stages import standalone

    out, _ = console.consoles()
    names = [name.strip() for name in measures.split(",") if name.strip()]
    result = standalone.evaluate(collection, run_files, split, names)
    out.print(console.systems_table(result.comparisons, result.measures, result.baseline))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Say what is installed, what each missing piece would give, and how to get it."""
    from anmi_ray import doctor as checks

    if as_json:
        print(checks.to_json())
    else:
        from rich.console import Console

        checks.render(Console())


def _version(value: bool) -> None:
    if value:
        print(f"anmi_ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a defect of ours (traceback), 2 the user's to mend, 130 interrupted.

    A pilot exits with PILOT_EXITS.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")  # read when ray.data is imported; a user's own is kept
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="anmi")
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except AnmiError as error:
        kind = {ConfigError: "configuration", DataError: "data"}.get(type(error), "error")
        print(f"anmi: {kind}: {error}" if kind != "error" else f"anmi: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except TyperException as error:  # typer carries its own click, so click's own exceptions would not match
        if message := error.format_message():
            print(f"anmi: {message}\n  remedy: anmi --help", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("\nanmi: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
