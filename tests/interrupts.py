"""Ctrl-C for the processes that tests start."""

from __future__ import annotations

import signal


def heed() -> None:
    """In a child before it starts: heed the signal, which a shell's background job, such as a whole test run, ignores,
    and with it all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
