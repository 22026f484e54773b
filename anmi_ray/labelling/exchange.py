"""Pairs and answers as files: CSV, and the JSON of Label Studio (its template for pairwise comparison).

CSV: pair, query, first, second, person, answer (first, second or unsure); a row for each answer, and one with an empty
person and answer for an unanswered pair. JSON: tasks whose `data` has pair, query, first and second; imported tasks
also have annotations, with a result of type pairwise (`selected`: left or right) or the choice unsure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import normalize_id
from anmi_ray.labelling.answers import FORMULA, Document, PersonAnswer, Question, Side, name_fault
from anmi_ray.tables import formats
from anmi_ray.tables.delimited import delimiter_of
from anmi_ray.tables.streams import MAX_LINE

_WORDS: dict[str, Side] = {"first": "a", "second": "b", "unsure": "unsure"}
_SELECTED: dict[Any, Side] = {"left": "a", "right": "b"}
_Cells: TypeAlias = tuple[str, str, str, Side | None]  # place, pair, person, side (None: not one that is known)
_AS_JSON = "export the project from Label Studio as JSON, not JSON-MIN"


@dataclass(frozen=True)
class FileAnswer:
    """An answer as a file has it; `place` is its line or task."""

    place: str
    pair: str
    person: str
    side: Side


def kind_of(path: Path) -> str:
    """Return csv or json, by the file's name. Raise ConfigError for another name."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("csv", "json"):
        raise ConfigError("expected a .csv, or a .json of Label Studio", str(path), "name it pairs.csv or tasks.json")
    return kind


def to_csv(questions: Sequence[Question], answers: Iterable[PersonAnswer]) -> str:
    """Return the pairs with their answers."""
    word_of = {side: word for word, side in _WORDS.items()}
    by_pair: dict[str, list[tuple[str, str]]] = {}
    for answer in answers:
        by_pair.setdefault(answer.pair, []).append((answer.person, word_of[answer.side]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # quotes protect a lone carriage return
    writer.writerow(("pair", "query", "first", "second", "person", "answer"))
    for one in questions:
        texts = (one.query, _plain(one.a), _plain(one.b))
        # a spreadsheet would evaluate some: queries and documents are hostile
        cells = (one.pair, *(f"'{text}" if text.startswith(FORMULA) else text for text in texts))
        writer.writerows((*cells, *answer) for answer in by_pair.get(one.pair, [("", "")]))
    return text.getvalue()


def to_label_studio(questions: Sequence[Question]) -> str:
    """Return tasks to import into Label Studio."""
    tasks = [
        {"data": {"pair": one.pair, "query": one.query, "first": _plain(one.a), "second": _plain(one.b)}}
        for one in questions
    ]
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def _plain(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text


def read_file_answers(path: Path) -> list[FileAnswer]:
    """Return all answers of a file. Raise DataError if any is invalid, with their number and the first one's place."""
    kind = kind_of(path)
    try:
        text = formats.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError("expected UTF-8", str(path), "save it as UTF-8") from None
    answers: list[FileAnswer] = []
    faults: list[tuple[str, str]] = []
    first: dict[tuple[str, str], FileAnswer] = {}
    for place, pair, person, side in _from_csv(text, path) if kind == "csv" else _from_label_studio(text, path):
        if side is None:
            faults.append((place, f"expected one of {', '.join(_WORDS)} (Label Studio: left, right, unsure)"))
        elif fault := name_fault(person):
            faults.append((place, fault))
        else:
            answers.append(FileAnswer(place, pair, person, side))
            before = first.setdefault((person, pair), answers[-1])
            if before.side != side:
                faults.append((place, f"{person} answers this pair differently at {before.place}"))
    if faults:
        what = f"{len(faults):,} invalid answers, the first: {faults[0][1]}"
        raise DataError(what, faults[0][0], "correct them; nothing was imported")
    return answers


def _from_csv(text: str, path: Path) -> Iterator[_Cells]:
    csv.field_size_limit(MAX_LINE)  # a setting of the whole process
    delimiter = delimiter_of(text.partition("\n")[0], ",")
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for name in ("pair", "person", "answer"):
            if name not in (columns := reader.fieldnames or []):
                what = f"expected a column {name}, got {', '.join(columns) or 'no header'}"
                raise DataError(what, f"{path}:1", "fill in the file that anmi label --export wrote")
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if None in row or None in row.values():  # too many cells, or too few
                raise DataError(f"expected {len(columns)} cells", place, "correct the line; nothing was imported")
            pair, person, word = (normalize_id(row[name]) for name in ("pair", "person", "answer"))
            if word:
                yield place, pair, person, _WORDS.get(word.lower())
    except csv.Error as error:
        raise DataError(f"not CSV: {error}", f"{path}:{reader.line_num}", "correct the line") from None


def _from_label_studio(text: str, path: Path) -> Iterator[_Cells]:
    number = 0
    try:
        if not isinstance(tasks := json.loads(text), list):
            raise TypeError
        for number, task in enumerate(tasks, start=1):
            for annotation in task.get("annotations", []):
                results = [one for one in annotation.get("result", []) if isinstance(one.get("value"), dict)]
                if annotation.get("was_cancelled") or not annotation.get("result"):
                    continue
                sides: list[Side | None] = [
                    _SELECTED.get(one["value"].get("selected")) for one in results if one["type"] == "pairwise"
                ]
                unsure = any(one["value"].get("choices") == ["unsure"] for one in results)
                who = annotation.get("completed_by")
                who = (who.get("email") or who.get("id")) if isinstance(who, dict) else who
                person = normalize_id(who) if isinstance(who, str) else "" if who is None else f"label-studio {who}"
                side: Side | None = "unsure" if unsure else next(filter(None, sides), None)
                yield f"{path}: task {number}", str(task["data"]["pair"]), person, side
            if not isinstance(task["data"]["pair"], str):
                raise TypeError
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", str(path), _AS_JSON) from None
    except (AttributeError, KeyError, TypeError):  # not the objects and lists of Label Studio's JSON
        raise DataError(
            "expected a list of tasks with data.pair and annotations", f"{path}: task {number}", _AS_JSON
        ) from None
