"""Refinement carried out: rounds that ask, rate and train on, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from safetensors.numpy import load_file

from anmi_ray.api import experiments
from anmi_ray.comparisons import PAIRS
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import COMPARISON, JUDGMENT, QUERY, RUN
from anmi_ray.pipeline.run import run
from anmi_ray.pipeline.stages import names_of
from anmi_ray.runtime.costs import BEGUN
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages import judge, refine
from anmi_ray.store import Artifact, Flow, Store, runs
from tests.commands import refused
from tests.small import start_from
from tests.stages.runs import World

STILL = ["train.learning_rate=1e-9", "train.head_learning_rate=1e-9"]  # training changes next to nothing


@dataclass
class Told(Reporter):
    """What a command was told: the stages that had something to do, and notices. It ends after the stage `until`."""

    until: str = ""
    stages: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def stage(self, name: str, does: str) -> None:
        self.stages.append(name)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        if name == self.until:
            raise KeyboardInterrupt


class Rounds(World):
    """Rounds of a run called small."""

    def round(self, number: int, *overrides: str) -> Experiment:
        """The settings of round `number` (1, 2, ...)."""
        before = "small" if number == 1 else f"small-refine-{number - 1}"
        own = [f"refines={before}", f"name=small-refine-{number}", "evaluate.baseline=start+hybrid"]
        return self.settings(*own, *overrides)

    def refine(self, number: int, *overrides: str, until: str = "") -> Told:
        told = Told(until)
        run(self.round(number, *overrides), told)
        return told

    def part(self, name: str, stage: str, part: str, record: Any) -> pa.Table:
        return self.recorded(name).part(stage, part, record)

    def weights(self, name: str) -> dict[str, np.ndarray]:
        return load_file(self.recorded(name).folder("train") / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def world(
    prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory, trained_in_one_task: None
) -> Rounds:
    world = Rounds(tmp_path_factory.mktemp("refine"), small_collection)
    start_from(prepared, world.root, "mine")
    world.carry_out(last="report")
    return world


@pytest.mark.ray
@pytest.mark.slow
def test_other_judges_would_be_asked_about_all_pairs(world: Rounds) -> None:
    """They have answered none of those that the run's own judges were asked about."""
    endpoint = "{base_url: 'http://127.0.0.1:9/v1', model: m}"
    other = f"judge.judges=[{{kind: api, name: llm, endpoint: {endpoint}, prompt: {{template: letters}}}}]"
    planned = experiments.plan(world.round(1, other))
    asked = world.part("small", "compare", "comparisons", COMPARISON).num_rows
    [said] = re.findall(r"llm: ([0-9,]+) calls", "\n".join(planned.lines))
    queries = world.part("small", "ingest", "queries", QUERY).num_rows
    assert 2 * asked < int(said.replace(",", "")) <= 2 * (asked + PAIRS * queries)


@pytest.mark.ray
@pytest.mark.slow
def test_rounds_ask_what_is_new_and_train_on(world: Rounds) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.refine(1, *STILL, until="rate")
    assert world.refine(1, *STILL).stages[0] == "mine"  # what was done before the end is not done again
    world.refine(2, *STILL)
    names = ["small", "small-refine-1", "small-refine-2"]
    tables = [world.part(name, "compare", "comparisons", COMPARISON) for name in names]
    judged = [world.part(name, "judge", "judgments", JUDGMENT) for name in names]
    queries = world.part("small", "ingest", "queries", QUERY)
    train = set(queries.filter(pc.equal(queries["split"], "train"))["query_id"].to_pylist())
    for number in (1, 2):
        before = set(tables[number - 1]["comparison_id"].to_pylist())
        new = tables[number].filter(pc.equal(tables[number]["round"], number))
        added = new["comparison_id"].combine_chunks()
        assert before < set(tables[number]["comparison_id"].to_pylist()) == before | set(added.to_pylist())
        counts = Counter(new["query_id"].to_pylist())
        assert max(counts.values()) <= PAIRS
        assert counts.keys() <= train
        of_new = pc.is_in(judged[number]["comparison_id"], value_set=added)
        assert judged[number].filter(pc.invert(of_new)).equals(judged[number - 1])  # nobody says anything else

    model, after = world.weights("small"), world.weights("small-refine-2")
    assert all(np.allclose(model[name], after[name], atol=1e-6) for name in model)
    runs_of = [world.part(name, "rerank", "runs", RUN) for name in names[:2]]
    trained, start = (
        runs_of[at].filter(pc.equal(runs_of[at]["system"], system)).drop_columns(["system"])
        for at, system in enumerate(("reranked", "start"))
    )
    assert start.equals(trained)  # a round is measured against the model before it
    rows = world.recorded("small-refine-1").artifact("evaluate").read_json("comparisons.json")
    assert [row["system"] for row in rows if row["difference"] is None] == ["start+hybrid"] * 3

    assert world.refine(2, *STILL).stages == []
    assert world.refine(1, *STILL, "train.max_steps=3").stages == ["train", "rerank", "evaluate", "report"]


