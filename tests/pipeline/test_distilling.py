"""A distilled judge in a panel: the stages that make it, what redoes them, what it is planned to save; no Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from anmi_ray.api.prompts import preview_prompts
from anmi_ray.cli.run import distilled
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import names_of, stages_of
from anmi_ray.planning.plan import plan, sent
from tests.small import NAMES, write_config

JUDGE = "judge.judges=[{kind: distilled}]"
VALIDATED = "mine.rule=validated"
API = "{kind: api, name: llm, endpoint: {base_url: 'http://h/v1', model: m, input_price: 1.0, output_price: 2.0}}"


@pytest.fixture
def config(small_collection: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "small.yaml", small_collection)


def fingerprints(config: Path, *overrides: str) -> dict[str, str]:
    return {name: item.fingerprint for name, item in resolve(load(config, [JUDGE, *overrides])).items()}


def changed(config: Path, *overrides: str, before: tuple[str, ...] = ()) -> list[str]:
    one, other = fingerprints(config, *before), fingerprints(config, *before, *overrides)
    return [name for name in one if one[name] != other[name]]


def test_a_judge_is_made_before_the_graph_and_read_by_those_who_ask_it(config: Path) -> None:
    settings = load(config, [JUDGE])
    names, at = names_of(settings), NAMES.index("compare")
    assert names == (*NAMES[:at], "sample", "label", "distill", *NAMES[at:])
    stages = {stage.name: stage for stage in stages_of(settings)}
    assert stages["label"].reads == {"compare": "sample", "retrieve": "retrieve", "ingest": "ingest"}
    assert (stages["label"].run, stages["label"].version) == (stages["judge"].run, stages["judge"].version)
    assert stages["judge"].reads["distill"] == "distill"
    assert all("distill" not in stage.reads for stage in stages_of(load(config)))


def test_both_rounds_ask_the_distilled_judge(config: Path) -> None:
    settings = load(config, [JUDGE, VALIDATED])
    stages = {stage.name: stage for stage in stages_of(settings)}
    assert {name for name, stage in stages.items() if "distill" in stage.reads} == {"judge", "validate", "report"}
    assert stages["validate"].reads["compare"] == "borderline"
    assert names_of(settings).index("distill") < names_of(settings).index("borderline")


def test_seeds_of_the_run_and_of_a_group_are_told_apart(config: Path) -> None:
    pairs = [(own, of_run) for own in (0, 1, 2) for of_run in (0, 1, 2)]
    found = {fingerprints(config, f"distill.sample.seed={own}", f"seed={run}")["sample"] for own, run in pairs}
    assert len(found) == len(pairs)


def test_the_judges_own_artifacts_do_not_rest_on_the_panel(config: Path) -> None:
    two = "judge.judges=[{kind: distilled}, {kind: distilled, name: wide, dtype: bfloat16}, {kind: similarity}]"
    assert changed(config, two) == ["judge", "rate", "mine", "train", "rerank", "evaluate", "report"]


def test_an_ensembles_prompt_is_part_of_its_labels_alone(config: Path) -> None:
    panel = f"distill.judge.judges=[{API}]"
    inputs = resolve(load(config, [JUDGE, panel]))
    assert "answers of llm" in inputs["label"].inputs
    assert not any(name.startswith("answers") for name in inputs["judge"].inputs)
    assert changed(config, "distill.judge.judges.0.prompt.document_tokens=99", before=(panel,))[0] == "label"


def test_the_plan_prices_the_ensemble(config: Path, tmp_path: Path) -> None:
    overrides = [JUDGE, f"distill.judge.judges=[{API}]", "distill.sample.pairs=50"]
    settings = load(config, [*overrides, f"execution.root={tmp_path / 'root'}"])
    said = "\n".join(plan(settings).lines)
    assert "llm: 100 calls" in said
    assert "about 0.1 dollars" not in said
    assert "texts of train queries and their candidates are sent to http://h/v1" in sent(settings)
    assert not (tmp_path / "root").exists()


def test_a_dry_run_shows_what_the_ensemble_is_asked(config: Path) -> None:
    shown = "\n".join(preview_prompts(load(config, [JUDGE, f"distill.judge.judges=[{API}]"]), None, None, None))
    assert "judge llm: m at http://h/v1" in shown
    with pytest.raises(ConfigError, match="no judge of this panel reads prompts") as caught:
        list(preview_prompts(load(config, [JUDGE]), None, None, None))
    assert caught.value.place == "distill.judge.judges"


SUMMARY = {
    "pairs": 2000, "queries": 500, "test_pairs": 400, "judgments": 12000, "slope": 1.0,
    "accuracy_consensus": [0.9, 0.85, 0.94], "brier": [0.05, None, None], "ece": 0.021,
    "baselines": {"[similarity]": {"accuracy_consensus": [0.7, 0.6, 0.8], "brier": [None, None, None], "ece": 0.4}},
}  # fmt: skip


def test_figures_of_a_distilled_judge_stand_next_to_its_baselines() -> None:
    out = Console(width=200)
    with out.capture() as caught:
        for block in distilled(SUMMARY):
            out.print(block, markup=False, highlight=False)
    rows = {line.split("  ")[0]: line.split()[-4:] for line in caught.get().splitlines()}
    assert rows["distilled judge"] == ["[85.0,", "94.0]", "0.050", "0.021"]
    assert rows["[similarity]"] == ["70.0", "[60.0,", "80.0]", "0.400"]
    assert caught.get().splitlines()[-1].startswith("pairs 2,000, queries 500")
