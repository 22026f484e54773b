"""Commands as a user types them, carried out in this process: the Ray that tests share, and no second import of all."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from anmi_ray.cli import app, main

COMMANDS: dict[str, Any] = get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
COMMANDS |= {f"jobs {name}": command for name, command in COMMANDS["jobs"].commands.items()}


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit status and what it said."""

    returncode: int
    stdout: str
    stderr: str


def anmi(*arguments: object) -> Done:
    """Carry out `anmi ARGUMENTS`. An exception that the command lets out, which a user would see as a traceback,
    comes out here too."""
    out = io.StringIO()
    errors = io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            main([str(one) for one in arguments])
        except SystemExit as end:
            code = end.code
        else:
            raise AssertionError("the command has not exited")
    assert isinstance(code, int)
    return Done(code, out.getvalue(), errors.getvalue())


def printed(*arguments: object) -> str:
    """What a command that succeeds prints."""
    done = anmi(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(*arguments: object) -> str:
    """What a command says that refuses: one message with a remedy."""
    done = anmi(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "remedy: " in done.stderr
    return done.stderr
