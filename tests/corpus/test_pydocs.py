"""The embedded collection, on the real standard library, and its extraction on small sources."""

from __future__ import annotations

import ast
import gc
import time
from pathlib import Path
from typing import Any

import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.corpus import pydocs
from tests.corpus import layouts
from tests.corpus.layouts import Reading


def read(**settings: Any) -> Reading:
    """Read the embedded collection with the defaults of a run, checking records and books."""
    return layouts.read({"reader": "pydocs", "dev_fraction": None, "max_reject_fraction": 0.01, **settings})


@pytest.fixture(scope="session")
def stdlib() -> Reading:
    return read()


def normal(text: str) -> str:
    return " ".join(text.split()).casefold()


@pytest.mark.slow
def test_size_and_splits(stdlib: Reading) -> None:
    assert 4_000 < stdlib.documents.num_rows < 8_000
    assert 1_700 < stdlib.queries.num_rows < 3_500
    splits = stdlib.queries["split"].to_pylist()
    assert splits.count("dev") / len(splits) == pytest.approx(0.06, abs=0.02)
    assert splits.count("test") / len(splits) == pytest.approx(0.12, abs=0.03)


@pytest.mark.slow
def test_another_seed_splits_the_same_queries_another_way(stdlib: Reading) -> None:
    def split(collection: Reading) -> dict[bytes, str]:
        rows = collection.queries
        return dict(zip(rows["query_id"].to_pylist(), rows["split"].to_pylist(), strict=True))

    before, after = split(stdlib), split(read(split_seed=1))
    assert before.keys() == after.keys()
    tested = [query for query, name in before.items() if name == "test"]
    again = sum(after[query] == "test" for query in tested)
    assert again < 0.3 * len(tested)  # as many as chance would take, about .12
    assert list(after.values()).count("test") / len(after) == pytest.approx(0.12, abs=0.03)


def test_the_querys_sentence_is_in_none_of_its_documents(stdlib: Reading) -> None:
    text = {row["doc_id"]: normal(f"{row['title']} {row['text']}") for row in stdlib.documents.to_pylist()}
    query = {row["query_id"]: normal(row["text"]) for row in stdlib.queries.to_pylist()}
    assert not [row for row in stdlib.qrels.to_pylist() if query[row["query_id"]] in text[row["doc_id"]]]


def test_every_query_is_judged_and_nothing_else_is(stdlib: Reading) -> None:
    assert set(stdlib.qrels["query_id"].to_pylist()) == set(stdlib.queries["query_id"].to_pylist())
    assert set(stdlib.qrels["doc_id"].to_pylist()) <= set(stdlib.documents["doc_id"].to_pylist())
    assert set(stdlib.qrels["grade"].to_pylist()) == {1}


def test_names_do_not_give_the_answer_away(stdlib: Reading) -> None:
    """Few queries have the name of their object among their words."""
    queries = stdlib.queries.to_pylist()
    named = [row for row in queries if row["external_id"].rsplit(".", 1)[-1].casefold() in normal(row["text"]).split()]
    assert len(named) / len(queries) < 0.25


def test_a_second_reading_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    some = pydocs.source_files(())[100:160]
    monkeypatch.setattr(pydocs, "source_files", lambda packages: list(some))
    first, second = read(), read()
    assert first.queries.num_rows
    assert all(a.equals(b) for a, b in zip(first[1:], second[1:], strict=True))
    assert first.reader.content_fingerprint() == second.reader.content_fingerprint()


class Parsing:
    """Garbage that parses when it is collected, and leaves more of its kind."""

    def __init__(self, alive: list[bool]) -> None:
        self.me = self
        self.alive = alive

    def __del__(self) -> None:
        ast.parse("a + b")
        if self.alive:
            Parsing(self.alive)


def test_a_finalizer_that_parses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    some = pydocs.source_files(())[100:120]
    monkeypatch.setattr(pydocs, "source_files", lambda packages: list(some))
    alive = [True]
    thresholds = gc.get_threshold()
    Parsing(alive)
    gc.set_threshold(50)
    try:
        found = read()
    finally:
        gc.set_threshold(*thresholds)
        alive.clear()
    assert found.documents.equals(read().documents)


