"""The page over HTTP: whom it answers, what it shows, that answers are kept whoever sends them how often."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from anmi_ray.core.errors import ConfigError
from anmi_ray.labelling.answers import last_answers
from anmi_ray.labelling.page import LabelPage
from tests.labelling.asking import answer, ask, look
from tests.labelling.made import HOSTILE, write_run


@dataclass
class Opened:
    """A page that is served, of a run's pairs."""

    labelling: Labelling
    page: LabelPage

    @property
    def address(self) -> str:
        return self.page.address


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a new run for some people."""
    write_run(tmp_path)
    opened: list[tuple[LabelPage, threading.Thread]] = []

    def start(*names: str, pairs: int = 30) -> Opened:
        labelling = Labelling(Run("made", tmp_path), pairs=pairs)
        page = labelling.page(names or ("ana", "ben"))
        thread = threading.Thread(target=page.serve)
        thread.start()
        opened.append((page, thread))
        return Opened(labelling, page)

    yield start
    for page, thread in opened:
        page.server.should_exit = True
        thread.join()


def test_strangers_are_refused(open_page: Callable[..., Opened]) -> None:
    page = open_page()
    good = {"person": "ana", "at": 0, "side": "left"}
    root = page.address.removesuffix("/").rpartition("/")[0]
    for address in (f"{root}/guessed/", f"{page.address[:-2]}/", f"{root}/%C3%A4/"):
        assert ask(address).status == ask(address, "POST", **good).status == 403
    for host in ("rebound.example", "rebound.example:80"):
        assert ask(page.address, headers={"Host": host}).status == 400
        assert ask(page.address, "POST", {"Host": host}, **good).status == 400
    assert ask(f"{root}/docs/").status == ask(f"{root}/openapi.json/").status == 403
    assert page.labelling.answers == []
    assert ask(page.address, "POST", **good).status == 303
    assert len(page.labelling.answers) == 1
    assert ask(page.address, headers={"Host": "localhost"}).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"person": "ana", "at": 0, "side": "a"},
        {"person": "ana", "at": 10**6, "side": "left"},
        {"person": "ana", "at": -1, "side": "left"},
        {"person": "ana", "at": "x", "side": "left"},
        {"person": "ana", "side": "left"},
        {"person": "cem", "at": 0, "side": "left"},
    ],
)
def test_invalid_answers_are_refused(open_page: Callable[..., Opened], sent: dict[str, Any]) -> None:
    page = open_page()
    assert 400 <= ask(page.address, "POST", **sent).status < 500
    assert page.labelling.answers == []


def test_the_page_loads_nothing_and_runs_its_own_script_only(open_page: Callable[..., Opened]) -> None:
    page = open_page()
    for shown in (ask(page.address), look(page.address, "ana"), look(page.address, "ana", at=10**6)):
        policy = shown.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert policy.count("nonce-") == 2
        assert shown.headers["cache-control"] == "no-store"
        assert "http" not in shown.body
        assert "src=" not in shown.body.replace("&lt;img src=x", "")
        assert shown.body.count("<script") == shown.body.count("<style") == 1
    assert look(page.address, "ana").headers["content-security-policy"] != policy  # a new nonce


def test_documents_are_blind_and_their_sides_drawn(open_page: Callable[..., Opened]) -> None:
    page = open_page("ana", pairs=60)
    sides, lefts = [], []
    shown = look(page.address, "ana")
    while shown.at is not None:
        left, right = shown.titles
        assert all(text.startswith(HOSTILE) for text in shown.texts)
        assert "coin" not in shown.body
        assert "q1d" not in shown.body
        sides.append(left > right)
        lefts.append(left)
        shown = answer(page.address, "ana", shown.at, "left")
    assert len(sides) == 60
    assert 15 < sum(sides) < 45
    questions = {question.pair: question for question in page.labelling.questions()}
    for one, left in zip(page.labelling.answers, lefts, strict=True):
        question = questions[one.pair]
        assert left == (question.a if one.side == "a" else question.b).title
        assert (one.side == "a") == (one.shown == "ab")


def test_overlap_goes_to_everyone_and_the_rest_once(open_page: Callable[..., Opened]) -> None:
    page = open_page("ana", "ben", "cem", pairs=31)
    counts = []
    for person in ("ana", "ben", "cem"):
        shown = look(page.address, person)
        while shown.at is not None:
            shown = answer(page.address, person, shown.at, "unsure")
        counts.append(shown.answered)
    people = {one.pair: set[str]() for one in page.labelling.pairs}
    for person, pair in last_answers(page.labelling.answers):
        people[pair].add(person)
    for one in page.labelling.pairs:
        assert len(people[one.pair]) == (3 if one.everyone else 1)
    assert max(counts) - min(counts) <= 1


def test_a_page_opened_twice_doubles_nothing_and_the_last_answer_counts(open_page: Callable[..., Opened]) -> None:
    page = open_page()
    at = look(page.address, "ana").at
    assert at is not None
    answer(page.address, "ana", at, "left")
    assert answer(page.address, "ana", at, "left").answered == 1
    assert len(page.labelling.answers) == 1
    answer(page.address, "ana", at, "right")
    first, second = page.labelling.answers
    assert first.pair == second.pair
    assert {first.side, second.side} == {"a", "b"}
    assert 'class="given"><h2>' in look(page.address, "ana", at=at).body


def test_people_at_once_each_from_two_pages(open_page: Callable[..., Opened]) -> None:
    page = open_page()
    faults: list[AssertionError] = []

    def work(person: str) -> None:
        try:
            shown = look(page.address, person)
            while shown.at is not None:
                shown = answer(page.address, person, shown.at, "left")
        except AssertionError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(person,)) for person in ("ana", "ben") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    answers = page.labelling.answers
    assert len(answers) == len(last_answers(answers)) == 30 + 6  # a fifth of 30 pairs is for both


def test_whoever_answered_a_pair_keeps_it(open_page: Callable[..., Opened]) -> None:
    page = open_page("ana", "ben")
    for _ in range(5):
        answer(page.address, "ben", look(page.address, "ben").at or 0, "left")
    again = open_page("ben", "cem")
    assert look(again.address, "ben").answered == 5
    assert ask(again.address, person="ana").status == 403
    shared = {question.pair for question in again.page.queues["ben"]} & {
        question.pair for question in again.page.queues["cem"]
    }
    assert shared == {one.pair for one in again.labelling.pairs if one.everyone}


def test_a_port_that_is_taken(open_page: Callable[..., Opened]) -> None:
    page = open_page()
    with pytest.raises(ConfigError) as caught:
        page.labelling.page(["ana"], port=int(page.address.split(":")[2].split("/")[0]))
    assert caught.value.place == "--port"


def test_without_fastapi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path)
    monkeypatch.delitem(sys.modules, "anmi_ray.labelling.page", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ConfigError, match="fastapi") as caught:
        Labelling(Run("made", tmp_path)).page(["ana"])
    assert caught.value.place == "anmi label"
