"""Trainings side by side on a small collection: killed, stopped, resumed, and what it makes of known values."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from anmi_ray.config.rules import GateRule
from anmi_ray.core.errors import ConfigError
from jobs.studies import trainings as study
from jobs.studies.harness import read_settings
from tests.interrupts import heeding

SCRIPT = Path(study.__file__)
SHIPPED = SCRIPT.with_name("rules.yaml")
RECIPES = SCRIPT.with_name("recipes.yaml")
SMALL = {
    "name": "small-study",
    "title": "Rules",
    "claim": "None.",
    "seeds": 1,
    "level": 0.05,
    "power": 0.8,
    "references": ["rank-window"],
    "variants": {
        "posterior": {"mine": {"rule": "posterior"}},
        "rank-window": {"mine": {"rule": "rank-window", "allow": [{"rule": "rank-window", "first": 3}]}},
        "zelo": {"recipe": "zelo"},
    },
    "settings": {
        "retrieve": {"depth": 30, "candidates": 14, "random_negatives": 3, "dense": {"max_tokens": 32}},
        "compare": {"degree": 4},
        "mine": {"sample": "weighted", "negatives": 3, "random_negatives": 1, "rated_extra": 0},
        "train": {"lists_per_step": 4, "max_steps": 3, "max_tokens": 48, "dev_points": [], "engine": "ddp"},
        "rerank": {"depth": 5},
        "execution": {"buckets": 2, "object_store_gb": 0.1},
    },
    "collections": {
        "small": {
            "note": "of a test.",
            "assumed_sd": 0.2,
            "seconds": 20,
            "needs_path": True,
            "settings": {"corpus": {"reader": "beir"}},
        }
    },
}


def arguments(**more: object) -> argparse.Namespace:
    given = {"data": ["scifact=folder"], "root": "root", "out": None, "collections": None, "seeds": None}
    return argparse.Namespace(**{**given, "variants": None, **more})


def test_rules_differ_in_mine_alone_and_seeds_in_the_training_seed() -> None:
    shipped = read_settings(study.Plan, SHIPPED)
    plan = study.prepare(shipped, arguments())
    assert len(plan.experiments) == len(shipped.variants) * shipped.seeds * len(shipped.collections)
    assert len({one.name for one in plan.experiments.values()}) == len(plan.experiments)
    for collection in plan.collections:
        first = plan.experiments[study.Key(collection, plan.variants[0], 0)]
        for key, one in plan.experiments.items():
            if key.collection == collection:
                same = {"name": first.name, "mine": first.mine, "train": one.train.model_copy(update={"seed": 0})}
                assert one.model_copy(update=same) == first
                assert one.train.seed == key.seed


def test_compositions_keep_their_own_draw_and_share_the_counts() -> None:
    plan = study.prepare(read_settings(study.Plan, SHIPPED), arguments())
    mines = {key.variant: one.mine for key, one in plan.experiments.items()}
    drawn = {name: mine.sample.rule for name, mine in mines.items()}
    assert drawn["posterior"] == drawn["table2"] == drawn["denoise"] == "weighted"
    assert drawn["simans"] == "simans"
    assert drawn["rank-window"] == drawn["score-margin"] == "ranked"
    assert mines["posterior"].model_copy(update={"allow": mines["posterior-05"].allow}) == mines["posterior-05"]
    for name, largest in {"posterior": 0.02, "posterior-05": 0.05}.items():
        assert mines[name].allow == (GateRule(rule="gate", largest=largest),)
    sizes = {(mine.negatives, mine.random_negatives) for name, mine in mines.items() if name != "random"}
    assert len(sizes) == 1
    assert mines["random"].random_negatives == sum(sizes.pop())


def test_recipes_differ_in_mine_and_train_alone_and_read_lists_of_one_size() -> None:
    plan = study.prepare(read_settings(study.Plan, RECIPES), arguments())
    assert plan.variants == ("infonce-mined", "zelo", "anmi2", "anmi2-extended")
    first = plan.experiments[study.Key("quickstart", "anmi2", 0)]
    for key, one in plan.experiments.items():
        assert one.recipe == key.variant
        assert one.train.seed == key.seed
        assert one.mine.negatives + one.mine.random_negatives == 5
        if key.collection == "quickstart":
            same = {name: getattr(first, name) for name in ("name", "recipe", "mine", "train")}
            assert one.model_copy(update=same) == first
            assert (one.train.max_steps, one.train.learning_rate) == (first.train.max_steps, first.train.learning_rate)


def test_what_the_command_line_leaves() -> None:
    shipped = read_settings(study.Plan, SHIPPED)
    assert study.prepare(shipped, arguments(data=[])).collections == ("quickstart",)
    some = study.prepare(shipped, arguments(variants="posterior,table2", seeds=2, collections="scifact"))
    assert len(some.experiments) == 4
    assert some.families == {"table2": [("posterior", "table2")]}
    with pytest.raises(ConfigError, match="posteriour"):
        study.prepare(shipped, arguments(variants="posteriour"))
    with pytest.raises(ConfigError, match="--data scifact=FOLDER"):
        study.prepare(shipped, arguments(data=[], collections="scifact"))


@pytest.mark.slow
def test_known_differences_are_called_what_they_are() -> None:
    some = "posterior,posterior-05,table2,rank-window"
    plan = study.prepare(read_settings(study.Plan, SHIPPED), arguments(variants=some))
    random, values = np.random.default_rng(0), {}
    for collection, queries in (("quickstart", 400), ("scifact", 300)):
        base = random.uniform(0.3, 0.8, queries)
        for rule in plan.variants:
            gain = {"posterior": 0.1, "rank-window": 0.0}.get(rule, 0.001)
            values[collection, rule] = base + gain + random.normal(0, 0.1, (3, queries))
    found = study.contrasts(plan, values)
    against = {one.system: one for one in found["rank-window"]["pooled"]}
    assert against["posterior"].queries == 700
    assert against["posterior"].verdict() == "real"
    assert {one.verdict() for name, one in against.items() if name != "posterior"} == {"not significant"}
    assert list(found["posterior-05 and posterior"]) == ["pooled", "quickstart", "scifact"]
    sds = study.observed_sds(plan, found)
    assert sds["scifact"] == pytest.approx(0.1 * np.sqrt(2 / 3), rel=0.1)
    for collection, queries in (("quickstart", 400), ("scifact", 300)):
        values |= {(collection, start): np.full((1, queries), 0.5) for start in study.STARTS}
    tables = study.results(plan, values).tables
    assert len(tables) == 2 + 3 * 3 + 1  # levels, two references and a pair in three scopes, what could be detected
    assert tables[2].rows[0][0] == "posterior − rank-window"


def start(folder: Path, collection: Path, workers: int) -> subprocess.Popen[str]:
    config = folder / "small.yaml"
    config.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    where = ["--data", f"small={collection}", "--root", str(folder / "root"), "--workers", str(workers)]
    path = os.pathsep.join(filter(None, (str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        heeding([sys.executable, "-m", "jobs.studies.trainings", str(config), *where]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def until(process: subprocess.Popen[str], begins: str) -> str:
    """Read until a line begins so; all that was said."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(begins):
            return said
    raise AssertionError(f"it ended before it said {begins!r}: {said}")


