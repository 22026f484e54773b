"""What README.md and docs/ tell a reader: commands exist, their settings are valid, links and paths lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from anmi_ray.config import tune
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate
from anmi_ray.config.rules import NAMED
from anmi_ray.tuning.campaign import open_campaign
from tests.commands import COMMANDS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# the pages of docs/results cite what was typed when a figure was made; their commands may be of an older release
PAGES = [
    README,
    ROOT / "SKILL.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "results" not in path.parts),
]
ALL = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "cluster" / "README.md",
    *sorted((ROOT / "docs" / "results").rglob("*.md")),
]
TEXT = {path: path.read_text(encoding="utf-8") for path in ALL}
CONFIGURED = ("queries", "run", "plan", "config", "judge")


def blocks(language: str) -> list[str]:
    """The code blocks of all pages in a language."""
    return [block for path in PAGES for block in re.findall(rf"```{language}\n(.*?)```", TEXT[path], flags=re.DOTALL)]


LINES = [
    line.partition("  #")[0].partition(" # ")[0].strip().removesuffix("&").strip()
    for block in blocks("bash")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
ANMI = list(dict.fromkeys(tuple(shlex.split(line)[1:]) for line in LINES if line.startswith("anmi ")))


def names(path: Path) -> str:
    """How a test of a page is called."""
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The headings of a page as links write them."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len(TEXT[README].splitlines()) <= 110
    assert len(re.sub(r"```.*?```|\]\([^)]*\)|[|#*`]", " ", TEXT[README], flags=re.DOTALL).split()) <= 700


def test_every_command_is_shown() -> None:
    assert {words[0] for words in ANMI} == {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize("words", [w for w in ANMI if w[0] in CONFIGURED or w[1:2] == ("submit",)], ids=" ".join)
def test_configurations_and_overrides_are_valid(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    start = 3 if words[0] == "jobs" else 1
    config, *rest = [word for word in words[start:] if not word.startswith("--")]
    written = {"search.yaml": "own-documents.yaml", "my-docs.yaml": "own-documents.yaml"}  # by `anmi init`
    config = config if "/" in config else f"jobs/configs/{written.get(config, config)}"
    read = tune.load if words[1:3] == ("submit", "tune") else load
    read(config, [word for word in rest if "=" in word and "://" not in word.partition("=")[0]])


@pytest.mark.parametrize("words", [w for w in ANMI if w[0] == "tune"], ids=" ".join)
def test_campaigns_and_their_overrides_are_valid(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    open_campaign(tune.load(words[1], words[2:]))


@pytest.mark.parametrize("words", [w for w in ANMI if "--rule" in w or "--rules" in w], ids=" ".join)
def test_rules_are_named_as_they_are_called(words: tuple[str, ...]) -> None:
    named = words[next(i for i, word in enumerate(words) if word.startswith("--rule")) + 1].split(",")
    assert set(named) <= set(NAMED)


@pytest.mark.parametrize("command", sorted({words[: 2 if words[0] == "jobs" else 1] for words in ANMI}), ids=" ".join)
def test_options_exist(command: tuple[str, ...]) -> None:
    same = [words for words in ANMI if words[: len(command)] == command]
    used = {word.split("=")[0] for words in same for word in words if word.startswith("--")}
    known = {option for one in COMMANDS[" ".join(command)].params for option in (*one.opts, *one.secondary_opts)}
    assert used <= known | {"--help"}


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {shlex.split(line)[1] for line in LINES if line.startswith("make ")}
    assert {"quickstart", "lint", "docs"} <= targets
    assert all(re.search(rf"^{re.escape(target)}:", makefile, flags=re.MULTILINE) for target in targets)


def settings_of(block: str) -> dict[str, Any]:
    """A block of YAML as settings."""
    content = yaml.safe_load(block)
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.splitlines()[0])
def test_settings_in_examples_are_valid(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    content = settings_of(block)
    if "space" in content:
        (tmp_path / "campaign.yaml").write_text(block, encoding="utf-8")
        open_campaign(tune.load(tmp_path / "campaign.yaml"))
        return
    assert content.keys() <= Experiment.model_fields.keys()
    validate(content, "an example of the documentation")


@pytest.mark.parametrize("path", ALL, ids=names)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", TEXT[path], flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        generated = there.parent.name == "reference"  # whose headings the build makes and checks
        if not there.exists() or (heading and not generated and heading not in anchors(there.read_text("utf-8"))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=names)
def test_files_it_names_are_there(path: Path) -> None:
    named = set(re.findall(r"(?<![\w/.-])(?:jobs|anmi_ray|tests|docs|cluster)/[\w/.-]*\w", TEXT[path]))
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("path", ALL, ids=names)
def test_no_placeholder_is_left(path: Path) -> None:
    assert "@@" not in TEXT[path]
    assert "TODO" not in TEXT[path]


def test_a_document_is_labelled_that_is_clicked_more_often_than_its_ranks() -> None:
    names: dict[str, Any] = {}
    exec(next(code for code in blocks("python") if "def labels_of" in code), names)
    first, second = (("q", "a", 1, click) for click in (1, 0)), [("q", "b", 2, 1)] * 2
    rest = [("r", "c", rank, rank % 2) for rank in (1, 2, 3)] * 3
    assert names["labels_of"]([*first, *second, *rest]) == [("q", "b")]
