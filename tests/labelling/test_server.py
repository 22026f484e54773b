"""The page over HTTP: whom it answers, what it shows, that answers are kept whoever sends them how often."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from anmi_ray.core.errors import ConfigError
from anmi_ray.labelling.answers import last_answers
from anmi_ray.labelling.server import LabelServer
from tests.labelling.made import HOSTILE, write_run


@dataclass
class Page:
    """A server, and requests of it."""

    labelling: Labelling
    server: LabelServer

    def ask(
        self, path: str, said: Any = None, token: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        body = None if said is None else said if isinstance(said, bytes) else json.dumps(said).encode()
        sent = {"Content-Type": "application/json"} if said is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        token = self.server.token if token is None else token
        connection.request("GET" if said is None else "POST", f"/{token}/{path}", body, sent)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def pair(self, person: str) -> dict[str, Any]:
        status, _, body = self.ask(f"pair?person={quote(person)}")
        assert status == 200, body
        return json.loads(body)

    def answer(self, person: str, at: int, side: str) -> dict[str, Any]:
        status, _, body = self.ask("answer", {"person": person, "at": at, "side": side})
        assert status == 200, body
        return json.loads(body)


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a new run for some people."""
    write_run(tmp_path)
    opened: list[Any] = []

    def start(people: int = 2, names: tuple[str, ...] = (), pairs: int = 30) -> Page:
        labelling = Labelling(Run("made", tmp_path), pairs=pairs)
        server = labelling.server(people, names)
        serving = server.serving()
        serving.__enter__()
        opened.append(serving)
        return Page(labelling, server)

    yield start
    for serving in opened:
        serving.__exit__(None, None, None)


def test_strangers_are_refused(open_page: Callable[..., Page]) -> None:
    page = open_page()
    port = page.server.server_port
    good = {"person": "ana", "at": 0, "side": "left"}
    refused = [
        page.ask("", token="guessed"),
        page.ask("", token=""),
        page.ask("[", token=""),
        page.ask("pair?person=ana", token=page.server.token[:-1]),
        page.ask("", Host=f"rebound.example:{port}"),
        page.ask("", Host="127.0.0.1"),
        page.ask("answer", good, Origin="https://elsewhere.example"),
        page.ask("answer", good, Origin="null"),
        page.ask("answer", good, Sec_Fetch_Site="cross-site"),
        page.ask("answer", good, Host=f"rebound.example:{port}"),
    ]
    assert [status for status, _, _ in refused] == [403] * len(refused)
    assert page.ask("answer", good, Content_Type="text/plain")[0] == 415
    assert page.labelling.answers == []
    assert page.ask("answer", good, Origin=f"http://127.0.0.1:{port}", Sec_Fetch_Site="same-origin")[0] == 200
    assert len(page.labelling.answers) == 1
    assert page.ask("", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON",
        b"[" * 3000,
        [1],
        {},
        {"person": "ana", "at": 0, "side": "a"},
        {"person": "ana", "at": 10**6, "side": "left"},
        {"person": "ana", "at": -1, "side": "left"},
        {"person": "ana", "at": True, "side": "left"},
        {"person": "ana", "side": "left"},
        {"person": "a\nb", "at": 0, "side": "left"},
        {"person": ["ana"], "at": 0, "side": "left"},
        b"x" * 5000,
    ],
)
def test_what_is_no_answer_is_refused(open_page: Callable[..., Page], said: Any) -> None:
    page = open_page()
    status, _, body = page.ask("answer", said)
    assert 400 <= status < 500
    assert json.loads(body)["error"]
    assert page.labelling.answers == []


def test_the_page_loads_its_own_files_alone(open_page: Callable[..., Page]) -> None:
    page = open_page()
    for file, kind in (("", "text/html"), ("label.css", "text/css"), ("label.js", "text/javascript")):
        status, headers, body = page.ask(file)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert b"http" not in body
        assert b"innerHTML" not in body
    assert page.ask("label.py")[0] == page.ask("../server.py")[0] == page.ask("page/label.js")[0] == 404


def test_documents_are_blind_and_their_sides_drawn(open_page: Callable[..., Page]) -> None:
    page = open_page(1, pairs=60)
    sides, lefts = [], []
    for _ in range(60):
        seen = page.pair("ana")
        assert set(seen) == {"at", "answered", "total", "left", "right", "query", "given"}
        assert set(seen["left"]) == {"title", "text"}
        assert HOSTILE in seen["left"]["text"]
        sides.append(seen["left"]["title"] > seen["right"]["title"])
        lefts.append(seen["left"]["title"])
        page.answer("ana", seen["at"], "left")
    assert 15 < sum(sides) < 45
    assert "left" not in page.pair("ana")
    questions = {question.pair: question for question in page.labelling.questions}
    for answer, left in zip(page.labelling.answers, lefts, strict=True):
        question = questions[answer.pair]
        assert left == (question.a if answer.side == "a" else question.b).title
        assert (answer.side == "a") == (answer.shown == "ab")


def test_overlap_goes_to_everyone_and_the_rest_once(open_page: Callable[..., Page]) -> None:
    page = open_page(3, ("ana", "ben", "cem"), pairs=31)
    for person in ("ana", "ben", "cem"):
        while "left" in (seen := page.pair(person)):
            page.answer(person, seen["at"], "unsure")
    people = {one.pair: set[str]() for one in page.labelling.pairs}
    for person, pair in last_answers(page.labelling.answers):
        people[pair].add(person)
    for one in page.labelling.pairs:
        assert len(people[one.pair]) == (3 if one.everyone else 1)
    done = page.server.desk.counts()
    assert max(total for _, total in done.values()) - min(total for _, total in done.values()) <= 1


def test_a_page_opened_twice_doubles_nothing_and_the_last_answer_counts(open_page: Callable[..., Page]) -> None:
    page = open_page()
    first, second = page.pair("ana"), page.pair("ana")
    assert first == second
    page.answer("ana", first["at"], "left")
    seen = page.answer("ana", second["at"], "left")
    assert (seen["answered"], len(page.labelling.answers)) == (1, 1)
    page.answer("ana", second["at"], "right")
    assert page.ask(f"pair?person=ana&at={first['at']}")[2].count(b'"given": "right"') == 1
    summary = page.labelling.summary()
    assert summary["answers"] == 1
    assert summary["by_person"]["ana"] == {"answers": 1, "unsure": 0, "contradictions": 1}


def test_people_at_once_each_from_two_pages(open_page: Callable[..., Page]) -> None:
    page = open_page()
    faults: list[Exception] = []

    def work(person: str) -> None:
        try:
            while "left" in (seen := page.pair(person)):
                page.answer(person, seen["at"], "left")
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(person,)) for person in ("ana", "ben") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    answers = page.labelling.answers
    assert len(answers) == len(last_answers(answers)) == 30 + 6  # a fifth of 30 pairs is for both


def test_seats(open_page: Callable[..., Page]) -> None:
    page = open_page(2, ("ana",))
    page.pair("ben")
    assert json.loads(page.ask("people")[2]) == {"people": ["ana", "ben"], "free": 0}
    status, _, body = page.ask("pair?person=cem")
    assert status == 403
    assert b"--people" in body
    page.answer("ben", 0, "left")
    again = open_page(1)  # who has answered keeps a seat, and their pairs
    assert again.pair("ben")["answered"] == 1
    assert again.ask("pair?person=ana")[0] == 403


def test_a_port_that_is_taken_is_said(open_page: Callable[..., Page]) -> None:
    page = open_page()
    with pytest.raises(ConfigError, match="cannot be opened"):
        page.labelling.server(1, port=page.server.server_port)
