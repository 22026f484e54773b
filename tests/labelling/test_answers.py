"""People's answers are stored as they are given, by several writers at once; a damaged document is named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from anmi_ray.core.errors import DamagedError, StoreError
from anmi_ray.labelling.answers import PersonAnswer, add_answers, last_answers, name_fault, read_answers
from anmi_ray.store import Store


def answer(pair: str, person: str, side: str, time_ns: int) -> PersonAnswer:
    return PersonAnswer(pair, person, side, "ab", "page", time_ns)  # type: ignore[arg-type]


def test_writers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def work(number: int) -> None:
        for i in range(25):
            add_answers(
                store, "r", [answer(f"{j:032x}", f"p{number}", "a", 1000 * j + number) for j in (2 * i, 2 * i + 1)]
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_answers(store, "r")
    assert len(found) == len(set(found)) == 4 * 50
    assert [one.time_ns for one in found] == sorted(one.time_ns for one in found)


def test_the_last_answer_counts() -> None:
    answers = [answer("x", "p", "a", 1), answer("x", "q", "a", 2), answer("x", "p", "b", 3)]
    assert {key: one.side for key, one in last_answers(answers).items()} == {("p", "x"): "b", ("q", "x"): "a"}


@pytest.mark.parametrize("content", [b'{"answers": [{"pair": 1}]}', b"[]", b'{"answers": ', b'{"answers": 3}'])
def test_a_damaged_document_is_named(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    add_answers(store, "r", [answer("0" * 32, "p", "a", 1)])
    (name,) = store.names("people/r/answers")
    (tmp_path / "people/r/answers" / name).write_bytes(content)
    with pytest.raises(DamagedError, match=name):
        read_answers(store, "r")


def test_an_answer_that_cannot_be_stored_raises(tmp_path: Path) -> None:
    (tmp_path / "people").write_text("a file instead of a folder")
    with pytest.raises(StoreError):
        add_answers(Store(str(tmp_path)), "r", [answer("0" * 32, "p", "a", 1)])


def test_names_of_people() -> None:
    assert name_fault("Åsa O'Neill 3") is None
    assert all(name_fault(name) for name in ("", " ", " a", "a\n", "a\u202eb", "x" * 61, "=1+1", "@ana"))
