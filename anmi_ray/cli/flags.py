"""Arguments and options that several commands take, and the settings that they name."""

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

COMMAND_LINE = "command line"  # the place of an error in what was typed

ConfigArg = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file with the settings; examples: anmi init")]
OverrideArg = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to override")]
FromOption = Annotated[str, typer.Option("--from", help="first stage to carry out; those before must be there")]
UntilOption = Annotated[str, typer.Option("--until", help="last stage to carry out")]
WaitOption = Annotated[bool, typer.Option("--wait", help="begin when no other run is at work under the root")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="do not check whether judges' servers can be reached")]
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]
RunRootOption = Annotated[str, typer.Option("--root", help="folder or URI that holds the run")]
FiguresOption = Annotated[Path | None, typer.Option("--json", help="write every figure as JSON")]
PrecisionOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option("--precision", help="arithmetic of the model; auto: bfloat16 where it is computed natively"),
]
OwnDocumentOption = Annotated[
    Literal["same-text", "same-id", "keep"],
    typer.Option("--own-document", help="which documents with the id of their query to leave out of its ranking"),
]
RejectsOption = Annotated[Path | None, typer.Option(help="write the rows that were refused, with place and reason")]
ColumnsOption = Annotated[
    str, typer.Option("--columns", metavar="NAME=COLUMN,...", help="columns of FILE that are called otherwise")
]
MaxRejectsOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="fail if a larger share of the rows is refused")
]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"],
        metavar="URL",
        help="the cluster's job server: its dashboard's address, such as http://head:8265",
    ),
]


def wants_json(context: typer.Context) -> bool:
    """Whether `anmi --json` was typed."""
    return bool(context.find_root().obj)


def columns_of(text: str, known: Sequence[str]) -> dict[str, str]:
    """The columns that --columns names, by our name for them, which is one of `known`. Raises ConfigError."""
    columns: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, _, column = (word.strip() for word in part.partition("="))
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"--columns {part}: no column is called '{name}'", COMMAND_LINE, hint)
        if not column or name in columns or column in columns.values():
            what = f"--columns {part}: names no column, or one that is named already"
            raise ConfigError(what, COMMAND_LINE, "write query_id=qid,preference=better")
        columns[name] = column
    return columns


def load(config: str, overrides: list[str] | None, root: str | None) -> Experiment:
    """The settings of an experiment. Raises ConfigError."""
    from anmi_ray.config.load import load as load_experiment

    return load_experiment(config, overriding(overrides, root))


def overriding(overrides: list[str] | None, root: str | None) -> list[str]:
    """What the command line overrides in a file, --root among it."""
    return [*(overrides or []), *([f"execution.root={json.dumps(root)}"] if root else [])]
