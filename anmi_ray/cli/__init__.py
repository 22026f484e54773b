"""The commands. Each validates, calls one function of the package, and prints; errors are one message, exit code 2."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from anmi_ray.cli.app import REPLACED, app
from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.config.paths import check_address
from anmi_ray.core import redaction
from anmi_ray.core.errors import AnmiError, ConfigError, DataError, facts_of, from_file_error
from anmi_ray.runtime.driver import own_stderr

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a defect of ours (traceback), 2 the user's to mend, 130 interrupted.

    143: by SIGTERM. 141: nobody reads what it prints. 5: a budget was spent. 75: Ray lost a part of it or did not
    start, and the same command may go on. `judge.PILOT_EXITS`: a pilot. `jobs submit` exits as the job that it follows.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")  # read when ray.data is imported; a user's own is kept
    with own_stderr(), _terminable() as terminated:
        _carry_out(arguments, terminated)


def _carry_out(arguments: list[str] | None, terminated: list[int]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 ends no command
    words = sys.argv[1:] if arguments is None else arguments
    try:
        for word in words:
            if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ConfigError(f"{word} is not UTF-8", COMMAND_LINE, "rename the file, or write it in UTF-8")
        _check_addresses(words)
        if words and words[0] in REPLACED:
            new = REPLACED[words[0]]
            remedy = shlex.join([*new.split(), *words[1:]]) if new.islower() else new
            raise ConfigError(f"anmi {words[0]} was replaced by {new}", COMMAND_LINE, remedy)
        code = app(args=arguments, standalone_mode=False, prog_name="anmi")
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
    except AnmiError as error:
        _refuse(error, words)
    except TyperException as error:  # typer carries its own click, so click's own exceptions would not match
        if message := error.format_message():
            command = getattr(getattr(error, "ctx", None), "command_path", "anmi")
            short = redaction.shortened(message.replace("Value error, ", ""), 400)
            remedy = f"{command} --help says what is allowed"
            if words[:1] == ["--json"]:
                _tell(facts_of(ConfigError(short, COMMAND_LINE, remedy)))
            _say(f"anmi: {short}\n  remedy: {remedy}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("\nanmi: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(143 if terminated else 130)
    except (BrokenPipeError, SystemExit):  # what typer and rich make of it is the only exit that comes here
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it flushes
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # of what a user named; whoever reads a file tells of other errors
            raise
        _refuse(from_file_error(error, str(error.filename or COMMAND_LINE)), words)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: AnmiError, words: list[str]) -> NoReturn:
    """End with one message, or with JSON where that is asked for."""
    if words[:1] == ["--json"]:
        _tell(facts_of(error))
    kind = {ConfigError: "configuration", DataError: "data"}.get(type(error), "error")
    _say(f"anmi: {kind}: {error}" if kind != "error" else f"anmi: {error}")
    sys.exit(error.exit_code)


def _tell(facts: dict[str, Any]) -> NoReturn:
    """End with an error as JSON, on standard output: that is where whoever asked for JSON reads."""
    # before they are JSON: of that, what looks like a secret may hold a part of a quotation
    error = {name: redaction.scrub(text) if text else text for name, text in facts["error"].items()}
    print(json.dumps({**facts, "error": error}, ensure_ascii=False), flush=True)
    sys.exit(facts["exit_code"])


def _say(text: str) -> None:
    from anmi_ray.cli.console import note  # rich, which a command that goes well may not need

    note(text)


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
