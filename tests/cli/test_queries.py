"""anmi queries as a user calls it: a folder of documents in, a collection with queries out, and what it says."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anmi_ray.api.queries import DEPTH, make_queries
from anmi_ray.config.load import load
from anmi_ray.config.retrieve import Bm25Config
from anmi_ray.core.errors import DataError
from anmi_ray.retrieval.bm25 import Bm25Index, Counts
from tests.commands import anmi, printed, refused
from tests.queries import hostile

BAD = "[bold]x[/bold] \x1b[31m"


def write_documents(folder: Path, documents: list[tuple[str, str, str]]) -> Path:
    """A folder with corpus.jsonl and nothing else."""
    folder.mkdir(parents=True)
    rows = [json.dumps({"_id": key, "title": title, "text": text}) + "\n" for key, title, text in documents]
    (folder / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def documents(small_collection: Path) -> list[tuple[str, str, str]]:
    """A few hundred documents of Python's library, one of them hostile."""
    rows = rows_of(small_collection, "corpus")
    return [*((row["_id"], row["title"], row["text"]) for row in rows), ("bad", BAD, f"{BAD} red wheels turn slowly.")]


@pytest.fixture
def config(tmp_path: Path, documents: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings in the working folder, over those documents."""
    write_documents(tmp_path / "mine", documents)
    (tmp_path / "c.yaml").write_text("corpus: {reader: beir, path: mine}\n")
    monkeypatch.chdir(tmp_path)
    return "c.yaml"


def test_a_collection_is_written_whose_sources_lack_their_queries(
    config: str, documents: list[tuple[str, str, str]]
) -> None:
    said = printed("queries", config, "retrieve.bm25.b=.5", "--to", "out", "--number", 60)
    corpus = {row["_id"]: row for row in rows_of(Path("out"), "corpus")}
    queries = rows_of(Path("out"), "queries")
    assert [*corpus] == [key for key, _, _ in documents]
    assert len(queries) == 60
    assert max(Counter(row["metadata"]["source"] for row in queries).values()) <= 2
    masked = {row["metadata"]["source"] for row in queries}
    for row in queries:
        source = corpus[row["metadata"]["source"]]
        assert not hostile.stands_in(row["text"], source["title"])
        assert not hostile.stands_in(row["text"], source["text"])
    assert all(corpus[key] == {"_id": key, "title": t, "text": x} for key, t, x in documents if key not in masked)
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "corpus.jsonl",
        "queries-left-out.jsonl",
        "queries.jsonl",
    ]
    command = shlex.split(said.splitlines()[-1])  # carried out by tests/test_printed_commands.py
    assert command[:4] == ["next:", "anmi", "run", "c.yaml"]
    following = load("c.yaml", command[4:])
    assert (following.name, following.corpus.path, following.retrieve.bm25.b) == (
        "out",
        str(Path("out").resolve()),
        0.5,
    )


def test_every_query_is_found_in_the_collection_as_it_is_written(config: str) -> None:
    printed("queries", config, "corpus.shard_documents=97", "--to", "out", "--number", 80)
    corpus = sorted(rows_of(Path("out"), "corpus"), key=lambda row: row["_id"])
    queries = rows_of(Path("out"), "queries")
    index = Bm25Index(Counts.of([f"{row['title']} {row['text']}" for row in corpus], Bm25Config()), Bm25Config())
    found, score = index.search([row["text"] for row in queries], len(corpus))
    for row, places, scores in zip(queries, found.tolist(), score.tolist(), strict=True):
        rank = row["metadata"]["bm25_rank"]
        place = [corpus[i]["_id"] for i in places].index(row["metadata"]["source"])
        assert sum(one > scores[place] for one in scores) < rank <= sum(one >= scores[place] for one in scores)
        assert rank <= DEPTH


def test_the_counts_of_the_table_add_up_to_the_files(config: str) -> None:
    said = printed("queries", config, "--to", "out", "--number", 40)
    kept = Counter(row["metadata"]["kind"] for row in rows_of(Path("out"), "queries"))
    left = Counter(row["kind"] for row in rows_of(Path("out"), "queries-left-out"))
    table = said.partition("candidates")[2].partition("\n\n")[0]
    told = {line.split()[0]: line.split()[1:3] for line in table.splitlines() if not line.startswith(" ")}
    for kind in ("title", "sentence", "heading", "phrase", "identifier"):
        assert [int(cell.replace(",", "")) for cell in told[kind]] == [kept[kind] + left[kind], kept[kind]]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(hostile.documents, min_size=2, max_size=12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_neither_order_nor_shards_matter(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, str]], random: Any, shard: int
) -> None:
    folder = tmp_path_factory.mktemp("made")
    (folder / "c.yaml").write_text("corpus: {reader: beir, max_reject_fraction: 1.0}\n")
    documents = [(f"d{i}", *document) for i, document in enumerate(drawn)]
    shuffled = random.sample(documents, len(documents))
    made: list[Any] = []
    for name, rows, size in (("one", documents, 50), ("two", shuffled, shard)):
        path = write_documents(folder / name, rows)
        experiment = load(folder / "c.yaml", [f"corpus.path={path}", f"corpus.shard_documents={size}"], True)
        try:
            make_queries(experiment, folder / f"{name}-out", 3, lambda _: None)
        except DataError as error:
            made.append(str(error).replace(str(path), ""))
            continue
        corpus, *others = (rows_of(folder / f"{name}-out", f) for f in ("corpus", "queries", "queries-left-out"))
        made.append([sorted(corpus, key=lambda row: row["_id"]), *others])
    assert made[0] == made[1]


def test_documents_alone_of_other_readers(config: str) -> None:
    table = '{"reader": "table", "documents": "mine/corpus.jsonl"}'
    assert "60 queries" in printed("queries", config, f"corpus={table}", "--to", "out", "--number", 60)
    assert "needs `queries`" in refused("config", config, f"corpus={table}")


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([], "got 0"),
        ([("a", "", "only one is here, and one is no ranking")], "got 1"),
        ([("a", "", "..."), ("b", "", "!!!")], "no title, sentence, heading, phrase or identifier of words"),
        ([("a", "Leaks", ""), ("b", "Wheels", "")], "were 'too short'"),
        ([("a", "Slow leaks", ""), ("b", "Big wheels", "")], "join them to longer ones"),
        ([("a", "", ""), ("b", "", "")], "2 of 2 documents are malformed"),
    ],
)
def test_nothing_to_ask_is_said(config: str, documents: list[tuple[str, str, str]], said: str) -> None:
    write_documents(Path("few"), documents)
    assert said in refused("queries", config, "corpus.path=few", "--to", "out")
    assert sorted(path.name for path in Path().iterdir()) == ["c.yaml", "few", "mine"]


def test_what_is_refused_is_told_with_its_reason_and_place(config: str) -> None:
    lines = Path("mine/corpus.jsonl").read_text(encoding="utf-8").splitlines()
    Path("mine/corpus.jsonl").write_text("\n".join([*lines, '{"_id": "bare", "text": " "}', ""]), encoding="utf-8")
    done = anmi("queries", config, "corpus.path=mine", "corpus.max_reject_fraction=0.1", "--to", "out", "--number", 60)
    assert f"{len(lines):,} documents, 1 rejected; 60 queries" in done.stdout
    assert f"1 rejected: empty document, first documents corpus.jsonl:{len(lines) + 1}\n" in done.stderr


def test_a_folder_that_holds_something_is_refused(config: str) -> None:
    assert "is not empty" in refused("queries", config, "--to", "mine")
    assert "No such option" in refused("queries", config, "--two", "out")
