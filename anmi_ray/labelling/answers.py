"""People's answers, stored durably: JSON documents in `people/<run>/answers/` of a root.

Each write publishes a new document, flushed to disk before it is acknowledged, so a killed process loses no
acknowledged answer and several processes can write at once. If a person answers a pair several times, the last answer
counts; none is removed.
"""

from __future__ import annotations

import os
import time
import unicodedata
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from anmi_ray.core.errors import DamagedError, from_os_error
from anmi_ray.store import Store

Side = Literal["a", "b", "unsure"]
Order = Literal["ab", "ba"]
MAX_NAME = 60  # characters of a person's name
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates a cell that starts with one of these
_REMEDY = "restore it from a copy; if you delete it, its answers are lost and the page asks again"


@dataclass(frozen=True)
class PersonAnswer:
    """Which document of a pair a person prefers.

    pair: id in hexadecimal
    side: "a", "b" (in the order of their ids) or "unsure"
    shown: "ab" if doc_a was on the left
    source: "page", or the type of the imported file
    time_ns: when, in nanoseconds since 1970
    """

    pair: str
    person: str
    side: Side
    shown: Order
    source: str
    time_ns: int


@dataclass(frozen=True)
class Document:
    """A document as people see it."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A pair as people see it: the query, and documents a and b (in the order of their ids)."""

    pair: str
    query: str
    a: Document
    b: Document


def folder_of(run: str) -> str:
    """Return the folder in the store of a run's selected pairs and answers."""
    return f"people/{run}"


def name_fault(name: str) -> str | None:
    """Return what is wrong with a person's name, or None."""
    if not name.strip():
        return "a name is missing"
    if name != name.strip() or len(name) > MAX_NAME or any(unicodedata.category(one)[0] == "C" for one in name):
        return f"expected at most {MAX_NAME} characters, no control characters, no blanks at the ends, got {name!r}"
    if name.startswith(FORMULA):
        return f"a spreadsheet would evaluate it as a formula: {name!r}"
    return None


def add_answers(store: Store, run: str, answers: Sequence[PersonAnswer]) -> None:
    """Store answers, all or none. Raise StoreError if they cannot be stored."""
    folder = f"{folder_of(run)}/answers"
    path = f"{folder}/{time.time_ns():016x}-{uuid.uuid4().hex[:12]}.json"
    store.publish_json(path, {"answers": [asdict(answer) for answer in answers]})
    if store.local is not None:  # the document is on disk; flush its name in the folder too
        try:
            descriptor = os.open(store.local / folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise from_os_error(error, store.where(path)) from error


def read_answers(store: Store, run: str) -> list[PersonAnswer]:
    """Return all answers, oldest first. Raise DamagedError if a document is damaged."""
    folder = f"{folder_of(run)}/answers"
    answers: list[PersonAnswer] = []
    for name in store.names(folder):
        path = f"{folder}/{name}"
        content = store.read_json(path, _REMEDY)
        try:
            answers += [_answer(row) for row in content["answers"]]
        except (KeyError, TypeError, ValueError):
            raise DamagedError("expected a document of people's answers", store.where(path), _REMEDY) from None
    return sorted(answers, key=lambda answer: answer.time_ns)


def _answer(row: dict[str, Any]) -> PersonAnswer:
    answer = PersonAnswer(**row)
    if answer.side not in get_args(Side) or answer.shown not in get_args(Order):
        raise ValueError(answer.side)
    return answer


def last_answers(answers: Iterable[PersonAnswer]) -> dict[tuple[str, str], PersonAnswer]:
    """Return the answer that counts, by (person, pair)."""
    return {(answer.person, answer.pair): answer for answer in answers}
