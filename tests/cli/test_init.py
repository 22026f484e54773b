"""Example configurations are part of every installation, and are valid where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.api.examples import examples, write_example
from anmi_ray.config import load, tune
from anmi_ray.core.errors import ConfigError
from tests.commands import printed, refused

ROOT = Path(__file__).parents[2]


def test_examples_are_listed_with_what_they_are() -> None:
    listed = printed("init")
    for path in (ROOT / "jobs/configs").glob("*.yaml"):
        assert path.stem in listed
        assert len(examples()[path.stem]) > 20


def test_an_example_is_written_with_commands_that_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed("init", "--example", "own-documents")
    assert "anmi run own-documents.yaml" in (tmp_path / "own-documents.yaml").read_text(encoding="utf-8")
    assert "own-documents.yaml: the file exists" in refused("init", "--example", "own-documents")
    assert "did you mean api-judge?" in refused("init", "--example", "api-judg")
    assert "anmi init --example scifact" in refused("init", "scifact")


@pytest.mark.parametrize("name", sorted(examples()))
def test_every_example_can_be_loaded_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = write_example(name, tmp_path / "mine.yaml")
    assert "jobs/configs" not in first.read_text(encoding="utf-8")
    if name.startswith("tune-"):
        assert [path.name for path in others] == ["quickstart-labels.yaml"]
        assert tune.load(first, []).trials > 1
        return
    assert load.load(first).name == name
    with pytest.raises(ConfigError):
        write_example(name, first)
