"""Mixtures in the mine stage: fitted once to the gaps of a sample of queries, kept, and handed to every bucket."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.core.records import CANDIDATE, EXAMPLE, GAP
from anmi_ray.mining.mixture import Mixture, fit
from tests.small import start_from
from tests.stages.runs import World

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_mixture_is_fitted_once_and_kept(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    world = World(tmp_path, small_collection)
    start_from(prepared, world.root, "rate")
    done = world.carry_out("mine.rule=beta-mixture")
    known = done.artifact("mine").read_json("mixture.json")
    candidates = done.part("retrieve", "candidates", CANDIDATE).to_pylist()
    positives = {(row["query_id"], row["doc_id"]) for row in candidates if row["is_positive"]}
    rows = done.part("rate", "gaps", GAP).to_pylist()
    gaps = [row["gap_elo"] for row in rows if (row["query_id"], row["doc_id"]) not in positives]
    assert len(gaps) > 500
    expected = fit(np.sort(np.array(gaps)), done.settings.mine.weigh)  # type: ignore[arg-type]
    assert known == json.loads(json.dumps(asdict(expected)))
    assert Mixture.from_dict(known) == expected
    assert done.part("mine", "examples", EXAMPLE).num_rows
    for name in ("manifest.json", "examples/00000.parquet"):
        (done.folder("mine") / name).unlink()
    before = (done.folder("mine") / "mixture.json").stat().st_mtime_ns
    assert world.carry_out("mine.rule=beta-mixture").record["stages"] == done.record["stages"]
    assert (done.folder("mine") / "mixture.json").stat().st_mtime_ns == before
