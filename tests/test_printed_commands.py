"""Commands that are printed, as the next step or as a remedy: they exist with their options, and the next one runs."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from anmi_ray import Run
from anmi_ray.config.load import load, run_name
from tests.commands import COMMANDS, anmi, printed
from tests.models.tiny import write_tiny_bert
from tests.test_commands import smaller_settings
from tests.training.one_task import replace_ray_train

ROOT = Path(__file__).parents[1]
_COMMAND = re.compile(r"\banmi ([a-z][a-z-]*)([^`;,.()<>\n]*)")


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every text in the package that may be shown, and of the comments of example settings."""
    for path in sorted((ROOT / "anmi_ray").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, "".join(str(p.value) if isinstance(p, ast.Constant) else "VALUE" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield place, node.value
    for suffix in ("j2", "js", "html"):
        for path in sorted((ROOT / "anmi_ray").rglob(f"*.{suffix}")):
            yield str(path.relative_to(ROOT)), re.sub(r"{{.*?}}", "VALUE", path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "jobs" / "configs").glob("*.yaml")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "#" in line]
        yield from ((str(path.relative_to(ROOT)), line.partition("#")[2]) for line in lines)


@pytest.mark.slow
def test_every_command_that_a_text_names_exists_with_its_options() -> None:
    named: set[str] = set()
    for place, text in texts():
        for name, rest in _COMMAND.findall(text):
            command = f"jobs {rest.split()[0]}" if name == "jobs" and rest.strip() else name
            assert command in COMMANDS, f"{place}: anmi {command}"
            named.add(name)
            known = {option for one in COMMANDS[command].params for option in one.opts} | {"--help"}
            assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= known, f"{place}: anmi {name}{rest}"
    assert named >= {"run", "plan", "tune", "show", "audit", "queries", "export", "rerank"}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_commands_in_example_settings_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for line in path.read_text(encoding="utf-8").splitlines():
        for name, rest in _COMMAND.findall(line.partition("#")[2]):
            words = shlex.split(re.split(r" {2,}", rest.strip())[0])
            if name in ("run", "plan", "judge", "queries") and words[:1] and words[0].endswith(".yaml"):
                load(words[0], [word for word in words[1:] if re.match(r"[a-z._]+=", word)])


@pytest.mark.parametrize(
    ("example", "overrides", "splits"),
    [
        ("own-documents", ["judge.judges=[{kind: similarity}]", "corpus.unlabelled_test=100"], (24, 8, 8)),
        ("quickstart", ["mine.rule=table2"], (40, 0, 0)),
    ],
)
def test_the_next_command_of_queries_is_carried_out(
    ray_local: None,
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    example: str,
    overrides: list[str],
    splits: tuple[int, ...],
) -> None:
    """Of the examples' settings, whatever names the files have."""
    replace_ray_train(monkeypatch)
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((ROOT / "jobs" / "configs" / f"{example}.yaml").read_text(encoding="utf-8"))
    content = smaller_settings(content, small_collection, str(write_tiny_bert(tmp_path / "tiny")))
    if content["corpus"]["reader"] == "table":
        content["corpus"]["documents"] = str(small_collection / "corpus.jsonl")
    Path("my settings.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = printed(
        "queries", "my settings.yaml", *overrides, "--to", "2024/my queries", "--number", 40, "--root", "a root"
    )
    program, *words = shlex.split(said.splitlines()[-1].removeprefix("next: "))
    assert program == "anmi"
    done = anmi(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    train, dev, test = splits
    assert f"queries: {train} train (none labelled), {dev} dev" in done.stdout
    assert Run("my-queries", "a root").report is not None
    assert (Run("my-queries", "a root").artifact("ingest").manifest() or {})["splits"]["test"] == test


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/my run.yaml", "my-run"), ("_x.yaml", "x"), ("Ünï.yaml", "n-"), ("...", "experiment"), ("y" * 99, "y" * 99)],
)
def test_a_file_of_any_name_gives_a_run_a_name(path: str, name: str) -> None:
    assert run_name(path) == name
