"""`anmi queries`, `anmi mine` and `anmi tune`: make queries, mine negatives again, search settings."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, ConfigArg, OverrideArg, RootOption, RunRootOption, overriding
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.api.queries import MadeQueries
    from anmi_ray.config.experiment import Experiment
    from anmi_ray.reports.campaign import Trial
    from anmi_ray.tuning.run import Finished

_SHOWN = 20  # queries to print


def queries(
    config: ConfigArg,
    overrides: OverrideArg = None,
    to: Annotated[Path | None, typer.Option(help="folder to write: new or empty")] = None,
    root: RootOption = None,
    number: Annotated[int, typer.Option(min=1, help="maximum number of queries")] = 2000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the writer's exact prompt and its cost; send nothing")
    ] = False,
) -> None:
    """Make train queries from documents: from titles, first sentences, headings, key phrases and identifiers.

    If queries.writer names a language model, it writes queries too (queries.kinds). The output is an unlabelled
    collection in BEIR layout; queries are removed from their documents. The collection's own queries and labels are not
    read. Change seed=NUMBER to draw others.
    """
    from anmi_ray.api.queries import make_queries, preview_writing
    from anmi_ray.cli import console
    from anmi_ray.config.load import load

    experiment = load(config, overriding(overrides, root), documents_alone=True)
    out = console.stdout()
    if dry_run:
        for line in preview_writing(experiment, number):
            out.print(line, markup=False, highlight=False)
        return
    if to is None:
        raise ConfigError("expected --to or --dry-run", COMMAND_LINE, "add --to FOLDER")
    made = make_queries(experiment, to, number, console.note)
    refused = f", {made.refused_documents:,} rejected" if made.refused_documents else ""
    print(f"{made.documents:,} documents{refused}; {len(made.queries):,} queries\n")
    rows: list[dict[str, str]] = []
    for kind, counts in made.counts().items():
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common() if reason != "kept")
        numbers = {"candidates": f"{sum(counts.values()):,}", "kept": f"{counts['kept']:,}"}
        rows.append({"kind": kind, **numbers, "left out": reasons})
    out.print(console.table(rows))
    print()
    out.print(console.table(_examples(made)))
    if experiment.simulated is not None:
        print("\nsimulated judges know nothing about these queries: the next command uses similarity instead")
    words = ["anmi", "run", config, *_settings(experiment, overrides or [], to, len(made.queries))]
    print(f"\nnext: {shlex.join([*words, *(['--root', root] if root else [])])}")


def _settings(experiment: Experiment, overrides: list[str], to: Path, queries: int) -> list[str]:
    """Return the overrides of a run over the folder that was written, including the given ones.

    Keep the `corpus` settings that split the queries.
    """
    from anmi_ray.config.corpus import CorpusConfig
    from anmi_ray.config.load import run_name

    settings = [one for one in overrides if not one.startswith(("corpus.", "corpus=", "name="))]
    if experiment.simulated is not None:
        settings.append('judge={"judges": [{"kind": "similarity"}]}')
        settings.append("mine.anchors=confirmed")
    elif experiment.mine.anchors == "known":  # these queries are not labelled
        settings.append(f"mine.anchors={'confirmed' if experiment.judge.direct.judges else 'rated'}")
    given = experiment.corpus
    held_out = given.held_out("dev", queries) + given.held_out("test", queries)
    kept = ["split_seed", "shard_documents", *(f"max_{split}_queries" for split in ("train", "dev", "test"))]
    kept += ["unlabelled_dev", "unlabelled_test"] if 2 * held_out <= queries else []
    default = CorpusConfig()
    sizes = {name: getattr(given, name) for name in kept if getattr(given, name) != getattr(default, name)}
    corpus = {"reader": "beir", "path": str(to), **sizes}
    values = {"corpus": corpus, "name": run_name(to.resolve())}
    return [*settings, *(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())]


def _examples(made: MadeQueries) -> Iterator[dict[str, str]]:
    """Yield the first queries of each kind, in the order of a hash."""
    kinds = Counter(query.kind for query in made.queries)
    shown = Counter[str]()
    for query, rank in zip(made.queries, made.ranks, strict=True):
        shown[query.kind] += 1
        if shown[query.kind] <= _SHOWN // len(kinds):
            yield {"kind": query.kind, "query": query.text, "BM25's rank of its document": str(rank)}


def mine(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run with ratings")],
    overrides: OverrideArg = None,
    rule: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="compositions by name: table2, posterior, simans, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write every figure as JSON")] = None,
    root: RunRootOption = "results",
) -> None:
    """Mine negatives again from a run's ratings, with another rule or other settings of mine (mine.negatives=8).

    They belong to a new run RUN-NAME; RUN does not change. With several rules each gets a run, and a table compares
    them.
    """
    from anmi_ray.cli import console
    from anmi_ray.pipeline import mining_runs
    from anmi_ray.tables import formats

    experiments = mining_runs.from_run_by_rule(run_name, root, rule, overrides or [])
    formats.check_outputs({"out": out}, [], ("out",))
    with console.output_of(experiments[0].execution) as output:
        mined = mining_runs.mine(experiments, output.reporter)
    for one in mined:
        output.log("examples are mined", run=one["run"], composition=one["composition"])
    output.show(*(_described(mined[0]) if len(mined) == 1 else ("", console.table(map(_compared, mined)))))
    console.write_json(mined[0] if len(mined) == 1 else {"runs": mined}, out)


def _compared(mined: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's row: examples, negatives, gaps, estimated shares of false negatives in % with 95 % intervals."""
    from anmi_ray.cli.console import share

    def number(name: str, places: int) -> str:
        return "" if mined[name] is None else f"{mined[name]:,.{places}f}"

    return {
        "run": mined["run"],
        "examples": number("examples", 0),
        "queries": number("queries", 0),
        "negatives each": number("negatives_per_example", 1),
        "mean gap": number("mean_gap_elo", 0),
        "false % of weight": share(mined["false_negative_rate"]),
        "false % of documents": share(mined["false_negative_rate_unweighted"]),
    }


