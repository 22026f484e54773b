"""What goes along with a job, what it is called, and what its end means; without a cluster."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config import load, tune
from anmi_ray.config.base import result_settings
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline import submission as submitting
from anmi_ray.pipeline.submission import (
    CONFIGS,
    DRIVER,
    Submission,
    campaign_for_cluster,
    exit_status,
    for_cluster,
    passing,
    settings,
    variables,
)
from docs import generate
from tests.shipped import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def job(
    *overrides: str, config: Path = ROOT / "jobs/configs/quickstart-labels.yaml", arguments: tuple[str, ...] = ()
) -> Submission:
    return Submission("pipeline", for_cluster(load.load(config, overrides))[0], arguments)


@pytest.mark.parametrize("config", EXPERIMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("overrides", [(), ("recipe=zelo", "execution.threads=3")])
def test_the_job_reads_what_was_resolved_here(
    config: Path, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    submission = job(*overrides, config=config)
    submission.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {DRIVER, CONFIGS["pipeline"]}
    monkeypatch.chdir(tmp_path)
    there = load.load(CONFIGS["pipeline"])
    assert there == submission.experiment
    assert there.execution.address == "auto"
    assert there.execution.training == submission.experiment.execution.training  # reads which settings were given
    assert Submission("pipeline", there).fingerprint == submission.fingerprint


def campaign(*overrides: str) -> Submission:
    made, config, _ = campaign_for_cluster(tune.load(ROOT / "jobs/configs/tune-quickstart.yaml", overrides), "here")
    return Submission("tune", made, campaign=config)


@pytest.mark.parametrize(
    "overrides", [(), ("trials=3", "train.max_steps=7", "space.train.layer_decay={kind: uniform, low: 0.7, high: 1.0}")]
)
def test_the_job_reads_the_campaign_that_was_resolved_here(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    submission, plain = campaign(*overrides), tune.load("jobs/configs/tune-quickstart.yaml", overrides)
    submission.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {DRIVER, CONFIGS["tune"]}
    monkeypatch.chdir(tmp_path)
    there = tune.load(CONFIGS["tune"])
    assert there == submission.campaign
    # but for how and where it is carried out, it is the campaign of the file
    assert result_settings(there) == result_settings(plain)
    assert (there.name, there.trials) == (plain.name, plain.trials)
    base = load.validate(there.experiment, "there")
    assert base == submission.experiment
    assert result_settings(base) == result_settings(load.validate(plain.experiment, "here"))
    assert (base.execution.address, Path(base.execution.root).is_absolute()) == ("auto", True)
    again, config, said = campaign_for_cluster(there, "there")
    assert said == []
    assert Submission("tune", again, campaign=config).fingerprint == submission.fingerprint


def test_a_campaign_is_called_by_what_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plain = campaign()
    assert plain.id_of(1) == f"anmi-tune-{plain.fingerprint[:12]}-1"
    assert plain.metadata(1)["run"] == "tune-quickstart"
    for how in ("trials=99", "max_concurrent=1", "execution.threads=7"):
        assert campaign(how).fingerprint == plain.fingerprint
    space = "space.train.learning_rate={kind: uniform, low: 0.1, high: 0.2}"
    for what in (space, "seed=9", "name=other", "train.max_steps=61", "execution.root=/elsewhere"):
        assert campaign(what).fingerprint != plain.fingerprint


def test_a_relative_place_in_a_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "small.yaml").write_text(
        "experiment: {name: small}\nspace: {train.model: {kind: choice, values: [start, org/model]}}\n"
    )
    with pytest.raises(ConfigError, match="start is a relative place") as caught:
        campaign_for_cluster(tune.load("small.yaml"), "small.yaml")
    assert str(tmp_path / "start") in str(caught.value.remedy)


EXTRA = {"structured_outputs": {"path": "x", "examples": ["y"]}}
ENDPOINT = {"base_url": "http://127.0.0.1:8000/v1", "model": "m", "extra": EXTRA}
WRITER = {"kind": "api", "endpoint": ENDPOINT, "template": "mine.md"}
REMOTE = {"execution": {"root": "s3://bucket/folder"}}


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({"corpus": {"reader": "beir", "path": "data/mine"}}, ["corpus.path"]),
        ({"train": {"model": "start"}, "distill": {"model": "org/model"}}, ["train.model"]),
        ({"execution": {**REMOTE["execution"], "train": {"storage_path": "c"}}}, ["execution.train.storage_path"]),
        (
            {"corpus": {"reader": "trec", "documents": ["docs", "s3://b/d"], "queries": "t", "qrels": {"test": "q"}}},
            ["corpus.documents.0", "corpus.queries.0", "corpus.qrels.test.0"],
        ),
        (
            {"queries": {"writer": WRITER, "kinds": ["keyword", "example"], "examples": "asked.txt"}},
            ["queries.writer.template", "queries.examples"],
        ),
    ],
)
def test_relative_places_alone_become_absolute_and_are_named(
    given: dict[str, Any], places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in lists and splits; groups that have the name of a place, and what a server gets, stay."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "mine.md").write_text("template")
    given = {**REMOTE, **given}
    experiment = load.validate(given, "here")
    made, said = for_cluster(experiment)
    assert [line.split()[0] for line in said] == places
    assert for_cluster(made) == (made, [])
    before, after = (
        flat(one.model_dump(mode="json", exclude={"execution": {"address"}})) for one in (experiment, made)
    )
    assert after == before | {name: str(tmp_path / before[name]) for name in places}
    (tmp_path / "small.yaml").write_text(
        yaml.safe_dump({"experiment": given, "space": {"train.max_steps": {"kind": "choice", "values": [1, 2]}}})
    )
    assert campaign_for_cluster(tune.load("small.yaml"), "small.yaml")[0].queries == made.queries


def flat(node: Any, name: str = "") -> dict[str, Any]:
    """Return values by dotted name."""
    if not isinstance(node, (dict, list)):
        return {name: node}
    inside = node.items() if isinstance(node, dict) else enumerate(node)
    return {
        key: value
        for part, child in inside
        for key, value in flat(child, f"{name}.{part}" if name else str(part)).items()
    }


def test_every_place_among_the_settings_is_known() -> None:
    """A setting that is described as a folder or a file is one of those that become absolute."""
    found: dict[str, str] = {}

    def look(node: object) -> None:
        if isinstance(node, dict):
            for name, field in node.get("properties", {}).items():
                found[name] = f"{found.get(name, '')} {field.get('description', '')}"
            for value in node.values():
                look(value)
        elif isinstance(node, list):
            for value in node:
                look(value)

    look(generate.schema_of(Experiment))
    told = {name for name, text in found.items() if " folder" in f" {text}" or "path of" in text or " file" in text}
    speak_of_one = {"design", "encoding", "form", "judge", "name", "reader"}
    assert told - submitting._PLACES - submitting._PERHAPS == speak_of_one


HOW_ONLY = (
    "execution.train.num_workers=8",
    "execution.judge_on={ray-subcluster: annotate}",
    "execution.driver={num_cpus: 2}",
    "execution.train.label_selector={ray-subcluster: train}",
    "execution.threads=7",
)
WHAT = (
    "seed=3",
    "train.epochs=7",
    "name=other",
    "execution.root=/elsewhere",
    "mine.rule=table2",
    "rate.estimate=mode",
)


@cache
def fingerprint(*overrides: str) -> str:
    return job(*overrides).fingerprint


@given(st.sets(st.sampled_from(HOW_ONLY)), st.sampled_from(WHAT))
def test_a_job_is_called_by_what_it_computes(how: set[str], what: str) -> None:
    plain = fingerprint()
    assert fingerprint(*sorted(how)) == plain
    assert fingerprint(what, *sorted(how)) != plain


def reading(name: str) -> dict[str, tuple[str, ...]]:
    """By setting that names a file or a run which a stage reads, overrides that give it this name."""
    imported = "judge.judges=[{{kind: imported, path: {}}}]".format
    api = "kind: api, endpoint: {base_url: 'http://127.0.0.1:8000/v1', model: m}"
    judges = f"judges: [{{{api}, prompt: {{relevance: {name}}}}}]"
    return {
        "compare": ("compare.design=imported", f"compare.path={name}", imported("answers.csv")),
        "judge": ("compare.design=imported", "compare.path=pairs.csv", imported(name)),
        "peer": (f"rerank.peers=[{{name: other, run: {name}}}]",),
        "prompt": (f"judge={{{judges}}}",),
        "assessors": ("evaluate.judged=all", f"evaluate.judge={{{judges}}}"),
    }


@pytest.mark.parametrize("setting", reading(""))
def test_files_and_runs_that_stages_read_are_part_of_what_a_job_is(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    one, two, again = (job(*reading(name)[setting]).fingerprint for name in ("one", "two", "one"))
    assert one == again != two


def test_what_follows_the_settings_is_part_of_a_jobs_name() -> None:
    plain = job()
    assert job(arguments=("--until", "rate")).fingerprint != plain.fingerprint
    assert plain.id_of(2) == f"anmi-pipeline-{plain.fingerprint[:12]}-2"


def test_shipped_code_is_part_of_what_a_job_is(tmp_path: Path) -> None:
    package = tmp_path / ".hidden" / "anmi_ray"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1")
    one = Submission("pipeline", job().experiment, code=(package,))
    before = one.fingerprint
    assert before != job().fingerprint
    (package / "a.cpython-311.pyc").write_bytes(b"compiled")
    assert one.fingerprint == before
    (package / "a.py").write_text("a = 2")
    assert one.fingerprint != before


def test_the_runtime_environment(tmp_path: Path) -> None:
    made = job().runtime_env(tmp_path, {"HF_HOME": "/cache", "OMP_NUM_THREADS": "2"})
    assert made["working_dir"] == str(tmp_path)
    assert "py_modules" not in made
    assert made["env_vars"].items() >= {**environment.WORKERS, "HF_HOME": "/cache", "OMP_NUM_THREADS": "2"}.items()
    shipped = Submission("pipeline", job().experiment, code=submitting.checkout()).runtime_env(tmp_path, {})
    assert [Path(one).name for one in shipped["py_modules"]] == ["anmi_ray", "jobs"]
    assert "__pycache__" in shipped["excludes"]


def started(folder: Path, python: Path, ray: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A job's driver, started in `folder` where `python` is on the path, below a raylet whose workers run `ray`."""
    job().write(folder)
    arguments = [] if ray is None else [f"--python_worker_command={ray} default_worker.py --node=1"]
    raylet = "import subprocess; raise SystemExit(subprocess.run(['sh', 'driver.sh', '--version']).returncode)"
    path = f"{python.parent}:/usr/bin:/bin"
    variables = {"PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", raylet, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=variables,
        timeout=60,
    )


