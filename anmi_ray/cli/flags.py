"""Arguments and options that several commands share."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.config.experiment import Experiment

COMMAND_LINE = "command line"  # place of an error in the arguments

ConfigArg = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file with settings; anmi init writes examples")]
OverrideArg = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to override")]
FromOption = Annotated[str, typer.Option("--from", help="first stage to run; earlier ones must be complete")]
UntilOption = Annotated[str, typer.Option("--until", help="last stage to run")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="do not check whether the judges' servers respond")]
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]
RunRootOption = Annotated[str, typer.Option("--root", help="folder or URI that contains the run")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON, errors included, to standard output")]
PrecisionOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option("--precision", help="arithmetic of the model; auto: bfloat16 if the device supports it natively"),
]
OwnDocumentOption = Annotated[
    Literal["same-text", "same-id", "keep"],
    typer.Option("--own-document", help="which documents with the id of their query to exclude from its ranking"),
]
RejectsOption = Annotated[Path | None, typer.Option(help="write the rejected rows, with place and reason")]
ColumnsOption = Annotated[
    str, typer.Option("--columns", metavar="NAME=COLUMN,...", help="names of columns in FILE that differ")
]
MaxRejectsOption = Annotated[float, typer.Option(min=0.0, max=1.0, help="fail if a larger share of rows is rejected")]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"],
        metavar="URL",
        help="the cluster's job server (address of its dashboard), such as http://head:8265",
    ),
]


def columns_of(text: str, known: Sequence[str]) -> dict[str, str]:
    """Return the columns of --columns by our name, one of `known`. Raise ConfigError if it is malformed."""
    columns: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, _, column = (word.strip() for word in part.partition("="))
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the columns are {', '.join(known)}"
            raise ConfigError(f"--columns {part}: unknown column '{name}'", COMMAND_LINE, hint)
        if not column or name in columns or column in columns.values():
            what = f"--columns {part}: expected NAME=COLUMN, each only once"
            raise ConfigError(what, COMMAND_LINE, "write query_id=qid,preference=better")
        columns[name] = column
    return columns


def load(config: str, overrides: list[str] | None, root: str | None) -> Experiment:
    """Return the settings of an experiment. Raise ConfigError if they are invalid."""
    from anmi_ray.config.load import load as load_experiment

    return load_experiment(config, overriding(overrides, root))


def overriding(overrides: list[str] | None, root: str | None) -> list[str]:
    """Return the overrides of the command line, --root included."""
    return [*(overrides or []), *([f"execution.root={json.dumps(root)}"] if root else [])]
