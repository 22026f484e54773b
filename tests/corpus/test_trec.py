"""TREC's formats: what documents, topics and qrels hold, and every way in which they can be wrong."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.corpus import trec
from anmi_ray.tables.streams import LineError
from tests.corpus.layouts import (
    LAYOUTS,
    SMALL,
    Collection,
    Settings,
    check_refused,
    collections,
    read,
    write_lines,
    write_trec,
)


def documents_of(content: bytes, **settings: Any) -> list[tuple[str, str, str]]:
    """The documents of one SGML file."""
    with tempfile.TemporaryDirectory() as folder:
        given = write_trec(Path(folder), SMALL)
        (Path(folder) / "one").write_bytes(content)
        found = read({**given, "documents": str(Path(folder) / "one"), **settings})
    return [(row["external_id"], row["title"], row["text"]) for row in found.documents.to_pylist()]


@pytest.mark.slow
@given(collections())
def test_one_collection_is_the_same_in_every_layout(collection: Collection) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, *others = [read(write(Path(folder) / write.__name__, collection)) for write in LAYOUTS]
    names = [(row["external_id"], row["title"], row["text"]) for row in first.documents.to_pylist()]
    assert names == collection.documents
    for other in others:
        assert other.rows == first.rows
        assert other.rejects["reason"].to_pylist() == first.rejects["reason"].to_pylist()


@pytest.mark.parametrize(
    ("content", "document"),
    [
        (b"<DOC><DOCNO>FT1</DOCNO><TEXT>all in one line</TEXT></DOC>", ("FT1", "", "all in one line")),
        (b"<doc>\n<docno> a </docno>\n<text>\nlower case\n</text>\n</doc>", ("a", "", "lower case")),
        (
            b"<DOC>\n<DOCNO>LA1</DOCNO>\n<DOCID>7</DOCID>\n<HEADLINE>\n<P>\nTWO LINES;\n</P>\n"
            b"<P>\nOF IT\n</P>\n</HEADLINE>\n"
            b"<BYLINE>By X</BYLINE>\n<TEXT>\n<P>\nFirst.\n</P>\n<P>\nSecond.\n</P>\n</TEXT>\n"
            b"<TYPE>Essay</TYPE>\n</DOC>",
            ("LA1", "TWO LINES; OF IT", "By X\nFirst.\nSecond.\nEssay"),
        ),
        (
            b"<DOC><DOCNO>W1</DOCNO><DOCHDR>http://a/b\nServer: c</DOCHDR>"
            b"<html><title>Home</title>Hi <b>you</b></html></DOC>",
            ("W1", "Home", "Hi\nyou"),
        ),
        (
            b"<DOC><DOCNO>e</DOCNO>AT&amp;T &lt;b&gt; &#233;&eacute; &hyph; R&D</DOC>",
            ("e", "", "AT&T <b> éé &hyph; R&D"),
        ),
        (b"<DOC><DOCNO>n</DOCNO>1 < 2 and 3 > 2 <!-- a <P> comment --> a<3</DOC>", ("n", "", "1 < 2 and 3 > 2\na<3")),
        (b"<DOC><DOCNO>o</DOCNO><TITLE>never closed<TEXT>body</TEXT></DOC>", ("o", "never closed", "body")),
        (b'<?xml version="1.0"?>\n<ROOT>\n<DOC x="1"><DOCNO>x</DOCNO>a\n</DOC>\n</ROOT>', ("x", "", "a")),
        (b"\xef\xbb\xbf<DOC>\r\n<DOCNO>r</DOCNO>\r\n<TEXT>\r\na\r\nb\r\n</TEXT>\r\n</DOC>\r\n", ("r", "", "a\nb")),
    ],
)
def test_what_a_document_is(content: bytes, document: tuple[str, str, str]) -> None:
    assert documents_of(content) == [document]


def test_a_document_that_never_closes_takes_no_other_with_it() -> None:
    content = b"<DOC><DOCNO>a</DOCNO>cut\n<DOC><DOCNO>b</DOCNO>whole</DOC>\nstray\nstray\n<DOC><DOCNO>c</DOCNO>c</DOC>"
    assert documents_of(content) == [("b", "", "whole"), ("c", "", "c")]


@given(st.binary(max_size=80))
def test_any_bytes_give_documents_or_rejects(noise: bytes) -> None:
    lines = [(str(i), line) for i, line in enumerate(b"<DOC><DOCNO>a</DOCNO>x</DOC>".join([noise] * 3).split(b"\n"))]
    found = [content for _, content in trec.elements(lines, "DOC")]
    assert any(isinstance(content, LineError) or b"DOCNO" in content for content in found)


MARKUP = [*"<>a ", "<!--", "-->", "<!-->", "<!--->", "<![CDATA[", "<!DOCTYPE x>", "<P>", "</P>", "--", "<a b='>'>"]


@given(st.lists(st.sampled_from(MARKUP)).map("".join))
def test_markup_behind_the_last_comment_is_what_one_pattern_finds(text: str) -> None:
    spans = [tag.span() for _, tag in trec._pieces(text) if tag]
    assert spans == [tag.span() for tag in trec._MARKUP[0].finditer(text)]


@pytest.mark.parametrize("piece", ["<!--", "<![CDATA[", "<!DOCTYPE ", "<P><b>x", "<a ", "&#1", "<!--->"])
def test_markup_without_end_takes_time_linear_in_it(piece: str) -> None:
    content = b"<DOCNO>a</DOCNO><num>1</num><title>x</title>" + piece.encode() * 60_000
    start = time.monotonic()
    assert trec.document(content)[0] == "a"
    assert trec.topic(content, ["title"])[0] == "1"
    assert list(trec.elements([("1", content)], "DOC"))
    assert time.monotonic() - start < 20  # quadratic it is minutes


@pytest.mark.parametrize("entity", ["&#" + "1" * 5000 + ";", "&#x110000;", "&#xD800;", "&#0;"])
def test_characters_out_of_range_are_seen_as_such(entity: str) -> None:
    assert documents_of(f"<DOC><DOCNO>a</DOCNO>x{entity}y</DOC>".encode()) == [("a", "", "x\ufffdy")]


def test_a_large_document_is_kept_whole() -> None:
    words = b"ten bytes\n" * (1 << 20)
    ((_, _, text),) = documents_of(b"<DOC><DOCNO>a</DOCNO><TEXT>\n" + words + b"</TEXT></DOC>")
    assert len(text) == len(words) - 1


def test_ms_marco_files(tmp_path: Path) -> None:
    settings = write_trec(tmp_path, SMALL)
    settings["documents"] = [
        write_lines(tmp_path / "passages.tsv", ["d0\tzero", "d1\tone", "broken", "d2\ta\tb\tc", "\tno id"]),
        write_lines(tmp_path / "docs.tsv", ["m0\thttp://a\tTitle\tBody", "m1\tshort", "m2\thttp://b\t\tBody"]),
    ]
    settings["queries"] = write_lines(tmp_path / "queries.tsv", ["q0\twhat is it", "q1\ta\tb", "q2\t "])
    found = read(settings)
    rows = [(row["external_id"], row["title"], row["text"]) for row in found.documents.to_pylist()]
    assert rows == [("m0", "Title", "Body"), ("m2", "", "Body"), ("d0", "", "zero"), ("d1", "", "one")]
    assert found.queries["text"].to_pylist() == ["what is it"]
    places = {row["place"]: row["reason"] for row in found.rejects.to_pylist() if "qrels" not in row["place"]}
    assert places == {
        "documents docs.tsv:2": "not the columns id, url, title, body",
        "documents passages.tsv:3": "not the columns id, text",
        "documents passages.tsv:4": "not the columns id, text",
        "documents passages.tsv:5": "missing id",
        "queries queries.tsv:2": "not the columns id, text",
        "queries queries.tsv:3": "empty query",
    }


TOPIC = b"""<top>
<head> Tipster Topic Description
<num> Number:  051
<dom> Domain:  International Economics
<title> Topic:  Airbus &amp;
Subsidies

