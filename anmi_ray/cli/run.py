"""`anmi run`: run an experiment and print its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import ConfigArg, FromOption, OfflineOption, OverrideArg, RootOption, UntilOption, load

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.api.runs import Run
    from anmi_ray.config.experiment import Experiment


def run(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    first: FromOption = "",
    last: UntilOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait until no other run is using this root")] = False,
    offline: OfflineOption = False,
) -> None:
    """Run an experiment: compute what is missing, reuse the rest, write the report.

    Requirements (packages, keys, servers, disk space, queries) are checked first: exit code 2 lists all that are
    missing. --until judge only asks the judges; --until distill only trains the distilled judge of the panel.
    """
    carry_out(load(config, overrides, root), first, last, wait, offline)


def carry_out(experiment: Experiment, first: str, last: str, wait: bool = False, offline: bool = False) -> None:
    """Run the stages from `first` to `last` of an experiment, and print progress and results."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console
    from anmi_ray.pipeline.stages import DISTILL, names_of

    first, last = experiments.part(experiment, first, last)
    with console.output_of(experiment.execution) as output:
        output.heading("run", experiment.name, experiment.execution.root)
        finished = experiments.run(
            experiment, first=first, last=last, reporter=output.reporter, wait=wait, offline=offline
        )
        if last == DISTILL:
            judge, summary = _distilled_judge(finished, experiment.distill.form)
            output.log("judge is distilled", run=experiment.name, judge=judge)
            output.show(*distilled(summary), f"as a judge of another run: judge.judges=[{judge}]")
        if last == names_of(experiment)[-1]:
            output.show(*_results(finished, experiment, output))


def _results(finished: Run, experiment: Experiment, output: Any) -> Iterator[str | Table]:
    """Yield what an evaluated run shows: measures by labels and by judges, doubts, the report."""
    from anmi_ray.cli import console
    from anmi_ray.evaluation.measures import depth_of

    found = finished.headline()
    measures = experiment.evaluate.measures
    systems = finished.systems()
    labelled = [row for row in systems if row["by"] == "labels"]
    measured: str | Table = "no test query is labelled: nothing was measured; add labels, or set evaluate.judged"
    if labelled:
        measured = console.systems_table(labelled, measures, found.baseline, depth_of(measures[0]))
    yield ""
    if experiment.trained_by is not None:
        output.log("measured", run=experiment.name, model_of=experiment.trained_by)
        yield measured
        return
    doubt = found.no_better()
    facts = {"baseline": found.baseline, "no_better_on_dev": bool(doubt)}
    output.log("report is written", run=experiment.name, path=finished.report, **facts)
    judged = finished.by_judges()
    by_judges = judged is not None and bool(judged.comparisons)
    if labelled or not by_judges:
        yield measured
    if judged is not None:
        yield ""
        yield from console.judged_lines(judged, found.baseline)
    if labelled or by_judges:
        yield f"baseline: {found.baseline}, {found.how()}"
    if verdict := finished.verdict():
        yield verdict
    if experiment.simulated is not None:
        yield "preferences came from a simulated panel (judge.preset): figures show what the method recovers"
    yield f"report: {finished.report}"


def _distilled_judge(run: Run, form: str) -> tuple[str, dict[str, Any]]:
    """Return the setting with which another run asks a run's distilled judge, and the judge's summary."""
    artifact = run.artifact("distill")
    summary = artifact.read_json("summary.json") or {}
    how = "pairwise" if form == "pairwise" else f"pointwise, slope: {float(summary.get('slope', 1.0))!r}"
    model = artifact.store.where(f"{artifact.path}/model")
    return f"{{kind: encoder, name: distilled, model: {model}, form: {how}}}", summary


def distilled(summary: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the figures of a distilled judge and of its baselines on held-out pairs, by its summary.json."""
    from anmi_ray.cli import console

    yield ""
    yield console.table(
        {
            "on held-out pairs": name,
            "right where all agree %": console.percent(*_parts(row.get("accuracy_consensus"))),
            "Brier": _number(row.get("brier")),
            "calibration error": _number(row.get("ece")),
            "calibration slope": _number(row.get("calibration_slope")),
        }
        for name, row in {"distilled judge": summary, **summary.get("baselines", {})}.items()
    )
    heads = {
        "pairs": "pairs",
        "queries": "queries",
        "judgments": "judgments of the ensemble",
        "test_pairs": "held-out pairs",
    }
    yield ", ".join(f"{head} {summary[name]:,}" for name, head in heads.items() if name in summary)


def _parts(figure: float | Sequence[float] | None) -> tuple[float | None, Sequence[float] | None]:
    """Split a figure into its value and its interval."""
    if not isinstance(figure, Sequence):
        return figure, None
    return figure[0], None if figure[1] is None else figure[1:]


def _number(figure: float | Sequence[float] | None) -> str:
    value, ends = _parts(figure)
    if value is None:
        return ""
    return f"{value:.3f}" + (f" [{', '.join(f'{end:.3f}' for end in ends)}]" if ends else "")
