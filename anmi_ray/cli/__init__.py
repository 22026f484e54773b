"""The commands. Each validates, calls one function of the package, and prints; errors are one message, exit code 2."""

from __future__ import annotations

import os
import sys

import typer
from typer.exceptions import TyperException

from anmi_ray.cli.app import app
from anmi_ray.core.errors import AnmiError, ConfigError, DataError

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a defect of ours (traceback), 2 the user's to mend, 130 interrupted.

    5: a budget was spent. 75: the cluster lost a part of it, and the same command may go on. A pilot exits with
    judge.PILOT_EXITS, `submit` as the job that it follows.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")  # read when ray.data is imported; a user's own is kept
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="anmi")
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except AnmiError as error:
        kind = {ConfigError: "configuration", DataError: "data"}.get(type(error), "error")
        print(f"anmi: {kind}: {error}" if kind != "error" else f"anmi: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except TyperException as error:  # typer carries its own click, so click's own exceptions would not match
        if message := error.format_message():
            print(f"anmi: {message}\n  remedy: anmi --help", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("\nanmi: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
