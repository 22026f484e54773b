"""What is too large to be held is refused with its place and size, and is never held."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from anmi_ray.core.errors import DataError
from anmi_ray.corpus import trec
from anmi_ray.tables.streams import MAX_LINE, LineError
from tests.corpus.layouts import SMALL, read, write_beir, write_csv

LARGE = 12 * MAX_LINE  # unpacked
READ = """
import json, resource, sys
from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import DataError
from anmi_ray.tables.preferences import GAMES, read_preferences

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
try:
    if "preferences" in sys.argv[1]:
        rejects = read_preferences(__import__("pathlib").Path(json.loads(sys.argv[1])["preferences"]), GAMES).rejects
    else:
        reader = corpus.read(CorpusConfig(**json.loads(sys.argv[1])))
        for _ in reader.documents():
            pass
        rejects = reader.rejects()
    said = [f"{row['place']} {row['reason']} {row['detail']}" for row in rejects.to_pylist()]
except DataError as error:
    said = [str(error)]
print(json.dumps([peak() - before, said]))
"""


def bomb(path: Path, head: bytes = b"", piece: bytes = b"x", tail: bytes = b"\n") -> Path:
    """A small gzip file of LARGE bytes: members that unpack to the same."""
    member = gzip.compress(piece * (MAX_LINE // 4 // len(piece)))
    path.write_bytes(gzip.compress(head) + member * (4 * LARGE // MAX_LINE) + gzip.compress(tail))
    return path


def peak_of(**settings: object) -> tuple[float, list[str]]:
    """MiB that reading took beyond what its process had, and what was refused, in a process of its own."""
    command = [sys.executable, "-c", READ, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    taken, said = json.loads(done.stdout)
    return taken, said


@pytest.mark.parametrize("layout", ["beir", "jsonl", "tsv", "csv", "msmarco", "line of sgml", "element", "preferences"])
def test_a_line_without_end_is_a_reject_with_its_size_and_takes_no_memory(tmp_path: Path, layout: str) -> None:
    header = b"_id\ttext\nd\tt\n" if layout == "tsv" else b"_id,text\nd,t\n" if layout == "csv" else b""
    queries = write_csv(tmp_path / "small", SMALL)["queries"]
    place = "documents one"
    if layout == "beir":
        settings: dict[str, object] = write_beir(tmp_path / "beir", SMALL)
        (tmp_path / "beir" / "corpus.jsonl").unlink()
        bomb(tmp_path / "beir" / "corpus.jsonl.gz")
        place = "documents corpus"
    elif layout == "preferences":
        good = b'{"query_id": "q", "doc_a": "a", "doc_b": "b", "preference": 1}\n'
        settings = {"preferences": str(bomb(tmp_path / "one.jsonl.gz", good))}
        place = str(tmp_path / "one")
    elif layout in ("jsonl", "tsv", "csv"):
        name = bomb(tmp_path / f"one.{layout}.gz", header)
        settings = {"reader": "table", "documents": str(name), "queries": queries, "max_reject_fraction": 1.0}
    elif layout == "msmarco":
        settings = {"reader": "trec", "documents": str(bomb(tmp_path / "one.tsv.gz", b"d\tt\n")), "queries": queries}
    else:
        piece = b"x" * 1023 + b"\n" if layout == "element" else b"x"
        name = bomb(tmp_path / "one.gz", b"<DOC><DOCNO>d</DOCNO>", piece, b"</DOC>")
        settings = {"reader": "trec", "documents": str(name), "queries": queries}
    taken, said = peak_of(**{"max_reject_fraction": 1.0} | settings)
    assert len(said) == 1
    assert said[0].startswith(place)
    assert "larger than 16 MiB" in said[0]
    assert f"{LARGE // 10**6}" in said[0].replace(",", "")
    assert taken < 100


@pytest.mark.slow
def test_a_quotation_mark_left_open_before_a_large_rest_ends_where_it_began(tmp_path: Path) -> None:
    name = bomb(tmp_path / "one.csv.gz", b'_id,text\nd,"t\n', b"a,b\n")
    queries = write_csv(tmp_path / "small", SMALL)["queries"]
    taken, said = peak_of(reader="table", documents=str(name), queries=queries)
    assert "one.csv.gz:2: its row is larger than 16 MiB; a quote in it may not be closed" in said[0]
    assert taken < 100


def test_a_file_of_other_lines_is_not_remembered_line_by_line(tmp_path: Path) -> None:
    settings = write_beir(tmp_path, SMALL)
    (tmp_path / "corpus.jsonl").unlink()
    bomb(tmp_path / "corpus.jsonl.gz", piece=b"x\n")
    taken, said = peak_of(**settings)
    assert "50000 of the first 50000 documents are malformed (100.0%, allowed 1.0%)" in said[0]
    assert taken < 100


@pytest.mark.parametrize("size", [MAX_LINE - 1, MAX_LINE])
def test_the_limit_is_of_a_line_with_its_end(tmp_path: Path, size: int) -> None:
    settings = write_beir(tmp_path, SMALL)
    row = b'{"_id": "large", "text": "%s"}\n'
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.write(row % (b"x" * (size - len(row) + 2)))
    found = read({**settings, "max_reject_fraction": 1.0})
    assert found.rejects.num_rows == (size == MAX_LINE)
    assert found.documents.num_rows == 20 + (size < MAX_LINE)


def test_an_element_that_is_too_large_takes_no_other_with_it() -> None:
    line = b"x" * (MAX_LINE // 2)
    lines = [("1", b"<DOC>"), ("2", line), ("3", line), ("4", b"</DOC><DOC>a</DOC>")]
    (first, error), second = trec.elements(lines, "DOC")
    assert isinstance(error, LineError)
    assert (first, error.reason, error.detail) == ("1", "larger than 16 MiB", f"{MAX_LINE + 3:,} bytes")
    assert second == ("4", b"a")


def test_a_header_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    settings = write_csv(tmp_path, SMALL)
    for name in ("one.tsv", "one.csv"):
        (tmp_path / name).write_bytes(b"x" * MAX_LINE + b"\ny\n")
        with pytest.raises(DataError, match=r"its header is .*larger than 16 MiB"):
            read({"reader": "table", "documents": str(tmp_path / name), "queries": settings["queries"]})
