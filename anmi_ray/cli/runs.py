"""Commands about experiments and their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from anmi_ray.cli.app import ConfigArg, FromOption, OverrideArg, RootOption, UntilOption, app, load, part
from anmi_ray.cli.voice import speaking
from anmi_ray.core.errors import ConfigError

PILOT_EXITS = {"go": 0, "no-go": 3, "cannot tell": 4}


@app.command()
def run(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    first: FromOption = "",
    last: UntilOption = "",
) -> None:
    """Carry out an experiment: compute what is missing, reuse the rest, write the report."""
    from anmi_ray.pipeline import run as experiment
    from anmi_ray.pipeline.stages import NAMES
    from anmi_ray.store import public_root

    settings = load(config, overrides, root)
    first, last = part(settings, first, last)
    with speaking(settings.execution) as voice:
        voice.out.print(
            f"run [bold]{settings.name}[/bold] under {public_root(settings.execution.root)}", highlight=False
        )
        record = experiment.run(settings, voice.reporter, first, last)
        if last == NAMES[-1]:
            from anmi_ray.stages import report

            result = report.result(settings, record)
            voice.told("report is written", run=settings.name, path=result.path)
            _print_result(voice.out, result)


def _print_result(out: Any, result: Any) -> None:
    from anmi_ray.cli import console

    out.print()
    out.print(console.systems_table(result.comparisons, result.measures, result.baseline))
    if result.simulated:
        out.print("preferences came from a simulated panel (judge.preset): figures say what the method recovers")
    out.print(f"report: {result.path}", highlight=False)


@app.command()
def plan(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print what each stage would do and cost, doing nothing."""
    from anmi_ray.cli import console
    from anmi_ray.planning import plan as planning

    settings = load(config, overrides, root)
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
    from anmi_ray.cli import console
    from anmi_ray.cli import dry_run as prompting

    if pilot is not None:
        if dry_run:
            raise ConfigError("--pilot asks and --dry-run does not", "command line", "give one of them")
        _pilot(load(config, overrides, root), pilot, json_)
    if json_ is not None:
        raise ConfigError("--json is for --pilot", "command line", "give both, or leave it out")
    if not dry_run:
        if query or first or second:
            raise ConfigError("--query, --first and --second choose what --dry-run shows", "command line", "add it")
        run(config, overrides, root, "", "judge")
        return
    out, _ = console.consoles()
    for line in prompting.dry_run(load(config, overrides, root), query, first, second):
        out.print(line, markup=False, highlight=False)


def _pilot(settings: Any, pairs: int, json_: Path | None) -> None:
    """Carry out a pilot, print it, and exit."""
    from anmi_ray.cli import console
    from anmi_ray.judging.audit import pilot as verdicts
    from anmi_ray.pipeline import pilot
    from anmi_ray.tables import formats

    formats.check_outputs({"json": json_}, [])
    with speaking(settings.execution) as voice:
        found = pilot.run(settings, voice.reporter, pairs or None)
    if json_ is not None:
        formats.write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n", json_)
    voice.told("pilot is over", run=settings.name, decision=verdicts.decision(found.verdicts))
    out = voice.out
    out.print(f"\n{found.pairs:,} of {found.of:,} pairs, in both orders", highlight=False)
    out.print(console.judges_table(found.figures["judges"]))
    out.print()
    out.print(console.pilot_table(found.verdicts))
    out.print()
    for said in verdicts.said(found.verdicts):
        out.print(said, highlight=False, markup=False)
    raise typer.Exit(PILOT_EXITS[verdicts.decision(found.verdicts)])


@app.command()
def distill(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Learn a small judge from what an ensemble says of a sample of pairs: all stages up to distill.

    A run whose panel holds {kind: distilled} asks that judge. Any other is carried out as NAME-distill, and what is
    made serves every run as a judge of kind encoder.
    """
    from anmi_ray.cli import console
    from anmi_ray.pipeline import distilling
    from anmi_ray.store import public_root

    settings = distilling.with_judge(load(config, overrides, root))
    with speaking(settings.execution) as voice:
        out = voice.out
        out.print(f"run [bold]{settings.name}[/bold] under {public_root(settings.execution.root)}", highlight=False)
        made = distilling.distill(settings, voice.reporter)
    voice.told("judge is distilled", run=settings.name, model=str(made.model))
    for block in console.distilled(made.summary):
        out.print(block, highlight=False, markup=False)
    out.print(f"model: {made.model}", highlight=False, markup=False)
    out.print(f"  as a judge of another run: judge.judges=[{made.judge}]", highlight=False, markup=False)
    if made.page is not None:
        out.print(f"page: {made.page}", highlight=False, markup=False)


@app.command("config")
def config_(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print every setting, the fingerprints, and which stages a run would redo and why."""
    import yaml

    from anmi_ray.cli import console
    from anmi_ray.pipeline import changes
    from anmi_ray.pipeline.resolve import resolve

    settings = load(config, overrides, root)
    out, _ = console.consoles()
    out.print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True), markup=False)
    resolved = resolve(settings)
    rows = (
        (f"{name}  {resolved[name].fingerprint}", state, why)
        for name, state, why in changes.changes(settings, resolved)
    )
    out.print(console.stages_table(rows))


@app.command()
def show(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run")],
    root: Annotated[str, typer.Option("--root", help="folder or URI that holds the run")] = "results",
    rejects: Annotated[int, typer.Option("--rejects", help="print so many rejects of every stage")] = 3,
    follow: Annotated[
        bool, typer.Option("--follow", help="show how far it is until it ends; exit code 0 where it finished, else 1")
    ] = False,
) -> None:
    """Print a run: its stages, rows in, out and rejected at every boundary, and the first rejects.

    With --follow, from whichever machine reaches the root: its stages as they go by. Ctrl-C leaves the run alone.
    """
    from anmi_ray.cli import console
    from anmi_ray.cli import follow as following
    from anmi_ray.cli import show as showing

    out, _ = console.consoles()
    if follow:
        raise typer.Exit(0 if following.follow(run_name, root, out) else 1)
    for block in showing.show(run_name, root, rejects):
        out.print(block, highlight=False)


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
    from anmi_ray.cli import console
    from anmi_ray.pipeline import mining_runs
    from anmi_ray.tables import formats

    settings = mining_runs.from_run(run_name, root, rule, overrides or [])
    formats.check_outputs({"json": json_}, [])
    with speaking(settings.execution) as voice:
        mined = mining_runs.mine(settings, voice.reporter)
    voice.told("examples are mined", run=mined.run, composition=mined.composition)
    for block in console.mined(mined.run, mined.composition, mined.summary, mined.flows):
        voice.out.print(block, highlight=False, markup=False)
    if json_ is not None:
        formats.write_text(mining_runs.to_text(mined), json_)


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
    from anmi_ray.cli import console
    from anmi_ray.pipeline import compare_rules as comparing

    settings = load(config, overrides, root)
    wanted = [name.strip() for name in rules.split(",") if name.strip()] if rules is not None else None
    with speaking(settings.execution) as voice:
        found = comparing.run(settings, voice.reporter, wanted)
    voice.told("rules are compared", run=settings.name, path=found.path)
    for block in console.compared(found.figures, found.path):
        voice.out.print(block, highlight=False, markup=False)


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
    from anmi_ray.cli import export as exporting

    print(f"model: {exporting.export(run_name, root, to, license_, title)}")
