"""Negatives chosen anew, and rules compared, on a small real run through Ray and the store."""

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
from anmi_ray.mining import compared
from anmi_ray.pipeline import compare_rules
from anmi_ray.pipeline.mining_runs import carry_out, from_run, mine, run_under
from anmi_ray.pipeline.run import run
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Artifact, Store
from tests.commands import printed, refused
from tests.models.tiny import write_tiny_bert
from tests.small import Remembering, start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
WANTED = ("posterior", "table2", "simans", "uniform")
BUCKETS = 4


@dataclass(frozen=True)
class Done:
    """A run as far as mine, and its rules compared."""

    settings: Experiment
    root: Path
    record: dict[str, Any]
    told: Remembering
    figures: dict[str, Any]
    page: Path


@pytest.fixture(scope="module")
def done(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("rules")
    start_from(prepared, folder / "root", "mine")
    settings = load(write_config(folder / "small.yaml", small_collection), [f"execution.root={folder / 'root'}"])
    record = run(settings, last="mine")
    told = Remembering()
    found = compare_rules.run(settings, told, WANTED)
    return Done(settings, folder / "root", record, told, dict(found.figures), Path(found.path))


def artifact(done: Done, rule: str) -> Artifact:
    of = next(one for one in done.figures["rules"] if one["rule"] == rule)
    return Artifact(Store(str(done.root)), "mine", of["artifact"])


def test_rules_share_ratings_and_artifacts_with_ordinary_runs(done: Done) -> None:
    assert done.told.computed == ["mine"] * (len(WANTED) - 1)  # the run's own rule is the default
    assert artifact(done, "posterior").fingerprint == done.record["stages"]["mine"]["fingerprint"]
    told = Remembering()
    ordinary = done.settings.model_copy(
        update={"name": "ordinary", "mine": run_under(done.settings, "table2", "x").mine}
    )
    record = run(ordinary, told, last="mine")
    assert told.computed == []
    assert record["stages"]["mine"]["fingerprint"] == artifact(done, "table2").fingerprint
    assert Store(str(done.root)).read_json("runs/small.json") == done.record


def test_a_second_comparison_computes_nothing(done: Done) -> None:
    told, before = Remembering(), done.page.stat().st_mtime_ns
    again = compare_rules.run(done.settings, told, WANTED)
    assert told.computed == []
    assert again.figures == done.figures
    assert done.page.stat().st_mtime_ns == before


def test_true_shares_are_those_of_the_judges_truth(done: Done) -> None:
    """Counted again, one negative after another."""
    judge = Artifact(Store(str(done.root)), "judge", done.record["stages"]["judge"]["fingerprint"])
    truth = {
        (row["query_id"], row["doc_id"]): row["latent"]
        for bucket in range(BUCKETS)
        for row in judge.read_part("truth", bucket, TRUTH).to_pylist()
    }
    for rule in done.figures["rules"]:
        weights, false = [], []
        for bucket in range(BUCKETS):
            for example in artifact(done, rule["rule"]).read_part("examples", bucket, EXAMPLE).to_pylist():
                anchor = truth[example["query_id"], example["doc_ids"][0]]
                for document, weight, gap in zip(*(example[n] for n in ("doc_ids", "weights", "gaps")), strict=True):
                    if gap is not None and weight > 0 and document != example["doc_ids"][0]:
                        weights.append(weight)
                        gap = (anchor - truth[example["query_id"], document]) * ELO_PER_PROBIT
                        false.append(gap < 100.0)
        assert rule["true"]["mean"] == pytest.approx(np.average(false, weights=weights))
        assert rule["true_all"]["mean"] == pytest.approx(np.mean(false))
        assert rule["true"]["low"] <= rule["true"]["mean"] <= rule["true"]["high"]
        assert rule["weight"]["mean"] == pytest.approx(np.mean(weights))
    against = {rule["rule"]: rule["against"] for rule in done.figures["rules"]}
    assert against["posterior"] is None
    assert all(0 < against[rule]["p"] <= against[rule]["p_holm"] <= 1 for rule in WANTED[1:])


def test_what_was_taken_by_gap_is_all_that_was_taken(done: Done) -> None:
    for rule in done.figures["rules"]:
        taken = sum((one["mean"] or 0.0) * one["n"] for one in rule["taken"])
        chosen = [
            gap
            for bucket in range(BUCKETS)
            for gap in compared.chosen(artifact(done, rule["rule"]).read_part("examples", bucket, EXAMPLE))[
                "gap_elo"
            ].to_pylist()
            if done.figures["edges"][0] <= gap < done.figures["edges"][-1]
        ]
        assert taken == pytest.approx(len(chosen))


def test_every_named_rule_works_with_simulated_judges(done: Done) -> None:
    """Those that need more than ratings too: a mixture, a second round of judgments."""
    told = Remembering()
    settings = done.settings.model_copy(update={"name": "all"})
    found = compare_rules.run(settings, told).figures
    assert [one["rule"] for one in found["rules"]] == list(NAMED)
    assert found["left_out"] == {}
    assert told.computed.count("mine") == len(NAMED) - len(WANTED)
    for rule in found["rules"]:
        # what was taken had weight, by the weights that are drawn
        for weight, taken in zip(rule["weights"], rule["taken"], strict=True):
            assert weight["n"] == taken["n"]
            assert (weight["mean"] or 0.0) > 0 or not taken["mean"], rule["rule"]
    [mixture] = [one for one in found["rules"] if one["rule"] == "gaussian-mixture"]
    assert all(isinstance(at, float) for at in mixture["thresholds"])
    assert found["notes"][-1].startswith("validated: with ratings of its own")
    assert "score-margin" in found["notes"][0]


def test_the_page_names_every_rule(done: Done) -> None:
    page = done.page.read_text(encoding="utf-8")
    assert done.page == done.root / "reports" / "small-rules" / "index.html"
    assert all(f"<h3>{rule}</h3>" in page for rule in WANTED)
    assert done.figures["baseline"] == "posterior"
    assert done.figures["true_known"] is True
    assert done.figures["hidden"] is None
    assert done.figures["sampled"] == done.figures["queries"] > 0


def test_what_cannot_work_is_left_out_with_its_reason(done: Done) -> None:
    zero = [{"category": "danger", "below": 1e4, "weight": 0.0}, {"category": "easy", "below": None, "weight": 0.0}]
    mine_ = {"random_negatives": 0, "bands": zero}
    settings = done.settings.model_copy(
        update={"name": "zero", "mine": type(done.settings.mine).model_validate(mine_)}
    )  # fmt: skip
    found = compare_rules.run(settings, Reporter(), ["table2", "uniform"]).figures
    empty, uniform = found["rules"]
    assert (empty["examples"], empty["queries"], empty["estimated"]["mean"]) == (0, 0, None)
    assert empty["rejected"] == uniform["queries"] > 0
    assert found["baseline"] == "table2"
    assert uniform["against"] is None
    with pytest.raises(ConfigError, match="no composition of rules is called 'tabel2'"):
        compare_rules.run(settings, Reporter(), ["tabel2"])


def test_hidden_positives_are_counted(ray_local: None, done: Done, small_collection: Path, tmp_path: Path) -> None:
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
    settings = load(write_config(tmp_path / "two.yaml", folder), overrides)
    found = compare_rules.run(settings, Reporter(), ["uniform"]).figures
    assert found["hidden"] == found["queries"]
    ingest_to_mine = json.loads((tmp_path / "root" / "runs" / "small-rules-uniform.json").read_text())["stages"]
    store = Store(settings.execution.root)
    parts = {
        name: Artifact(store, name, ingest_to_mine[name]["fingerprint"]) for name in ("ingest", "retrieve", "mine")
    }
    mined = hidden = 0
    for bucket in range(BUCKETS):
        relevant = {(r["query_id"], r["doc_id"]) for r in parts["ingest"].read_part("qrels", bucket, QREL).to_pylist()}
        candidates = parts["retrieve"].read_part("candidates", bucket, CANDIDATE).to_pylist()
        assert all(r["is_positive"] == ((r["query_id"], r["doc_id"]) in relevant) for r in candidates)
        for row in compared.chosen(parts["mine"].read_part("examples", bucket, EXAMPLE)).to_pylist():
            mined += 1
            hidden += (row["query_id"], row["doc_id"]) in relevant
    assert hidden > 0
    assert found["rules"][0]["hidden"]["mean"] == pytest.approx(hidden / mined)


def test_negatives_anew_leave_the_run_as_it_was(done: Done) -> None:
    settings = from_run("small", str(done.root), "table2", ["mine.negatives=2"])
    assert settings.name == "small-table2-negatives-2"
    told = Remembering()
    mined = mine(settings, told)
    assert told.computed == ["mine"]
    assert mined.composition == "table2 -> top"
    assert mined.summary["negatives_per_example"] <= 2 + 1
    assert Store(str(done.root)).read_json("runs/small.json") == done.record
    same = from_run("small", str(done.root), "table2", [])
    assert mine(same).fingerprint == artifact(done, "table2").fingerprint
    relative = from_run("small", str(done.root), None, ["mine.weigh.penalty=1", "mine.allow=[]"])
    assert relative.mine.rule is None
    assert relative.mine.composition == "posterior -> top"


def test_a_run_that_trained_keeps_its_record(done: Done) -> None:
    path = done.root / "runs" / "small-uniform.json"
    record = {**done.record, "name": "small-uniform"}
    trained = {**record, "stages": {**record["stages"], "train": {"fingerprint": "x"}}}
    path.write_text(json.dumps(trained))
    with pytest.raises(ConfigError, match="trained a model on other negatives"):
        carry_out(from_run("small", str(done.root), "uniform", []))
    same = from_run("small", str(done.root), "posterior", ["name=small-uniform"])
    carry_out(same)
    assert json.loads(path.read_text()) == trained
    path.unlink()


def test_the_commands(done: Done, small_collection: Path, tmp_path: Path) -> None:
    out = tmp_path / "mined.json"
    found = printed("mine", "small", "--rule", "percentile", "--root", done.root, "--json", out)
    content = json.loads(out.read_text())
    assert content["composition"] == "percentile -> top"
    assert f"{content['categories']['goldilocks']['negatives']:,}" in found
    assert "false negatives (true gap below 100 Elo), estimated, in %:" in found
    config = write_config(tmp_path / "small.yaml", small_collection)
    found = printed("compare-rules", config, "--rules", ",".join(WANTED), "--root", done.root)
    assert f"page: {done.page}" in found
    lines = [line.split()[0] for line in found.splitlines() if line.strip()]
    assert [line for line in lines if line in WANTED] == list(WANTED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine", "small", "--rule", "table2", "--json", "absent/a.json"), "absent"),
        (("compare-rules", "CONFIG", "--rules", "table2,simens"), "did you mean simans?"),
        (("compare-rules", "CONFIG", "--rules", ","), "no rule is named"),
    ],
)
def test_mistakes_are_one_message(
    done: Done, small_collection: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    config = write_config(tmp_path / "small.yaml", small_collection)
    given = (config if one == "CONFIG" else one for one in arguments)
    assert said in refused(*given, "--root", done.root)
