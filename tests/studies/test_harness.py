"""What studies share: their arguments, how they end, their page, and work that is not done twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.store import Store
from jobs.studies import harness
from jobs.studies.harness import Results, Study, Table

STUDY = Study("letters", "Letters", "Which is first?", "All are tried.", "Look at the top.")


def results() -> Results:
    return Results([Table("Letters", ("a", "b"), [("1", "2")])], ["A note."], {"first": "a"})


def test_a_page_says_how_it_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = harness.parser(STUDY, seeds=2).parse_args(["--root", str(tmp_path)])
    assert given.seeds == 2
    harness.carry_out(STUDY, given, results)
    assert "| 1 | 2 |" in capsys.readouterr().out
    page = (tmp_path / "studies" / "letters.md").read_text(encoding="utf-8")
    assert page.startswith("# Letters\n\n> Which is first?\n\n- Command: `python -m ")
    record = json.loads((tmp_path / "studies" / "letters.json").read_text(encoding="utf-8"))
    for fact in ("command", "commit", "date", "machine"):
        assert f"- {fact.capitalize()}: " in page
        assert record[fact]
    assert record["tables"] == [{"title": "Letters", "columns": ["a", "b"], "rows": [["1", "2"]]}]
    assert record["values"] == {"first": "a"}


def test_a_mistake_and_an_interruption_end_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = harness.parser(STUDY).parse_args([])

    def mistaken() -> Results:
        raise ConfigError("what is wrong", "where", "what to do")

    def interrupted() -> Results:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match=r"^letters: .*what is wrong"):
        harness.carry_out(STUDY, given, mistaken)
    with pytest.raises(SystemExit) as end:
        harness.carry_out(STUDY, given, interrupted)
    assert end.value.code == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_folders_are_named_once() -> None:
    assert harness.folders(["a=x", "b=y=z"]) == {"a": "x", "b": "y=z"}
    for options in (["a"], ["=x"], ["a=x", "a=y"]):
        with pytest.raises(ConfigError, match="is not NAME=FOLDER"):
            harness.folders(options)
    with pytest.raises(ConfigError, match="choose from a, b"):
        harness.folders(["c=x"], ["a", "b"])


def test_settings_that_cannot_be_read_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("neither: this")
    from jobs.studies.trainings import Plan

    with pytest.raises(ConfigError, match=r"plan\.yaml"):
        harness.read_settings(Plan, path)


def square(task: Mapping[str, Any]) -> dict[str, Any]:
    return {"square": task["side"] ** 2}


@pytest.mark.slow
def test_work_is_done_once_for_the_same_settings(tmp_path: Path) -> None:
    out = Store(str(tmp_path))
    tasks = {"one": {"side": 2}, "other": {"side": 3}}
    assert harness.work_side_by_side(tasks, square, out, 1) == {"one": {"square": 4}, "other": {"square": 9}}
    before = (tmp_path / "one.json").stat().st_mtime_ns
    tasks["other"] = {"side": 5}
    assert harness.work_side_by_side(tasks, square, out, 1) == {"one": {"square": 4}, "other": {"square": 25}}
    assert (tmp_path / "one.json").stat().st_mtime_ns == before
