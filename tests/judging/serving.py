"""The misbehaving server of chat_server.py as tests see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.judging.http.dispatch import Question

SCRIPT = Path(__file__).with_name("chat_server.py")


def ask(text: str) -> list[dict[str, str]]:
    """Messages that say `text`."""
    return [{"role": "user", "content": text}]


async def one_by_one(questions: Iterable[Question]) -> AsyncIterator[Question]:
    """Questions as an engine gives them."""
    for question in questions:
        yield question


@dataclass(frozen=True)
class Chat:
    """A server under a name of its own: its faults, and its own log of what it was sent."""

    port: int
    name: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.name}"

    def setup(self, **settings: Any) -> None:
        """Forget what was, and behave as told."""
        body = json.dumps(settings).encode()
        urlopen(Request(f"{self.url}/setup", body, {"Content-Type": "application/json"}), timeout=30).close()

    def log(self) -> list[dict[str, Any]]:
        """What it was sent, in order of arrival."""
        with urlopen(f"{self.url}/log", timeout=30) as response:
            return json.load(response)

    def answered(self) -> int:
        """How many answers it has given."""
        with urlopen(f"{self.url}/answered", timeout=30) as response:
            return json.load(response)

    def config(self, **settings: Any) -> EndpointConfig:
        """Settings that lead here, patient enough for a busy machine and quick to try again."""
        fast = {"timeout_s": 20.0, "max_wait_s": 0.1, "retries": 8, "concurrency": 16}
        return EndpointConfig(**{"base_url": f"{self.url}/v1", "model": "judge", **fast, **settings})


@contextmanager
def serving() -> Iterator[int]:
    """A server process; gives its port."""
    with subprocess.Popen([sys.executable, str(SCRIPT)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