def _described(mined: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the examples of a run: categories, counts, gaps and false negatives."""
    from anmi_ray.cli.console import share, table
    from anmi_ray.runtime.reporter import rows
    from anmi_ray.store import Flow

    yield f"run {mined['run']}: {mined['composition']}\n"
    yield table(_category(name, row) for name, row in mined["categories"].items())
    yield "\n" + rows(Flow(**flow) for flow in mined["flows"])
    each = mined["negatives_per_example"]
    rated = mined["rated_share"]
    negatives = f", {each:.1f} negatives each" if each is not None else ""
    negatives += f", {rated:.0%} of their weight on rated ones" if rated is not None else ""
    yield f"{mined['examples']:,} examples of {mined['queries']:,} queries{negatives}"
    gap = mined["mean_gap_elo"]
    if gap is None:
        yield "no rated negative has weight"
        return
    yield f"gaps: mean {gap:.0f} Elo, ± {mined['mean_gap_se_elo']:.0f} Elo (standard error)"
    of_weight = share(mined["false_negative_rate"])
    of_documents = share(mined["false_negative_rate_unweighted"])
    yield (
        f"false negatives (true gap below {mined['false_negative_gap_elo']:g} Elo), estimated, in %: "
        f"{of_weight} of the weight, {of_documents} of the documents"
    )
    if "mixture" in mined:
        yield f"mixture: {mined['mixture']}"
    for rule, counts in mined.get("verdicts", {}).items():
        yield f"{rule}: " + ", ".join(f"{name.replace('_', '-')} {count:,}" for name, count in counts.items())


def _category(name: str, row: dict[str, Any]) -> dict[str, str]:
    """Return a category's row: documents of the pool, negatives taken, their mean weight, extras."""
    return {
        "category": name,
        "rated": "" if name == "random" else f"{row['pool']:,}",
        "negatives": f"{row['negatives']:,}",
        "mean weight": "" if row["mean_weight"] is None else f"{row['mean_weight']:.2f}",
        "for the regression only": f"{row['extra']:,}",
    }


def tune(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="file of a campaign; anmi init writes examples")],
    overrides: OverrideArg = None,
    root: RootOption = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="repeat failed trials")] = False,
) -> None:
    """Search settings of mining and training: run trials on dev, then compare the best with the default on test.

    The same command continues, even after kill -9: finished trials are not repeated. Override the campaign
    (trials=32, max_concurrent=4, space.train.learning_rate=…) or its experiment (train.max_steps=60).
    """
    from anmi_ray.cli.console import output_of
    from anmi_ray.config.tune import load
    from anmi_ray.tuning.campaign import open_campaign

    campaign = open_campaign(load(config, overriding(overrides, root)), config)
    from anmi_ray.tuning import run as campaigns  # imports Ray: after the campaign was checked
    from anmi_ray.tuning.study import Trials

    with output_of(campaign.base.execution) as output:
        settings = campaign.config
        output.heading("campaign", settings.name, campaign.base.execution.root, f" {campaign.fingerprint}")
        for trial in Trials(campaign).read():
            if trial.status != "running":
                output.show(_trial(trial, before=True))
        done = campaigns.run(campaign, output.reporter, lambda trial: output.show(_trial(trial)), retry_failed)
    output.log("report is written", best=done.best.number, dev=done.best.dev, files=dict(done.files))
    output.show(*_results(done, settings.trials))


def _trial(trial: Trial, before: bool = False) -> str:
    """Return a line about a trial that ended, in this call or before it."""
    mark = {"complete": "✓", "stopped": "–", "failed": "✗"}[trial.status]
    last = trial.curve[-1] if trial.curve else None
    if trial.status == "complete":
        outcome = f"dev {trial.dev:.4f}"
    elif trial.status == "stopped":
        outcome = f"stopped after {last[0]:.0%} of its steps at dev {last[1]:.4f}" if last else "stopped"
    else:
        outcome = f"failed: {trial.message}"
    values = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in trial.params.items()}
    point = ", ".join(f"{name} {value}" for name, value in values.items())
    took = "before" if before else f"{trial.seconds:.0f} s"
    return f"{mark} trial {trial.number:3}  {took:>7}  {outcome}  ({point})"


def _results(done: Finished, wanted: int) -> Iterator[str]:
    """Yield how the trials ended, the best one on dev, and its comparison on test."""
    from anmi_ray.evaluation.replicates import markdown

    ends = Counter(trial.status for trial in done.trials)
    yield "\ntrials: " + ", ".join(f"{ends[status]} {status}" for status in ("complete", "stopped", "failed"))
    if len(done.trials) < wanted:
        yield f"expected {wanted} trials: the space has no more points"
    yield f"best on dev: trial {done.best.number}, dev {done.best.dev:.4f}"
    caution = "the best of many on dev is selected, so its dev value is biased upwards"
    if done.repeats is None:
        yield f"{caution}; set repeats: 3 to measure it on test"
    else:
        seeds = len(done.repeats.seeds)
        yield f"on test, {done.repeats.queries} queries, with {seeds} fresh seeds ({caution}):\n"
        yield markdown(done.repeats.contrasts)
    for name, where in done.files.items():
        yield f"{name}: {where}"
