"""Settings of a run under another rule: what stays, what changes, and every way to contradict oneself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline import mining_runs
from anmi_ray.store import Store

PLAIN = Experiment(name="some")
OWN = Experiment(name="some", mine=MineConfig.model_validate({"sample": {"rule": "weighted"}, "negatives": 3}))


def under(experiment: Experiment, rule: str) -> Experiment:
    return validate({"name": "other", "mine": mining_runs.under_rule(experiment.mine, rule)}, "test")


@pytest.mark.parametrize("rule", NAMED)
def test_a_plain_run_under_a_rule_is_what_that_rule_alone_gives(rule: str) -> None:
    found = under(PLAIN, rule)
    wanted = validate({"name": "other", "mine": {"rule": rule}}, "test")
    assert result_settings(found.mine) == result_settings(wanted.mine)
    assert found == wanted


@pytest.mark.parametrize("rule", NAMED)
def test_the_runs_sample_and_numbers_stay_unless_the_rule_names_a_sample(rule: str) -> None:
    found = under(OWN, rule).mine
    assert found.negatives == 3
    named = NAMED[rule].get("sample", "weighted")
    assert found.sample.rule == (named if isinstance(named, str) else named["rule"])
    assert found.weigh == MineConfig(rule=rule).weigh
    assert found.rule == rule


def test_no_rule_changes_nothing() -> None:
    mine = MineConfig.model_validate(
        {"weigh": {"rule": "relative", "form": "anchored", "least": 0.2}, "sample": {"rule": "simans", "form": "rank"}}
    )
    assert MineConfig.model_validate(mining_runs.under_rule(mine, None)) == mine


def record(root: Path, experiment: Experiment = OWN, **stages: Any) -> Path:
    """A run's record, as a run writes it."""
    config = experiment.model_dump(mode="json", exclude={"execution"})
    content = {"name": experiment.name, "corpus": "c", "corpus_name": "n", "config": config, "stages": stages}
    Store(str(root)).publish_json(f"runs/{experiment.name}.json", content)
    return root


def refused(root: Path, *overrides: str, rule: str | None = None, name: str = "some") -> str:
    with pytest.raises(ConfigError) as error:
        mining_runs.from_run(name, str(root), rule, overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("rule", "overrides", "said"),
    [
        ("tabel2", (), "did you mean table2?"),
        (None, ("mine.rule=postrior",), "did you mean posterior?"),
        (None, (), "nothing would change"),
        (None, ("execution.local_cpus=2",), "nothing would change"),
        ("table2", ("mine.weigh.penalty=1",), "unknown setting"),
        ("table2", ("mine.negativs=8",), "did you mean mine.negatives?"),
        ("table2", ("retrieve.depth=50",), "the run's ratings stay as they are"),
        ("table2", ("negatives",), "is not an override"),
        ("table2", ("name=some",), "is the run itself"),
        ("table2", (), "the run has no ratings"),
    ],
)
def test_contradictions_and_mistakes_are_one_message(
    tmp_path: Path, rule: str | None, overrides: tuple[str, ...], said: str
) -> None:
    assert said in refused(record(tmp_path), *overrides, rule=rule)


def test_an_override_is_applied_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining_runs, "_check_rated", lambda *_: None)
    root = str(record(tmp_path))
    mine = mining_runs.from_run("some", root, "table2", ["mine.negatives=8", "mine.negatives=9"]).mine
    assert (mine.rule, mine.negatives) == ("table2", 9)
    assert mining_runs.from_run("some", root, "table2", ["mine.rule=posterior"]).mine.rule == "posterior"
    assert mining_runs.from_run("some", root, "simans", ["mine.sample.rule=top"]).mine.sample.rule == "top"


def test_rules_of_one_name_and_unknown_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path)
    with pytest.raises(ConfigError, match="did you mean simans"):
        mining_runs.from_run_by_rule("some", str(tmp_path), "simens,table2", [])
    monkeypatch.setattr(mining_runs, "_check_rated", lambda *_: None)
    found = mining_runs.from_run_by_rule("some", str(tmp_path), "table2, simans,table2", [])
    assert [one.name for one in found] == ["some-table2", "some-simans"]
    with pytest.raises(ConfigError, match="name="):
        mining_runs.from_run_by_rule("some", str(tmp_path), "table2,simans", ["name=other"])


def test_a_record_may_hold_settings_that_are_gone(tmp_path: Path) -> None:
    record(tmp_path)
    store = Store(str(tmp_path))
    content = store.read_json("runs/some.json")
    content["config"]["mine"]["sampling"] = "top"
    store.publish_json("runs/some.json", content)
    said = refused(tmp_path, rule="table2")
    assert "mine.sampling" not in said
    assert "stage rate is not complete" in said


def test_ratings_that_settings_would_not_give_again(tmp_path: Path, small_collection: Path) -> None:
    corpus = {"reader": "beir", "path": str(small_collection)}
    experiment = validate({"name": "some", "corpus": corpus, "compare": {"degree": 4}}, "test")
    record(tmp_path, experiment, ingest={"fingerprint": "another"}, rate={"fingerprint": "another"})
    assert "stage ingest would not be what it was" in refused(tmp_path, rule="table2")