def finished(root: Path) -> dict[Path, int]:
    stages = ("mine", "train", "rerank")
    return {
        path: path.stat().st_mtime_ns for name in stages for path in (root / "artifacts" / name).glob("*/manifest.json")
    }


@pytest.mark.ray
@pytest.mark.studies
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_stopped_and_resumed(small_collection: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with start(tmp_path, small_collection, workers=1) as process:
        said = until(process, "✓ 1 of 3 ")
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert "0 of 3 trainings are done" in said
    assert psutil.wait_procs(family, timeout=60)[1] == []  # nobody trains on when the study is dead
    before = finished(root)
    with start(tmp_path, small_collection, workers=2) as process:
        said = until(process, "1 of 3 trainings are done")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert "the same command goes on from here" in process.stdout.read()
        assert process.wait(timeout=120) == 130
    assert psutil.wait_procs(family, timeout=60)[1] == []
    before |= finished(root)
    with start(tmp_path, small_collection, workers=2) as process:
        said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    assert "1 of 3 trainings are done" in said
    assert "as far as it is shared" not in said
    assert "| posterior | " in said
    after = finished(root)
    assert {path: after[path] for path in before} == before  # nothing finished was made again
    assert len(after) == 3 + 3 + 3
    record = json.loads((root / "studies" / "small-study.json").read_text(encoding="utf-8"))
    assert len(record["values"]["levels"]) == 3 + len(study.STARTS)
    assert record["values"]["differences"]["rank-window"]["small"][0]["seeds"] == 1
    assert "> None." in (root / "studies" / "small-study.md").read_text(encoding="utf-8")
    with start(tmp_path, small_collection, workers=2) as process:
        again, _ = process.communicate(timeout=120)
    assert "3 of 3 trainings are done" in again
    assert "✓" not in again
    assert said[said.index("small, nDCG@10") :] == again[again.index("small, nDCG@10") :]
