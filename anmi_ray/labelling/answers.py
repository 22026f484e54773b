"""What people answered, kept at every answer: documents with a checksum below `people/<run>/answers/` of a root.

Each process that takes answers writes documents of its own, `<time>-<uuid>.json`, and publishes one anew, whole and
flushed to the disk, before an answer counts as kept. So a killed process leaves what it acknowledged, and two at once
leave both. Of several answers of a person to a pair the last counts; none is ever removed.
"""

from __future__ import annotations

import os
import threading
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
SIDES: tuple[str, ...] = get_args(Side)
LONGEST_NAME = 60
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet compute a cell that begins with it
_FULL = 400  # answers of a document, after which the next is begun: each answer publishes it anew
_REMEDY = "restore it from a copy; deleted, its answers are lost, and the page asks again"


@dataclass(frozen=True)
class PersonAnswer:
    """Which document of a pair a person prefers: a, b (by their ids' order) or unsure.

    pair: the pair's id in hexadecimal. shown: ab where doc_a stood first or left. source: page, or the file's kind.
    time_ns: when, since 1970.
    """

    pair: str
    person: str
    side: Side
    shown: Order
    source: str
    time_ns: int


def folder_of(run: str) -> str:
    """Where a run's choice of pairs and people's answers stand in the store."""
    return f"people/{run}"


def name_fault(name: str) -> str | None:
    """What is wrong with a person's name, None where nothing is."""
    if not name.strip():
        return "a name is missing"
    if name != name.strip() or len(name) > LONGEST_NAME:
        return f"a name has no white space at its ends and at most {LONGEST_NAME} characters"
    if any(unicodedata.category(letter)[0] == "C" for letter in name):
        return "a name has no control characters"
    if name.startswith(FORMULA):
        return f"a name begins with none of {' '.join(FORMULA).strip()}: a spreadsheet would compute it"
    return None


def read_answers(store: Store, run: str) -> list[PersonAnswer]:
    """All answers in the order in which they were given. Raises DamagedError where a document is damaged."""
    folder = f"{folder_of(run)}/answers"
    found: list[PersonAnswer] = []
    for name in store.names(folder):
        path = f"{folder}/{name}"
        content = store.read_json(path, _REMEDY)
        try:
            found += [_answer(row) for row in content["answers"]]
        except (KeyError, TypeError, ValueError):
            raise DamagedError("no document of people's answers", store.where(path), _REMEDY) from None
    return sorted(found, key=lambda answer: answer.time_ns)


def _answer(row: dict[str, Any]) -> PersonAnswer:
    answer = PersonAnswer(**row)
    if answer.side not in SIDES or answer.shown not in get_args(Order):
        raise ValueError(answer.side)
    return answer


def last_answers(answers: Iterable[PersonAnswer]) -> dict[tuple[str, str], PersonAnswer]:
    """By (person, pair) the answer that counts."""
    return {(answer.person, answer.pair): answer for answer in answers}


def contradictions(answers: Iterable[PersonAnswer]) -> dict[str, int]:
    """By person the pairs for which they preferred one document at one time and the other at another; 0 for none."""
    seen: dict[str, dict[str, set[str]]] = {}
    for answer in answers:
        sides = seen.setdefault(answer.person, {}).setdefault(answer.pair, set())
        if answer.side != "unsure":
            sides.add(answer.side)
    return {person: sum(len(sides) > 1 for sides in pairs.values()) for person, pairs in seen.items()}


class AnswerWriter:
    """Keeps answers of this process; may be called from several threads."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._folder = f"{folder_of(run)}/answers"
        self._lock = threading.Lock()
        self._held: list[PersonAnswer] = []
        self._begin()

    def add(self, answers: Sequence[PersonAnswer]) -> None:
        """Keep answers, all or none. When it returns they are on the disk; StoreError: they are not kept."""
        with self._lock:
            if len(self._held) + len(answers) > _FULL and self._held:
                self._begin()
            rows = [*self._held, *answers]
            self._store.publish_json(self._path, {"answers": [asdict(answer) for answer in rows]})
            self._flush_folder()
            self._held = rows

    def _begin(self) -> None:
        self._held = []
        self._path = f"{self._folder}/{time.time_ns():016x}-{uuid.uuid4().hex[:12]}.json"

    def _flush_folder(self) -> None:
        """Flush that the document stands in its folder: a new name is not on the disk when its content is."""
        local = self._store.local
        if local is None:
            return
        try:
            descriptor = os.open(local / self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise from_os_error(error, self._store.where(self._path)) from error
