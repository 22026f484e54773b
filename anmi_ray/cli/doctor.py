"""`anmi doctor`: what is installed here, what is missing, and whether a configuration's judges answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import wants_json

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.api.doctor import Check


def doctor(
    context: typer.Context,
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="check its judges' servers too")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List what is installed, what each missing package would add, and how to install it."""
    from anmi_ray.api.doctor import report
    from anmi_ray.cli.console import stdout

    checks = report(config)
    if as_json or wants_json(context):
        print(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        render(stdout(), checks)


def render(console: Console, checks: Sequence[Check]) -> None:
    """Print the checks as a table, then the remedies of those that are not ok."""
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
