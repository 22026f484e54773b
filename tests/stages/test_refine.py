"""Refinement carried out: rounds that ask, rate and train on, what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.comparisons import PAIRS
from anmi_ray.config.load import load
from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.pipeline import refining
from anmi_ray.pipeline.refining import Refined, Round
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, Store, runs
from tests.models.tiny import write_tiny_bert
from tests.small import start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]


@pytest.fixture(scope="module")
def root(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that has trained."""
    folder = tmp_path_factory.mktemp("refine")
    tiny = str(write_tiny_bert(folder / "tiny"))
    train = {"model": tiny, "max_steps": 2, "max_tokens": 48, "dev_points": [1.0]}
    config = write_config(folder / "small.yaml", small_collection, train=train)
    root = start_from(prepared, folder / "root", "mine")
    run(load(config, [f"execution.root={root}"]))
    return root


def refined(root: Path, rounds: int | None = None, overrides: list[str] | None = None) -> tuple[list[Round], Refined]:
    steps = refining.carry_out(refining.of_run("small", str(root), overrides or []), rounds)
    done = []
    while True:
        try:
            done.append(next(steps))
        except StopIteration as end:
            return done, end.value


def part(root: Path, name: str, stage: str, table: str, record: Any) -> pa.Table:
    store = Store(str(root))
    known = runs.recorded(store, name)
    assert known is not None
    artifact = Artifact(store, stage, known["stages"][stage]["fingerprint"])
    return pa.concat_tables([artifact.read_part(table, bucket, record) for bucket in range(4)])


def test_two_rounds(root: Path) -> None:
    done, found = refined(root, 2)
    print(found)
    assert 0