def interpreter(path: Path, options: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_cluster_without_the_package_is_told_once_what_to_do(tmp_path: Path) -> None:
    done = started(tmp_path, interpreter(tmp_path / "bin" / "python", "-E -S"))
    assert done.returncode == 2
    assert not passing(done.returncode, "JOB_ENTRYPOINT_COMMAND_ERROR")
    assert "No module named 'anmi_ray'" in done.stderr
    assert all(word in done.stderr for word in ("image", "pip install its wheel", "--ship-code"))
    assert "Traceback" not in done.stderr


def test_the_driver_runs_on_rays_python(tmp_path: Path) -> None:
    other = interpreter(tmp_path / "bin" / "python", "-E -S")
    done = started(tmp_path, other, ray=interpreter(tmp_path / "ray" / "python", ""))
    assert (done.returncode, done.stdout.split()[0]) == (0, "anmi_ray"), done.stderr


def test_secrets_are_passed_only_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/cache")
    monkeypatch.setenv("SOME_API_KEY", "word")
    assert variables(["HF_HOME"], []) == {"HF_HOME": "/cache"}
    with pytest.raises(ConfigError, match="looks like a secret") as caught:
        variables(["SOME_API_KEY"], [])
    assert "word" not in str(caught.value)
    assert variables([], ["SOME_API_KEY"]) == {"SOME_API_KEY": "word"}
    value = "http://me:password@proxy:3128"
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(ConfigError, match="--env: the value of HTTPS_PROXY holds a credential") as caught:
        variables(["HTTPS_PROXY"], [])
    assert value not in str(caught.value)
    assert variables([], ["HTTPS_PROXY"]) == {"HTTPS_PROXY": value}
    with pytest.raises(ConfigError, match="NOT_THERE is not set"):
        variables(["NOT_THERE"], [])
    with pytest.raises(ConfigError, match="--secret: NOT_THERE is not set"):
        variables([], ["NOT_THERE"])
    with pytest.raises(ConfigError, match="--env: API_KEY is given a value") as caught:
        variables(["API_KEY=word"], [])
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("exit_code", "error", "again"),
    [
        (2, "JOB_ENTRYPOINT_COMMAND_ERROR", False),  # what a user has to mend
        (5, "JOB_ENTRYPOINT_COMMAND_ERROR", False),  # errors.BudgetError
        (127, "JOB_ENTRYPOINT_COMMAND_ERROR", False),
        (1, "JOB_ENTRYPOINT_COMMAND_ERROR", True),
        (75, "JOB_ENTRYPOINT_COMMAND_ERROR", True),  # errors.LostError
        (-9, "JOB_ENTRYPOINT_COMMAND_ERROR", True),
        (137, "JOB_ENTRYPOINT_COMMAND_ERROR", True),
        (None, "JOB_SUPERVISOR_ACTOR_DIED", True),
        (None, "RUNTIME_ENV_SETUP_FAILURE", False),
        (None, "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", False),
        (None, None, True),
    ],
)
def test_what_may_pass_is_tried_again(exit_code: int | None, error: str | None, again: bool) -> None:
    assert passing(exit_code, error) is again


