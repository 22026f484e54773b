"""Ctrl-C for the processes that tests start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike

_HEED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"


def heeding(command: Sequence[str | PathLike[str]]) -> list[str | PathLike[str]]:
    """The command, heeding the signal, which a shell's background job, such as a whole test run, ignores, and with it
    all that it starts.

    By a process in between that becomes the command: a preexec_fn is called in a fork of this process, and a Ray that
    it is connected to may never answer again.
    """
    return [sys.executable, "-c", _HEED, *command]
