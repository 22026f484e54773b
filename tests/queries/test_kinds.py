"""What a document offers as queries: told from its title and text alone, in linear time, whatever they hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.queries import kinds
from anmi_ray.queries.words import cleaned, words
from tests.queries import hostile

STOP = frozenset({"the", "of", "a", "is", "if", "in", "it", "and", "or", "does", "not", "that"})


def offered(title: str, text: str, kind: str) -> list[str]:
    """The texts of one kind that a document offers."""
    return [offer.text for offer in kinds.offers(title, text, STOP) if offer.kind == kind]


@given(hostile.documents)
def test_an_offer_is_read_in_its_document_and_can_be_shown(document: tuple[str, str]) -> None:
    title, text = document
    for offer in kinds.offers(title, text, STOP):
        assert offer.text == cleaned(offer.text)
        assert offer.text.isprintable()
        assert words(offer.text)
        assert hostile.stands_in(offer.passage, title if offer.kind == "title" else text)
        assert offer.kind == "identifier" or words(offer.text) == words(offer.passage)


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("# Mend a leak #\n#hashtag\n####### seven", ["Mend a leak"]),
        ("```\n# a comment\n```\n## After it", ["After it"]),
        ("    # indented code", []),
        (
            "1 Introduction to tyres\n2.3. Of wheels\n3 apples were eaten.\n1990 was a year",
            ["Introduction to tyres", "Of wheels"],
        ),
        ("SLOW LEAKS\nNASA\nHTTP AND FTP ARE PROTOCOLS.", ["SLOW LEAKS"]),
        ("A wheel\n-------\n\nno rule below\na longer line than twice\n---", ["A wheel"]),
        ("**2 Bold words**", ["Bold words"]),
    ],
)
def test_headings(text: str, headings: list[str]) -> None:
    assert kinds.headings(text) == headings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def mend(tyre)\nMends a tyre, e.g. a flat one. Slowly.", "Mends a tyre, e.g. a flat one."),
        ("As Smith et al. Found in Fig. B, it leaks! Truly.", "As Smith et al. Found in Fig. B, it leaks!"),
        ("## Leaks\n\nno end\nof it\n\nAnother one.", "no end of it"),
        ("Before it\n```\ncode\n```\nafter it.", "Before it"),
        ("> - Mend a leak.", "Mend a leak."),
        ("...\n\n***", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert kinds.first_sentence(text) == sentence


def test_phrases_are_runs_between_stop_words_and_punctuation() -> None:
    found = offered("", "Slow leaks of the inner tube, inner tube-valves and 42", "phrase")
    assert found == ["Slow leaks", "inner tube", "inner tube-valves"]


def test_identifiers_are_asked_with_the_words_around_them() -> None:
    text = "Raises ORA-00942 if the table or view does not exist.\nSee (ORA-00942), or parseReply()."
    assert offered("", text, "identifier") == ["ORA-00942 Raises table view"]


@pytest.mark.parametrize("pattern", hostile.PATTERNS)
def test_a_megabyte_is_read_at_once(pattern: str) -> None:
    text = (pattern * hostile.MEGABYTE)[: hostile.MEGABYTE]
    start = time.process_time()
    assert list(kinds.offers(text, text, STOP)) is not None
    assert time.process_time() - start < hostile.HANGS_S


@given(st.text(alphabet="#.=-_aA1 \n`", min_size=1, max_size=12))
def test_what_is_repeated_takes_linear_time(pattern: str) -> None:
    text = (pattern * kinds.READ)[: kinds.READ]
    start = time.process_time()
    assert list(kinds.offers("", text, STOP)) is not None
    assert time.process_time() - start < hostile.HANGS_S
