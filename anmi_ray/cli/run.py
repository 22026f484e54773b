"""`anmi run`: an experiment, carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anmi_ray.cli.flags import (
    ConfigArg,
    FromOption,
    OfflineOption,
    OverrideArg,
    RootOption,
    UntilOption,
    WaitOption,
    load,
)

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.config.experiment import Experiment


def run(
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    first: FromOption = "",
    last: UntilOption = "",
    wait: WaitOption = False,
    offline: OfflineOption = False,
) -> None:
    """Carry out an experiment: compute what is missing, reuse the rest, write the report.

    What its stages need (packages, keys, servers, disk, queries) is checked first: exit 2 names all that is missing.
    """
    carry_out(load(config, overrides, root), first, last, wait, offline)


def carry_out(experiment: Experiment, first: str, last: str, wait: bool = False, offline: bool = False) -> None:
    """Carry out a part of an experiment and print how it goes, and the results where it came to them."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console
    from anmi_ray.cli.output import output_of
    from anmi_ray.evaluation.measures import depth_of
    from anmi_ray.pipeline.stages import names_of

    first, last = experiments.part(experiment, first, last)
    with output_of(experiment.execution) as output:
        output.heading("run", experiment.name, experiment.execution.root)
        finished = experiments.run(
            experiment, first=first, last=last, reporter=output.reporter, wait=wait, offline=offline
        )
        if last != names_of(experiment)[-1]:
            return
        found = finished.headline()
        systems = [row for row in finished.systems() if row["by"] == "labels"]
        measured: str | Table = "no test query is labelled: nothing was measured"
        if systems:
            measures = experiment.evaluate.measures
            measured = console.systems_table(systems, measures, found.baseline, depth_of(measures[0]))
        if experiment.trained_by is not None:
            output.told("measured", run=experiment.name, model_of=experiment.trained_by)
            output.show("", measured)
            return
        doubt = found.no_better()
        facts = {"baseline": found.baseline, "no_better_on_dev": bool(doubt)}
        output.told("report is written", run=experiment.name, path=finished.report, **facts)
        judged = finished.by_judges()
        if systems or judged is None or not judged.comparisons:
            output.show("", measured)
        if judged is not None:
            output.show("", *console.judged_lines(judged, found.baseline))
        if systems or (judged is not None and judged.comparisons):
            output.show(f"baseline: {found.baseline}, {found.how()}")
        if doubt:
            output.show(f"{doubt}: look at the report before you deploy it")
        if experiment.simulated is not None:
            output.show("preferences came from a simulated panel (judge.preset): figures say what the method recovers")
        output.show(f"report: {finished.report}")
