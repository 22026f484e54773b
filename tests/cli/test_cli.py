"""The commands as a user meets them: one message per mistake, exit code 2, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import anmi
from tests.small import write_config


@pytest.fixture
def config(small_collection: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "small.yaml", small_collection)


def refused(*arguments: str | Path) -> str:
    done = anmi(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    return done.stderr


def test_help_and_version() -> None:
    assert "rerankers" in anmi("--help").stdout
    assert anmi("--version").stdout.startswith("anmi_ray ")


def test_as_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anmi_ray", "run", str(tmp_path / "absent.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no such configuration file" in done.stderr
    assert "remedy" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_an_unknown_key_names_the_nearest(config: Path) -> None:
    assert "did you mean compare.degree?" in refused("run", config, "compare.degre=4")


def test_k_larger_than_the_candidates(config: Path) -> None:
    assert "lower compare.degree" in refused("plan", config, "compare.degree=40")


def test_a_missing_collection(config: Path, tmp_path: Path) -> None:
    assert "absent" in refused("run", config, f"corpus.path={tmp_path / 'absent'}", "--root", tmp_path / "root")


def test_an_unknown_run(tmp_path: Path) -> None:
    assert "no run of that name" in refused("show", "nothing", "--root", tmp_path)


def test_an_unknown_stage(config: Path) -> None:
    assert "did you mean train?" in refused("run", config, "--from", "trian")


def test_a_stage_that_only_other_runs_have(config: Path) -> None:
    said = refused("run", config, "--until", "label")
    assert "this run has no stage label" in said
    assert "anmi distill" in said


def test_a_judge_cannot_be_distilled_from_itself(config: Path, tmp_path: Path) -> None:
    said = refused("distill", config, "distill.judge.judges=[{kind: distilled}]", "--root", tmp_path / "root")
    assert "cannot ask the distilled judge" in said
    assert not (tmp_path / "root").exists()


def test_stages_in_the_wrong_order(config: Path) -> None:
    assert "comes after" in refused("run", config, "--from", "train", "--until", "judge")


def test_an_unknown_option(config: Path) -> None:
    assert "No such option" in refused("run", config, "--rot", "x")


def test_a_root_that_cannot_be_written(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "remedy" in refused("run", config, "--root", tmp_path / "file" / "root")


def test_the_plan_does_nothing(config: Path, tmp_path: Path) -> None:
    done = anmi("plan", config, "--root", tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert "to do: about" in done.stdout
    assert not (tmp_path / "root").exists()


def test_config_prints_values_and_fingerprints(config: Path, tmp_path: Path) -> None:
    done = anmi("config", config, "--root", tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout
    assert "not run yet" in done.stdout


def test_doctor_as_json() -> None:
    done = anmi("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_evaluate_without_qrels(small_collection: Path, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    said = refused("evaluate", "--collection", small_collection, "--run", tmp_path / "run.trec", "--split", "nothing")
    assert "--split" in said


def test_a_broken_run_file(small_collection: Path, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1\n")
    said = refused("evaluate", "--collection", small_collection, "--run", tmp_path / "run.trec")
    assert "run.trec:1" in said


def test_rerank_without_a_model(small_collection: Path, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    options = ("--collection", small_collection, "--run", tmp_path / "run.trec", "--out", tmp_path / "out.trec")
    assert "holds no model" in refused("rerank", "--model", tmp_path, *options)
