"""`anmi mine`: a run's negatives, chosen anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        str | None,
        typer.Option("--rule", metavar="A,B,...", help="compositions by name: table2, posterior, simans, ..."),
    ] = None,
    root: RunRootOption = "results",
    json_: FiguresOption = None,
) -> None:
    """Choose negatives anew from a run's ratings, under another rule or other settings of mine.

    They become those of a run RUN-NAME; RUN itself stays what it was. Overrides are of mine, such as mine.negatives=8.
    With several rules each has a run of its own, and a table compares them.
    """
    from anmi_ray.cli.output import output_of, write_figures
    from anmi_ray.pipeline import mining_runs
    from anmi_ray.tables import formats

    experiments = mining_runs.from_run_by_rule(run_name, root, rule, overrides or [])
    formats.check_outputs({"json": json_}, [])
    with output_of(experiments[0].execution) as output:
        mined = mining_runs.mine(experiments, output.reporter)
    for one in mined:
        output.told("examples are mined", run=one.run, composition=one.composition)
    output.show(*_described(mined[0])) if len(mined) == 1 else output.show("", _compared(mined))
    if json_ is not None:
        found = [one.to_json() for one in mined]
        write_figures(found[0] if len(found) == 1 else {"runs": found}, json_)


def _compared(mined: Sequence[Mined]) -> Table:
    """A run a row: examples, negatives, gaps, estimated shares of false negatives in % with 95 % intervals."""
    from anmi_ray.cli.console import filled_table, share

    def number(name: str, places: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda summary: "" if summary[name] is None else f"{summary[name]:,.{places}f}"

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "examples": number("examples", 0),
        "queries": number("queries", 0),
        "negatives each": number("negatives_per_example", 1),
        "mean gap": number("mean_gap_elo", 0),
        "false % of weight": lambda summary: share(summary["false_negative_rate"]),
        "false % of documents": lambda summary: share(summary["false_negative_rate_unweighted"]),
    }
    return filled_table("run", {one.run: one.summary for one in mined}, columns)


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
