"""A wheel in a fresh environment, outside the clone: the demo, strangers' files, then one of them up to the service.

The commands are those of docs/tutorials/own-documents.md, as they stand there.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.judging.serving import Chat, serving

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorials" / "own-documents.md"
QUERIES = 60
PILOT_EXITS = {0, 3, 4}  # what a stub answers is neither good nor bad


def build_wheel(tree: Path) -> Path:
    """The wheel of a copy of the tree, in a folder of its own: a build leaves folders behind."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "anmi_ray", tree / "anmi_ray", ignore=ignored)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=tree, check=True, timeout=300, capture_output=True)
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


def commands() -> list[str]:
    """What the page has a reader type who has no clone."""
    section = PAGE.read_text(encoding="utf-8").split("### Without a clone")[1].split("\n#")[0]
    return [line.partition("#")[0].strip() for line in re.findall(r"^anmi .*$", section, flags=re.MULTILINE)]


def write_files(folder: Path, collection: Path) -> dict[str, tuple[str, ...]]:
    """Documents and queries of strangers, as the arguments of `anmi init` by kind."""
    rows, asked = (
        [json.loads(line) for line in (collection / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("corpus", "queries")
    )
    for name, delimiter, encoding in (("docs.csv", ";", "utf-8-sig"), ("west.csv", ",", "cp1252")):
        with (folder / name).open("w", encoding=encoding, newline="", errors="replace") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(("sku", "Bezeichnung", "Beschreibung"))
            writer.writerows((row["_id"], f"Stück {row['title']}", row["text"]) for row in rows)
    log = [row["text"] for row in asked[:QUERIES]]
    (folder / "queries.csv").write_text("\n".join(["query", *log]), encoding="utf-8")
    (folder / "log.txt").write_text("\n".join(log), encoding="utf-8")
    (folder / "pages").mkdir()
    for at, row in enumerate(rows[:50]):
        (folder / "pages" / f"page-{at}.md").write_text(f"# {row['title']}\n\n{row['text']}\n", encoding="utf-8")
    pq.write_table(
        pa.table({"key": [row["_id"] for row in rows], "text": [row["text"] for row in rows]}), folder / "docs.parquet"
    )
    column = ("--column", "text=Beschreibung")
    return {
        "semicolons": ("docs.csv", "queries.csv", *column),
        "cp1252": ("west.csv", "queries.csv", *column),
        "log": ("docs.csv", "log.txt", *column),
        "pages": ("pages", "queries.csv"),
        "beir": (str(collection),),
        "parquet": ("docs.parquet", "queries.csv"),
    }


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_wheel_takes_own_documents_to_a_report(tmp_path: Path, small_collection: Path) -> None:
    wheel, home, place = build_wheel(tmp_path / "tree"), tmp_path / "venv", tmp_path / "place"
    place.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean["PATH"] = f"{home / 'bin'}:{clean['PATH']}"

    def shell(*words: object) -> str:
        done = subprocess.run(
            [str(word) for word in words], cwd=place, env=clean, capture_output=True, text=True, timeout=1500
        )
        allowed = PILOT_EXITS if any(str(word).startswith("--pilot") for word in words) else {0}
        assert done.returncode in allowed, (
            f"{shlex.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    shell(sys.executable, "-m", "venv", home)
    shell(home / "bin" / "pip", "install", "--quiet", "--no-compile", f"{wheel}[serve]")
    assert str(home) in shell("python", "-c", "import anmi_ray; print(anmi_ray.__file__)")
    typed = commands()
    assert {line.split()[1] for line in typed} >= {"doctor", "demo", "init", "plan", "judge", "run"}
    with serving() as port:
        chat = Chat(port, "installed")
        chat.setup(mixed="words")
        judge = f"{chat.url}/v1#judge"
        for kind, words in write_files(place, small_collection).items():
            shell("anmi", "init", *words, "--judge", judge, "--out", f"{kind}.yaml")
            assert "to do" in shell("anmi", "plan", f"{kind}.yaml")
        said = ""
        for line in typed:
            words = shlex.split(line.replace("openai:gpt-6-luna", judge))
            said = shell(*words, *(("--column", "text=Beschreibung") if words[1] == "init" else ()))
            if line.startswith("anmi doctor"):
                assert "nothing required is missing" in said
    assert json.loads((place / "results" / "reports" / "search" / "report.json").read_text(encoding="utf-8"))
    assert re.search("^(Deploy|Do not deploy|Undecided)", said, flags=re.MULTILINE), said
    serve = subprocess.Popen([home / "bin" / "anmi", "serve", "search", "--port", "8765"], cwd=place, env=clean)
    try:
        answer = asked("http://127.0.0.1:8765/v1/rerank", {"query": "chair", "documents": ["a chair", "a lamp"]})
        assert sorted(row["index"] for row in answer["results"]) == [0, 1]
    finally:
        serve.terminate()
        assert serve.wait(timeout=120) in (0, 143)


def asked(url: str, body: dict[str, Any], within_s: float = 180.0) -> Any:
    """The answer of a service, once it listens."""
    end = time.monotonic() + within_s
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    while True:
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except URLError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
