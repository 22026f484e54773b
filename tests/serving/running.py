"""`anmi serve` as a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

KEY = "a-key-of-this-test"
READY_S = 240


@dataclass(frozen=True)
class Served:
    """A service that answers."""

    process: subprocess.Popen[str]
    address: str
    model: Path
    errors: Path

    def post(self, path: str, content: Any, key: str = KEY) -> tuple[int, Any]:
        """Status and answer of one request on a connection of its own."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self.address}{path}", json.dumps(content).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def said(self) -> str:
        """The next line of its screen."""
        assert self.process.stdout is not None
        killer = threading.Timer(READY_S, self.process.kill)
        killer.start()
        try:
            return self.process.stdout.readline()
        finally:
            killer.cancel()

    def processes(self, kind: str = "ScoringReplica") -> set[int]:
        """Processes of a kind, else those that score."""
        found: set[int] = set()
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if f":{kind}" in " ".join(child.cmdline()):
                    found.add(child.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """The model's scores of texts, in their order."""
        status, found = self.post("/v1/rerank", {"query": query, "documents": texts, "raw_scores": True})
        assert status == 200, found
        by_index = {row["index"]: row["relevance_score"] for row in found["results"]}
        return [by_index[index] for index in range(len(texts))]


@contextmanager
def serving(model: Path | str, errors: Path, *flags: str) -> Iterator[Served]:
    """The service of a folder or a run while inside; what it says on the standard error is in the file `errors`."""
    command = [sys.executable, "-m", "anmi_ray", "serve", str(model), "--port", "0", "--key-env", "SERVICE_KEY"]
    environment: Mapping[str, str] = {**os.environ, "SERVICE_KEY": KEY}
    with errors.open("w") as sink:
        process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=sink, text=True, env=environment)
    assert process.stdout is not None
    try:
        served = Served(process, "", Path(model), errors)
        line = served.said()
        while line.endswith("is rebuilt\n") or line.startswith(("Do not deploy", "Undecided")):  # about a run
            line = served.said()
        found = re.fullmatch(r"serving \S+ at (http://127\.0\.0\.1:\d+); Ctrl-C ends it\n", line)
        assert found, (line, errors.read_text()[-2000:])
        yield replace(served, address=found[1])
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(READY_S)
        process.stdout.close()
