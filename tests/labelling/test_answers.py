"""People's answers are kept as they are given: by several writers, in several documents, damage named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import DamagedError, StoreError
from anmi_ray.labelling.answers import (
    SIDES,
    AnswerWriter,
    PersonAnswer,
    contradictions,
    last_answers,
    name_fault,
    read_answers,
)
from anmi_ray.store import Store


def answer(pair: str, person: str, side: str, time_ns: int) -> PersonAnswer:
    return PersonAnswer(pair, person, side, "ab", "page", time_ns)  # type: ignore[arg-type]


def test_writers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Two processes' writers, each from several threads, past the size at which a new document is begun."""
    store = Store(str(tmp_path))
    writers = [AnswerWriter(store, "r") for _ in range(2)]

    def work(number: int) -> None:
        for i in range(0, 250, 25):
            some = range(i, i + 25)
            writers[number % 2].add([answer(f"{j:032x}", f"p{number}", "a", 1000 * j + number) for j in some])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_answers(store, "r")
    assert len(found) == len(set(found)) == 4 * 250
    assert [one.time_ns for one in found] == sorted(one.time_ns for one in found)
    assert len(store.names("people/r/answers")) > 2


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("pq"), st.sampled_from(SIDES)), max_size=12))
def test_the_last_answer_counts_and_contradictions_are_counted(given_: list[tuple[str, str, str]]) -> None:
    answers = [answer(pair, person, side, i) for i, (pair, person, side) in enumerate(given_)]
    last = {(one.person, one.pair): one.side for one in answers}
    assert {key: one.side for key, one in last_answers(answers).items()} == last
    for person, count in contradictions(answers).items():
        sides = {pair: {s for p, who, s in given_ if (p, who) == (pair, person)} for pair in "xy"}
        assert count == sum({"a", "b"} <= some for some in sides.values())


@pytest.mark.parametrize("content", [b'{"answers": [{"pair": 1}]}', b"[]", b'{"answers": ', b'{"answers": 3}'])
def test_a_damaged_document_is_named(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    AnswerWriter(store, "r").add([answer("0" * 32, "p", "a", 1)])
    (name,) = store.names("people/r/answers")
    (tmp_path / "people/r/answers" / name).write_bytes(content)
    with pytest.raises(DamagedError, match=name):
        read_answers(store, "r")


def test_what_cannot_be_kept_is_not_held(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    writer = AnswerWriter(store, "r")
    (tmp_path / "people").write_text("a file in the place of a folder")
    with pytest.raises(StoreError):
        writer.add([answer("0" * 32, "p", "a", 1)])
    (tmp_path / "people").unlink()
    writer.add([answer("1" * 32, "p", "b", 2)])
    assert [one.pair for one in read_answers(store, "r")] == ["1" * 32]


def test_names_of_people() -> None:
    assert name_fault("Åsa O'Neill 3") is None
    assert [
        name for name in ("", " ", " a", "a\n", "a\u202eb", "x" * 61, "=1+1", "@ana") if name_fault(name) is None
    ] == []
