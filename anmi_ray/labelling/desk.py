"""Who is asked what: a person's pairs in an order of their own, what they have answered, and what comes next.

A desk has a seat for each person. Pairs for everyone are asked of all, every other pair of one seat, or of whoever has
answered it already; what somebody answered stays theirs when people or seats change between two sessions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import digest
from anmi_ray.labelling.answers import AnswerWriter, PersonAnswer, last_answers, name_fault

SCREEN_SIDES = ("left", "right", "unsure")  # as the page has it


@dataclass(frozen=True)
class DocumentText:
    """A document as people see it."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A pair that people are asked about: its id in hexadecimal, and the texts."""

    pair: str
    query: str
    a: DocumentText
    b: DocumentText
    everyone: bool


class Desk:
    """What people see and answer; may be called from several threads.

    names: who may sit here; where fewer than `seats` are given, others may choose a name for themselves. `answered`:
    what was answered before. ConfigError: a name that is none, or more names than seats.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        writer: AnswerWriter,
        seats: int,
        names: Sequence[str],
        answered: Sequence[PersonAnswer],
        seed: int,
    ) -> None:
        for name in names:
            if fault := name_fault(name):
                raise ConfigError(f"{name!r} is no person's name: {fault}", "--people", "write --people ana,ben")
        self._writer = writer
        self._lock = threading.Lock()
        self._seed = seed
        self._last = last_answers(answered)
        here = dict.fromkeys(answer.person for answer in answered if answer.source == "page")
        self._people = list(dict.fromkeys([*names, *here]))
        self._seats = max(seats, len(self._people))
        self._queues: dict[str, list[Question]] = {}
        self._questions = list(questions)

    @property
    def people(self) -> list[str]:
        """Whose seats are taken."""
        with self._lock:
            return list(self._people)

    @property
    def free(self) -> int:
        """Seats that nobody has taken."""
        with self._lock:
            return self._seats - len(self._people)

    def counts(self) -> dict[str, tuple[int, int]]:
        """By person how many of their pairs they have answered, and how many these are."""
        with self._lock:
            return {name: self._count(name) for name in self._people}

    def join(self, name: str) -> str | None:
        """Give a person a seat, unless they have one; or why not."""
        if fault := name_fault(name):
            return fault
        with self._lock:
            if name not in self._people:
                if len(self._people) >= self._seats:
                    return f"all {self._seats} seats are taken; start again with a larger --people"
                self._people.append(name)
            return None

    def look(self, name: str, at: int | None = None) -> dict[str, Any]:
        """What a person who has a seat sees: pair number `at`, or the first that they have not answered.

        No id, rank or answer of a judge is in it. Without `left` all is answered.
        """
        with self._lock:
            return self._look(name, at)

    def answer(self, name: str, at: int, side: str) -> dict[str, Any]:
        """Keep an answer (left, right, unsure) to pair number `at`, and what comes next. StoreError: it is not kept."""
        with self._lock:
            question = self._queue(name)[at]
            shown = self._shown(name, question)
            if side != "unsure":
                side = "a" if (side == "left") == (shown == "ab") else "b"
            answer = PersonAnswer(question.pair, name, side, shown, "page", time.time_ns())  # type: ignore[arg-type]
            before = self._last.get((name, question.pair))
            if (
                before is None or before.side != side
            ):  # the same again, from a page that is open twice, says nothing new
                self._writer.add([answer])
                self._last[name, question.pair] = answer
            return self._look(name, None)

    def size(self, name: str) -> int:
        """How many pairs a person is asked about."""
        with self._lock:
            return len(self._queue(name))

    def _look(self, name: str, at: int | None) -> dict[str, Any]:
        queue = self._queue(name)
        done, total = self._count(name)
        if at is None:
            at = next((i for i, one in enumerate(queue) if (name, one.pair) not in self._last), total)
        seen: dict[str, Any] = {"at": at, "answered": done, "total": total}
        if at >= total:
            return seen
        question = queue[at]
        shown = self._shown(name, question)
        sides = (question.a, question.b) if shown == "ab" else (question.b, question.a)
        for place, document in zip(SCREEN_SIDES, sides, strict=False):
            seen[place] = {"title": document.title, "text": document.text}
        return {**seen, "query": question.query, "given": self._given(name, question, shown)}

    def _given(self, name: str, question: Question, shown: str) -> str | None:
        """The side of the screen that a person has chosen before."""
        answer = self._last.get((name, question.pair))
        if answer is None or answer.side == "unsure":
            return None if answer is None else "unsure"
        return "left" if (answer.side == "a") == (shown == "ab") else "right"

    def _count(self, name: str) -> tuple[int, int]:
        queue = self._queue(name)
        return sum((name, one.pair) in self._last for one in queue), len(queue)

    def _queue(self, name: str) -> list[Question]:
        """A person's pairs, in an order by hash."""
        if name not in self._queues:
            seat = self._people.index(name)
            others = {pair for person, pair in self._last if person != name and person in self._people}
            mine = [one for one in self._questions if one.everyone]
            for number, one in enumerate(one for one in self._questions if not one.everyone):
                own = (name, one.pair) in self._last
                if own or (number % self._seats == seat and one.pair not in others):
                    mine.append(one)
            self._queues[name] = sorted(mine, key=lambda one: digest("people-order", self._seed, name, one.pair))
        return self._queues[name]

    def _shown(self, name: str, question: Question) -> str:
        """The order in which a person sees a pair, drawn by hash."""
        return "ab" if digest("people-shown", self._seed, name, question.pair)[0] & 1 else "ba"
