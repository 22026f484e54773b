"""An actor of a family, apart from the tests: a process of one imports this file alone, in a moment."""

from __future__ import annotations

import os
from typing import Any

import ray


class Member:
    """An actor that starts another, which starts another."""

    def start(self, kind: Any, generations: int) -> int:
        """The process, when all of them live."""
        if generations:
            self.next = kind.remote()
            ray.get(self.next.start.remote(kind, generations - 1))
        else:
            self.next = kind.options(lifetime="detached", name="lasting").remote()
            ray.get(self.next.__ray_ready__.remote())
        return os.getpid()
