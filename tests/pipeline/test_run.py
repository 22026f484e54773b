"""The path of an experiment, and its fingerprints: which stages it has, and which ones a change of settings redoes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from anmi_ray import judging
from anmi_ray.api.prompts import preview_prompts
from anmi_ray.cli.run import distilled
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.pipeline.resolve import changes, resolve
from anmi_ray.pipeline.run import run
from anmi_ray.pipeline.stages import names_of, stage_name, stages_of
from anmi_ray.planning.plan import plan, sent
from anmi_ray.store import Store
from tests.corpus import layouts
from tests.small import NAMES, write_config

DISTILLED = "judge.judges=[{kind: distilled}]"
VALIDATED = "mine.rule=validated"
SECOND = ("borderline", "validate", "refit")
API = "{kind: api, name: llm, endpoint: {base_url: 'http://h/v1', model: m, input_price: 1.0, output_price: 2.0}}"


@pytest.fixture
def config(small_collection: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "small.yaml", small_collection)


def fingerprints(config: Path, *overrides: str) -> dict[str, str]:
    return {name: item.fingerprint for name, item in resolve(load(config, overrides)).items()}


def changed(config: Path, before: tuple[str, ...], after: tuple[str, ...]) -> set[str]:
    """Stages of both that have other fingerprints."""
    one, other = fingerprints(config, *before), fingerprints(config, *after)
    return {name for name in one.keys() & other.keys() if one[name] != other[name]}


@pytest.mark.parametrize(
    ("base", "override", "first"),
    [
        ("seed=0", "corpus.max_test_queries=5", "ingest"),
        ("seed=0", "retrieve.bm25.k1=1.2", "retrieve"),
        ("seed=0", "compare.degree=6", "compare"),
        ("seed=0", "judge.preset=thurstone", "judge"),
        ("seed=0", "rate.model=bradley-terry", "rate"),
        ("seed=0", "mine.rule=table2", "mine"),
        ("seed=0", "train.learning_rate=0.00003", "train"),
        ("seed=0", "rerank.depth=7", "rerank"),
        ("seed=0", "evaluate.baseline=bm25", "evaluate"),
        (VALIDATED, "mine.weigh=posterior", "mine"),
        (VALIDATED, "mine.negatives=3", "mine"),
        (VALIDATED, "mine.allow=[{rule: validate, high: 160}]", "borderline"),
        (VALIDATED, "rate.model=bradley-terry", "rate"),
        (VALIDATED, "judge.preset=thurstone", "judge"),
        (VALIDATED, "compare.degree=6", "compare"),
        (DISTILLED, "distill.sample.pairs=50", "sample"),
        (DISTILLED, "distill.sample.seed=1", "sample"),
        (DISTILLED, "distill.judge.preset=thurstone", "label"),
        (DISTILLED, "distill.form=pointwise", "distill"),
        (DISTILLED, "distill.seed=1", "distill"),
        (DISTILLED, "compare.degree=6", "compare"),
        (DISTILLED, "judge.judges.0.name=other", "judge"),
    ],
)
def test_a_changed_setting_redoes_its_stage_and_what_rests_on_it(
    config: Path, base: str, override: str, first: str
) -> None:
    expected = {first}
    for stage in stages_of(load(config, [base])):
        if expected & set(stage.reads.values()):
            expected.add(stage.name)
    assert changed(config, (base,), (base, override)) == expected


@pytest.mark.parametrize(
    "override",
    [
        "execution.threads=1",
        "execution.buckets=16",
        "corpus.max_reject_fraction=0.01",
        "judge.judges.0.gpus=0.5",
    ],
)
def test_how_a_run_is_carried_out_changes_no_fingerprint(config: Path, override: str) -> None:
    assert changed(config, (DISTILLED,), (DISTILLED, override)) == set()


def test_a_moved_collection_keeps_its_fingerprints(config: Path, small_collection: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.symlink_to(small_collection)
    assert fingerprints(config) == fingerprints(config, f"corpus.path={moved}")


def test_a_moved_collection_in_trec_layout_keeps_its_fingerprints(config: Path, tmp_path: Path) -> None:
    def places(folder: Path) -> list[str]:
        given = layouts.write_trec(folder, layouts.SMALL)
        return [f"corpus={json.dumps(given)}"]

    before = fingerprints(config, *places(tmp_path / "here"))
    assert fingerprints(config, *places(tmp_path / "there")) == before
    assert fingerprints(config, *places(tmp_path / "there"), "corpus.topic_fields=[desc]") != before


def test_a_changed_collection_changes_every_fingerprint(config: Path, small_collection: Path, tmp_path: Path) -> None:
    before = fingerprints(config)
    copy = tmp_path / "copy"
    for file in small_collection.rglob("*"):
        if file.is_file():
            target = copy / file.relative_to(small_collection)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    with (copy / "corpus.jsonl").open("a") as stream:
        stream.write('{"_id": "one more", "title": "", "text": "one more document"}\n')
    after = fingerprints(config, f"corpus.path={copy}")
    assert all(before[name] != after[name] for name in NAMES)


@pytest.mark.parametrize("override", ["seed=0", VALIDATED, DISTILLED, "mine.anchors=confirmed", "evaluate.judged=all"])
def test_a_stage_reads_only_stages_before_it(config: Path, override: str) -> None:
    settings = load(config, [override])
    names = names_of(settings)
    assert names == tuple(resolve(settings))
    for number, stage in enumerate(stages_of(settings)):
        assert set(stage.reads.values()) <= set(names[:number])


def test_nothing_is_complete_in_an_empty_root(config: Path, tmp_path: Path) -> None:
    settings = load(config, [f"execution.root={tmp_path / 'root'}"])
    states = list(changes(settings, resolve(settings)))
    assert [name for name, _, _ in states] == list(NAMES)
    assert {(state, why) for _, state, why in states} == {("to do", "not run yet")}
    assert not (tmp_path / "root").exists()


def test_from_a_later_stage_needs_the_earlier_ones(config: Path, tmp_path: Path) -> None:
    settings = load(config, [f"execution.root={tmp_path / 'root'}"])
    with pytest.raises(StoreError, match="--from train needs the artifact of stage ingest"):
        run(settings, first="train")


def test_a_run_name_belongs_to_one_corpus(config: Path, tmp_path: Path) -> None:
    settings = load(config, [f"execution.root={tmp_path / 'root'}"])
    Store(str(tmp_path / "root")).publish_json("runs/small.json", {"corpus": "another", "corpus_name": "other"})
    with pytest.raises(ConfigError, match="belongs to a run over another corpus"):
        run(settings)


def test_an_unknown_stage_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean train"):
        stage_name("trian", NAMES)
    with pytest.raises(ConfigError, match="the stages are ingest"):
        stage_name("xyz", NAMES)


def test_a_judges_prompt_is_part_of_it_and_its_limits_are_not(config: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    shipped = Path(judging.__file__).parent / "templates" / "scale.jinja"
    template.write_text(shipped.read_text())
    judge = f"{{kind: api, name: a, endpoint: {{base_url: 'http://h/v1', model: m}}, prompt: {{template: {template}}}}}"
    panel = f"judge.judges=[{judge}]"
    before = fingerprints(config, panel)
    how = ("timeout_s=5", "concurrency=2", "requests_per_minute=9", "allow_external=true", "key_env=SOME_KEY")
    assert all(fingerprints(config, panel, f"judge.judges.0.endpoint.{one}") == before for one in how)
    for other in ("endpoint.model=n", "endpoint.base_url=http://i/v1", "endpoint.seed=1", "prompt.document_tokens=99"):
        assert fingerprints(config, panel, f"judge.judges.0.{other}")["judge"] != before["judge"]
    template.write_text(shipped.read_text().replace("answers the query better", "answers the query best"))
    after = fingerprints(config, panel)
    assert after["judge"] != before["judge"]
    assert after["compare"] == before["compare"]


def test_without_validation_the_stages_are_the_main_path(config: Path) -> None:
    for override in ("mine.rule=table2", "mine.rule=simans"):
        found = stages_of(load(config, [override]))
        assert found[:-1] == stages_of(Experiment())[:-1]
        assert found[-1].inputs == NAMES[:-1]


def test_validation_is_a_second_round_before_mining(config: Path) -> None:
    settings = load(config, [VALIDATED])
    names, before = names_of(settings), NAMES.index("mine")
    assert names == (*NAMES[:before], *SECOND, *NAMES[before:])
    stages = {stage.name: stage for stage in stages_of(settings)}
    assert stages["mine"].reads["rate"] == "refit"
    assert {"judge", "compare", "validate", "borderline"} <= set(stages["mine"].reads.values())
    assert stages["validate"].reads["compare"] == "borderline"
    assert (stages["validate"].version, stages["refit"].version) == (stages["judge"].version, stages["rate"].version)
    assert changed(config, (), (VALIDATED,)) == {"mine", "train", "rerank", "evaluate", "report"}


def test_denoising_reads_ratings_alone(config: Path) -> None:
    stages = {stage.name: stage for stage in stages_of(load(config, ["mine.rule=denoise"]))}
    assert tuple(stages) == NAMES
    assert stages["mine"].inputs == ("rate", "retrieve")


def test_a_pointwise_model_is_an_input_of_mining(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    override = f"mine.allow=[{{rule: rocketqa, model: {folder}}}]"
    settings = load(config, [override])
    assert next(stage for stage in stages_of(settings) if stage.name == "mine").inputs[-1] == "ingest"
    before = fingerprints(config, override)
    (folder / "weights").write_text("others")
    after = fingerprints(config, override)
    assert {name for name in NAMES if before[name] != after[name]} == {"mine", "train", "rerank", "evaluate", "report"}
    with pytest.raises(ConfigError, match="no such folder"):
        resolve(load(config, ["mine.allow=[{rule: rocketqa, model: ./none/of/them}]"]))


@pytest.mark.parametrize(
    ("override", "stage", "remedy"), [(VALIDATED, "refit", "mine.allow"), (DISTILLED, "label", "kind: distilled")]
)
def test_a_stage_that_some_runs_have_is_named_there(config: Path, override: str, stage: str, remedy: str) -> None:
    assert stage_name(stage, names_of(load(config, [override]))) == stage
    with pytest.raises(ConfigError, match=f"no stage {stage}") as caught:
        stage_name(stage, NAMES)
    assert remedy in (caught.value.remedy or "")


def test_a_judge_is_made_before_the_graph_and_read_by_those_who_ask_it(config: Path) -> None:
    settings = load(config, [DISTILLED])
    names, at = names_of(settings), NAMES.index("compare")
    assert names == (*NAMES[:at], "sample", "label", "distill", *NAMES[at:])
    stages = {stage.name: stage for stage in stages_of(settings)}
    assert stages["label"].reads == {"compare": "sample", "retrieve": "retrieve", "ingest": "ingest"}
    assert (stages["label"].run, stages["label"].version) == (stages["judge"].run, stages["judge"].version)
    assert stages["judge"].reads["distill"] == "distill"
    assert all("distill" not in stage.reads for stage in stages_of(load(config)))


def test_both_rounds_ask_the_distilled_judge(config: Path) -> None:
    settings = load(config, [DISTILLED, VALIDATED])
    stages = {stage.name: stage for stage in stages_of(settings)}
    assert {name for name, stage in stages.items() if "distill" in stage.reads} == {"judge", "validate", "report"}
    assert stages["validate"].reads["compare"] == "borderline"
    assert names_of(settings).index("distill") < names_of(settings).index("borderline")


def test_seeds_of_the_run_and_of_a_group_are_told_apart(config: Path) -> None:
    pairs = [(own, of_run) for own in (0, 1, 2) for of_run in (0, 1, 2)]
    found = {
        fingerprints(config, DISTILLED, f"distill.sample.seed={own}", f"seed={run}")["sample"] for own, run in pairs
    }
    assert len(found) == len(pairs)


def test_the_judges_own_artifacts_do_not_rest_on_the_panel(config: Path) -> None:
    two = "judge.judges=[{kind: distilled}, {kind: distilled, name: wide, dtype: bfloat16}, {kind: similarity}]"
    after = {"judge", "rate", "mine", "train", "rerank", "evaluate", "report"}
    assert changed(config, (DISTILLED,), (DISTILLED, two)) == after


def test_an_ensembles_prompt_is_part_of_its_labels_alone(config: Path) -> None:
    panel = f"distill.judge.judges=[{API}]"
    inputs = resolve(load(config, [DISTILLED, panel]))
    assert "answers of llm" in inputs["label"].inputs
    assert not any(name.startswith("answers") for name in inputs["judge"].inputs)
    before = DISTILLED, panel
    found = changed(config, before, (*before, "distill.judge.judges.0.prompt.document_tokens=99"))
    assert "label" in found
    assert "sample" not in found


def test_the_plan_prices_the_ensemble(config: Path, tmp_path: Path) -> None:
    overrides = [DISTILLED, f"distill.judge.judges=[{API}]", "distill.sample.pairs=50"]
    settings = load(config, [*overrides, f"execution.root={tmp_path / 'root'}"])
    said = "\n".join(plan(settings).lines)
    assert "llm: 100 calls" in said
    assert "about 0.1 dollars" not in said
    assert "texts of train queries and their candidates are sent to http://h/v1" in sent(settings)
    assert not (tmp_path / "root").exists()


def test_a_dry_run_shows_what_the_ensemble_is_asked(config: Path) -> None:
    shown = "\n".join(preview_prompts(load(config, [DISTILLED, f"distill.judge.judges=[{API}]"]), None, None, None))
    assert "judge llm: m at http://h/v1" in shown
    with pytest.raises(ConfigError, match="no judge of this panel reads prompts") as caught:
        list(preview_prompts(load(config, [DISTILLED]), None, None, None))
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
