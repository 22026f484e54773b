"""One small collection written in every layout that a reader knows, and read back with the books checked."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import DOCUMENT, QREL, QUERY, REJECT
from anmi_ray.corpus.reader import Reader

Settings = dict[str, Any]


@dataclass(frozen=True)
class Collection:
    """Documents (id, title, text), queries (id, text), and by split the judged pairs (query, document, grade)."""

    documents: list[tuple[str, str, str]]
    queries: list[tuple[str, str]]
    qrels: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
        """The documents of two files."""
        middle = len(self.documents) // 2
        return self.documents[:middle], self.documents[middle:]


class Reading(NamedTuple):
    """What a reader gave."""

    reader: Reader
    documents: pa.Table
    queries: pa.Table
    qrels: pa.Table
    rejects: pa.Table

    @property
    def rows(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Documents in their order, queries, and qrels sorted, as ingest writes them."""
        keys = [("query_id", "ascending"), ("doc_id", "ascending")]
        return self.documents.to_pylist(), self.queries.to_pylist(), self.qrels.sort_by(keys).to_pylist()

    def only(self, reason: str) -> dict[str, str]:
        """The one reject, which must have this reason."""
        rows = self.rejects.to_pylist()
        assert [row["reason"] for row in rows] == [reason], rows
        return rows[0]


SMALL = Collection(
    [(f"d{i}", f"title {i}", f"text of document {i}\n\nits second paragraph") for i in range(20)],
    [(f"q{i}", f"question {i}") for i in range(12)],
    {"train": [(f"q{i}", f"d{i}", 1) for i in range(8)], "test": [(f"q{i}", f"d{i}", 2) for i in range(8, 12)]},
)

_names = st.text("abcXYZ019-._", min_size=1, max_size=6)
_visible = st.characters(codec="utf-8", exclude_categories=["Z", "C"])
_words = st.lists(st.text(_visible, min_size=1, max_size=6), min_size=1, max_size=4).map(" ".join)
_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=60)


@st.composite
def collections(draw: st.DrawFn) -> Collection:
    """Any collection that all layouts can hold: no white space in ids, none but single spaces in titles and queries."""
    keys = draw(st.lists(_names, min_size=2, max_size=8, unique=True))
    texts = st.tuples(st.just("") | _words, _texts.map(str.strip)).filter(any)
    documents = [(key, *draw(texts)) for key in keys]
    asked = draw(st.lists(_names, min_size=1, max_size=5, unique=True))
    queries = [(key, draw(_words)) for key in asked]
    pairs = st.lists(
        st.tuples(st.sampled_from(asked), st.sampled_from(keys), st.integers(-2, 3)),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[:2],
    )
    splits = draw(st.lists(st.sampled_from(["train", "dev", "test"]), min_size=1, max_size=3, unique=True))
    return Collection(documents, queries, {split: draw(pairs) for split in splits})


def read(settings: Settings, **more: Any) -> Reading:
    """Read all, and check every record and the books."""
    return read_with(CorpusConfig(**{"max_reject_fraction": 1.0, "dev_fraction": 0.0, **settings, **more}))


def read_with(config: CorpusConfig) -> Reading:
    """The same of a whole configuration."""
    reader = corpus.read(config)
    documents = pa.concat_tables([DOCUMENT.empty(), *reader.documents()])
    queries, qrels, rejects = reader.queries(), reader.qrels(), reader.rejects()
    for record, table in ((DOCUMENT, documents), (QUERY, queries), (QREL, qrels), (REJECT, rejects)):
        record.check(table, record.name)
    kinds = [place.split()[0] for place in rejects["place"].to_pylist()]
    for kind, table in (("documents", documents), ("queries", queries), ("qrels", qrels)):
        assert reader.rows_in()[kind] == table.num_rows + kinds.count(kind)
    return Reading(reader, documents, queries, qrels, rejects)


def check_refused(settings: Settings, place: str, *named: str, **more: Any) -> None:
    """Reading is an error at a place that ends so, whose message or remedy has these names and numbers."""
    with pytest.raises(DataError) as caught:
        read(settings, **more)
    assert str(caught.value.place).endswith(place)
    assert [name for name in named if name not in str(caught.value)] == []


