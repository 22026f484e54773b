"""`anmi init` recognizes files as people have them, and what it writes can be loaded and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anmi_ray import corpus
from anmi_ray.api.pages import documents as pages_of
from anmi_ray.api.starting import Started, start
from anmi_ray.config.load import load
from anmi_ray.core.errors import AnmiError, ConfigError, DataError
from anmi_ray.pipeline.requirements import counts_of
from tests.commands import printed, refused

ROWS = [(f"p{i}", f"Größe {i}", f"Ein Büro braucht {i} Stühle, und zwar bequeme. " * 3) for i in range(40)]
LOG = [f"stühle für büro {i % 30}" for i in range(60)]


def table(path: Path, header: str, rows: list[tuple[str, ...]], separator: str, encoding: str) -> None:
    lines = [header, *(separator.join(f'"{cell}"' for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)


def semicolons(folder: Path) -> Path:
    table(folder / "d.csv", "SKU;Name;Description;Price", [(*row, "1,5") for row in ROWS], ";", "utf-8-sig")
    return folder / "d.csv"


def cp1252(folder: Path) -> Path:
    table(folder / "d.csv", "id,headline,body", ROWS, ",", "cp1252")
    return folder / "d.csv"


def utf16(folder: Path) -> Path:
    table(folder / "d.csv", "id,headline,body", ROWS, ",", "utf-16")
    return folder / "d.csv"


def without_ids(folder: Path) -> Path:
    table(folder / "d.csv", "headline,body", [row[1:] for row in [*ROWS, ROWS[0]]], ",", "utf-8")
    return folder / "d.csv"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"key": [r[0] for r in ROWS], "content": [r[2] for r in ROWS]}), folder / "d.parquet")
    return folder / "d.parquet"


def pages(folder: Path) -> Path:
    (folder / "pages" / "sub").mkdir(parents=True)
    guide = "Above all headings.\n\n# Guide\n\n```bash\n# not a heading\n```\n\n## Use\n\n" + "A paragraph.\n\n" * 300
    (folder / "pages" / "guide.md").write_text(guide, encoding="utf-8")
    page = "<title>t</title><nav>menu</nav><h1>Stühle</h1><p>a &amp; # b</p><script>no</script><h2>Mehr</h2>c"
    (folder / "pages" / "sub" / "a b.html").write_text(page, encoding="utf-8")
    (folder / "pages" / ".hidden.md").write_text("# no", encoding="utf-8")
    return folder / "pages"


def started(
    folder: Path, documents: Path, queries: Path | None, labels: Path | None = None, judge: str = "none"
) -> Started:
    return start(documents, queries, labels, None, judge, None, None, folder / "search.yaml", {}, None)


@pytest.mark.parametrize(
    ("write", "columns", "documents"),
    [
        (semicolons, {"doc_id": "SKU", "title": "Name", "text": "Description"}, 40),
        (cp1252, {}, 40),
        (utf16, {}, 40),
        (without_ids, {}, 40),
        (parquet, {"doc_id": "key", "text": "content"}, 40),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_tables_are_recognized_and_can_be_read(
    tmp_path: Path, write: Callable[[Path], Path], columns: dict[str, str], documents: int, encoding: str
) -> None:
    (tmp_path / "log.csv").write_text("\n".join(LOG) + "\n", encoding=encoding)
    made = started(tmp_path, write(tmp_path), tmp_path / "log.csv")
    assert made.tables["documents"].columns == columns
    assert made.tables["documents"].rows[1]["text"].startswith("Ein Büro braucht 1 Stühle")
    experiment = load(made.path)
    reader = corpus.read(experiment.corpus)
    assert sum(rows.num_rows for rows in reader.documents()) == documents
    assert sorted(reader.queries()["text"].to_pylist()) == sorted(set(LOG))
    counts = counts_of(experiment, most_s=60)
    assert counts is not None
    assert (counts.documents, counts.queries["train"]) == (documents, 30)
    assert experiment.mine.anchors == "retrieved"


def test_a_query_log_with_other_columns_is_read_by_its_queries_column(tmp_path: Path) -> None:
    table(
        tmp_path / "log.csv",
        "id,user,search_term",
        [(str(i % 3), "u", text) for i, text in enumerate(LOG)],
        ",",
        "utf-8",
    )
    made = started(tmp_path, semicolons(tmp_path), tmp_path / "log.csv", judge="reranker:org/model")
    assert made.tables["queries"].copied == "its ids repeat"
    experiment = load(made.path)
    assert (experiment.evaluate.judged, experiment.judge.judges[0].kind) == ("unlabelled", "encoder")
    assert "fewer than 200 train queries" in " ".join(made.lines)


def test_a_log_of_one_column_may_hold_commas_and_quotes(tmp_path: Path) -> None:
    lines = ["query", "chair, oak", '"desk, ""big"" one"', '12" lamp', '"sofa', ""]
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8")
    made = started(tmp_path, semicolons(tmp_path), tmp_path / "log.csv")
    found = [json.loads(line)["query"] for line in made.tables["queries"].path.read_text(encoding="utf-8").splitlines()]
    assert found == ["chair, oak", 'desk, "big" one', '12" lamp', "sofa"]


def test_the_search_in_use_is_what_the_reranker_is_compared_with(tmp_path: Path) -> None:
    (tmp_path / "engine.tsv").write_text("".join(f"q{i}\tp{i}\t1\n" for i in range(5)))
    (tmp_path / "log.csv").write_text("\n".join(LOG), encoding="utf-8")
    files = semicolons(tmp_path), tmp_path / "log.csv", None, tmp_path / "engine.tsv"
    made = start(*files, "none", None, None, tmp_path / "s.yaml", {}, None)
    experiment = load(made.path)
    assert (experiment.retrieve.retrievers, experiment.evaluate.baseline) == (("engine", "bm25", "dense"), "engine")
    assert experiment.retrieve.engine == str(tmp_path / "engine.tsv")


def test_pages_are_split_at_headings_and_long_sections_at_paragraphs(tmp_path: Path) -> None:
    made = started(tmp_path, pages(tmp_path), None)
    rows = [json.loads(line) for line in made.tables["documents"].path.read_text(encoding="utf-8").splitlines()]
    assert [(row["id"], row["title"]) for row in rows[:2]] == [("guide.md#1", "Guide"), ("guide.md#2", "Guide")]
    assert rows[1]["text"] == "```bash\n# not a heading\n```"
    long = [row["text"] for row in rows if row["title"] == "Guide: Use"]
    assert len(long) > 1
    assert all(len(text) <= 2000 for text in long)
    assert "\n\n".join(long).count("A paragraph.") == 300
    assert [(row["id"], row["title"], row["text"]) for row in rows[-2:]] == [
        ("sub/a%20b.html#1", "Stühle", "a & # b"),
        ("sub/a%20b.html#2", "Stühle: Mehr", "c"),
    ]
    assert made.next == "queries"


@pytest.mark.parametrize(("queries", "splits"), [(20, {"test"}), (400, {"test", "train"})])
def test_labels_of_few_queries_measure_and_of_many_train_too(tmp_path: Path, queries: int, splits: set[str]) -> None:
    table(tmp_path / "q.csv", "query_id,query", [(f"q{i}", f"stuhl {i}") for i in range(queries)], ",", "utf-8")
    table(
        tmp_path / "l.csv",
        "query_id,doc_id,grade",
        [(f"q{i}", f"p{i % 40}", "1") for i in range(queries)],
        ",",
        "utf-8",
    )
    made = started(tmp_path, semicolons(tmp_path), tmp_path / "q.csv", tmp_path / "l.csv", "simulated")
    counts = counts_of(load(made.path), most_s=60)
    assert counts is not None
    assert {split for split, count in counts.labelled.items() if count} - {"dev"} == splits
    assert sum(counts.labelled.values()) == queries


@pytest.mark.parametrize(
    ("text", "error", "place"),
    [
        ("id,id\n1,2\n", DataError, "d.csv"),
        ("id,count\n1,2\n", DataError, "d.csv"),
        ("", DataError, "d.csv"),
    ],
)
def test_files_that_are_no_tables_of_texts_are_refused(
    tmp_path: Path, text: str, error: type[AnmiError], place: str
) -> None:
    (tmp_path / "d.csv").write_text(text, encoding="utf-8")
    with pytest.raises(error) as refusal:
        started(tmp_path, tmp_path / "d.csv", None)
    assert place in (refusal.value.place or "")


@pytest.mark.parametrize("judge", ["gpt-4o", "openai:", "simulated", "http://127.0.0.1:9/v1"])
def test_a_judge_that_is_unknown_or_cannot_be_asked_is_refused_before_anything_is_written(
    tmp_path: Path, judge: str
) -> None:
    with pytest.raises(ConfigError):
        started(tmp_path, without_ids(tmp_path), None, judge=judge)
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]


def test_the_command_writes_settings_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text("\n".join(LOG), encoding="utf-8")
    words = ["init", str(semicolons(tmp_path)), "log.txt", "--judge", "openai:my-model", "--out", "mine.yaml"]
    assert "--judge openai:MODEL --price IN,OUT" in refused(*words, "--budget", "1")
    assert "anmi plan mine.yaml" in printed(*words, "--price", "0.15,0.6", "--budget", "0.1")
    experiment = load("mine.yaml")
    assert (experiment.name, experiment.judge.budget.dollars) == ("mine", 0.1)
    assert experiment.compare.degree < 6  # less than what is asked without a budget
    assert "mine.yaml: the file exists" in refused(*words)
    known = ["openai:gpt-6-luna" if word == "openai:my-model" else word for word in words[:-1]]
    assert "prices are those of" in printed(*known, "priced.yaml", "--budget", "0.1")
    endpoint = load("priced.yaml").judge.judges[0].model_dump()["endpoint"]
    assert (endpoint["input_price"], endpoint["logprobs"], endpoint["temperature"]) == (0.1, 0, None)


def test_columns_in_another_language_are_recognized_by_what_they_hold(tmp_path: Path) -> None:
    rows = [(row[0], f"Stuhl {row[1]}", row[2], "2,5 kg") for row in ROWS]
    table(tmp_path / "d.csv", "Artikelnummer;Titel;Beschreibung;Gewicht", rows, ";", "utf-8")
    (tmp_path / "log.txt").write_text("\n".join(LOG), encoding="utf-8")
    made = started(tmp_path, tmp_path / "d.csv", tmp_path / "log.txt")
    assert made.tables["documents"].columns == {"doc_id": "Artikelnummer", "title": "Titel", "text": "Beschreibung"}
    assert "not used: Gewicht" in made.tables["documents"].described("documents")
    assert {"doc_id", "title"} & set(made.tables["queries"].columns) == set()


@pytest.mark.parametrize("front", ['---\ntitle: "A: b"\ntags: [x]\n---\n', "+++\ndate = 1\ntitle = 'A: b'\n+++\n"])
def test_front_matter_is_no_text_of_a_page_and_gives_its_title(tmp_path: Path, front: str) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "p.md").write_text(f"{front}\nWords.\n\n---\n\n## Use\n\nMore.\n", encoding="utf-8")
    (tmp_path / "pages" / "q.md").write_text("---\n\nWords below a line.\n\n---\n", encoding="utf-8")
    rows = [(row["title"], row["text"]) for row in pages_of(tmp_path / "pages", None)]
    assert rows[:2] == [("A: b", "Words.\n\n---"), ("A: b: Use", "More.")]
    assert rows[2] == ("q", "---\n\nWords below a line.\n\n---")


def test_a_collection_whose_queries_are_all_held_out_asks_for_others(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    documents = [f'{{"_id": "{name}", "title": "", "text": "a text {name}"}}\n' for name in ("d", "e")]
    (tmp_path / "corpus.jsonl").write_text("".join(documents))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert started(tmp_path, tmp_path, None).next == "queries"


def test_rows_that_a_copy_lacks_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [row[1:] for row in [*ROWS, ROWS[0]]]
    table(tmp_path / "d.csv", "headline,body", [*rows, ("too", "many", "cells")], ",", "cp1252")
    made = started(tmp_path, tmp_path / "d.csv", None)
    assert sorted(made.tables["documents"].skipped.values()) == [(1, "d.csv:42"), (1, "d.csv:43")]


def test_labels_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    table(tmp_path / "q.csv", "query_id,query", [("q1", "stuhl")], ",", "utf-8")
    table(tmp_path / "l.csv", "query_id,doc_id,grade", [("q1", "p1", "1"), ("q1", "p2", "high")], ",", "utf-8")
    made = started(tmp_path, semicolons(tmp_path), tmp_path / "q.csv", tmp_path / "l.csv")
    assert [line.rpartition(" ")[2] for line in made.lines if line.startswith("labels: ")] == ["l.csv:3"]
