"""`anmi export`: a model handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anmi_ray.cli.flags import RunRootOption


def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has trained a model")],
    to: Annotated[Path, typer.Option("--to", help="folder to write: new, or empty")],
    license_: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="license in the card, such as apache-2.0; else none")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="the model's name in the card; else the run's")] = None,
    root: RunRootOption = "results",
) -> None:
    """Hand a model on: a checked copy of its Hugging Face folder, with a card of its data, method and results."""
    from anmi_ray.api import export as action
    from anmi_ray.cli.output import working

    with working("copies and checks the model"):
        folder = action.export(run_name, root, to, license_, title)
    print(f"model: {folder}")
