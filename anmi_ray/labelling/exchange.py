"""Pairs and answers as files for other tools: CSV, and the JSON of Label Studio (its template for pairwise comparison).

CSV: pair, query, first, second, person, answer (first, second or unsure), a row for each answer, and one without person
and answer for a pair that nobody has answered. JSON: tasks out, `data` holding pair, query, first and second; in, the
same tasks with annotations, a result of type pairwise (`selected`: left or right) or the choice unsure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import normalize_id
from anmi_ray.labelling.answers import FORMULA, PersonAnswer, Side, name_fault
from anmi_ray.labelling.desk import DocumentText, Question
from anmi_ray.tables import formats
from anmi_ray.tables.rows import delimiter_of
from anmi_ray.tables.streams import MAX_LINE

_COLUMNS = ("pair", "query", "first", "second", "person", "answer")
_SIDE_OF: dict[str, Side] = {"first": "a", "second": "b", "unsure": "unsure"}
_WORD_OF = {side: word for word, side in _SIDE_OF.items()}
_SELECTED: dict[str, Side] = {"left": "a", "right": "b"}


@dataclass(frozen=True)
class FileAnswer:
    """An answer as a file has it, and where it stands there."""

    place: str
    pair: str
    person: str
    side: Side


def kind_of(path: Path) -> str:
    """csv or json, by the file's name. ConfigError: another."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("csv", "json"):
        raise ConfigError("neither .csv nor .json", str(path), "name a .csv, or a .json of Label Studio")
    return kind


def to_csv(questions: Sequence[Question], answers: Iterable[PersonAnswer]) -> str:
    """Pairs with the answers that count; of those about other pairs none."""
    by_pair: dict[str, list[PersonAnswer]] = {}
    for answer in answers:
        by_pair.setdefault(answer.pair, []).append(answer)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # else a lone carriage return stands bare
    writer.writerow(_COLUMNS)
    for one in questions:
        cells = (one.pair, *map(_shown, (one.query, _plain(one.a), _plain(one.b))))
        for answer in by_pair.get(one.pair, ()):
            writer.writerow((*cells, answer.person, _WORD_OF[answer.side]))
        if one.pair not in by_pair:
            writer.writerow((*cells, "", ""))
    return text.getvalue()


def to_label_studio(questions: Sequence[Question]) -> str:
    """Tasks to import into Label Studio."""
    tasks = [
        {"data": {"pair": one.pair, "query": one.query, "first": _plain(one.a), "second": _plain(one.b)}}
        for one in questions
    ]
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def _shown(text: str) -> str:
    """A cell that a spreadsheet shows as text: with an apostrophe before what it would compute; texts are anybody's."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _plain(document: DocumentText) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text


def read_file_answers(path: Path) -> list[FileAnswer]:
    """All answers of a file. DataError: something in it is no answer; the message counts these and names the first."""
    kind = kind_of(path)
    try:
        text = formats.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError("is not UTF-8", str(path), "save it as UTF-8") from None
    faults: list[tuple[str, str]] = []
    found = list(_of_csv(text, path, faults) if kind == "csv" else _of_label_studio(text, path, faults))
    said: dict[tuple[str, str], FileAnswer] = {}
    for one in found:
        first = said.setdefault((one.person, one.pair), one)
        if first.side != one.side:
            faults.append((one.place, f"{one.person} prefers another document of this pair than at {first.place}"))
    if faults:
        place, why = faults[0]
        what = f"{len(faults):,} answers cannot be read, the first: {why}"
        raise DataError(what, place, "mend them: nothing of the file was taken")
    return found


def refuse_unknown(answers: Sequence[FileAnswer], known: Mapping[str, Any], run: str) -> None:
    """DataError where answers name pairs that a run has not."""
    unknown = [answer for answer in answers if answer.pair not in known]
    if unknown:
        first = unknown[0]
        what = f"{len(unknown):,} of {len(answers):,} answers name pairs that run {run} has not, the first {first.pair}"
        raise DataError(what, first.place, "name the run whose pairs were exported; nothing of the file was taken")


def _of_csv(text: str, path: Path, faults: list[tuple[str, str]]) -> Iterator[FileAnswer]:
    csv.field_size_limit(MAX_LINE)  # of the whole process
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(header, ","), strict=True)
    try:
        head = next(reader, [])
        lacking = [name for name in ("pair", "person", "answer") if head.count(name) != 1]
        if lacking:
            what = f"must have one column {lacking[0]}; its header has {', '.join(head) or 'none'}"
            raise DataError(what, f"{path}:1", "fill in what anmi label --export wrote")
        columns = {name: head.index(name) for name in ("pair", "person", "answer")}
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if not any(row):
                continue
            if len(row) != len(head):
                faults.append((place, f"{len(row)} cells, the header has {len(head)}"))
                continue
            pair, person, word = (normalize_id(row[column]) for column in columns.values())
            if word:
                side = _SIDE_OF.get(word.lower())
                yield from _checked(place, pair, person, side, f"{word!r} is none of {', '.join(_SIDE_OF)}", faults)
    except csv.Error as error:
        raise DataError(f"is no CSV: {error}", f"{path}:{reader.line_num}", "mend the line") from None


def _of_label_studio(text: str, path: Path, faults: list[tuple[str, str]]) -> Iterator[FileAnswer]:
    try:
        tasks = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is no JSON: {error}", str(path), "export the project as JSON") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError("is no list of tasks", str(path), "export the project as JSON, not JSON-MIN")
    for number, task in enumerate(tasks, start=1):
        data = task.get("data")
        annotations = task.get("annotations", [])
        place = f"{path}: task {number}"
        if not isinstance(data, dict) or not isinstance(data.get("pair"), str) or not isinstance(annotations, list):
            faults.append((place, "it has no data.pair, or no list of annotations; export as JSON, not JSON-MIN"))
            continue
        for annotation in annotations:
            if not isinstance(annotation, dict) or not isinstance(annotation.get("result", []), list):
                faults.append((place, "an annotation is no object with a list result"))
            elif not annotation.get("was_cancelled") and annotation.get("result"):
                side = _selected(annotation["result"])
                why = "an annotation selects neither left nor right, nor unsure"
                yield from _checked(place, data["pair"], _annotator(annotation.get("completed_by")), side, why, faults)


def _checked(
    place: str, pair: str, person: str, side: Side | None, why: str, faults: list[tuple[str, str]]
) -> Iterator[FileAnswer]:
    """The answer, or what is wrong with it told to `faults`."""
    fault = why if side is None else name_fault(person)
    if side is None or fault is not None:
        faults.append((place, str(fault)))
        return
    yield FileAnswer(place, pair, person, side)


def _selected(result: list[Any]) -> Side | None:
    """The side that an annotation's results name; unsure counts more than a side."""
    side: Side | None = None
    for one in result:
        value = one.get("value") if isinstance(one, dict) else None
        if not isinstance(value, dict):
            continue
        if value.get("choices") == ["unsure"]:
            return "unsure"
        if one.get("type") == "pairwise":
            side = _SELECTED.get(str(value.get("selected"))) or side
    return side


def _annotator(who: Any) -> str:
    """A person's name: the annotator's address, or the number in Label Studio's data base."""
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    return "" if who is None else normalize_id(who) if isinstance(who, str) else f"label-studio {who}"
