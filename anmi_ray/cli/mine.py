"""`anmi mine`: a run's negatives, chosen anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import FiguresOption, OverrideArg, RunRootOption

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.pipeline.mining_runs import Mined


def mine(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has ratings")],
    overrides: OverrideArg = None,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="NAME", help="a composition by name: table2, posterior, simans, ...")
    ] = None,
    root: RunRootOption = "results",
    json_: FiguresOption = None,
) -> None:
    """Choose negatives anew from a run's ratings, under another rule or other settings of mine.

    They become those of a run RUN-NAME; RUN itself stays what it was. Overrides are of mine, such as mine.negatives=8.
    """
    from anmi_ray.cli.output import output_of, write_figures
    from anmi_ray.pipeline import mining_runs
    from anmi_ray.tables import formats

    experiment = mining_runs.from_run(run_name, root, rule, overrides or [])
    formats.check_outputs({"json": json_}, [])
    with output_of(experiment.execution) as output:
        mined = mining_runs.mine(experiment, output.reporter)
    output.told("examples are mined", run=mined.run, composition=mined.composition)
    output.show(*_described(mined))
    if json_ is not None:
        write_figures(mined.to_json(), json_)


def _described(mined: Mined) -> Iterator[str | Table]:
    """What there is to say of the examples of a run: its categories, counts, gaps and false negatives."""
    from anmi_ray.cli.console import rows, share
    from anmi_ray.store import Flow

    summary = mined.summary
    yield f"run {mined.run}: {mined.composition}\n"
    yield _categories(summary["categories"])
    yield "\n" + rows(Flow(**flow) for flow in mined.flows)
    each = summary["negatives_per_example"]
    rated = summary["rated_share"]
    negatives = f", {each:.1f} negatives each" if each is not None else ""
    negatives += f", {rated:.0%} of their weight on rated ones" if rated is not None else ""
    yield f"{summary['examples']:,} examples of {summary['queries']:,} queries{negatives}"
    gap = summary["mean_gap_elo"]
    if gap is None:
        yield "no rated negative has weight"
        return
    yield f"gaps: mean {gap:.0f} Elo, known to ± {summary['mean_gap_se_elo']:.0f} Elo"
    of_weight = share(summary["false_negative_rate"])
    of_documents = share(summary["false_negative_rate_unweighted"])
    yield (
        f"false negatives (true gap below {summary['false_negative_gap_elo']:g} Elo), estimated, in %: "
        f"{of_weight} of the weight, {of_documents} of the documents"
    )
    if "mixture" in summary:
        yield f"mixture: {summary['mixture']}"
    for rule, counts in summary.get("verdicts", {}).items():
        yield f"{rule}: " + ", ".join(f"{name.replace('_', '-')} {count:,}" for name, count in counts.items())


def _categories(categories: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row per category: documents of the pool, negatives taken, their mean weight, extras."""
    from anmi_ray.cli import console

    counts = ("rated", "negatives", "mean weight", "for the regression only")
    table = console.table("category", *counts, right=counts)
    for name, row in categories.items():
        weight = "" if row["mean_weight"] is None else f"{row['mean_weight']:.2f}"
        pool = "" if name == "random" else f"{row['pool']:,}"
        table.add_row(name, pool, f"{row['negatives']:,}", weight, f"{row['extra']:,}")
    return table
