"""`anmi refine` was a command; refining a run is the setting `refines` of a plain run."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.core.errors import ConfigError


def refine(run: Annotated[str, typer.Argument(metavar="RUN")] = "RUN") -> None:
    """Name the form that replaces this command."""
    what = "refining a run is a setting of a plain run: give its configuration, and refines=RUN"
    raise ConfigError(
        what, COMMAND_LINE, f"anmi run CONFIG refines={shlex.quote(run)} name={shlex.quote(f'{run}-refine-1')}"
    )
