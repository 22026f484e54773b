"""Taking queries out of their document: none is left of them, and the rest is as it was."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.queries.words import masked, words
from tests.queries import hostile

_SIZE = 1 << 18
REST = "Here stand the eight words that are left over"


@given(hostile.documents, st.data())
def test_a_query_stands_nowhere_in_its_masked_document(document: tuple[str, str], data: st.DataObject) -> None:
    title, text = document
    found = words(f"{title} {text}")
    start = data.draw(st.integers(0, len(found)))
    query = " ".join(found[start : start + data.draw(st.integers(1, 4))])
    hidden = masked(title, text, [query, title])
    if hidden is not None:
        assert not any(hostile.stands_in(one, part) for one in (query, title) if words(one) for part in hidden)
        left = iter(words(f"{title} {text}"))
        assert all(word in left for word in words(" ".join(hidden)))  # in their order, nothing is added


@pytest.mark.parametrize(
    ("text", "query", "left"),
    [
        ("# A leak\nIt drips.", "a leak", "It drips."),
        ("2.1 A leak\n==========\nIt drips.", "a leak", "It drips."),
        ("A LEAK! It drips, a\n leak, again.", "a leak", " It drips, again."),
        ("smart history", "art history", "smart history"),
        ("die Straße und STRASSE", "strasse", "die und"),
    ],
)
def test_what_is_left(text: str, query: str, left: str) -> None:
    hidden = masked("", f"{text}\n{REST}", [query])
    assert hidden is not None
    assert hidden[1].split() == f"{left} {REST}".split()


def test_a_title_that_is_asked_is_dropped_and_any_other_stays() -> None:
    assert masked("Slow leaks.", REST, ["slow leaks"]) == ("", REST)
    assert masked("On slow leaks", REST, ["slow leaks"]) == ("On ", REST)


def test_too_little_left_is_refused_and_so_is_what_never_ends() -> None:
    assert masked("", "a leak that is mended", ["a leak"]) is None
    nested = "a " * 40 + "b " * 40
    assert masked("", f"{nested}{REST}", ["a b"]) is None


@pytest.mark.parametrize("pattern", ["a ", "a b ", "a.a.a. ", "A B\n", "." * 5000 + "a b "])
@pytest.mark.parametrize("query", ["a", "a b"])
def test_masking_takes_linear_time(pattern: str, query: str) -> None:
    text = (pattern * _SIZE)[:_SIZE]
    start = time.process_time()
    hidden = masked("", f"{text} {REST}", [query])
    assert hidden is None or not hostile.stands_in(query, hidden[1])
    assert time.process_time() - start < hostile.HANGS_S
