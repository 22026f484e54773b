"""A run whose judge is distilled from an ensemble, whole: what is asked of whom, what is reused, what is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from rich.table import Table

from anmi_ray.api.dataset_export import export_dataset
from anmi_ray.api.runs import Run
from anmi_ray.cli.run import _distilled_judge  # pyright: ignore[reportPrivateUsage]
from anmi_ray.cli.show import described
from anmi_ray.core.records import COMPARISON, JUDGMENT, PREDICTION, RUN
from anmi_ray.pipeline import pilot
from anmi_ray.pipeline.stages import names_of
from anmi_ray.store import Store
from jobs.studies import distilled_figures
from tests.models.tiny import write_tiny_bert
from tests.small import Remembering, start_from
from tests.stages.runs import Done, World

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]
PAIRS = 60
JUDGE = "judge.judges=[{kind: distilled, name: small}]"


@pytest.fixture(scope="module")
def world(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("distilled")
    tiny = str(write_tiny_bert(folder / "bert"))
    learned: dict[str, Any] = {"sample": {"pairs": PAIRS}, "model": tiny, "form": "pairwise", "target": "ternary"}
    learned |= {"epochs": 2, "learning_rate": 2e-4, "max_tokens": 64, "dev_points": [0.5, 1.0]}
    trained = {"model": tiny, "max_steps": 2, "max_tokens": 48, "dev_points": []}
    reranked = {"depth": 10, "precision": "float32"}
    world = World(folder, small_collection, distill=learned, train=trained, rerank=reranked)
    start_from(prepared, world.root, "retrieve")
    return world


@pytest.fixture(scope="module")
def done(world: World) -> Done:
    return world.carry_out(JUDGE, last="report")


def test_the_distilled_judge_judges_the_graph_and_the_ensemble_the_sample(done: Done) -> None:
    names = names_of(done.settings)
    assert done.told.computed == list(names[names.index("sample") :])  # what is before was prepared
    sampled, asked = done.part("sample", "comparisons", COMPARISON), done.part("compare", "comparisons", COMPARISON)
    labels, judged = done.part("label", "judgments", JUDGMENT), done.part("judge", "judgments", JUDGMENT)
    assert sampled.num_rows == PAIRS
    assert set(labels["comparison_id"].to_pylist()) == set(sampled["comparison_id"].to_pylist())
    assert set(labels["judge"].to_pylist()) == {"sim-large", "sim-medium", "sim-small"}
    assert set(judged["comparison_id"].to_pylist()) == set(asked["comparison_id"].to_pylist())
    assert set(judged["judge"].to_pylist()) == {"small"}
    assert judged.num_rows == 2 * asked.num_rows
    assert judged["p_a"].null_count == 0
    predicted = done.artifact("distill").read_part("predictions", 0, PREDICTION)
    assert set(predicted["query_id"].to_pylist()) <= set(sampled["query_id"].to_pylist())


def test_the_report_says_what_was_bought_and_saved(done: Done) -> None:
    page, content = done.report("report.html"), json.loads(done.report("report.json"))
    pairs = done.part("compare", "comparisons", COMPARISON).num_rows
    found = content["distilled"]
    assert (found["pairs"], found["judgments"], found["asked"]) == (PAIRS, 2 * 3 * PAIRS, pairs)
    assert found["saved"] == pytest.approx(1 - PAIRS / pairs)
    assert found["judges"] == ["small"]
    assert found["test_pairs"] > 0
    summary = done.artifact("distill").read_json("summary.json")
    figures = [value["recovered"] for value in found["values"]]
    assert figures == [
        *(summary[key][0] for key in ("accuracy_consensus", "brier", "calibration_slope")),
        summary["ece"],
    ]
    assert sum(observed["n"] for _, observed in found["curve"]) == found["test_pairs"]
    assert "small learned from answers of sim-large, sim-medium, sim-small" in page
    assert content["truth"] is not None  # what the simulated ensemble was told
    assert content["simulated"] is True
    assert {judge["judge"] for judge in content["judges"]} >= {"small", "sim-large (ensemble)"}
    table = next(
        block for block in described("small", str(done.settings.execution.root), 0) if isinstance(block, Table)
    )
    assert [name for name in table.columns[0].cells if name] == list(names_of(done.settings))


def test_the_ten_figures_are_drawn_from_the_run(done: Done, tmp_path: Path) -> None:
    distilled_figures.main(["small", "--root", str(done.settings.execution.root), "--out", str(tmp_path)])
    assert len(list(tmp_path.glob("*.svg"))) >= 7  # 8 to 10 need a judge whose P(tie) varies
    assert (tmp_path / "distilled_figures.md").is_file()


def test_a_dataset_says_that_the_ensemble_is_simulated(done: Done, tmp_path: Path) -> None:
    card = export_dataset("small", str(done.settings.execution.root), tmp_path / "data") / "README.md"
    assert "The judges are simulated" in card.read_text(encoding="utf-8")


def test_the_distilled_judge_answers_another_run(world: World, done: Done) -> None:
    run = Run("small", str(world.root))
    judge, summary = _distilled_judge(run, done.settings.distill.form)
    assert summary["pairs"] == PAIRS
    other = world.carry_out(f"judge.judges=[{judge}]", "name=other", last="judge")
    assert other.told.computed == ["judge"]
    asked = other.artifact("judge").manifest() or {}
    assert asked["asked"]["distilled"] == {"asked": 0, "answered": 0, "failed": 0}  # bought as the judge `small`
    columns = ["comparison_id", "order", "p_a"]
    answers = [run.part("judge", "judgments", JUDGMENT).select(columns) for run in (done, other)]
    assert answers[0].equals(answers[1])


def test_another_runs_reranker_is_measured_beside_ours(world: World, done: Done) -> None:
    peers = "rerank.peers=[{name: panel, run: small, precision: float32}]"
    other = world.carry_out(JUDGE, "name=peered", "train.max_steps=3", peers, last="evaluate")
    assert other.told.computed == ["train", "rerank", "evaluate"]
    runs = {run: run.part("rerank", "runs", RUN) for run in (done, other)}
    theirs = runs[done].filter(pc.equal(runs[done]["system"], "reranked"))
    peer = runs[other].filter(pc.equal(runs[other]["system"], "panel"))
    theirs = theirs.filter(pc.is_in(theirs["query_id"], value_set=pc.unique(peer["query_id"])))  # test queries alone
    scores = [{(row["query_id"], row["doc_id"]): row["score"] for row in run.to_pylist()} for run in (theirs, peer)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)  # what is scored together differs: dev queries too, there
    rows: list[dict[str, Any]] = other.artifact("evaluate").read_json("comparisons.json")
    assert {row["system"] for row in rows} >= {"panel", "reranked", "hybrid"}
    before = done.artifact("evaluate").read_json("comparisons.json")
    mean = {row["measure"]: row["mean"] for row in before if row["system"] == "reranked"}
    assert {row["measure"]: row["mean"] for row in rows if row["system"] == "panel"} == pytest.approx(mean, abs=0.02)


def test_a_pilot_tries_the_ensemble_before_anything_is_bought(world: World, done: Done) -> None:
    settings, told = world.settings(JUDGE, "distill.sample.seed=7", "name=piloted"), Remembering()
    found = pilot.run(settings, told, 20)
    assert (found.pairs, found.of) == (20, PAIRS)
    assert [verdict.judge for verdict in found.verdicts] == ["sim-large", "sim-medium", "sim-small"]
    assert told.computed == ["sample"]
    assert "label" in done.told.computed
    record = Store(str(world.root)).read_json("runs/piloted.json")
    assert list(record["stages"]) == ["ingest", "retrieve", "sample"]
