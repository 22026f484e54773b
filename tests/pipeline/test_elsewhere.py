"""The model of a run measured on another collection (`trained_by`): the same scores, and where they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

import anmi_ray
from anmi_ray.api.export import export
from anmi_ray.api.runs import Run
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, runs
from tests.commands import printed, refused
from tests.models.tiny import WORDS, write_tiny_bert
from tests.small import Remembering, start_from, write_config

ON_TOPICS = "small-on-topics"


pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(
    prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory, trained_in_one_task: None
) -> Experiment:
    """A run that has trained on one collection."""
    folder = tmp_path_factory.mktemp("elsewhere")
    tiny = str(write_tiny_bert(folder / "tiny"))
    train = {"model": tiny, "student": "bi-encoder", "max_steps": 2, "max_tokens": 48, "dev_points": []}
    config = write_config(folder / "small.yaml", small_collection, train=train)
    root = start_from(prepared, folder / "root", "mine")
    write_topics(Path(root).parent / "topics")
    experiment = load(config, [f"execution.root={root}"])
    run(experiment)
    return experiment


def write_topics(folder: Path) -> Path:
    """Twelve queries of two words each, and documents of which those that hold both are relevant, in BEIR's layout."""
    random = np.random.default_rng(0)
    texts = {f"d{i}": " ".join(random.choice(WORDS, 12)) for i in range(200)}
    queries = {f"q{i}": " ".join(random.choice(list(texts.values())[i].split(), 2, replace=False)) for i in range(12)}
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", texts), ("queries", queries)):
        lines = [json.dumps({"_id": key, "title": "", "text": text}) + "\n" for key, text in rows.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    relevant = [
        f"{query}\t{doc}\t1\n"
        for query, words in queries.items()
        for doc, text in texts.items()
        if set(words.split()) <= set(text.split())
    ]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(relevant), encoding="utf-8")
    return folder


def settings_over(trained: Experiment, name: str) -> dict[str, Any]:
    """The settings of a run that measures the model over the other collection."""
    content = trained.model_dump(mode="json", exclude_unset=True)
    topics = str(Path(trained.execution.root).parent / "topics")
    return content | {
        "name": name,
        "trained_by": trained.name,
        "corpus": {"reader": "beir", "path": topics, "labels": ["test"], "max_dev_queries": 0, "dev_fraction": 0.0},
        "evaluate": {"fusion": False},
    }


@pytest.fixture(scope="module")
def measured(trained: Experiment) -> Remembering:
    """The events of the run that measured the model over the other collection."""
    reporter = Remembering()
    anmi_ray.run(validate(settings_over(trained, ON_TOPICS), "here"), reporter=reporter)
    return reporter


def of(experiment: Experiment, name: str, stage: str) -> Artifact:
    store, record = runs.find_run(name, experiment.execution.root)
    return Artifact(store, stage, record["stages"][stage]["fingerprint"])


def test_another_collection_is_a_run_of_its_own_by_the_same_model(trained: Experiment, measured: Remembering) -> None:
    record = runs.find_run(ON_TOPICS, trained.execution.root)[1]
    assert record["path"] == ["ingest", "retrieve", "rerank", "evaluate"]
    assert set(record["stages"]) == set(record["path"])
    assert (of(trained, ON_TOPICS, "ingest").manifest() or {})["splits"] == {"train": 0, "dev": 0, "test": 12}
    model = export("small", trained.execution.root, Path(trained.execution.root) / "model")
    there = Run(ON_TOPICS, trained.execution.root)
    texts = {row["doc_id"]: row["text"] for row in there.table("texts").to_pylist()}
    query = there.table("queries").to_pylist()[0]
    evaluate = of(trained, ON_TOPICS, "evaluate")
    run = evaluate.store.read(f"{evaluate.path}/trec/reranked.trec").decode()
    lines = [line.split() for line in run.splitlines() if line.split()[0] == query["query_id"]][:10]
    ranking = anmi_ray.rerank(model, query["text"], [texts[line[2]] for line in lines]).sort_by("index")
    scores = ranking["score"].to_numpy()
    np.testing.assert_allclose([float(line[4]) for line in lines], scores, atol=0.01)  # bfloat16, where it is native
    assert np.ptp(scores) > 0.05


