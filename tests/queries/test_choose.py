"""Which offers become queries: told why not, never two that are alike, and as many of each kind."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.queries import choose
from anmi_ray.queries.choose import DocumentFrequency, QueryCandidate
from anmi_ray.queries.kinds import KINDS, offers
from anmi_ray.queries.words import words

STOP = frozenset({"the", "of", "a", "in", "how"})


def candidate(text: str, kind: str = "title", source: str = "d") -> QueryCandidate:
    """A candidate of a document."""
    order = identity.digest("made", kind, source, text)
    return QueryCandidate(kind, text, text, source, identity.doc_id(source), order)


def reasons(*documents: tuple[str, str]) -> dict[str, str]:
    """By kind, why the first document's best offer is no query, in a collection of these documents."""
    frequency = DocumentFrequency()
    for title, text in documents:
        frequency.add({offer.key for offer in offers(title, text, STOP)})
    found = choose.best_offers(offers(*documents[0], STOP), "d", 100, 0, frequency, STOP)
    return {one.kind: reason for one, reason in found}


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("Leaks", choose.SHORT),
        ("How leaks in tyres are mended", ""),
        ("leak tyre " * 13, choose.LONG),
        ("leak" + "s" * 300 + " tyres", choose.LONG),
        ("Of the leaks", choose.EMPTY),
        ("12 of 13", choose.EMPTY),
        ("See also", choose.EMPTY),
    ],
)
def test_why_a_title_is_no_query(title: str, reason: str) -> None:
    assert reasons((title, ""))["title"] == reason


def test_what_many_documents_say_says_nothing() -> None:
    assert reasons(*[("Annual report", "")] * 8)["title"] == ""
    assert reasons(*[("Annual report", "")] * 9)["title"] == choose.EMPTY


def test_of_several_headings_one_that_can_be_asked_is_taken() -> None:
    assert reasons(("", "# Leaks\n\n# Mending inner tubes\n\n# Notes"))["heading"] == ""


def test_a_phrase_is_one_that_somebody_says_again() -> None:
    assert "phrase" not in reasons(("", "inner tube"), ("", "outer ring"))
    assert reasons(("", "inner tube"), ("", "the inner tube"))["phrase"] == ""


_texts = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=7).map(" ".join)


@given(st.lists(_texts, max_size=30))
def test_near_duplicates_are_those_that_comparing_all_pairs_finds(texts: list[str]) -> None:
    candidates = [candidate(text, source=str(i)) for i, text in enumerate(texts)]
    kept: list[set[str]] = []
    expected: set[QueryCandidate] = set()
    for one in candidates:
        mine = set(words(one.text))
        if any(len(mine & other) >= 0.8 * len(mine | other) for other in kept):
            expected.add(one)
        else:
            kept.append(mine)
    assert choose.near_duplicates(candidates) == expected


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 6)), max_size=25, unique=True), st.integers(1, 12))
def test_kinds_take_turns_and_nobody_is_lost(offered: list[tuple[str, int]], number: int) -> None:
    candidates = [candidate("slow leaks", kind, str(source)) for kind, source in offered]
    taken, left = choose.balanced(candidates, number)
    assert len(taken) + len(left) == len(candidates)
    assert {*taken, *left} == set(candidates)
    assert len(taken) <= number
    assert max(Counter(one.doc_id for one in taken).values(), default=0) <= choose.PER_DOCUMENT
    spare = {one.kind for one, reason in left.items() if reason == choose.SPARE}
    if spare:  # no kind has two more than one of which there is still some
        of_kind = Counter(one.kind for one in taken)
        assert len(taken) == number
        assert max(of_kind.values()) <= min(of_kind[kind] for kind in spare) + 1
    assert choose.balanced(candidates[::-1], number)[0] == taken
