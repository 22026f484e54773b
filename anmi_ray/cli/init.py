"""`anmi init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.core.errors import ConfigError


def init(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="name of the example; left out: list all")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="write an example")] = False,
    to: Annotated[Path | None, typer.Option("--to", help="file to write (default: NAME.yaml)")] = None,
) -> None:
    """Write an example configuration, which its comments explain, or list the examples."""
    from anmi_ray.api.examples import examples, write_example
    from anmi_ray.cli import console

    if name is None:
        table = console.table("example", "what it is")
        for row in examples().items():
            table.add_row(*row)
        console.stdout().print(table)
        return
    if not example:
        raise ConfigError(f"{name} is an argument of --example", COMMAND_LINE, f"anmi init --example {name}")
    for file in write_example(name, to):
        print(f"{file} is written")
