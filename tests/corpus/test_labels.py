"""Queries with and without labels: whichever the mix and the layout, splits and books hold, and hidden is deleted."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anmi_ray import corpus
from anmi_ray.config.base import result_settings
from anmi_ray.config.corpus import CorpusConfig, IngestConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import doc_id, query_id
from anmi_ray.core.records import QREL, QUERY
from anmi_ray.corpus import pydocs
from anmi_ray.corpus.counts import counted, of_manifest
from anmi_ray.corpus.splits import SPLITS_BY_RANK
from anmi_ray.stages import ingest
from anmi_ray.store import Artifact, Store
from tests.corpus.layouts import (
    LAYOUTS,
    SMALL,
    Collection,
    Reading,
    Write,
    collections,
    read,
    read_with,
    write_beir,
    write_trec,
)

SPLITS = ("train", "dev", "test")
subsets = st.lists(st.sampled_from(SPLITS), unique=True).map(tuple)


@st.composite
def mixed(draw: st.DrawFn) -> Collection:
    """A collection some or all of whose queries nobody judged; some texts stand twice."""
    collection = draw(collections())
    known = {key for key, _ in collection.queries}
    more = draw(st.lists(st.text("klm", min_size=1, max_size=3), max_size=5, unique=True))
    texts = st.sampled_from([text for _, text in collection.queries]) | st.text("uvw", min_size=1, max_size=4)
    queries = [*collection.queries, *((key, draw(texts)) for key in more if key not in known)]
    kept = draw(subsets)
    qrels = {split: rows for split, rows in collection.qrels.items() if split in kept}
    return replace(collection, queries=queries, qrels=qrels)


def tables(found: Reading) -> list[Any]:
    """All tables, to be compared byte for byte."""
    return [table.combine_chunks() for table in found[1:]]


def pairs(qrels: pa.Table) -> set[tuple[bytes, bytes]]:
    """Query and document of every grade."""
    return set(zip(qrels["query_id"].to_pylist(), qrels["doc_id"].to_pylist(), strict=True))


@given(mixed(), st.sampled_from(LAYOUTS), st.sampled_from(["train", "leave-out"]), st.sampled_from([0.0, 0.4]))
def test_every_query_is_in_its_split_once(collection: Collection, write: Write, unlabelled: str, dev: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = read(write(Path(folder), collection), unlabelled=unlabelled, dev_fraction=dev)
    judged: dict[str, str] = {}
    for split, rows in collection.qrels.items():
        for query, _, _ in rows:
            judged[query] = min(split, judged.get(query, split), key=SPLITS_BY_RANK.index)
    rows = found.queries.to_pylist()
    split_of_text: dict[str, set[str]] = {}
    for row in rows:
        split_of_text.setdefault(row["text"].casefold(), set()).add(row["split"])
        wanted = judged.get(row["external_id"], "train")
        carved = row["split"] == "dev" and wanted == "train" and dev and "dev" not in collection.qrels
        assert row["split"] == wanted or (carved and row["external_id"] in judged)
        assert row["external_id"] in judged or unlabelled == "train"
    assert all(len(splits) == 1 for splits in split_of_text.values())
    refused = [row["key"] for row in found.rejects.to_pylist() if row["reason"] == "text in two splits"]
    named = [row["external_id"] for row in rows]
    assert len(named) + len(refused) + found.reader.left_out == len(collection.queries)
    assert found.reader.left_out == (sum(key not in judged for key, _ in collection.queries) * (unlabelled != "train"))


@given(mixed(), st.sampled_from(LAYOUTS), st.integers(0, 4), st.integers(0, 4), st.integers(0, 1))
def test_unlabelled_queries_are_held_out_by_text(
    collection: Collection, write: Write, dev: int, test: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = write(Path(folder), collection)
        plain = read(settings, dev_fraction=0.0, unlabelled="leave-out")
        found = read(
            settings,
            dev_fraction=0.0,
            unlabelled_dev=dev,
            unlabelled_test=test,
            split_seed=seed,
            unlabelled="leave-out",
        )
    judged = {query for rows in collection.qrels.values() for query, *_ in rows}
    free = {text.casefold() for key, text in collection.queries if key not in judged}
    free -= {text.casefold() for key, text in collection.queries if key in judged}
    rows = [row for row in found.queries.to_pylist() if row["external_id"] not in judged]
    texts = {split: {row["text"].casefold() for row in rows if row["split"] == split} for split in SPLITS}
    assert not texts["train"]
    assert len(texts["test"]) == min(test, len(free))
    assert len(texts["dev"]) == min(dev, len(free) - len(texts["test"]))
    # whoever is labelled stays where it was
    labelled = [row for row in found.queries.to_pylist() if row["external_id"] in judged]
    assert labelled == plain.queries.to_pylist()
    assert found.qrels.equals(plain.qrels)


@pytest.mark.parametrize(
    ("queries", "dev", "test", "train_dev_test"),
    [
        (60, None, None, (36, 12, 12)),
        (60, "auto", 0, (48, 12, 0)),
        (200, None, None, (120, 40, 40)),
        (5000, None, None, (4800, 100, 100)),
        (60, 0.25, 0.1, (39, 15, 6)),
        (60, 0.001, 0, (59, 1, 0)),
        (60, 0.0, None, (48, 0, 12)),
        (250, 100, 0.5, (25, 100, 125)),
        (60, 100, 100, (0, 0, 60)),
    ],
)
def test_held_out_sizes_are_shares_or_numbers(
    tmp_path: Path, queries: int, dev: Any, test: Any, train_dev_test: tuple[int, ...]
) -> None:
    many = replace(SMALL, queries=[(f"q{at}", f"words number {at}") for at in range(queries)], qrels={})
    config = CorpusConfig(**write_beir(tmp_path, many), unlabelled_dev=dev, unlabelled_test=test)
    found = read_with(IngestConfig.of(config, simulated=False, judges_measure=True))
    assert tuple(found.queries["split"].to_pylist().count(split) for split in SPLITS) == train_dev_test
    counts = counted(found.reader, found.documents.num_rows, found.queries, found.qrels, QREL.empty())
    assert sum(counts.held_out.values()) == sum(train_dev_test[1:])


def test_a_null_size_holds_out_nothing_unless_judges_measure() -> None:
    nothing = IngestConfig.of(CorpusConfig(), simulated=False)
    assert (nothing.held_out("dev", 100), nothing.held_out("test", 100)) == (0, 0)
    assert "unlabelled_dev" not in result_settings(nothing)  # as ever: artifacts of such runs stay valid
    some = IngestConfig.of(CorpusConfig(unlabelled_dev=0, unlabelled_test=7), simulated=False)
    assert result_settings(some) == {"unlabelled_test": 7}
    judged = result_settings(IngestConfig.of(CorpusConfig(), simulated=False, judges_measure=True))
    assert judged == {"unlabelled_dev": "auto", "unlabelled_test": "auto"}


@pytest.mark.parametrize("size", [1.0, 1.5, 20.0, -1, -0.1, True, "10%"])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ValidationError, match="unlabelled_dev"):
        CorpusConfig(unlabelled_dev=size)


@pytest.mark.slow
@given(mixed(), st.sampled_from(LAYOUTS), subsets, st.sampled_from([0.0, 0.4]))
def test_hidden_labels_are_as_good_as_deleted(
    collection: Collection, write: Write, labels: tuple[str, ...], dev: float
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left = {split: rows for split, rows in collection.qrels.items() if split in labels}
        settings = write(folder / "whole", collection)
        without = read(write(folder / "less", replace(collection, qrels=left)), dev_fraction=dev)
        hidden = read(settings, labels=labels, dev_fraction=dev)
        assert tables(hidden) == tables(without)
        assert hidden.reader.content_fingerprint() == without.reader.content_fingerprint()
        assert len(hidden.reader.unread) == len(collection.qrels) - len(left)
        told = read_with(IngestConfig.of(hidden.reader.config, simulated=True))
        assert tables(told) == tables(hidden)
        whole = read(settings, dev_fraction=dev)
        assert told.reader.content_fingerprint() == whole.reader.content_fingerprint()
        labelled = set(hidden.qrels["query_id"].to_pylist())
        here = set(hidden.queries["query_id"].to_pylist())
        wanted = {pair for pair in pairs(whole.qrels) if pair[0] in here - labelled}
        every = {(query_id(query), doc_id(doc)) for rows in collection.qrels.values() for query, doc, _ in rows}
        assert wanted <= pairs(told.reader.hidden_qrels()) <= every - pairs(hidden.qrels)
        for split in set(collection.qrels) - set(left):  # nor are the files looked into
            for path in (folder / "whole").rglob(f"*{split}*"):
                path.unlink()
        assert tables(read(settings, labels=labels, dev_fraction=dev)) == tables(hidden)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [("test",), ("dev", "test"), ()])
def test_hidden_labels_of_pydocs(monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]) -> None:
    some = pydocs.source_files(())[100:160]
    monkeypatch.setattr(pydocs, "source_files", lambda packages: list(some))
    whole = read({"reader": "pydocs", "dev_fraction": 0.2})
    hidden = read({"reader": "pydocs", "dev_fraction": 0.2, "labels": labels})
    split = dict(zip(whole.queries["query_id"].to_pylist(), whole.queries["split"].to_pylist(), strict=True))
    for row in hidden.queries.to_pylist():
        before = split[row["query_id"]]
        assert row["split"] == (before if before in labels else "train")
    assert set(split.values()) == set(SPLITS)
    kept = [row for row in whole.qrels.to_pylist() if split[row["query_id"]] in labels]
    assert hidden.qrels.to_pylist() == kept
    told = read_with(IngestConfig.of(hidden.reader.config, simulated=True)).reader
    assert pairs(told.hidden_qrels()) == pairs(whole.qrels) - pairs(hidden.qrels)
    left_out = read({"reader": "pydocs", "dev_fraction": 0.2, "labels": labels, "unlabelled": "leave-out"})
    assert set(left_out.queries["query_id"].to_pylist()) == {query for query in split if split[query] in labels}
    assert left_out.reader.left_out + left_out.queries.num_rows == hidden.queries.num_rows
    held_out = read({"reader": "pydocs", "labels": (), "unlabelled_dev": 5, "unlabelled_test": 7})
    assert [held_out.queries["split"].to_pylist().count(split) for split in ("dev", "test")] == [5, 7]


def test_counts_say_who_has_a_relevant_document(tmp_path: Path) -> None:
    rows = {"train": [("q0", "d0", 1), ("q1", "d1", 0)], "test": [("q2", "d1", 2), ("q2", "d2", 1), ("q3", "d2", -1)]}
    found = read(write_beir(tmp_path, replace(SMALL, qrels=rows)), labels=("train", "dev", "test"))
    hidden = found.reader.hidden_qrels()
    counts = counted(found.reader, found.documents.num_rows, found.queries, found.qrels, hidden)
    assert counts.in_words == "10 train (1 labelled), 0 dev, 2 test (1 labelled)"
    [notice] = counts.notices(Experiment())
    assert "no dev query is labelled" in notice
    manifest = {"flows": [{"unit": "documents", "rows_out": 20}], "splits": counts.queries, "labelled": counts.labelled}
    assert of_manifest(manifest) == counts


@pytest.mark.parametrize(
    ("name", "message"), [("queries.jsonl", "no usable query"), ("corpus.jsonl", r"0 document\(s\)")]
)
@pytest.mark.parametrize("labelled", [False, True])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str, message: str, labelled: bool) -> None:
    settings = write_beir(tmp_path, SMALL if labelled else replace(SMALL, qrels={}))
    (tmp_path / name).write_bytes(b"")
    found = read(settings, max_reject_fraction=0.01)  # labels of what is not there are not to blame
    with pytest.raises(DataError, match=f"{name}: holds {message}"):
        counted(found.reader, found.documents.num_rows, found.queries, found.qrels, QREL.empty())


@pytest.mark.parametrize("simulated", [True, False])
def test_ingest_keeps_hidden_grades_for_a_simulated_panel_alone(tmp_path: Path, simulated: bool) -> None:
    corpus_config = CorpusConfig(**write_beir(tmp_path / "c", SMALL), labels=("test",))
    artifact = Artifact(Store(str(tmp_path / "root")), "ingest", "f")
    ingest._ingest(artifact, IngestConfig.of(corpus_config, simulated), 4)  # pyright: ignore[reportPrivateUsage]
    assert artifact.store.exists(artifact.part_path(ingest.HIDDEN, 0)) == simulated
    found: set[tuple[bytes, bytes]] = set()
    for bucket in range(4 if simulated else 0):
        hidden = pairs(artifact.read_part(ingest.HIDDEN, bucket, QREL))
        assert {query for query, _ in hidden} <= set(
            artifact.read_part("queries", bucket, QUERY)["query_id"].to_pylist()
        )
        found |= hidden
    assert found == ({(query_id(query), doc_id(doc)) for query, doc, _ in SMALL.qrels["train"]} if simulated else set())


def test_grades_that_are_not_read_are_called_as_the_settings_call_them(tmp_path: Path) -> None:
    settings = write_trec(tmp_path, SMALL)
    assert corpus.read(CorpusConfig(**settings, labels=("test",))).unread == ("corpus.qrels.train",)
