"""The commands. Each validates, calls one function of the package, and prints; errors are one message, exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from typer.exceptions import TyperException

from anmi_ray.cli.app import app
from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.config.paths import check_address
from anmi_ray.core import redaction
from anmi_ray.core.errors import AnmiError, ConfigError, DataError
from anmi_ray.runtime.driver import own_stderr

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a defect of ours (traceback), 2 the user's to mend, 130 interrupted.

    143: by SIGTERM. 5: a budget was spent. 75: Ray lost a part of it or did not start, and the same command may go on. A
    pilot exits with judge.PILOT_EXITS, `submit` as the job that it follows.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")  # read when ray.data is imported; a user's own is kept
    with own_stderr(), _terminable() as terminated:
        _carry_out(arguments, terminated)


def _carry_out(arguments: list[str] | None, terminated: list[int]) -> None:
    try:
        _check_addresses(sys.argv[1:] if arguments is None else arguments)
        code = app(args=arguments, standalone_mode=False, prog_name="anmi")
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except AnmiError as error:
        kind = {ConfigError: "configuration", DataError: "data"}.get(type(error), "error")
        text = redaction.shown(str(error))
        print(f"anmi: {kind}: {text}" if kind != "error" else f"anmi: {text}", file=sys.stderr)
        sys.exit(error.exit_code)
    except TyperException as error:  # typer carries its own click, so click's own exceptions would not match
        if message := error.format_message():
            print(f"anmi: {redaction.shown(redaction.shortened(message, 400))}\n  remedy: anmi --help", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("\nanmi: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(143 if terminated else 130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """While inside, SIGTERM ends what is under way as Ctrl-C does; gives a list that then holds its number.

    Who started the process with SIGTERM ignored, or handles it, keeps that.
    """
    terminated: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        terminated.append(number)
        raise KeyboardInterrupt

    ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield terminated
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check_addresses(arguments: list[str]) -> None:
    """Raise ConfigError where one of the words typed is an address with a credential, by itself or as a value."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        name, _, value = word.partition("=")
        check_address(word, before if before.startswith("--") else COMMAND_LINE)
        check_address(value, f"{COMMAND_LINE}, {redaction.shortened(name)}")
