"""What of a chunk is asked, in which order, and how much at once: whole queries, those that were begun first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.judging.questions import slices
from anmi_ray.stages.judge.asking import in_order
from tests.judging.test_questions import world

SIZES = st.lists(st.integers(2, 5), min_size=1, max_size=8)  # documents of each query


@given(SIZES, st.data())
def test_all_that_is_missing_is_asked_once_and_begun_queries_come_first(sizes: list[int], data: st.DataObject) -> None:
    asked = world([(q, i, j) for q, size in enumerate(sizes) for i in range(size) for j in range(i)])
    count = len(asked.query)
    start = data.draw(st.sampled_from([0, *(np.flatnonzero(np.diff(asked.query)) + 1).tolist()]))
    chunk = np.arange(start, count)
    missing = np.array(data.draw(st.lists(st.booleans(), min_size=len(chunk), max_size=len(chunk))), dtype=np.bool_)
    queries = in_order(asked, chunk, missing)
    assert sorted(q for which in queries for q in which.tolist()) == chunk[missing].tolist()
    rows = [set(asked.query[which].tolist()) for which in queries]
    assert all(len(row) == 1 for row in rows)
    begun = [
        len(which) < int((asked.query[chunk] == row.copy().pop()).sum())
        for which, row in zip(queries, rows, strict=True)
    ]
    assert begun == sorted(begun, reverse=True)
    assert all(np.all(np.diff(which) > 0) for which in queries)  # prompts that begin alike stay neighbours
    backwards = in_order(asked, chunk, missing, backwards=True)
    assert [which.tolist() for which in backwards] == [which.tolist() for which in reversed(queries)]


@given(SIZES, st.integers(1, 12), st.integers(0, 40))
def test_slices_are_whole_queries_until_one_is_refused(sizes: list[int], at_once: int, room: int) -> None:
    queries = [np.arange(sum(sizes[:n]), sum(sizes[: n + 1])) for n in range(len(sizes))]
    left = room

    def admit(group: list[np.ndarray], _: bool) -> tuple[int, bool]:  # type: ignore[type-arg]
        nonlocal left
        admitted = 0
        for which in group:
            if len(which) > left:
                break
            left, admitted = left - len(which), admitted + 1
        return admitted, admitted < len(group)

    found = list(slices(queries, at_once, admit))
    taken = np.concatenate([np.zeros(0, np.int64), *found]).tolist()
    fits = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
    assert taken == list(range(sum(sizes[:fits])))
    assert all(len(one) >= at_once for one in found[:-1])


def test_slices_leave_out_what_was_answered_meanwhile() -> None:
    queries = [np.arange(3 * n, 3 * n + 3) for n in range(4)]
    answered = {4}

    def lacking(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return rows[[row not in answered for row in rows.tolist()]]

    found: list[list[int]] = []
    for one in slices(queries, 3, lambda group, _: (len(group), False), lacking=lacking):
        found.append(one.tolist())
        answered |= {6, 7, 8}
    assert found == [[0, 1, 2], [3, 5, 9, 10, 11]]


def test_slices_wait_for_what_may_not_be_asked_yet() -> None:
    queries = [np.arange(2 * n, 2 * n + 2) for n in range(5)]
    said = iter([(3, False), (0, False), (1, False), (1, True)])
    found = list(slices(queries, 8, lambda *_: next(said)))
    assert [one.tolist() for one in found] == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
