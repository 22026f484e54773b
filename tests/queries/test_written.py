"""Queries that a language model wrote: what is taken, and why the rest is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.queries import choose
from anmi_ray.queries.choose import written_queries
from tests.queries import hostile

STOP = frozenset({"the", "of", "a", "is", "in"})
TITLE = "Slow leaks"
TEXT = "# Mending inner tubes\n\nA tyre that loses air overnight is mended in seven steps. First find the hole in it."


def why(text: str, kind: str = "question") -> str:
    """Why one query about the document is refused, or ""."""
    [(_, reason)] = written_queries([(kind, text)], "d", (TITLE, TEXT), (["question"], 1), 0, STOP)
    return reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Why is my tyre flat every morning?", ""),
        ("inner tubes leak", ""),
        ("the hole", choose.EMPTY),
        ("  ", choose.BLANK),
        ("tyre", choose.SHORT),
        ("flat tyre " * 20, choose.LONG),
        ("Why is my tyre\nflat?", choose.CONTROL),
        ("Why is my \x1b[31mtyre flat?", choose.CONTROL),
        ("Why is my \u202etyre flat?", choose.CONTROL),
        ("slow LEAKS", choose.COPY),
        ("mending inner tubes?", choose.COPY),
        ("a tyre that loses air overnight", choose.COPY),
        ("A tyre, that loses air overnight, is mended in seven steps?", choose.COPY),
        ("loses air", ""),
    ],
)
def test_why_a_written_query_is_refused(text: str, reason: str) -> None:
    assert why(text) == reason


def test_no_more_is_taken_than_was_asked_for_and_no_other_kind() -> None:
    asked = [("question", "Why is my tyre flat?"), ("question", "Who mends my wheel?"), ("poem", "roses are red")]
    found = written_queries(asked, "d", (TITLE, TEXT), (["question"], 1), 0, STOP)
    assert [reason for _, reason in found] == ["", choose.UNWANTED, choose.UNWANTED]
    assert len({query.query_id for query, _ in found}) == 3
    assert found[2][0].kind == choose.ANSWER


@given(
    st.lists(st.tuples(st.sampled_from(["keyword", "x"]), st.one_of(hostile.texts, st.text(max_size=40)))),
    hostile.documents,
)
def test_what_is_taken_can_be_shown_and_is_no_copy(answer: list[tuple[str, str]], document: tuple[str, str]) -> None:
    for query, reason in written_queries(answer, "d", document, (["keyword"], 2), 0, STOP):
        assert query.text.isprintable()
        if not reason:
            assert query.kind == "keyword"
            assert 2 <= len(choose.words(query.text)) <= 24
            long = len(choose.words(query.text)) >= 4
            assert not (long and any(hostile.stands_in(query.text, part) for part in document))
