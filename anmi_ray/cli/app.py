"""The application that commands register with, and the arguments that several of them take."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from anmi_ray.core.errors import ConfigError

app = typer.Typer(
    name="anmi",
    help="Train rerankers from pairwise preferences instead of labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigArg = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file with the settings, see jobs/configs/")]
OverrideArg = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to override")]
FromOption = Annotated[str, typer.Option("--from", help="first stage to carry out; those before must be there")]
UntilOption = Annotated[str, typer.Option("--until", help="last stage to carry out")]
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]


def load(config: str, overrides: list[str] | None, root: str | None) -> Any:
    """The settings of an experiment. Raises ConfigError."""
    from anmi_ray.config import load

    return load.load(config, overriding(overrides, root))


def overriding(overrides: list[str] | None, root: str | None) -> list[str]:
    """What the command line overrides in a file, --root among it."""
    return [*(overrides or []), *([f"execution.root={json.dumps(root)}"] if root else [])]


def part(experiment: Any, first: str, last: str) -> tuple[str, str]:
    """The first and the last stage of the part of the path that is wanted. Raises ConfigError where there is none."""
    from anmi_ray.pipeline.run import names_of, stage_name

    names = names_of(experiment)
    first = stage_name(first, names) if first else names[0]
    last = stage_name(last, names) if last else names[-1]
    if names.index(first) > names.index(last):
        raise ConfigError(f"--from {first} comes after --until {last}", "command line", "swap them")
    return first, last
