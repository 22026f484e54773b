"""The rate stage through Ray: its bytes depend on nothing but its inputs and settings, however they were carried out.

One Ray of four logical CPUs, of which an actor takes one.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import DataError, LostError
from anmi_ray.core.identity import bucket_of
from anmi_ray.core.records import CANDIDATE, COMPARISON, FIT, GAP, JUDGMENT, RATING, REJECT
from anmi_ray.core.schema import Record
from anmi_ray.rating import TOP_RATED, Globals
from anmi_ray.runtime import tasks
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.stages import rate
from anmi_ray.store import Artifact, Flow, Store
from tests.rating.tournaments import tournament

pytestmark = [pytest.mark.ray]
BUCKETS, LOGICAL_CPUS = 8, 4
Inputs = dict[str, Artifact]
Files = dict[str, bytes]
FITTED = RateConfig(model="bradley-terry", ties="davidson", judge_offsets=True)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
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


def rated(inputs: Inputs, root: Path, actors: int) -> Files:
    """Every file of a rate artifact, with all that can be fitted, made in `root` by so many actors."""
    logical = environment.cores()  # so that a core is one of Ray's CPUs
    execution = ExecutionConfig(root=str(root), logical_cpus=logical, raters=actors, buckets=BUCKETS)
    store = Store(str(root))
    context = tasks.Context(store, execution, BUCKETS, seed=0, progress=Reporter().progress)
    artifact = Artifact(store, "rate", "fedcba9876543210")
    flows = rate.run(artifact, inputs, FITTED, context)["flows"]
    assert sum(flow.rows_out for flow in flows) == 64
    return {name: store.read(f"{artifact.path}/{name}") for name in store.tree(artifact.path)}


@pytest.fixture(scope="module")
def alone(ray_local: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files that one actor made, bucket after bucket."""
    return rated(inputs, tmp_path_factory.mktemp("alone"), actors=1)


def check_same(found: Files, expected: Files) -> None:
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_what_is_compared_is_whole(alone: Files, tmp_path: Path) -> None:
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
    assert rows == {"Rating": 40 * 16 + 24 * 24, "Fit": 64, "Gap": 40 * 15 + 24 * TOP_RATED * 23}
    assert set(artifact.rejects()["reason"].to_pylist()) == {"no answer"}
    assert artifact.rejects().schema == REJECT.schema


def before_each(what: Callable[[Artifact, int], None]) -> type[rate.Rater]:
    """Rating as it is, with `what` done before each bucket; a local class, so that it travels whole."""

    class Watched(rate.Rater):
        def rate(self, artifact: Artifact, bucket: int, shared: Globals) -> list[Flow]:
            what(artifact, bucket)
            return super().rate(artifact, bucket, shared)

    return Watched


def test_several_actors_write_the_bytes_of_one(
    alone: Files, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five, one finds no room: nothing waits for it."""
    present = tmp_path / "present"
    present.mkdir()

    def together(_: Artifact, __: int) -> None:
        """Go on only when others have begun theirs."""
        (present / str(os.getpid())).touch()
        begun = time.monotonic()
        while len(list(present.iterdir())) < LOGICAL_CPUS:
            assert time.monotonic() - begun < 60, f"no {LOGICAL_CPUS} actors at the same time"
            time.sleep(0.01)

    monkeypatch.setattr(rate, "Rater", before_each(together))
    check_same(rated(inputs, tmp_path / "root", actors=LOGICAL_CPUS + 1), alone)


def test_a_pool_s_actors_end_with_it_though_an_error_keeps_their_handles(
    ray_local: None, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor's death is an exception, whose traceback holds the pool until Python next collects its garbage."""
    present = tmp_path / "present"
    present.mkdir()

    def die_first(_: Artifact, __: int) -> None:
        first = not list(present.iterdir())
        (present / str(os.getpid())).touch()
        if first:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(rate, "Rater", before_each(die_first))
    gc.disable()
    try:
        rated(inputs, tmp_path / "root", actors=1)
        workers = [int(path.name) for path in present.iterdir()]
        assert len(workers) == 2
        begun = time.monotonic()
        while [worker for worker in workers if Path(f"/proc/{worker}").exists()]:
            assert time.monotonic() - begun < 30, "a worker of a pool that is gone"
            time.sleep(0.05)
    finally:
        gc.enable()


@pytest.mark.parametrize("actors", [1, 3])
def test_a_killed_actor_is_replaced_and_its_bucket_rated(
    alone: Files, inputs: Inputs, actors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()

    def die_twice(_: Artifact, bucket: int) -> None:
        for mark in (killed / "first", killed / "second"):
            if bucket == 3 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(rate, "Rater", before_each(die_twice))
    check_same(rated(inputs, tmp_path / "root", actors), alone)
    assert len(list(killed.iterdir())) == 2


def test_the_actor_that_fits_what_all_share_may_die_too(
    alone: Files, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "killed"

    class Dies(rate.Rater):
        def fit_globals(self, buckets: int) -> dict[str, Any]:
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fit_globals(buckets)

    monkeypatch.setattr(rate, "Rater", Dies)
    check_same(rated(inputs, tmp_path / "root", actors=2), alone)
    assert mark.exists()


def test_a_bucket_that_always_kills_its_actor_and_one_that_cannot_be_rated_end_the_run(
    ray_local: None, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Artifact, bucket: int) -> None:
        if bucket == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def refuse(_: Artifact, bucket: int) -> None:
        raise DataError("is no bucket", str(bucket), "give another")

    for what, error, said in ((die, LostError, "stage rate"), (refuse, DataError, "is no bucket")):
        monkeypatch.setattr(rate, "Rater", before_each(what))
        with pytest.raises(error, match=said):
            rated(inputs, tmp_path / error.__name__, actors=2)


def test_buckets_redone_by_another_run_are_the_same(alone: Files, inputs: Inputs, tmp_path: Path) -> None:
    """Of a run that stopped after every second seal, the others are made by another number of actors."""
    store = Store(str(tmp_path))
    for name, data in alone.items():
        if not name.startswith("ratings/") or int(Path(name).stem) % 2:
            store.publish(f"artifacts/rate/fedcba9876543210/{name}", data)
    check_same(rated(inputs, tmp_path, actors=2), alone)
