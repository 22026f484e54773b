"""The answer log: what counts of what was bought, in what order, and what a damaged or foreign segment does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import DamagedError, DataError, StoreError
from anmi_ray.core.identity import digest
from anmi_ray.core.records import ANSWER
from anmi_ray.store import Store, answer_log
from anmi_ray.store.answer_log import AnswerLog, Lacking, hold, question_ids


def bought(*rows: tuple[int, str | None, bool]) -> pa.Table:
    """ANSWER rows of (question, answer or None for a failure, transient)."""
    count = len(rows)
    columns: dict[str, Any] = {name: [0] * count for name in ("prompt_tokens", "cached_tokens", "answer_tokens")}
    columns |= {"query_hash": [digest("t", q // 4) for q, _, _ in rows]}
    columns |= {"first_hash": [digest("f", q) for q, _, _ in rows], "second_hash": [digest("s", q) for q, _, _ in rows]}
    columns |= {name: [None] * count for name in ("log_first", "log_second", "log_tie")}
    columns |= {"text": [text for _, text, _ in rows], "transient": [late for _, _, late in rows]}
    columns |= {"error": [None if text is not None else "http 500" for _, text, _ in rows]}
    columns |= {"dollars": [0.0] * count, "seconds": [0.1] * count, "attempts": [1] * count}
    return ANSWER.table(columns)


def ids(*questions: int) -> np.ndarray:
    return question_ids(bought(*((q, "", False) for q in questions)))


def log(folder: Path, judge: str = "j") -> AnswerLog:
    return AnswerLog(Store(str(folder)), judge)


def test_the_earliest_final_answer_counts(tmp_path: Path) -> None:
    mine = log(tmp_path)
    mine.publish(3, bought((0, None, True), (1, "0.5", False)))
    mine.publish(3, bought((0, "1", False), (1, "-1", False), (2, None, False)))
    mine.publish(3, bought((0, "-0.2", False), (2, "0.7", False), (5, None, True)))
    mine.publish(4, bought((0, "elsewhere", False)))
    held = mine.read(3)
    rows = held.rows(ids(0, 1, 2, 3, 5))
    texts = held.table["text"].to_pylist()
    assert [texts[row] if row >= 0 else "?" for row in rows] == ["1", "0.5", None, "?", None]
    assert held.final(ids(0, 1, 2, 3, 5)).tolist() == [True, True, True, False, False]
    assert held.superseded == 4
    assert log(tmp_path, "another").read(3).table.num_rows == 0
    assert not log(tmp_path, "another").read(3).final(ids(0)).any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", None]), st.booleans()), max_size=4)))
def test_hold_is_what_a_dictionary_would_hold(segments: list[list[tuple[int, str | None, bool]]]) -> None:
    """Against a plain loop: final answers are never replaced, transient failures always."""
    expected: dict[int, tuple[str | None, bool]] = {}
    tables, total = [], 0
    for segment in segments:
        rows = {q: (text, late and text is None) for q, text, late in segment}  # a question once in a segment
        tables.append(bought(*((q, text, late) for q, (text, late) in rows.items())))
        total += len(rows)
        for q, (text, late) in rows.items():
            if q not in expected or expected[q][1]:
                expected[q] = (text, late)
    held = hold(tables)
    rows = held.rows(ids(*range(6)))
    for q in range(6):
        assert (rows[q] >= 0) == (q in expected)
        if q in expected:
            found = held.table.slice(int(rows[q]), 1).to_pylist()[0]
            assert (found["text"], found["transient"]) == expected[q]
    assert held.superseded == total - len(expected)


def test_question_ids_tell_questions_apart() -> None:
    many = bought(*((q, "", False) for q in range(2000)))
    assert len(np.unique(question_ids(many), axis=0)) == 2000
    swapped = many.set_column(1, "first_hash", many["second_hash"]).set_column(2, "second_hash", many["first_hash"])
    assert not (question_ids(many) == question_ids(swapped)).all(axis=1).any()


def test_damaged_and_foreign_segments_are_named(tmp_path: Path) -> None:
    mine = log(tmp_path)
    name = mine.publish(0, bought((0, "1", False)))
    file = tmp_path / mine.path / name
    whole = file.read_bytes()
    for broken in (whole[:-9], whole[: len(whole) // 2], b""):
        file.write_bytes(broken)
        with pytest.raises(DamagedError) as caught:
            mine.read(0)
        assert name in str(caught.value)
        assert "delete it and run again" in str(caught.value)
    flipped = bytearray(whole)
    flipped[40] ^= 0xFF
    file.write_bytes(bytes(flipped))
    with pytest.raises((StoreError, DataError)) as spoilt:
        mine.read(0)
    assert name in str(spoilt.value)
    file.unlink()
    assert mine.read(0).table.num_rows == 0


def test_what_lacks_an_answer_is_known_while_others_buy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, rows = log(tmp_path), np.arange(6)
    mine.publish(3, bought((0, "1", False), (1, None, True), (2, None, False)))
    lacking = Lacking(mine, 3, ids(*range(6)))
    assert lacking(rows).tolist() == [1, 3, 4, 5]
    mine.publish(3, bought((1, "1", False), (3, None, True), (9, "1", False)))
    mine.publish(4, bought((4, "1", False)))
    assert lacking(rows[2:]).tolist() == [3, 4, 5]
    monkeypatch.setattr(answer_log, "_LOOK_S", 0.0)
    assert lacking(rows).tolist() == [1, 3, 4, 5]  # it has looked a moment ago
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert lacking(rows).tolist() == [3, 4, 5]
    assert lacking(rows[:2]).tolist() == []


_WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from tests.store.test_answers import bought, log
from pathlib import Path
mine = log(Path(sys.argv[1]))
for i in range(40):
    mine.publish(0, bought(*((q, f"{sys.argv[2]} {i}", False) for q in range(i, i + 8))))
    if sys.argv[4] and not i % 4:
        mine.merge(0)
"""


