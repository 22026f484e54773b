"""Negatives chosen anew under one or several rules, on a small real run through Ray and the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.config.rules import NAMED
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import CANDIDATE, EXAMPLE, QREL, TRUTH
from anmi_ray.core.scale import ELO_PER_PROBIT
from anmi_ray.pipeline.mining_runs import from_run, from_run_by_rule, mine
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, Store
from anmi_ray.store.runs import find_run
from jobs.studies import mined_rules
from tests.commands import printed, refused
from tests.models.tiny import write_tiny_bert
from tests.small import Remembering, start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
BUCKETS = 4


@dataclass(frozen=True)
class Done:
    """A run as far as mine."""

    settings: Experiment
    root: Path
    record: dict[str, Any]

    def artifact(self, run: str, stage: str) -> Artifact:
        store, record = find_run(run, str(self.root))
        return Artifact(store, stage, record["stages"][stage]["fingerprint"])


@pytest.fixture(scope="module")
def done(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("rules")
    start_from(prepared, folder / "root", "mine")
    settings = load(write_config(folder / "small.yaml", small_collection), [f"execution.root={folder / 'root'}"])
    return Done(settings, folder / "root", run(settings, last="mine"))


def test_every_named_rule_works_with_simulated_judges(done: Done) -> None:
    """Those that need more than ratings too: a mixture, a second round of judgments."""
    rules = list(NAMED)
    told = Remembering()
    mined = mine(from_run_by_rule("small", str(done.root), ",".join(rules), []), told)
    assert [one["run"] for one in mined] == [f"small-{rule}" for rule in rules]
    assert told.computed.count("mine") == len(rules) - 1  # the run's own rule is the default
    assert mined[rules.index("posterior")]["artifact"] == done.record["stages"]["mine"]["fingerprint"]
    again = Remembering()
    assert mine(from_run_by_rule("small", str(done.root), "table2,simans", []), again)
    assert again.computed == []
    assert Store(str(done.root)).read_json("runs/small.json") == done.record
    [mixture] = [one for one in mined if one["run"] == "small-gaussian-mixture"]
    assert all(isinstance(at, float) for at in mixture["thresholds"])


def test_negatives_anew_leave_the_run_as_it_was(done: Done) -> None:
    settings = from_run("small", str(done.root), "table2", ["mine.negatives=2"])
    assert settings.name == "small-table2-negatives-2"
    told = Remembering()
    [mined] = mine([settings], told)
    assert told.computed == ["mine"]
    assert mined["composition"] == "table2 -> top"
    assert mined["negatives_per_example"] <= 2 + 1
    assert Store(str(done.root)).read_json("runs/small.json") == done.record
    relative = from_run("small", str(done.root), None, ["mine.weigh.penalty=1", "mine.allow=[]"])
    assert relative.mine.rule is None
    assert relative.mine.composition == "posterior -> top"


def test_a_run_that_trained_keeps_its_record(done: Done) -> None:
    path = done.root / "runs" / "small-trained.json"
    record = {**done.record, "name": "small-trained"}
    trained = {**record, "stages": {**record["stages"], "train": {"fingerprint": "x"}}}
    path.write_text(json.dumps(trained))
    with pytest.raises(ConfigError, match="trained a model on other negatives"):
        mine([from_run("small", str(done.root), "uniform", ["name=small-trained"])])
    mine([from_run("small", str(done.root), "posterior", ["name=small-trained"])])
    assert json.loads(path.read_text()) == trained
    path.unlink()


def test_the_command(done: Done, tmp_path: Path) -> None:
    out = tmp_path / "mined.json"
    found = printed("mine", "small", "--rule", "percentile", "--root", done.root, "--out", out)
    content = json.loads(out.read_text())
    assert content["composition"] == "percentile -> top"
    assert f"{content['categories']['goldilocks']['negatives']:,}" in found
    found = printed("mine", "small", "--rule", "table2,percentile", "--root", done.root, "--out", out)
    content = json.loads(out.read_text())["runs"]
    assert [one["run"] for one in content] == ["small-table2", "small-percentile"]
    rows = [line.split() for line in found.splitlines() if line.strip().startswith("small-")]
    assert [row[0] for row in rows] == ["small-table2", "small-percentile"]
    assert rows[0][1] == f"{content[0]['examples']:,}"
    assert "absent" in refused("mine", "small", "--rule", "table2", "--out", "absent/a.json", "--root", done.root)


def test_true_shares_are_those_of_the_judges_truth(done: Done, tmp_path: Path) -> None:
    """Counted again, one negative after another."""
    mine(from_run_by_rule("small", str(done.root), "table2,uniform", []))
    truth = {
        (row["query_id"], row["doc_id"]): row["latent"]
        for bucket in range(BUCKETS)
        for row in done.artifact("small", "judge").read_part("truth", bucket, TRUTH).to_pylist()
    }
    for name in ("small-table2", "small-uniform"):
        false = []
        for bucket in range(BUCKETS):
            for example in done.artifact(name, "mine").read_part("examples", bucket, EXAMPLE).to_pylist():
                anchor = example["doc_ids"][0]
                for document, weight, gap in zip(*(example[n] for n in ("doc_ids", "weights", "gaps")), strict=True):
                    if gap is not None and weight > 0 and document != anchor:
                        latent = truth[example["query_id"], anchor] - truth[example["query_id"], document]
                        false.append(latent * ELO_PER_PROBIT < 100.0)
        found = mined_rules.shares_of(*find_run(name, str(done.root)))
        assert found["true"].mean == pytest.approx(np.mean(false))
        assert found["negatives"] == len(false)
        assert found["hidden"] is None
    mined_rules.main(["small-table2", "small-uniform", "--root", str(done.root), "--out", str(tmp_path)])
    assert len(json.loads((tmp_path / "mined_rules.json").read_text())["tables"][0]["rows"]) == 2


def test_hidden_positives_are_counted(ray_local: None, small_collection: Path, tmp_path: Path) -> None:
    """Half of the known positives hidden, in a collection in which every query has two."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).symlink_to(small_collection / name)
    (folder / "qrels").mkdir()
    documents = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    for split in ("train", "dev", "test"):
        head, *lines = (small_collection / "qrels" / f"{split}.tsv").read_text().splitlines()
        known = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
        lines = [
            f"{query}\t{d}\t1"
            for query, doc in known.items()
            for d in (doc, documents[0 if doc != documents[0] else 1])
        ]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join([head, *lines]) + "\n")
    tiny = write_tiny_bert(tmp_path / "tiny")
    overrides = [f"execution.root={tmp_path / 'root'}", "rate.hide_positives=0.5", f"retrieve.dense.model={tiny}"]
    overrides.append("mine.rule=uniform")
    settings = load(write_config(tmp_path / "two.yaml", folder), overrides)
    two = Done(settings, tmp_path / "root", run(settings, last="mine"))
    mined = hidden = 0
    for bucket in range(BUCKETS):
        qrels = two.artifact("small", "ingest").read_part("qrels", bucket, QREL).to_pylist()
        relevant = {(row["query_id"], row["doc_id"]) for row in qrels}
        candidates = two.artifact("small", "retrieve").read_part("candidates", bucket, CANDIDATE).to_pylist()
        assert all(row["is_positive"] == ((row["query_id"], row["doc_id"]) in relevant) for row in candidates)
        for row in mined_rules.chosen(two.artifact("small", "mine").read_part("examples", bucket, EXAMPLE)).to_pylist():
            mined += 1
            hidden += (row["query_id"], row["doc_id"]) in relevant
    found = mined_rules.shares_of(*find_run("small", str(two.root)))
    assert hidden > 0
    assert found["hidden"].mean == pytest.approx(hidden / mined)
