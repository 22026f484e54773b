"""`anmi compare-rules`: mining rules on the same ratings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import ConfigArg, OverrideArg, RootOption, load

if TYPE_CHECKING:
    from rich.table import Table


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
    from anmi_ray.cli.output import output_of
    from anmi_ray.pipeline import compare_rules as comparing

    experiment = load(config, overrides, root)
    names = [name.strip() for name in rules.split(",") if name.strip()] if rules is not None else None
    with output_of(experiment.execution) as output:
        compared = comparing.run(experiment, output.reporter, names)
    output.told("rules are compared", run=experiment.name, path=compared.path)
    figures = compared.figures
    output.show("", _rules_table(figures))
    output.show(*(f"left out: {name}: {reason}" for name, reason in figures["left_out"].items()))
    output.show(f"page: {compared.path}")


def _rules_table(figures: Mapping[str, Any]) -> Table:
    """A rule a row of `compare-rules`: shares of false negatives in % of the weight, with 95 % intervals."""
    from anmi_ray.cli.console import filled_table, share

    def mean(figure: Mapping[str, Any], places: int) -> str:
        if figure["mean"] is None:
            return ""
        ends = "" if figure["low"] is None else f" [{figure['low']:.{places}f}, {figure['high']:.{places}f}]"
        return f"{figure['mean']:.{places}f}{ends}"

    def against(rule: Mapping[str, Any]) -> str:
        row = rule["against"]
        if row is None:
            return ""
        difference = {"mean": row["difference"], "low": row["difference_low"], "high": row["difference_high"]}
        p = "< .001" if row["p_holm"] < 0.001 else f"= {row['p_holm']:.3f}"
        return f"{share(difference, '+')}, p {p}"

    def each(rule: Mapping[str, Any]) -> str:
        return "" if rule["negatives_per_example"] is None else f"{rule['negatives_per_example']:.1f}"

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "examples": lambda rule: f"{rule['examples']:,}",
        "rejected": lambda rule: f"{rule['rejected']:,}",
        "negatives": each,
        "mean weight": lambda rule: mean(rule["weight"], 2),
        "mean gap": lambda rule: mean(rule["gap"], 0),
        "estimated false %": lambda rule: share(rule["estimated"]),
        "truly false %": lambda rule: share(rule["true"]),
        f"per query, less {figures['baseline']}": against,
        "hidden positives %": lambda rule: share(rule["hidden"]),
    }
    return filled_table("rule", {rule["rule"]: rule for rule in figures["rules"]}, columns)