@pytest.mark.parametrize("merges", ["", "merges"])
def test_writers_at_work_at_once_lose_nothing(tmp_path: Path, merges: str) -> None:
    """Three processes buy overlapping questions; every question has one answer, and all others are counted.

    The same while each of them merges segments all the time.
    """
    here = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(n), here, merges], env={**os.environ, "PYTHONPATH": here}) for n in range(3)
    ]
    while any(writer.poll() is None for writer in writers):
        log(tmp_path).read(0)  # a reader in the middle sees whole segments only
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    held = log(tmp_path).read(0)
    assert held.final(ids(*range(47))).all()
    assert held.table.num_rows == 47
    assert merges or held.superseded == 3 * 40 * 8 - 47
    merged = log(tmp_path).merge(0)
    assert len(log(tmp_path).segments(0)) == 1
    assert merged.table.equals(held.table)
    assert log(tmp_path).read(0).table.equals(merged.table)


def test_a_merge_that_is_killed_loses_and_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was about to do: write the merged segment, or remove any of the others."""
    mine = log(tmp_path)
    for i in range(5):
        mine.publish(0, bought(*((q, f"{i}", False) for q in range(i, i + 3)), (99, None, True)))
    before = mine.read(0).table
    real = Store.remove
    for lives in (0, 1, 3):
        turns = iter(range(lives))

        def killed(store: Store, path: str, turns: Iterator[int] = turns) -> None:
            if next(turns, None) is None:
                raise KeyboardInterrupt
            real(store, path)

        monkeypatch.setattr(Store, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            mine.merge(0)
        assert mine.read(0).table.equals(before)
    monkeypatch.setattr(Store, "remove", real)
    assert mine.merge(0).table.equals(before)
    assert len(mine.segments(0)) == 1
    assert mine.read(0).table.equals(before)