SOURCE = '''
"""shapes -- areas of simple plane shapes.

Everything is in centimetres.
"""
def area(radius, *, exact: bool = False) -> float:
    """Return the area of a circle of this radius.

    Uses pi in double precision unless told otherwise. Return the area of a  circle of this radius.
    """
def surface(radius):
    """Return the area of a circle
    of this radius."""
def bare():
    pass
def _hidden():
    """Return something that nobody may see from outside.

    With a long enough explanation of it."""
class Square(Shape, metaclass=M):
    """A square. It has four equal sides and as many corners."""
    @property
    def side(self):
        """Length of one of its four sides.

        The setter checks that it is positive."""
    @side.setter
    def side(self, value):
        """Set the length."""
    class Corner:
        """One of the four places where two sides meet each other.

        Counted against the clock from the lower left one."""
try:
    import fast
except ImportError:
    def fallback():
        """Work out the same number without the fast module.

        Slower by a factor of ten or so."""
'''


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reading:
    (tmp_path / "shapes.py").write_text(SOURCE)
    for folder in ("tests", "pkg"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests" / "test_shapes.py").write_text('"""Test every shape there is in here."""')
    (tmp_path / "pkg" / "__init__.py").write_text('"""A package."""')
    (tmp_path / "pkg" / "broken.py").write_text("def (:")
    (tmp_path / "pkg" / "hostile.py").write_text("if a: pass\n" + "elif b: pass\n" * 5_000)
    (tmp_path / "pkg" / "_private.py").write_text('"""Not for others."""')
    monkeypatch.setattr(pydocs.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return read(max_reject_fraction=1.0)


def test_objects_names_signatures_and_bodies(small: Reading) -> None:
    text = dict(zip(small.documents["title"].to_pylist(), small.documents["text"].to_pylist(), strict=True))
    assert text == {
        "pkg": "module pkg",
        "shapes": "module shapes\nEverything is in centimetres.",
        "shapes.area": "def area(radius, *, exact: bool=False) -> float\n"
        "Uses pi in double precision unless told otherwise.",
        "shapes.surface": "def surface(radius)",
        "shapes.Square": "class Square(Shape)\nIt has four equal sides and as many corners.",
        "shapes.Square.side": "def side(self)\nThe setter checks that it is positive.",
        "shapes.Square.Corner": "class Corner\nCounted against the clock from the lower left one.",
        "shapes.fallback": "def fallback()\nSlower by a factor of ten or so.",
    }


def test_queries_and_shared_summaries(small: Reading) -> None:
    text = dict(zip(small.queries["external_id"].to_pylist(), small.queries["text"].to_pylist(), strict=True))
    assert text == {
        "shapes": "areas of simple plane shapes",
        "shapes.area": "Return the area of a circle of this radius",
        "shapes.Square.side": "Length of one of its four sides",
        "shapes.Square.Corner": "One of the four places where two sides meet each other",
        "shapes.fallback": "Work out the same number without the fast module",
    }
    assert small.qrels["query_id"].to_pylist().count(identity.query_id("shapes.area")) == 2  # area and surface


def test_what_is_refused_is_said(small: Reading) -> None:
    reasons = {(row["place"], row["reason"]) for row in small.rejects.to_pylist()}
    assert {("documents pkg.broken:1", "not parsable"), ("documents pkg.hostile:1", "not parsable")} <= reasons
    assert any(reason == "defined twice" for _, reason in reasons)
    assert any(reason.startswith("summary under") for _, reason in reasons)


@pytest.mark.parametrize(
    "source",
    [
        "x = " + "(" * 10_000,
        "if a: pass\n" + "elif b: pass\n" * 5_000,
        "x = " + "-" * 100_000 + "1",
        '"""Docs."""\ndef f(x=0x' + "f" * 10_000 + '):\n    """Return what it is given as it is."""',
        '"""Half a pair \\ud800 of surrogates in here."""',
        "\0",
    ],
    ids=["parentheses", "elif", "minus", "number", "surrogate", "zero"],
)
def test_a_module_made_to_break_its_reader_is_refused(source: str) -> None:
    with pytest.raises((SyntaxError, ValueError, RecursionError, MemoryError)):
        list(pydocs._documented(source.encode(), "m"))


@pytest.mark.parametrize("copies", ["A b " * 20_000 + "c d. " * 20_000, "A b c " * 20_000 + "A b c d."])
def test_copies_of_a_summary_without_end_are_not_taken_out_one_by_one(copies: str) -> None:
    start = time.monotonic()
    assert pydocs.split_docstring(f"A b c d.\n\n{copies}")[0] == "A b c d."
    summary = "a " * 20_000 + "b."
    assert pydocs.split_docstring(f"{summary}\n\n{'a ' * 200_000}{summary}") == (summary, "")
    assert time.monotonic() - start < 20


def test_absent_and_sourceless_packages() -> None:
    with pytest.raises(ConfigError, match="pip install no_such_package_here"):
        corpus.read(CorpusConfig(packages=("no_such_package_here",)))
    with pytest.raises(ConfigError, match="standard library"):
        corpus.read(CorpusConfig(packages=("json",)))


def test_an_installed_package_is_added(stdlib: Reading) -> None:
    reader = corpus.read(CorpusConfig(packages=("pydantic",)))
    assert reader.content_fingerprint() != stdlib.reader.content_fingerprint()
    names = {name for name, _ in pydocs.source_files(("pydantic",))}
    assert {"pydantic", "pydantic.main", "heapq"} <= names


def test_no_sources_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydocs.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="no Python sources"):
        corpus.read(CorpusConfig())


@pytest.mark.parametrize(
    ("docstring", "summary", "body"),
    [
        ("One sentence only", "One sentence only", ""),
        ("First. Second.", "First.", "Second."),
        ("Read e.g. a file.txt whole.  Then close.", "Read e.g. a file.txt whole.", "Then close."),
        ("Over two\n    lines.\n\n    Body.", "Over two lines.", "Body."),
        ("Say it.\n\nSAY   IT. Say\nit.", "Say it.", ""),
    ],
)
def test_split_docstring(docstring: str, summary: str, body: str) -> None:
    assert pydocs.split_docstring(docstring) == (summary, body)


def test_signatures() -> None:
    source = "async def f(a, /, b: int = 1, *c, d, **e) -> None: pass"
    assert pydocs.signature(ast.parse(source).body[0], "m.f") == "async def f(a, /, b: int=1, *c, d, **e) -> None"
