"""One validation with remedies: YAML, overrides, unknown keys, ranges, settings that do not fit together."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from anmi_ray.config.base import Settings, named_inputs, result_settings, whole
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate
from anmi_ray.core.errors import ConfigError, refuse
from anmi_ray.stages import distill, train
from tests.shipped import EXPERIMENTS

CROSS, FAR = "{name: cross, run: other}", "{name: far, endpoint: {base_url: 'http://h', model: m}}"


def write(folder: Path, text: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_configurations_can_be_trained(path: Path) -> None:
    experiment = load(path)
    assert experiment.name == path.stem
    refuse(train.STAGE.check(train.STAGE, experiment))
    refuse(distill.STAGE.check(distill.STAGE, experiment))


@pytest.mark.parametrize(
    ("overrides", "place", "remedy"),
    [
        (["train.lists_per_step=16"], None, ""),
        ([], "train.lists_per_step", "a multiple of execution.train.num_workers"),
        (["train.student=late-interaction"], "train.loss.in_batch_lists", "set it to 2; or"),
        (["train.student=late-interaction", "train.loss.in_batch_lists=2"], None, ""),
        (
            ["train.student=late-interaction", "train.lists_per_step=16"],
            "train.loss.in_batch_lists",
            "set train.lists_per_step to a multiple of 32, and it to lists_per_step / 16; or",
        ),
        (["train.student=late-interaction", "train.loss.in_batch=false"], None, ""),
        (["train.lists_per_step=16", "distill.pairs_per_step=6"], "distill.pairs_per_step", "a multiple of"),
    ],
)
def test_workers_that_cannot_share_a_step_are_said_before_the_first_stage(
    tmp_path: Path, overrides: list[str], place: str | None, remedy: str
) -> None:
    experiment = load(write(tmp_path, "execution: {train: {num_workers: 16}}"), overrides)
    found = [*train.STAGE.check(train.STAGE, experiment), *distill.STAGE.check(distill.STAGE, experiment)]
    assert [error.place for error in found] == ([] if place is None else [place])
    assert all("16 workers" in error.message and remedy in str(error.remedy) for error in found)


def test_a_file_names_its_run_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert load(write(tmp_path, "seed: 0")) == Experiment(name="some", seed=0)
    assert load(write(tmp_path, "name: other")) == Experiment(name="other")


def test_overrides_reach_into_groups_and_are_yaml(tmp_path: Path) -> None:
    settings = load(write(tmp_path, "seed: 3"), ["compare.degree=4", "corpus.packages=[numpy]", "name=other"])
    assert (settings.compare.degree, settings.corpus.packages, settings.name) == (4, ("numpy",), "other")
    assert settings.seed == 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["compare.degre=4"], "did you mean compare.degree?"),
        (["copmare.degree=4"], "did you mean compare?"),
        (["retrieve.retrievers=[dense]", "evaluate.partners=[bm25]"], "names bm25"),
        (
            ["evaluate.partners=[bm25, cross]"],
            "names cross, but scores of dev queries are there of hybrid, bm25, dense",
        ),
        ([f"rerank.peers=[{FAR}]", "evaluate.partners=[bm25, far]"], "rerank.peers has none"),
        (
            [f"rerank.peers=[{FAR}, {CROSS}]", "evaluate.partners=[bm25, far]"],
            "another run's (cross)\n  remedy: name those",
        ),
        ([f"rerank.peers=[{CROSS}]", "evaluate.partners=[bm25, start, cross]"], "names start"),
        ([f"rerank.peers=[{CROSS}]", "evaluate.partners=[cross]"], "no system of the first stage"),
        ([f"rerank.peers=[{CROSS}]", "evaluate.partners=[cross, bm25, cross]"], "named twice"),
        ([f"rerank.peers=[{CROSS}]", "evaluate.partners=[bm25, dense, hybrid, cross, late]"], "at most 4 items"),
        (["retrieve.retrievers=[dense, dense]"], "named twice"),
        (["retrieve.retrievers=[late]"], "ranks what other retrievers found"),
        (["retrieve.late.query_tokens=2"], "query_tokens"),
        (["retrieve.retrievers=[dense]", "retrieve.fusion.weights={bm25: 2}"], "name those alone"),
        (["retrieve.bm25.kk=1"], "retrieve.bm25.kk"),
        (["compare.degree=0"], "greater than or equal to"),
        (["compare.degree=many"], "given: 'many'"),
        (["compare.degree"], "write key=value"),
        (["seed.deep=1"], "seed"),
        (["compare.degree=30", "retrieve.candidates=20"], "lower compare.degree"),
        (["rerank.depth=300", "retrieve.depth=200"], "lower rerank.depth"),
        (["execution.buckets=6"], "power of two"),
        (["name=../../etc/passwd"], "name"),
        (["corpus.reader=beir"], "path"),
        (["judge.preset=[1"], "YAML"),
    ],
)
def test_a_mistake_names_the_setting_and_the_remedy(tmp_path: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "seed: 1"), overrides)
    assert said in str(caught.value)
    assert "remedy" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load(tmp_path / "absent.yaml")


def test_weights_of_judges_that_are_not_in_the_panel() -> None:
    panel = {"judges": [{"kind": "similarity"}, {"kind": "null"}]}
    assert validate({"judge": panel, "rate": {"judge_weights": {"null": 2.0}}}, "here").rate.judge_weights
    with pytest.raises(ConfigError, match=r"names gpt, but the panel \(judge.judges\) is similarity, null"):
        validate({"judge": panel, "rate": {"judge_weights": {"gpt": 2.0}}}, "here")


def test_settings_that_only_say_how_are_left_out() -> None:
    class Inner(Settings):
        how_only: ClassVar[frozenset[str]] = frozenset({"speed"})
        speed: int = 1
        what: int = 2

    class Outer(Settings):
        inner: Inner = Inner()
        several: tuple[Inner, ...] = (Inner(), Inner())
        execution: ExecutionConfig = ExecutionConfig()
        plain: dict[str, int] = Field(default={})

    given = Outer(
        inner=Inner(speed=5, what=6),
        several=(Inner(speed=3), Inner(what=7)),
        execution=ExecutionConfig(root="elsewhere"),
        plain={"speed": 1},
    )
    assert result_settings(Outer()) == {}
    how = Outer(inner=Inner(speed=9), several=(Inner(speed=3), Inner()), execution=ExecutionConfig(root="there"))
    assert result_settings(how) == {}
    assert result_settings(given) == {"inner": {"what": 6}, "several": [{}, {"what": 7}], "plain": {"speed": 1}}
    assert whole(Inner(speed=9)) == {"what": 2}


def test_numbers_are_finite(tmp_path: Path) -> None:
    server = "{base_url: 'http://127.0.0.1:8000/v1', model: m, input_price: .inf, output_price: .nan}"
    for override in (
        "execution.gpu_dollars_hour=.inf",
        "rate.prior=.inf",
        "retrieve.fusion.weights={bm25: .nan}",
        f"judge.judges=[{{kind: api, endpoint: {server}}}]",
    ):
        with pytest.raises(ConfigError, match="finite number"):
            load(write(tmp_path, "seed: 0"), [override])


def test_names_of_what_is_read_are_left_out_and_told_apart() -> None:
    class Read(Settings):
        by_content: ClassVar[frozenset[str]] = frozenset({"path"})
        path: str | None = None
        what: int = 2

    class Reads(Settings):
        one: Read = Read()
        several: tuple[Read, ...] = ()

    given = Reads(one=Read(path="a"), several=(Read(path="b", what=3),))
    assert result_settings(given) == {"several": [{"what": 3}]}
    assert whole(Read(path="a")) == {"what": 2}
    assert list(named_inputs(given)) == [("one.path", "a"), ("several.0.path", "b")]
    assert list(named_inputs(Reads())) == [("one.path", None)]


def test_an_override_may_reach_into_a_list(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("judge: {judges: [{kind: similarity}, {kind: 'null', name: a}]}")
    found = load(path, ["judge.judges.1.name=b", "judge.judges.0.name=c"])
    assert [judge.name for judge in found.judge.judges] == ["c", "b"]
    for key in ("judge.judges.2.name=b", "judge.judges.x.name=b", "judge.judges.1.name.more=1"):
        with pytest.raises(ConfigError, match=r"expected a number below 2|is a single value"):
            load(path, [key])


def test_a_rule_named_later_wins_over_the_files_details(tmp_path: Path) -> None:
    path = write(tmp_path, "mine: {allow: [{rule: gate, largest: 0.05}], sample: weighted}")
    assert load(path).mine.composition == "gate -> posterior -> weighted"
    assert load(path, ["mine.rule=table2"]).mine.composition == "table2 -> weighted"
    assert load(path, ["mine.rule=simans"]).mine.composition == "equal -> simans"
    assert load(path, ["mine.rule=simans", "mine.sample=top"]).mine.composition == "equal -> top"
    with pytest.raises(ConfigError, match=r"mine\.rule: no composition is called 'simons'; did you mean simans"):
        load(path, ["mine.rule=simons"])


def test_one_order_needs_a_fit_of_what_judges_prefer_for_its_place() -> None:
    one = {"judge": {"orders": "one"}}
    for offsets in ("both-orders", False):
        with pytest.raises(ConfigError, match=r"judge\.orders: one .*\n  remedy: set rate\.judge_offsets: true"):
            validate({**one, "rate": {"judge_offsets": offsets}}, "test")
    assert validate({**one, "rate": {"judge_offsets": True}}, "test").judge.orders == "one"
    imported = {"orders": "one", "judges": [{"kind": "imported", "name": "mine", "path": "p"}]}
    with pytest.raises(ConfigError, match="the answers of mine are in a file\n  remedy: leave orders out"):
        validate({"judge": imported, "rate": {"judge_offsets": True}}, "test")
    with pytest.raises(ConfigError, match=r"distill.*judge\.orders: one needs a fit"):
        validate({"distill": {"judge": {"orders": "one"}}}, "test")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train": {"engine": "ddp"}}, "optimizer needs train.engine: deepspeed and train.zero_stage: 1 to 3"),
        ({"train": {"zero_stage": 0}}, "they are auto and 0"),
    ],
)
def test_offloading_without_what_it_needs_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"execution.train.offload: .*{said}"):
        validate(settings | {"execution": {"train": {"offload": "optimizer"}}}, "test")
    validate({"execution": {"train": {"offload": "optimizer"}}}, "test")
