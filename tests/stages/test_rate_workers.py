"""The rate stage through Ray: its bytes depend on nothing but its inputs and settings, however they were carried out.

One Ray of four logical CPUs; a task takes four of them or one, so one worker or four rate at the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core import environment
from anmi_ray.core.identity import bucket_of
from anmi_ray.core.records import CANDIDATE, COMPARISON, FIT, GAP, JUDGMENT, RATING, REJECT
from anmi_ray.core.schema import Record
from anmi_ray.runtime import tasks
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.stages import rate
from anmi_ray.store import Artifact, Flow, Store
from tests.rating.tournaments import tournament

pytestmark = [pytest.mark.ray]
BUCKETS, LOGICAL_CPUS = 8, 4
CONFIGS = {
    "defaults": RateConfig(),
    "fitted": RateConfig(model="bradley-terry", ties="davidson", judge_offsets=True, dispersion="pearson"),
}
Task = Callable[..., list[Flow]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Judgments, comparisons and candidates of 64 queries in buckets: labelled or not, ties, failures, lost pairs."""
    votes, shares = tournament(40, 16, 6, seed=1), tournament(24, 24, 4, positives=False, seed=2, graded=True)
    judgments, comparisons, candidates = (
        pa.concat_tables(tables) for tables in zip(votes.tables, shares.tables, strict=True)
    )
    lost = pc.is_in(judgments["comparison_id"], value_set=comparisons["comparison_id"].combine_chunks()[::17])
    halves = pc.if_else(pc.less(pc.abs(pc.subtract(judgments["p_a"], 0.5)), 0.1), 0.5, judgments["p_a"])
    columns = dict(zip(judgments.schema.names, judgments.columns, strict=True))
    columns["p_a"] = pc.if_else(lost, None, halves)
    columns["error"] = pc.if_else(lost, "timeout", None).cast(pa.string())
    store = Store(str(tmp_path_factory.mktemp("inputs")))
    made: dict[str, Artifact] = {}
    parts: dict[str, tuple[str, Record, pa.Table]] = {
        "judge": ("judgments", JUDGMENT, JUDGMENT.table(columns)),
        "compare": ("comparisons", COMPARISON, comparisons),
        "retrieve": ("candidates", CANDIDATE, candidates),
    }
    for stage, (part, record, table) in parts.items():
        made[stage] = Artifact(store, stage, "0123456789abcdef")
        bucket_of_row = pa.array([bucket_of(query, BUCKETS) for query in table["query_id"].to_pylist()])
        for bucket in range(BUCKETS):
            made[stage].publish_part(part, bucket, table.filter(pc.equal(bucket_of_row, bucket)), record)
    return made


def rated(inputs: dict[str, Artifact], config: RateConfig, root: Path, workers: int) -> dict[str, bytes]:
    """Every file of a rate artifact made in `root` by at most so many workers at a time."""
    logical = environment.cores() * LOGICAL_CPUS // workers
    execution = ExecutionConfig(root=str(root), logical_cpus=logical, window=workers, buckets=BUCKETS)
    store = Store(str(root))
    context = tasks.Context(store, execution, BUCKETS, seed=0, progress=Reporter().progress)
    artifact = Artifact(store, "rate", "fedcba9876543210")
    flows = rate.run(artifact, inputs, config, context)["flows"]
    assert sum(flow.rows_out for flow in flows) == 64
    return {name: store.read(f"{artifact.path}/{name}") for name in store.tree(artifact.path)}


@pytest.fixture(scope="module", params=list(CONFIGS))
def settings(request: pytest.FixtureRequest) -> RateConfig:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def alone(
    ray_local: None, inputs: dict[str, Artifact], settings: RateConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The files that one worker made, bucket after bucket."""
    return rated(inputs, settings, tmp_path_factory.mktemp("alone"), workers=1)


def check_same(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_what_is_compared_is_whole(alone: dict[str, bytes], tmp_path: Path) -> None:
    buckets = {f"{part}/{bucket:05d}.parquet" for part in ("ratings", "fits", "gaps") for bucket in range(BUCKETS)}
    assert buckets | {"globals.json"} <= set(alone)
    store = Store(str(tmp_path))
    artifact = Artifact(store, "rate", "fedcba9876543210")
    for name, data in alone.items():
        store.publish(f"{artifact.path}/{name}", data)
    rows = {
        record.name: sum(artifact.read_part(part, bucket, record).num_rows for bucket in range(BUCKETS))
        for part, record in (("ratings", RATING), ("fits", FIT), ("gaps", GAP))
    }
    assert rows == {"Rating": 40 * 16 + 24 * 24, "Fit": 64, "Gap": 40 * 15 + 24 * 23}
    assert set(artifact.rejects()["reason"].to_pylist()) == {"no answer"}
    assert artifact.rejects().schema == REJECT.schema


def test_four_workers_write_the_bytes_of_one(
    alone: dict[str, bytes],
    inputs: dict[str, Artifact],
    settings: RateConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = tmp_path / "present"
    present.mkdir()

    def together(task: Task) -> Task:
        """The task, begun only when three other processes have begun theirs; a closure, so that it travels whole."""

        def call(*args: object) -> list[Flow]:
            (present / str(os.getpid())).touch()
            begun = time.monotonic()
            while len(list(present.iterdir())) < 4:
                assert time.monotonic() - begun < 60, "no four workers at the same time"
                time.sleep(0.01)
            return task(*args)

        return call

    def run_buckets(
        context: tasks.Context, artifact: Artifact, seal: tuple[str, Record], task: Task, *args: object
    ) -> list[Flow]:
        return tasks.run_buckets(context, artifact, seal, together(task), *args)

    monkeypatch.setattr(rate, "run_buckets", run_buckets)
    check_same(rated(inputs, settings, tmp_path / "root", workers=4), alone)


def test_the_order_of_buckets_does_not_matter(
    alone: dict[str, bytes],
    inputs: dict[str, Artifact],
    settings: RateConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backwards(context: tasks.Context, artifact: Artifact, _: object, task: Task, *args: object) -> list[Flow]:
        """The last bucket first, one at a time."""
        order = reversed(range(context.buckets))
        return [flow for bucket in order for flow in tasks.run_task(context, task, artifact, bucket, *args)]

    monkeypatch.setattr(rate, "run_buckets", backwards)
    check_same(rated(inputs, settings, tmp_path, workers=1), alone)


def test_buckets_redone_by_another_run_are_the_same(
    alone: dict[str, bytes], inputs: dict[str, Artifact], settings: RateConfig, tmp_path: Path
) -> None:
    """Of a run that stopped after every second seal, the others are made by another number of workers."""
    store = Store(str(tmp_path))
    for name, data in alone.items():
        if not name.startswith("ratings/") or int(Path(name).stem) % 2:
            store.publish(f"artifacts/rate/fedcba9876543210/{name}", data)
    check_same(rated(inputs, settings, tmp_path, workers=2), alone)