<desc> Description:
A document will discuss
  government assistance.
</desc>
<smry> Summary: none
</top>
"""


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (("title",), "Airbus & Subsidies"),
        (("desc",), "A document will discuss government assistance."),
        (("title", "desc"), "Airbus & Subsidies A document will discuss government assistance."),
    ],
)
def test_which_fields_of_a_topic_are_the_query(tmp_path: Path, fields: tuple[str, ...], text: str) -> None:
    settings = write_trec(tmp_path, SMALL)
    (tmp_path / "topics.txt").write_bytes(TOPIC)
    qrels = {"test": write_lines(tmp_path / "q", ["051 0 d1 1"])}
    found = read({**settings, "qrels": qrels, "topic_fields": fields})
    assert found.queries.select(["external_id", "text"]).to_pylist() == [{"external_id": "051", "text": text}]


def test_what_separates_columns_is_named(tmp_path: Path) -> None:
    settings = write_trec(tmp_path, SMALL)
    (tmp_path / "own.tsv").write_text("d1;text\n" * 9)
    (tmp_path / "own.qrels").write_text("q1,0,d1,1\n" * 9)
    check_refused(
        {**settings, "documents": str(tmp_path / "own.tsv")}, "own.tsv", "semicolons", max_reject_fraction=0.1
    )
    qrels = {"test": str(tmp_path / "own.qrels")}
    check_refused({**settings, "qrels": qrels}, "disk", "own.qrels:1", "commas", max_reject_fraction=0.1)


def test_empty_files_hold_nothing(tmp_path: Path) -> None:
    settings = write_trec(tmp_path, SMALL)
    for name in ("disk/part1", "qrels.train"):
        (tmp_path / name).write_bytes(b"")
    found = read(settings)
    assert (found.documents.num_rows, sorted(found.queries["split"].to_pylist())) == (10, ["test"] * 2 + ["train"] * 10)


@pytest.mark.parametrize(
    ("change", "place", "named"),
    [
        (lambda f: {"documents": f"{f}/nowhere"}, "nowhere", "corpus.documents"),
        (lambda f: {"qrels": {"test": f"{f}/nowhere"}}, "nowhere", "corpus.qrels.test"),
        (lambda f: {"documents": f"{f}/bare"}, "bare", ".hidden"),
        (lambda f: {"documents": [f"{f}/disk", f"{f}/disk/part0"]}, "disk/part0", "corpus.documents"),
        (lambda f: {"documents": "nope://bucket/x"}, "nope://bucket/x", "corpus.documents"),
    ],
)
def test_missing_files(tmp_path: Path, change: Callable[[Path], Settings], place: str, named: str) -> None:
    settings = write_trec(tmp_path, SMALL)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / ".hidden").write_text("x")
    check_refused({**settings, **change(tmp_path)}, place, named)


def test_a_fingerprint_follows_names_and_splits_but_no_order_of_settings(tmp_path: Path) -> None:
    settings = write_trec(tmp_path / "here", SMALL)
    disk = tmp_path / "here" / "disk"

    def fingerprint(**change: Any) -> str:
        return corpus.read(CorpusConfig(**{**settings, **change})).content_fingerprint()

    before = fingerprint()
    parts = [str(disk / "part1"), str(disk / "part0")]
    assert fingerprint(documents=parts) == fingerprint(documents=parts[::-1]) == before
    assert read({**settings, "documents": parts}).rows == read(settings).rows
    train, test = settings["qrels"]["train"], settings["qrels"]["test"]
    assert fingerprint(qrels={"train": test, "test": train}) != before
    (disk / "part0").rename(disk / "part9")  # the documents' order is another now
    assert fingerprint() != before