@pytest.mark.parametrize(
    ("asking", "first", "later"),
    [(judge.STAGE, "compare-1", "compare"), (judge.STAGE, "compare", "compare"), (judge.LABEL, "sample", "sample")],
)
def test_judges_of_a_round_spend_what_the_first_run_left(asking: Stage, first: str, later: str, tmp_path: Path) -> None:
    """Whatever was refined between, and of an adaptive design its first round: by these a budget is known."""
    asked: list[Artifact] = []

    def ask(_: Artifact, inputs: Mapping[str, Artifact], *__: Any) -> dict[str, Any]:
        asked.append(inputs[BEGUN])
        return {}

    store = Store(str(tmp_path))
    stage = refine.of_campaign(replace(asking, run=ask), asking=asking.name)
    stages = {later: "last", first: "first"}
    made = {name: {"fingerprint": fingerprint, "inputs": {}} for name, fingerprint in stages.items()}
    read: dict[str, str] = {}
    for number in range(3):
        record = {"name": f"r{number}", "stages": {**made, asking.name: {"fingerprint": "j", "inputs": read}}}
        store.publish_json(f"runs/r{number}.json", record)
        experiment = validate({"refines": f"r{number}", "execution": {"root": str(tmp_path)}}, "some.yaml")
        read = dict(stage.also(experiment.judge, experiment, "content"))
        stage.run(Artifact(store, asking.name, "j"), runs.of_other_runs(store, read), experiment.judge, None)  # type: ignore[arg-type]
        made = {later: {"fingerprint": f"later-{number}", "inputs": {}}}
    assert [(one.stage, one.fingerprint) for one in asked] == [(first, "first")] * 3


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_without_a_model_cannot_be_refined(prepared: Path, world: Rounds) -> None:
    for name, said in (("small", "its train stage is not complete"), ("smal", "no run of that name")):
        with pytest.raises(ConfigError, match=said):
            run(world.round(1, f"execution.root={prepared}", f"refines={name}"))


def test_a_run_cannot_refine_itself() -> None:
    experiment = validate({"name": "small", "refines": "small"}, "some.yaml")
    with pytest.raises(ConfigError) as caught:
        refine.COMPARE.also(experiment.compare, experiment, "content")
    assert caught.value.place == "refines"


def test_the_former_command_names_the_setting() -> None:
    assert "refines=RUN" in refused("refine", "some", "--rounds", "2")


@pytest.mark.parametrize(
    "settings",
    [
        {"compare": {"design": "imported", "path": "x.csv"}},
        {"judge": {"judges": [{"kind": "imported", "name": "people", "path": "x.csv"}]}},
    ],
)
def test_preferences_from_a_file_cannot_be_asked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="preferences from a file answer their own pairs alone"):
        validate({"refines": "small", **settings}, "some.yaml")


def test_pairs_of_other_candidates_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    before = Artifact(store, "compare", "a")
    before.complete([Flow("queries", 0, 0)], inputs={"retrieve": "of another run"})
    inputs = {name: Artifact(store, name, "b") for name in ("retrieve", "score")}
    inputs |= {f"{runs.BEFORE}compare": before, f"{runs.BEFORE}rate": Artifact(store, "rate", "c")}
    with pytest.raises(ConfigError, match="the candidates are not those of the run that is refined"):
        refine.choose(Artifact(store, "compare", "d"), inputs, CompareConfig(), None)  # type: ignore[arg-type]


def test_a_run_that_distilled_no_judge_has_none_to_teach(tmp_path: Path) -> None:
    Store(str(tmp_path)).publish_json("runs/r.json", {"stages": {"judge": {"fingerprint": "j", "inputs": {}}}})
    experiment = validate({"refines": "r", "execution": {"root": str(tmp_path)}}, "some.yaml")
    with pytest.raises(ConfigError, match="run r distilled no judge that could learn from its rounds"):
        refine.SAMPLE.also(experiment.distill.sample, experiment, "content")


@pytest.mark.parametrize(
    ("settings", "between"),
    [
        ({"compare": {"design": "adaptive", "degree": 4}}, ()),
        ({"judge": {"judges": [{"kind": "distilled", "name": "small"}]}}, ("sample", "label", "distill")),
    ],
)
def test_stages_of_a_round(settings: dict[str, Any], between: tuple[str, ...]) -> None:
    """An adaptive run is refined in one round; a distilled judge waits for the round's pairs."""
    names = names_of(validate({**settings, "refines": "small"}, "some.yaml"))
    assert names[2 : 5 + len(between)] == ("score", "compare", *between, "judge")
