"""`anmi show`: what a run is made of, and the rows across every boundary. Reads manifests, never data but rejects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, RunRootOption, wants_json
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.redaction import shown

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.store import Artifact, Store


def show(
    context: typer.Context,
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run")],
    root: RunRootOption = "results",
    rejects: Annotated[int, typer.Option("--rejects", min=0, help="print so many rejects of every stage")] = 3,
    follow: Annotated[
        bool, typer.Option("--follow", help="show how far it is until it ends; exit code 0 where it finished, else 1")
    ] = False,
) -> None:
    """Print a run: its stages, rows in, out and rejected at every boundary, and the first rejects.

    With --follow, from whichever machine reaches the root: its stages as they go by. Ctrl-C leaves the run alone.
    """
    from anmi_ray.cli import console
    from anmi_ray.cli.output import as_json

    if wants_json(context):
        if follow:
            raise ConfigError("--follow is for people, and --json for programs", COMMAND_LINE, "leave one of them out")
        print(as_json(figures(run_name, root)))
        return
    out = console.stdout()
    if follow:
        from anmi_ray.cli.follow import follow as follow_run

        raise typer.Exit(0 if follow_run(run_name, root, out) else 1)
    for block in described(run_name, root, rejects):
        out.print(block, highlight=False, markup=False)


def described(run_name: str, root: str, rejects: int) -> Iterator[str | Table]:
    """Lines and tables that describe a run. Raises ConfigError when there is no such run."""
    from anmi_ray.cli import console
    from anmi_ray.corpus.counts import of_manifest
    from anmi_ray.pipeline.stages import INGEST, recorded_names
    from anmi_ray.reports import audits
    from anmi_ray.stages import by_judges, elsewhere, relevance
    from anmi_ray.stages.evaluate import baseline_of
    from anmi_ray.store import Artifact
    from anmi_ray.store.runs import find_run

    store, record = find_run(run_name, root)
    artifacts = {name: Artifact(store, name, stage["fingerprint"]) for name, stage in record["stages"].items()}
    environment = record["environment"]
    machine = f"{environment['processor']}, {environment['cores']} cores"
    revision = environment["git"] or "unknown"
    yield f"run {run_name} over {shown(str(record['corpus_name']))}; {machine}; revision {revision}"
    yield _boundaries(store, record, artifacts)
    ingested = artifacts[INGEST].manifest() if INGEST in artifacts else None
    if ingested is not None:
        counts = of_manifest(ingested)
        left_out = f"; {counts.left_out:,} unlabelled left out" if counts.left_out else ""
        if beyond := sum(counts.over_maximum.values()):
            left_out += f"; {beyond:,} beyond corpus.max_..._queries left out"
        yield f"queries: {counts.in_words}{left_out}"
    for name in ("label", "judge", "confirm", "validate", "assess"):
        if name in artifacts:
            spent = (artifacts[name].manifest() or {}).get("spent", {})
            yield from (f"{name} {line}" for line in audits.spent(spent))
    for name in ("confirm", "assess"):
        if name in artifacts:
            yield from audits.confirming(name, artifacts[name].read_json("audit.json") or {})
    if "anchor" in artifacts:
        yield f"anchor: {(artifacts['anchor'].read_json('relevance.json') or {}).get('said', 'not made yet')}"
    evaluated = artifacts["evaluate"].manifest() if "evaluate" in artifacts else None
    judged = by_judges.measurements(artifacts["evaluate"]) if evaluated is not None else None
    if evaluated is not None and (evaluated.get("measured", True) or judged is not None):
        yield f"baseline: {baseline_of(artifacts['evaluate'])}"
    if judged is not None:
        yield from console.judged_lines(judged, baseline_of(artifacts["evaluate"]))
    if evaluated is not None:
        worth = relevance.of(artifacts["evaluate"])
        why_not = evaluated.get("unfitted", "the run is of before it was")
        yield from (worth.said() if worth is not None else [f"P(relevant): none is fitted: {why_not}"])
    if others := elsewhere.measured(store, run_name):
        yield "on other collections, of which nothing was chosen:"
        yield console.elsewhere_table(others)
    if "train" in artifacts:
        curves = store.read_json(f"tracking/{artifacts['train'].fingerprint}/curves.json") or {}
        yield from (f"curves: {place}" for place in curves.values())
    for name in recorded_names(record):
        if name in artifacts:
            yield from _rejects(artifacts[name], rejects)


def figures(run_name: str, root: str) -> dict[str, Any]:
    """What `anmi --json show` prints: a run's stages, their rows at every boundary, and every system's measures."""
    from anmi_ray.stages import by_judges, elsewhere
    from anmi_ray.store import Artifact
    from anmi_ray.store.runs import find_run

    store, record = find_run(run_name, root)
    artifacts = {name: Artifact(store, name, stage["fingerprint"]) for name, stage in record["stages"].items()}
    evaluate = artifacts.get("evaluate")
    systems = by_judges.systems(evaluate) if evaluate is not None and evaluate.manifest() is not None else []
    facts = {"run": run_name, "corpus": shown(str(record["corpus_name"])), "environment": record["environment"]}
    facts |= {"stages": list(_stages(store, record, artifacts)), "systems": systems}
    return {**facts, "elsewhere": [asdict(one) for one in elsewhere.measured(store, run_name)]}


def _stages(store: Store, record: dict[str, Any], artifacts: dict[str, Artifact]) -> Iterator[dict[str, Any]]:
    """Of every recorded stage its artifact, seconds, whether it is complete, and its flows."""
    from anmi_ray.pipeline.stages import recorded_names

    for name in recorded_names(record):
        artifact = artifacts.get(name)
        facts: dict[str, Any] = {"stage": name, "artifact": None, "seconds": None, "complete": False, "flows": []}
        if artifact is not None:
            manifest = artifact.manifest()
            timing = store.read_json(f"timings/{name}-{artifact.fingerprint}.json") or {}
            facts |= {"artifact": artifact.fingerprint, "seconds": timing.get("seconds")}
            facts |= {"complete": manifest is not None, "flows": (manifest or {}).get("flows", [])}
        yield facts


def _boundaries(store: Store, record: dict[str, Any], artifacts: dict[str, Artifact]) -> Table:
    from anmi_ray.cli import console

    numbers = ("seconds", "in", "out", "rejected")
    table = console.table("stage", "artifact", "seconds", "rows of", "in", "out", "rejected", "", right=numbers)
    for stage in _stages(store, record, artifacts):
        if stage["artifact"] is None:
            table.add_row(stage["stage"], "-", "", "not run", "", "", "", "")
            continue
        seconds = "" if stage["seconds"] is None else f"{stage['seconds']:.1f}"
        head = (stage["stage"], stage["artifact"], seconds)
        for flow in stage["flows"]:
            counts = (f"{flow[name]:,}" for name in ("rows_in", "rows_out", "rejected"))
            table.add_row(*head, flow["unit"], *counts, "in = out + rejected")
            head = ("", "", "")
        if head[0]:
            table.add_row(*head, "not complete", "", "", "", "")
    return table


def _rejects(artifact: Artifact, limit: int) -> Iterator[str]:
    table = artifact.rejects()
    if not table.num_rows:
        return
    counts = table.group_by("reason").aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
    reasons = ", ".join(f"{row['count_all']:,} {row['reason']}" for row in counts.to_pylist())
    yield f"{artifact.stage} rejects: {reasons}"
    for row in table.slice(0, limit).to_pylist():
        detail = f" ({row['detail']})" if row["detail"] else ""
        yield shown(f"  {row['place']}: {row['key']}: {row['reason']}{detail}")
