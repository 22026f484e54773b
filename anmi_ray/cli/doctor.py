"""`anmi doctor`: what is installed here and what is missing, and which files under a root are."""

from __future__ import annotations

import json
from collections import Counter
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
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    root: Annotated[str | None, typer.Option("--root", help="look over all files of this root instead")] = None,
) -> None:
    """Say what is installed, what each missing piece would give, and how to get it.

    With --root: which files under a root are damaged or lost, what making each again costs, and which are left
    over; exit code 1 where one is damaged or lost.
    """
    from anmi_ray.api.doctor import report, to_json

    as_json = as_json or wants_json(context)
    if root is not None and as_json:
        text, whole = root_to_json(root)
        print(text)
        raise typer.Exit(0 if whole else 1)
    if root is not None:
        from anmi_ray.cli.console import stdout

        raise typer.Exit(0 if render_root(stdout(), root) else 1)
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


def render_root(console: Console, root: str) -> bool:
    """Look over a root and print what is damaged, lost or left over; whether nothing is damaged or lost."""
    from rich.text import Text

    from anmi_ray.store import Store
    from anmi_ray.store.inspection import Inspection

    inspection = Inspection(Store(root))
    counts: Counter[str] = Counter()
    for finding in inspection.findings():
        counts[finding.state] += 1
        colour = "yellow" if finding.state == "left over" else "bold red"
        said = f" {finding.path}: {finding.wrong}\n  {finding.remedy}"
        console.print(Text.assemble((finding.state, colour), said), soft_wrap=True)
    size = f"{inspection.files:,} files, {inspection.read / 2**20:,.1f} MiB looked at"
    found = ", ".join(f"{counts[state]:,} {state}" for state in ("damaged", "lost", "left over"))
    older = f"; {inspection.unsealed:,} of older versions bear no hash" if inspection.unsealed else ""
    begun = f"; {inspection.unfinished:,} artifacts are begun, not complete" if inspection.unfinished else ""
    console.print(f"{size}: {found}{older}{begun}", highlight=False, soft_wrap=True)
    return not counts["damaged"] and not counts["lost"]


def root_to_json(root: str) -> tuple[str, bool]:
    """The same as JSON."""
    from anmi_ray.store import Store
    from anmi_ray.store.inspection import Inspection

    inspection = Inspection(Store(root))
    findings = [asdict(finding) for finding in inspection.findings()]
    counts = {name: getattr(inspection, name) for name in ("files", "read", "unsealed", "unfinished")}
    text = json.dumps({"findings": findings, **counts}, indent=1, ensure_ascii=False)
    return text, all(finding["state"] == "left over" for finding in findings)
