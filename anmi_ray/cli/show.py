"""`anmi show`: list runs, or print a run: its stages, and the rows at every boundary. Reads manifests, not data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import COMMAND_LINE, JsonOption, RunRootOption
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.redaction import shown

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.api.runs import Run
    from anmi_ray.store import Artifact


def show(
    run_name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="name of a run (default: list all)")] = None,
    root: RunRootOption = "results",
    rejects: Annotated[int, typer.Option(min=0, help="number of rejected rows to print per stage")] = 3,
    follow: Annotated[
        bool, typer.Option("--follow", help="print progress until the run ends; exit code 0 if it finished, else 1")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs under a root, or print a run: its stages, rows in, out and rejected, and the first rejects.

    --follow works from any machine that reaches the root; Ctrl-C does not stop the run.
    """
    from anmi_ray.cli import console

    if follow and (as_json or run_name is None):
        raise ConfigError("--follow needs a run, and cannot print JSON", COMMAND_LINE, "anmi show RUN --follow")
    out = console.stdout()
    if run_name is None:
        found = list(runs(root))
        if as_json:
            print(console.as_json({"runs": found}))
        else:
            out.print(console.table(found) if found else f"no runs under {root}; anmi run CONFIG --root {root}")
        return
    if as_json:
        print(console.as_json(figures(run_name, root)))
        return
    if follow:
        from anmi_ray.cli.follow import follow as follow_run

        raise typer.Exit(0 if follow_run(run_name, root, out) else 1)
    for block in described(run_name, root, rejects):
        out.print(block, highlight=False, markup=False)


def runs(root: str) -> Iterator[dict[str, str]]:
    """Yield each run under a root: its name, its corpus, and how many stages it has reached."""
    from anmi_ray.config.paths import check_address
    from anmi_ray.pipeline.stages import recorded_names
    from anmi_ray.store import Store
    from anmi_ray.store.runs import recorded

    check_address(root, "root")
    store = Store(root)
    for file in store.names("runs"):
        name = file.removesuffix(".json")
        if (record := recorded(store, name)) is not None:
            stages = f"{len(record['stages'])} of {len(recorded_names(record))}"
            yield {"run": name, "corpus": shown(str(record["corpus_name"])), "stages": stages}


def described(run_name: str, root: str, rejects: int) -> Iterator[str | Table]:
    """Yield lines and tables that describe a run. Raise ConfigError if it does not exist."""
    from anmi_ray.api.runs import Run
    from anmi_ray.cli import console
    from anmi_ray.corpus.counts import of_manifest
    from anmi_ray.pipeline.stages import INGEST, recorded_names
    from anmi_ray.reports import audits
    from anmi_ray.stages import by_judges
    from anmi_ray.stages.evaluate import baseline_of

    run = Run(run_name, root)
    record, artifacts = run.record, run.artifacts
    environment = record["environment"]
    machine = f"{environment['processor']}, {environment['cores']} cores"
    revision = environment["git"] or "unknown"
    yield f"run {run_name} over {shown(str(record['corpus_name']))}; {machine}; revision {revision}"
    yield from filter(None, [run.verdict()])
    yield console.table(_boundaries(run))
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
        yield f"anchor: {(artifacts['anchor'].read_json('relevance.json') or {}).get('said', 'not complete')}"
    evaluate = artifacts.get("evaluate")
    evaluated = None if evaluate is None else evaluate.manifest()
    if evaluate is not None and evaluated is not None:
        judged = by_judges.measurements(evaluate)
        if evaluated.get("measured", True) or judged is not None:
            yield f"baseline: {baseline_of(evaluate)}"
        if judged is not None:
            yield from console.judged_lines(judged, baseline_of(evaluate))
        worth = run.relevance()
        why_not = evaluated.get("unfitted", "the run is older than this figure")
        yield from (worth.said() if worth is not None else [f"P(relevant): not fitted: {why_not}"])
    if others := run.elsewhere():
        yield "on other collections, which were not used for any choice:"
        yield console.elsewhere_table(others)
    if "train" in artifacts:
        curves = run.store.read_json(f"tracking/{artifacts['train'].fingerprint}/curves.json") or {}
        yield from (f"curves: {place}" for place in curves.values())
    for name in recorded_names(record):
        if name in artifacts:
            yield from _rejects(artifacts[name], rejects)


def figures(run_name: str, root: str) -> dict[str, Any]:
    """Return what --json prints: a run's stages, their rows at every boundary, and every system's measures."""
    from anmi_ray.api.runs import Run

    run = Run(run_name, root)
    evaluate = run.artifacts.get("evaluate")
    return {
        "run": run_name,
        "corpus": shown(str(run.record["corpus_name"])),
        "environment": run.record["environment"],
        "stages": list(_stages(run)),
        "systems": run.systems() if evaluate is not None and evaluate.manifest() is not None else [],
        "elsewhere": [asdict(one) for one in run.elsewhere()],
    }


def _stages(run: Run) -> Iterator[dict[str, Any]]:
    """Yield each recorded stage: its artifact, seconds, whether it is complete, and its flows."""
    from anmi_ray.pipeline.stages import recorded_names

    for name in recorded_names(run.record):
        artifact = run.artifacts.get(name)
        facts: dict[str, Any] = {"stage": name, "artifact": None, "seconds": None, "complete": False, "flows": []}
        if artifact is not None:
            manifest = artifact.manifest()
            timing = run.store.read_json(f"timings/{name}-{artifact.fingerprint}.json") or {}
            facts |= {"artifact": artifact.fingerprint, "seconds": timing.get("seconds")}
            facts |= {"complete": manifest is not None, "flows": (manifest or {}).get("flows", [])}
        yield facts


def _boundaries(run: Run) -> Iterator[dict[str, str]]:
    """Yield a row per stage and unit: in = out + rejected."""
    for stage in _stages(run):
        seconds = "" if stage["seconds"] is None else f"{stage['seconds']:.1f}"
        head = {"stage": stage["stage"], "artifact": stage["artifact"] or "-", "seconds": seconds}
        if not stage["flows"]:
            missing = "not run" if stage["artifact"] is None else "not complete"
            yield head | {"rows of": "" if stage["complete"] else missing}
        for flow in stage["flows"]:
            counts = {"in": flow["rows_in"], "out": flow["rows_out"], "rejected": flow["rejected"]}
            yield head | {"rows of": flow["unit"], **{name: f"{count:,}" for name, count in counts.items()}}
            head = {}


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
