"""`anmi export`: a model handed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import RunRootOption

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers


def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has trained a model")],
    to: Annotated[Path, typer.Option("--to", help="folder to write: new, or empty")],
    license_: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="license in the card, such as apache-2.0; else none")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="the model's name in the card; else the run's")] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="write onnx/model.onnx too, and what it does to nDCG@10")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="and onnx/model_int8.onnx, in 8-bit integers for CPUs; says --onnx")
    ] = False,
    root: RunRootOption = "results",
) -> None:
    """Hand a model on: a checked copy of its Hugging Face folder, with a card of its data, method and results."""
    from anmi_ray.api import export as action
    from anmi_ray.cli.output import working

    files: list[Numbers] = [*(("float32",) if onnx or int8 else ()), *(("int8",) if int8 else ())]
    with working("copies and checks the model"):
        folder = action.export(run_name, root, to, license_, title, files)
    print(f"model: {folder}")
