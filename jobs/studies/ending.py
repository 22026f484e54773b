"""How a study ends when it cannot go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from anmi_ray.errors import AnmiError


@contextmanager
def ending(study: str) -> Iterator[None]:
    """Around a study's main: a user's mistake is told in one line with exit status 1, and Ctrl-C ends it with 130."""
    try:
        yield
    except AnmiError as error:
        sys.exit(f"{study}: {error}")
    except KeyboardInterrupt:
        print(f"\n{study}: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
