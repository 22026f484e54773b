"""`anmi doctor`: what is installed here, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.api.doctor import Check


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Say what is installed, what each missing piece would give, and how to get it."""
    from anmi_ray.api.doctor import report, to_json

    if as_json:
        print(to_json(report()))
    else:
        from anmi_ray.cli import console

        render(console.stdout(), report())


def render(console: Console, checks: Sequence[Check]) -> None:
    """Print the checks as a table, and below it the remedies of what is missing, broken or optional."""
    from rich.text import Text

    from anmi_ray.api.doctor import healthy
    from anmi_ray.cli.console import table as empty_table

    colours = {"ok": "green", "missing": "bold red", "broken": "bold red", "optional": "yellow"}
    table = empty_table("", "found", "gives")
    table.columns[0].no_wrap = True
    for check in checks:
        mark = Text.assemble((f"{check.state:8}", colours[check.state]), f" {check.name}")
        table.add_row(mark, check.found, check.gives)
    console.print(table)
    for check in checks:
        if check.state != "ok":
            console.print(Text.assemble("\n", (check.name, colours[check.state]), f": {check.remedy}"))
    verdict = "nothing required is missing" if healthy(checks) else "something required is missing or broken, see above"
    console.print(f"\n{verdict}")