def test_the_exit_status_is_the_jobs() -> None:
    assert [exit_status("SUCCEEDED", 0), exit_status("STOPPED", None)] == [0, 143]
    assert [exit_status("FAILED", code) for code in (2, 1, -9, None)] == [2, 1, 137, 1]


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"ray-subcluster": "annotate"}, True),
        ({"ray.io/accelerator-type": "in(H100, A100)"}, True),
        ({"ray.io/market-type": "!spot"}, True),
        ({"ray-subcluster": "!in(train)"}, True),
        ({"ray-subcluster": "in()"}, False),
        ({"-x": "annotate"}, False),
        ({"ray-subcluster": "two words"}, False),
        ({"ray-subcluster": ""}, False),
    ],
)
def test_label_selectors_are_checked_where_they_stand(selector: dict[str, str], fits: bool) -> None:
    given = {"execution": {"judge_on": selector, "train": {"label_selector": selector}}}
    if fits:
        assert settings(load.validate(given, "here")) == given
        return
    with pytest.raises(ConfigError, match=r"execution\.judge_on"):
        load.validate(given, "here")


def test_a_type_of_gpu_needs_gpus() -> None:
    with pytest.raises(ConfigError, match="set use_gpu: true"):
        load.validate({"execution": {"train": {"accelerator_type": "H100"}}}, "here")


def test_labels_are_a_clusters() -> None:
    on = {"ray-subcluster": "annotate"}
    given = {"judge_on": on, "train": {"label_selector": on, "num_workers": 3}}
    here = ExecutionConfig.model_validate(given)
    assert here.judging_on == here.training.label_selector == {}
    assert here.training.num_workers == 3
    there = ExecutionConfig.model_validate({**given, "address": "auto"})
    assert there.judging_on == there.training.label_selector == on