def write_lines(path: Path, lines: list[str]) -> str:
    """Write lines, and give the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return str(path)


def write_beir(folder: Path, collection: Collection) -> Settings:
    """BEIR layout."""
    documents = [{"_id": key, "title": title, "text": text} for key, title, text in collection.documents]
    write_lines(folder / "corpus.jsonl", [json.dumps(row) for row in documents])
    write_lines(folder / "queries.jsonl", [json.dumps({"_id": key, "text": text}) for key, text in collection.queries])
    for split, rows in collection.qrels.items():
        lines = ["\t".join(map(str, row)) for row in rows]
        write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])
    return {"reader": "beir", "path": str(folder)}


def sgml(key: str, title: str, text: str) -> str:
    """A document as TREC's disks have them."""
    title, text = html.escape(title, quote=False), html.escape(text, quote=False)
    return f"<DOC>\n<DOCNO> {key} </DOCNO>\n<HEADLINE>\n{title}\n</HEADLINE>\n<TEXT>\n{text}\n</TEXT>\n</DOC>"


def topic(key: str, text: str) -> str:
    """A topic as TREC's are."""
    text = html.escape(text, quote=False)
    return (
        f"<top>\n\n<num> Number: {key}\n<title> {text}\n\n<desc> Description:\nWhat about it?\n"
        "\n<narr> Narrative:\nAll of it.\n\n</top>\n"
    )


def write_trec(folder: Path, collection: Collection) -> Settings:
    """TREC's formats, documents in two files."""
    for number, part in enumerate(collection.parts):
        write_lines(folder / "disk" / f"part{number}", [sgml(*row) for row in part])
    topics = write_lines(folder / "topics.txt", [topic(*row) for row in collection.queries])
    qrels = {
        split: write_lines(folder / f"qrels.{split}", [f"{query} 0 {doc} {grade}" for query, doc, grade in rows])
        for split, rows in collection.qrels.items()
    }
    return {"reader": "trec", "documents": str(folder / "disk"), "queries": topics, "qrels": qrels or None}


def write_jsonl(folder: Path, collection: Collection) -> Settings:
    """JSON lines, documents in two files, with columns of unusual names."""
    for number, part in enumerate(collection.parts):
        lines = [json.dumps({"docno": key, "head": title, "body": text}) for key, title, text in part]
        write_lines(folder / "documents" / f"{number}.jsonl", lines)
    asked = [json.dumps({"qid": key, "query": text}) for key, text in collection.queries]
    qrels = {
        split: write_lines(
            folder / f"{split}.jsonl",
            [json.dumps({"qid": query, "docid": doc, "rel": grade}) for query, doc, grade in rows],
        )
        for split, rows in collection.qrels.items()
    }
    return {
        "reader": "table",
        "documents": str(folder / "documents"),
        "queries": write_lines(folder / "queries.jsonl", asked),
        "qrels": qrels or None,
        "columns": {"title": "head", "text": "body"},
    }


def write_csv(folder: Path, collection: Collection) -> Settings:
    """CSV as Python's own writer makes it, documents in two files."""

    def write(name: str, header: list[str], rows: Sequence[tuple[object, ...]]) -> str:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return str(path)

    for number, part in enumerate(collection.parts):
        write(f"documents/{number}.csv", ["id", "title", "text"], part)
    return {
        "reader": "table",
        "documents": str(folder / "documents"),
        "queries": write("queries.csv", ["id", "query"], collection.queries),
        "qrels": {
            split: write(f"{split}.csv", ["query_id", "doc_id", "grade"], rows)
            for split, rows in collection.qrels.items()
        }
        or None,
    }


def write_parquet(folder: Path, collection: Collection) -> Settings:
    """Parquet, documents in two files of small row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "documents").mkdir()
    for number, part in enumerate(collection.parts):
        columns = [pa.array([row[i] for row in part], pa.string()) for i in range(3)]
        table = pa.table(columns, names=["_id", "title", "text"])
        pq.write_table(table, folder / "documents" / f"part-{number}.parquet", row_group_size=3)
    ids, texts = zip(*collection.queries, strict=True)
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / "queries.parquet")
    for split, rows in collection.qrels.items():
        query, doc, grade = zip(*rows, strict=True)
        table = pa.table({"query-id": query, "corpus-id": doc, "score": grade})
        pq.write_table(table, folder / f"{split}.parquet")
    return {
        "reader": "table",
        "documents": str(folder / "documents"),
        "queries": str(folder / "queries.parquet"),
        "qrels": {split: str(folder / f"{split}.parquet") for split in collection.qrels} or None,
    }


Write = Callable[[Path, Collection], Settings]
LAYOUTS: tuple[Write, ...] = (write_beir, write_trec, write_jsonl, write_csv, write_parquet)
