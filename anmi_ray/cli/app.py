"""The application that commands register with, and the arguments that several of them take."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

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
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]


def load(config: str, overrides: list[str] | None, root: str | None) -> Any:
    """The settings of an experiment. Raises ConfigError."""
    from anmi_ray.config import experiment

    extra = [f"execution.root={json.dumps(root)}"] if root else []
    return experiment.load(config, [*(overrides or []), *extra])
