"""The commands. Each one checks its arguments, calls one function of the package, and prints.

User errors are one message and exit code 2.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from anmi_ray.cli.app import app, replacement
from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.config.paths import check_address
from anmi_ray.core import redaction
from anmi_ray.core.errors import AnmiError, ConfigError, DataError, facts_of, from_file_error
from anmi_ray.runtime.driver import own_stderr

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit.

    0: done. 1: a defect of anmi_ray (traceback). 2: user error. 5: budget spent. 75: Ray lost a part or did not start;
    the same command continues. 130: Ctrl-C. 141: the output was closed. 143: SIGTERM. `judges.PILOT_EXITS`: a pilot.
    `jobs submit` exits like the job that it follows.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")  # read when ray.data is imported
    with own_stderr(), _terminable() as terminated:
        _run(sys.argv[1:] if arguments is None else arguments, terminated)


def _run(words: list[str], terminated: list[int]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that are not UTF-8
    as_json = "--json" in words
    try:
        for word in words:
            if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ConfigError(f"{word} is not UTF-8", COMMAND_LINE, "rename the file, or write it in UTF-8")
        for before, word in zip(["", *words], words, strict=False):  # no address may contain a credential
            name, _, value = word.partition("=")
            check_address(word, before if before.startswith("--") else COMMAND_LINE)
            check_address(value, f"{COMMAND_LINE}, {redaction.shortened(name)}")
        if (new := replacement(words)) is not None:
            as_json = words[0] == "--json"  # else --json was to write a file
            raise ConfigError("this command line was replaced", COMMAND_LINE, new)
        code = app(args=words, standalone_mode=False, prog_name="anmi")
        if code == 130:  # typer returns this for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
    except AnmiError as error:
        _fail(error, as_json)
    except TyperException as error:  # typer has its own copy of click, so click's exceptions do not match
        if message := error.format_message():
            command = getattr(getattr(error, "ctx", None), "command_path", "anmi")
            short = redaction.shortened(message.replace("Value error, ", ""), 400)
            _fail(ConfigError(short, COMMAND_LINE, f"{command} --help"), as_json)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("\nanmi: interrupted; the same command continues from here", file=sys.stderr)
        sys.exit(143 if terminated else 130)
    except (BrokenPipeError, SystemExit):  # typer and rich raise SystemExit for a closed pipe only
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails when it flushes
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # readers of files handle other errors
            raise
        _fail(from_file_error(error, str(error.filename or COMMAND_LINE)), as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: AnmiError, as_json: bool) -> NoReturn:
    """Exit with one message, or with JSON on standard output."""
    if as_json:
        facts: dict[str, Any] = facts_of(error)
        # scrub before formatting as JSON: in JSON a secret may include a part of a quotation
        told = {name: redaction.scrub(text) if text else text for name, text in facts["error"].items()}
        print(json.dumps({**facts, "error": told}, ensure_ascii=False), flush=True)
    else:
        from anmi_ray.cli.console import note  # imports rich: only if something failed

        kind = {ConfigError: "configuration: ", DataError: "data: "}.get(type(error), "")
        note(f"anmi: {kind}{error}")
    sys.exit(error.exit_code)


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """Inside, handle SIGTERM like Ctrl-C; yield a list that then contains its number. Keep other handlers."""
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