def test_what_was_measured_is_shown(trained: Experiment, measured: Remembering, tmp_path: Path) -> None:
    [one] = Run("small", trained.execution.root).elsewhere()
    assert (one.collection, one.trained.measure, one.trained.queries) == ("topics", "nDCG@10", 12)
    rows = of(trained, ON_TOPICS, "evaluate").read_json("comparisons.json")
    means = {row["system"]: row["mean"] for row in rows if row["measure"] == "nDCG@10"}
    assert (one.first_stage, one.start, one.trained.mean) == (means["hybrid"], means["start"], means["reranked"])
    assert one.trained.difference == pytest.approx(means["reranked"] - means["start"])
    shown = printed("show", "small", "--root", trained.execution.root)
    assert f"{one.first_stage:.3f}  {one.start:.3f}  {one.trained.mean:.3f} [" in shown
    figures = json.loads(printed("show", "small", "--root", trained.execution.root, "--json"))
    assert [other["collection"] for other in figures["elsewhere"]] == ["topics"]
    card = ModelCard.load(export("small", trained.execution.root, tmp_path / "model") / "README.md")
    assert f"| topics | nDCG@10 | {one.first_stage:.3f} | {one.start:.3f} | {one.trained.mean:.3f}" in card.text
    named = {result["dataset"]["name"] for result in card.data.to_dict()["model-index"][0]["results"]}
    assert named == {Path(trained.corpus.name).name, "topics"}


def test_a_second_run_computes_nothing(trained: Experiment, measured: Remembering) -> None:
    again = Remembering()
    anmi_ray.run(validate(settings_over(trained, ON_TOPICS), "here"), reporter=again)
    assert again.computed == []


def test_figures_of_another_model_are_not_shown(trained: Experiment, measured: Remembering) -> None:
    """A run that was trained anew under its name has not been measured elsewhere."""
    other = trained.model_copy(update={"train": trained.train.model_copy(update={"max_steps": 1})})
    run(other)
    assert Run("small", trained.execution.root).elsewhere() == []
    run(trained)
    assert len(Run("small", trained.execution.root).elsewhere()) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"evaluate.judged": "all"}, "trained_by measures by labels alone"),
        ({"trained_by": "nobody"}, "no run of that name; there are"),
        ({"train.student": "cross-encoder"}, "is not what run small trained with, bi-encoder"),
        ({"rerank.peers": '[{"name": "a", "run": "small"}]'}, "trained_by measures the model of run small alone"),
    ],
)
def test_what_contradicts_it_is_refused(
    trained: Experiment, measured: Remembering, tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    config = config_over(trained, tmp_path)
    overrides = [f"{key}={value}" for key, value in changed.items()]
    assert said in refused("run", config, *overrides, "--root", trained.execution.root)


def test_any_collection_can_be_measured_on_by_its_own_settings(
    trained: Experiment, measured: Remembering, tmp_path: Path
) -> None:
    said = printed("run", config_over(trained, tmp_path), "--root", trained.execution.root)
    assert "reranked" in said
    assert "nDCG@10 − start" in said
    assert Run("own", trained.execution.root).systems() == Run(ON_TOPICS, trained.execution.root).systems()
    printed("run", config_over(trained, tmp_path), "evaluate.baseline=bm25", "--root", trained.execution.root)
    for one in Run("small", trained.execution.root).elsewhere():  # as it says, whatever that run compares with
        assert one.trained.difference == pytest.approx(one.trained.mean - (one.start or 0.0))


def config_over(trained: Experiment, folder: Path) -> Path:
    """A file of settings over the other collection."""
    path = folder / "own.yaml"
    path.write_text(json.dumps(settings_over(trained, "own")), encoding="utf-8")
    return path
