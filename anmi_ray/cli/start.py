"""Commands to start with: `anmi demo`, `init`, `config`, `plan` and `doctor`."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, ConfigArg, JsonOption, OfflineOption, OverrideArg, RootOption, load
from anmi_ray.core.errors import ConfigError, facts_of

if TYPE_CHECKING:
    from anmi_ray.api.doctor import Check


def demo(
    context: typer.Context,
    to: Annotated[Path, typer.Option(help="folder to write: new or empty")] = Path("anmi-demo"),
) -> None:
    """Show in under a minute what judges' preferences yield, on Python's own documentation, without a download.

    Write preferences of three simulated judges, then audit the judges, rate the documents, rerank with an untrained
    model, and measure the ranking, with commands that are printed and can be repeated.
    """
    from anmi_ray.api.demo import DEPTH, JUDGES, QUERIES, write_demo
    from anmi_ray.cli.console import working
    from anmi_ray.models.loading import PACKAGED

    began = time.monotonic()
    with working("reading Python's documentation"):
        write_demo(to)
    folder = shlex.quote(str(to))
    collection = f"--collection {folder}/collection"
    made = f"{QUERIES} queries, {DEPTH} documents each, and preferences of {len(JUDGES)} simulated judges"
    print(f"{made}: {to}/judgments.csv")
    steps = {
        "How reliable is each judge?": f"audit {folder}/judgments.csv",
        "How good is each document, and how certain is that?": f"rate {folder}/judgments.csv --judge-offsets "
        f"--out {folder}/ratings.csv --gaps {folder}/gaps.csv",
        "How does an untrained model rank them?": f"rerank --model {PACKAGED} {collection} "
        f"--ranking {folder}/bm25.trec --out {folder}/reranked.trec",
        "Which ranking is better?": f"evaluate {collection} --ranking {folder}/bm25.trec "
        f"--ranking {folder}/reranked.trec --measures nDCG@10,MRR@10",
    }
    for question, command in steps.items():
        print(f"\n{question}\n$ anmi {command}", flush=True)
        context.find_root().command.main(shlex.split(command), prog_name="anmi", standalone_mode=False)
    print(_END.format(to=to, seconds=time.monotonic() - began))


_END = """
Done in {seconds:.0f} s. The judges were simulated, and nothing was trained: the model is where training starts.
{to}/ratings.csv has each document's rating with its standard error, {to}/gaps.csv its gap to the best
document of the query, by which hard negatives are chosen. Next:
  anmi init DOCUMENTS QUERIES             write settings for your own files: tables, or a folder of pages
  anmi run search.yaml                    run the whole path, from these files to a trained reranker and its report
  anmi rate YOUR.csv --out ratings.csv    or rate preferences that you have: query_id, doc_a, doc_b, preference"""


def init(
    documents: Annotated[
        Path | None,
        typer.Argument(metavar="[DOCUMENTS]", help="CSV, tsv, JSON lines, Parquet, a folder of pages, or BEIR"),
    ] = None,
    queries: Annotated[
        Path | None, typer.Argument(metavar="[QUERIES]", help="a table of queries, or one query a line")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="relevance grades: query, document, grade")] = None,
    ranking: Annotated[
        Path | None, typer.Option(help="what your search finds for the queries (query, document, score), to compare")
    ] = None,
    judge: Annotated[
        str, typer.Option(help="openai:MODEL, anthropic:MODEL, an address, reranker:MODEL, simulated or none")
    ] = "none",
    price: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="dollars per million prompt and answer tokens")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0.0, help="dollars that judging may cost")] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=NAME", help="a column: doc_id, title, text, query_id or query")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="of text files (default: recognized)")] = None,
    example: Annotated[str | None, typer.Option(metavar="NAME", help="write an example instead")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write (default: search.yaml, or NAME.yaml)")] = None,
) -> None:
    """Write settings for your documents and queries; without arguments, list the examples.

    Columns, separator and encoding are recognized, and five rows are shown as they were understood.
    """
    from anmi_ray.api import examples, starting
    from anmi_ray.cli import console

    if example is not None:
        for file in examples.write_example(example, out):
            print(f"wrote {file}")
        return
    if documents is None:
        rows = ({"example": name, "description": text} for name, text in examples.examples().items())
        console.stdout().print(console.table(rows))
        print("anmi init DOCUMENTS QUERIES writes settings for your files, anmi init --example NAME one of these.")
        return
    out = out or Path("search.yaml")
    with console.working("reading the files"):
        started = starting.start(
            documents, queries, labels, ranking, judge, _prices(price), budget, out, _pairs(column or []), encoding
        )
    for name, table in started.tables.items():
        print(table.described(name))
        console.stdout().print(console.table(table.shown))
    for line in started.lines:
        print(line)
    print(_NEXT[started.next].format(file=shlex.quote(str(out)), stem=shlex.quote(out.stem)))


_NEXT = {
    "queries": "wrote {file}; next:\n  anmi queries {file} --to {stem}-queries    make queries of the documents",
    "plan": """wrote {file}; next:
  anmi plan {file}                 what will be asked, what it costs, what is sent where
  anmi judge {file} --pilot=300    is the judge consistent enough?
  anmi run {file}                  to the report; running it again continues""",
    "run": "wrote {file}; next:\n  anmi run {file}    to the report; running it again continues",
}


def _prices(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        prompt, answer = map(float, text.split(","))
    except ValueError:
        raise ConfigError(f"expected two numbers, got {text}", "--price", "--price 0.15,0.60") from None
    return prompt, answer


def _pairs(words: list[str]) -> dict[str, str]:
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if len(pairs) < len(words):
        raise ConfigError(f"expected ROLE=NAME, got {' '.join(words)}", "--column", "--column text=NAME")
    return pairs


def config(
    config: ConfigArg,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP] [KEY=VALUE]...", help="print only this group, such as train; override settings"
        ),
    ] = None,
    root: RootOption = None,
    changed: Annotated[bool, typer.Option("--changed", help="print only settings that differ from defaults")] = False,
) -> None:
    """Print settings; without GROUP or --changed also fingerprints, and which stages a run would redo and why."""
    import yaml

    from anmi_ray.cli import console
    from anmi_ray.config.load import check_setting
    from anmi_ray.pipeline.resolve import changes, resolve

    groups = [word for word in words or () if "=" not in word]
    experiment = load(config, [word for word in words or () if "=" in word], root)
    settings: Any = experiment.model_dump(mode="json", exclude_defaults=changed)
    if groups:
        if len(groups) > 1:
            raise ConfigError(f"expected one group, got {', '.join(groups)}", COMMAND_LINE, f"anmi config {config}")
        check_setting(groups[0], COMMAND_LINE)
        for part in groups[0].split("."):
            if isinstance(settings, list):
                settings = {str(at): one for at, one in enumerate(settings)}
            settings = (settings or {}).get(part)
        settings = {groups[0]: {} if settings is None and changed else settings}
    out = console.stdout()
    out.print(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), markup=False)
    if groups or changed:
        return
    resolved = resolve(experiment)
    states = changes(experiment, resolved)
    rows = (
        {"stage": f"{name}  {resolved[name].fingerprint}", "state": state, "why": why} for name, state, why in states
    )
    out.print(console.table(rows))


def plan(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what each stage would do and cost; run nothing. Exit with 2 if the run is known to fail."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console

    experiment = load(config, overrides, root)
    with console.working("counting rows and tokens"):
        planned = experiments.plan(experiment, offline=offline)
    problem = planned.problem
    if as_json:
        facts = facts_of(problem) if problem else {}
        print(console.as_json({"stages": planned.stages, "lines": planned.lines, **facts}))
        raise typer.Exit(problem.exit_code if problem else 0)
    for block in planned.blocks:
        console.stdout().print(block)
    if problem is not None:
        raise problem


def doctor(
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="also check its judges' servers")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether anything required is missing, and list what could be added, and how."""
    from anmi_ray.api.doctor import healthy, report
    from anmi_ray.cli import console

    checks = report(config)
    if as_json:
        print(console.as_json([asdict(check) for check in checks]))
        return
    out = console.stdout()
    out.print("nothing required is missing" if healthy(checks) else "something required is missing or broken")
    for check in checks:
        if not healthy([check]):
            out.print(f"{check.name}: {check.found}; {check.remedy}", markup=False, style="bold red")
    packages = [check for check in checks if check.gives == "required"]
    present = sum(check.state == "ok" for check in packages)
    out.print(f"required packages: {present} of {len(packages)}", highlight=False)
    others = [check for check in checks if check.state == "ok" and check not in packages]
    out.print("; ".join(f"{check.name}: {check.found}" for check in others), markup=False, highlight=False)
    added: dict[str, list[Check]] = {}  # one command may install several packages
    for check in checks:
        if check.state == "optional":
            added.setdefault(check.remedy.replace(f"{sys.executable} -m pip", "pip"), []).append(check)
    rows = (
        {
            "can be added": ", ".join(check.name for check in group),
            "for": "; ".join(check.gives for check in group),
            "by": remedy,
        }
        for remedy, group in added.items()
    )
    out.print(console.table(rows))
