"""Pairs and answers as CSV and as Label Studio's JSON: out and in again, and what is refused whole."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.labelling.answers import Document, PersonAnswer, Question, Side, name_fault
from anmi_ray.labelling.exchange import read_file_answers, to_csv, to_label_studio

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TEXTS = ANY | st.builds("{}{}".format, st.sampled_from("=+-@\t\r'"), ANY)
NAMES = TEXTS.filter(lambda name: name_fault(name) is None)
TEXT_COLUMNS = ("query", "first", "second")
PAIRS = [f"{number:032x}" for number in range(4)]


@st.composite
def labelled(draw: st.DrawFn) -> tuple[list[Question], list[PersonAnswer]]:
    documents = st.builds(Document, TEXTS, TEXTS)
    questions = [Question(pair, draw(TEXTS), draw(documents), draw(documents)) for pair in PAIRS]
    keys = draw(st.lists(st.tuples(st.sampled_from(PAIRS), NAMES), unique=True, max_size=6))
    sides = st.sampled_from(get_args(Side))
    return questions, [PersonAnswer(pair, who, draw(sides), "ab", "page", 0) for pair, who in keys]  # type: ignore[arg-type]


@given(labelled())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_out_and_in_again(tmp_path: Path, made: tuple[list[Question], list[PersonAnswer]]) -> None:
    questions, answers = made
    path = tmp_path / "pairs.csv"
    path.write_text(to_csv(questions, answers), encoding="utf-8", newline="")
    found = read_file_answers(path)
    assert {(one.pair, one.person, one.side) for one in found} == {(a.pair, a.person, a.side) for a in answers}
    assert len(found) == len(answers)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["pair"] for row in rows} == set(PAIRS)
    texts = [one.query for one in questions]
    formula = ("=", "+", "-", "@", "\t", "\r")
    assert {row["query"] for row in rows} == {f"'{text}" if text.startswith(formula) else text for text in texts}
    assert not any(row[name].startswith(formula) for row in rows for name in TEXT_COLUMNS)


@given(labelled())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_label_studio_out_and_in_again(tmp_path: Path, made: tuple[list[Question], list[PersonAnswer]]) -> None:
    """As Label Studio exports what its annotators did with these tasks."""
    questions, answers = made
    tasks = json.loads(to_label_studio(questions))
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": [{"completed_by": 1, "was_cancelled": True, "result": []}]}
        for answer in answers:
            if answer.pair == task["data"]["pair"]:
                task["annotations"].append(annotation(answer.side, {"email": answer.person, "id": 7}))
    path = tmp_path / "project.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    found = read_file_answers(path)
    assert sorted((a.pair, a.person, a.side) for a in found) == sorted((a.pair, a.person, a.side) for a in answers)


def annotation(side: str, who: Any) -> dict[str, Any]:
    selected = {"a": "left", "b": "right"}.get(side, "left")
    result = [{"type": "pairwise", "from_name": "answer", "to_name": "first,second", "value": {"selected": selected}}]
    if side == "unsure":
        result.append({"type": "choices", "from_name": "unsure", "to_name": "first", "value": {"choices": ["unsure"]}})  # type: ignore[dict-item]
    return {"completed_by": who, "was_cancelled": False, "result": result}


def test_a_spreadsheets_csv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(f"\ufeffpair;answer;person\r\n{PAIRS[0]};First;ana\r\n;;\r\n{PAIRS[1]};;\r\n".encode())
    assert [(one.pair, one.side, one.place) for one in read_file_answers(path)] == [(PAIRS[0], "a", f"{path}:2")]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("x.csv", "pair,person,answer\np,ana,first\np,ben,better\np,cem,worse\n", ":3"),
        ("x.csv", "pair,person,answer\np,,first\n", ":2"),
        ("x.csv", "pair,person,answer\np,ana\n", ":2"),
        ("x.csv", "pair,person,answer\np,ana,first,more\n", ":2"),
        ("x.csv", "pair,person\np,ana\n", ":1"),
        ("x.csv", "pair,person,answer\np,ana,first\np,ana,second\n", ":3"),
        ("x.csv", 'pair,person,answer\n"p,ana,first\n', ":1"),
        ("x.csv", "", ":1"),
        ("x.json", "{}", ": task 0"),
        ("x.json", "3", ": task 0"),
        ("x.json", "[", ""),
        ("x.json", "[" * 100_000, ""),
        ("x.json", '[{"pair": "p", "answer": "left"}]', ": task 1"),
        ("x.json", '[{"data": {"pair": 3}}]', ": task 1"),
        ("x.json", '[{"data": {"pair": "p"}, "annotations": [3]}]', ": task 1"),
        ("x.json", json.dumps([{"data": {"pair": "p"}, "annotations": [annotation("a", None)]}]), ": task 1"),
        (
            "x.json",
            json.dumps([{"data": {"pair": "p"}, "annotations": [{"completed_by": 1, "result": [{"value": {}}]}]}]),
            ": task 1",
        ),
    ],
)
def test_what_cannot_be_read_is_placed(tmp_path: Path, name: str, text: str, place: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_file_answers(path)
    assert caught.value.place == f"{path}{place}"


def test_other_bytes_and_names(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_file_answers(tmp_path / "x.csv")
    with pytest.raises(ConfigError, match=r"\.csv"):
        read_file_answers(tmp_path / "x.xlsx")
