"""What the README tells a reader to type: every command exists, every setting in it is valid, no figure is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anmi_ray.campaigns import open_campaign
from anmi_ray.config import tune
from anmi_ray.config.experiment import load
from anmi_ray.config.rules import NAMED

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)
LINES = [
    line.split("#")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.strip()
]
ANMI = [shlex.split(line)[1:] for line in LINES if line.startswith("anmi ")]


def test_the_readme_has_commands() -> None:
    assert len(ANMI) >= 8
    assert {words[0] for words in ANMI} >= {"run", "plan", "config", "show", "doctor", "rerank", "evaluate"}


@pytest.mark.parametrize(
    "words",
    [w for w in ANMI if w[0] in ("run", "plan", "config", "judge", "distill", "compare-rules", "submit")],
    ids=" ".join,
)
def test_configurations_and_overrides_are_valid(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config, *rest = [word for word in words[2 if words[0] == "submit" else 1 :] if not word.startswith("--")]
    read = tune.load if words[:2] == ["submit", "tune"] else load
    read(config, [word for word in rest if "=" in word])


@pytest.mark.parametrize("words", [w for w in ANMI if w[0] == "tune"], ids=" ".join)
def test_campaigns_and_their_overrides_are_valid(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    open_campaign(tune.load(words[1], words[2:]))


@pytest.mark.parametrize("words", [w for w in ANMI if "--rule" in w or "--rules" in w], ids=" ".join)
def test_rules_are_named_as_they_are_called(words: list[str]) -> None:
    names = words[next(i for i, word in enumerate(words) if word.startswith("--rule")) + 1].split(",")
    assert set(names) <= set(NAMED)


@pytest.mark.parametrize("command", sorted({words[0] for words in ANMI}))
def test_options_exist(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anmi_ray", command, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    used = {word.split("=")[0] for words in ANMI if words[0] == command for word in words if word.startswith("--")}
    assert all(option in done.stdout for option in used)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {shlex.split(line)[1] for line in LINES if line.startswith("make ")}
    assert {"quickstart", "test"} <= targets
    assert all(re.search(rf"^{re.escape(target)}:", makefile, flags=re.MULTILINE) for target in targets)


def test_files_it_names_are_there() -> None:
    named = set(re.findall(r"(?:jobs|anmi_ray|tests|docs|cluster)/[\w/.-]*\w", TEXT))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_no_placeholder_is_left() -> None:
    assert "@@" not in TEXT
