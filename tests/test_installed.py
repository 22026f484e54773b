"""A wheel in a fresh environment, outside the clone: the demo, then documents of one's own up to the report.

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
from pathlib import Path

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


def write_tables(folder: Path, collection: Path) -> None:
    """documents.csv with ids, and queries.csv with a column of texts alone."""
    for name, fields, most in (("corpus", ("id", "title", "text"), None), ("queries", ("query",), QUERIES)):
        lines = (collection / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:most]
        rows = [{**row, "id": row["_id"], "query": row["text"]} for row in map(json.loads, lines)]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fields, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    (folder / "corpus.csv").rename(folder / "documents.csv")


def edit(config: Path, url: str) -> None:
    """Change what the page says is to be changed: the two files, the judge's address and its model."""
    text = config.read_text(encoding="utf-8")
    for setting, value in {
        "documents": "documents.csv",
        "queries": "queries.csv",
        "base_url": url,
        "model": "judge",
    }.items():
        text, changed = re.subn(rf"^(\s+{setting}:) \S+", rf"\1 {value}", text, count=1, flags=re.MULTILINE)
        assert changed, setting
    config.write_text(text, encoding="utf-8")


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
    shell(home / "bin" / "pip", "install", "--quiet", "--no-compile", wheel)
    assert str(home) in shell("python", "-c", "import anmi_ray; print(anmi_ray.__file__)")
    write_tables(place, small_collection)
    typed = commands()
    assert {line.split()[1] for line in typed} >= {"doctor", "demo", "init", "plan", "judge", "run", "show"}
    with serving() as port:
        chat = Chat(port, "installed")
        chat.setup(mixed="words")
        for line in typed:
            said = shell(*shlex.split(line))
            if line.startswith("anmi init"):
                edit(place / "own-documents.yaml", f"{chat.url}/v1")
            elif line.startswith("anmi doctor"):
                assert "nothing required is missing" in said
    report = place / "results" / "reports" / "own-documents"
    found = json.loads((report / "report.json").read_text(encoding="utf-8"))
    assert (report / "report.html").is_file()
    assert found
