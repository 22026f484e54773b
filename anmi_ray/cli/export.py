"""`anmi export`: a model handed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE, RunRootOption
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers


def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has trained a model")],
    to: Annotated[Path | None, typer.Option("--to", help="folder to write the model to: new, or empty")] = None,
    dataset: Annotated[
        Path | None,
        typer.Option("--dataset", help="folder to write judgments, ratings and gaps to, as a dataset: new, or empty"),
    ] = None,
    texts: Annotated[bool, typer.Option("--texts", help="the documents' texts too, in the dataset")] = False,
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
    hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="ORG/NAME", help="upload it, private if new, with HF_TOKEN"),
    ] = None,
    root: RunRootOption = "results",
) -> None:
    """Hand on what a run has made, checked, with a card: its model's Hugging Face folder, or what judges said.

    --to: the model, with data, method and results. --dataset: judgments, ratings and gaps with errors, in Parquet.
    """
    from anmi_ray.api import hub as hubs
    from anmi_ray.api.dataset_export import export_dataset
    from anmi_ray.api.export import export as export_model
    from anmi_ray.cli.output import working

    if to is None and dataset is None:
        raise ConfigError("says nowhere to write", COMMAND_LINE, "give --to FOLDER, --dataset FOLDER, or both")
    if to is None and (onnx or int8):
        raise ConfigError("--onnx and --int8 are of a model", COMMAND_LINE, "give --to FOLDER too")
    if dataset is None and texts:
        raise ConfigError("--texts is of a dataset", COMMAND_LINE, "give --dataset FOLDER too")
    if hub is not None:
        if to is not None and dataset is not None:
            raise ConfigError("--push-to-hub takes one folder", COMMAND_LINE, "give --to or --dataset, not both")
        hubs.check(hub)
    if dataset is not None:
        with working("writes the dataset"):
            export_dataset(run_name, root, dataset, license_, title, texts)
        print(f"dataset: {dataset}")
    if to is not None:
        files: list[Numbers] = [*(("float32",) if onnx or int8 else ()), *(("int8",) if int8 else ())]
        with working("copies and checks the model"):
            export_model(run_name, root, to, license_, title, files)
        print(f"model: {to}")
    if hub is not None and (folder := to or dataset) is not None:
        with working("uploads"):
            pushed = hubs.push(folder, hub, "dataset" if to is None else "model")
        print(pushed.said())
