"""Mixtures in the mine stage: fitted once to the gaps of a sample of queries, kept, and handed to every bucket."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.config.load import load
from anmi_ray.core.records import CANDIDATE, EXAMPLE, GAP
from anmi_ray.mining.mixture import Mixture, fit
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, Store
from tests.small import start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
BUCKETS = 4


def test_a_mixture_is_fitted_once_and_kept(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    root = start_from(prepared, tmp_path / "root", "rate")
    config = write_config(tmp_path / "small.yaml", small_collection)
    settings = load(config, [f"execution.root={root}", "mine.rule=beta-mixture"])
    record = run(settings, last="mine")
    made = {
        name: Artifact(Store(settings.execution.root), name, found["fingerprint"])
        for name, found in record["stages"].items()
    }
    known = made["mine"].read_json("mixture.json")
    gaps: list[float] = []
    for bucket in range(BUCKETS):
        candidates = made["retrieve"].read_part("candidates", bucket, CANDIDATE).to_pylist()
        positives = {(row["query_id"], row["doc_id"]) for row in candidates if row["is_positive"]}
        rows = made["rate"].read_part("gaps", bucket, GAP).to_pylist()
        gaps += [row["gap_elo"] for row in rows if (row["query_id"], row["doc_id"]) not in positives]
    assert len(gaps) > 500
    expected = fit(np.sort(np.array(gaps)), settings.mine.weigh)  # type: ignore[arg-type]
    assert known == json.loads(json.dumps(asdict(expected)))
    assert Mixture.from_dict(known) == expected
    assert any(made["mine"].read_part("examples", bucket, EXAMPLE).num_rows for bucket in range(BUCKETS))
    for name in ("manifest.json", "examples/00000.parquet"):
        (Path(settings.execution.root) / made["mine"].path / name).unlink()
    before = (Path(settings.execution.root) / made["mine"].path / "mixture.json").stat().st_mtime_ns
    assert run(settings, last="mine")["stages"] == record["stages"]
    assert (Path(settings.execution.root) / made["mine"].path / "mixture.json").stat().st_mtime_ns == before
