"""Drawing a sample through Ray: the same pairs whatever the buckets, a draw that is kept, and what is too little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.distill import SampleConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import judge, sample
from anmi_ray.store import Artifact, Flow, Store, add_flows
from tests.benchmarks.bench_judging import DOCUMENTS, inputs, quiet

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_local")]
QUERIES = 6


class World:
    """A root with candidates of a few queries, a hundred documents each, of which `keep` says which are there."""

    def __init__(self, folder: Path, queries: int, buckets: int, keep: Callable[[pa.Table], pa.Table] | None = None):
        self.store, self.buckets = Store(str(folder)), buckets
        self.made, self.notices = inputs(self.store, queries, buckets), list[str]()
        if keep is not None:
            for bucket in range(buckets):
                table = self.made["retrieve"].read_part("candidates", bucket, CANDIDATE)
                self.made["retrieve"].publish_part("candidates", bucket, keep(table), CANDIDATE)

    @property
    def context(self) -> Context:
        execution = ExecutionConfig(root=self.store.root, buckets=self.buckets, chunk=700)
        return Context(self.store, execution, self.buckets, 0, quiet, self.notices.append)

    def draw(self, name: str, **settings: int) -> tuple[Artifact, list[Flow]]:
        artifact = Artifact(self.store, "sample", name)
        facts = sample.run(artifact, self.made, SampleConfig.model_validate(settings), self.context)
        artifact.complete(facts["flows"])
        return artifact, add_flows(facts["flows"])

    def pairs(self, artifact: Artifact) -> pa.Table:
        tables = [artifact.read_part("comparisons", bucket, COMPARISON) for bucket in range(self.buckets)]
        return pa.concat_tables(tables).sort_by("comparison_id").combine_chunks()


def test_neither_buckets_nor_a_restart_change_the_sample(tmp_path: Path) -> None:
    one, other = World(tmp_path / "one", QUERIES, 2), World(tmp_path / "other", QUERIES, 4)
    (first, flows), (second, _) = one.draw("first", pairs=40), other.draw("second", pairs=40)
    pairs = one.pairs(first)
    assert flows == [Flow("train queries", QUERIES, QUERIES), Flow("pairs", 40, 40)]
    assert pairs.equals(other.pairs(second))
    assert sorted(row["counts"] for row in pc.value_counts(pairs["query_id"]).to_pylist()) == [6, 6, 7, 7, 7, 7]
    assert one.notices == []
    (tmp_path / "one" / first.part_path("comparisons", 1)).unlink()
    for bucket in range(2):  # what was drawn is kept: the candidates are not asked again who takes what
        (tmp_path / "one" / one.made["retrieve"].part_path("texts", bucket)).unlink()
    again, _ = one.draw("first", pairs=40)
    assert one.pairs(again).equals(pairs)
    assert not one.pairs(one.draw("seed", pairs=40, seed=1)[0]).equals(pairs)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    world = World(tmp_path, 2, 2)
    artifact, flows = world.draw("all", pairs=1000)
    there = 2 * (DOCUMENTS // 2)
    assert flows[1] == Flow("pairs", 1000, there, 1000 - there)
    assert artifact.rejects().num_rows == 1000 - there
    [said] = world.notices
    assert f"{there} of 1,000 pairs" in said
    assert "raise retrieve.candidates" in said


def eight(table: pa.Table) -> pa.Table:
    return table.filter(pc.less_equal(table["rank"], 8))


@pytest.mark.parametrize(
    ("queries", "keep", "said", "remedy"),
    [(1, None, "one query only", "max_train_queries"), (2, eight, "8 pairs are found", "retrieve.candidates")],
)
def test_what_is_too_little_is_refused(
    tmp_path: Path, queries: int, keep: Callable[[pa.Table], pa.Table] | None, said: str, remedy: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        World(tmp_path, queries, 1, keep).draw("few", pairs=20)
    assert remedy in (caught.value.remedy or "")


def test_judges_are_asked_about_a_sample_as_about_a_graph(tmp_path: Path) -> None:
    world = World(tmp_path, QUERIES, 2)
    drawn, _ = world.draw("drawn", pairs=30)
    label = Artifact(world.store, "label", "label")
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}, {"kind": "similarity"}]})
    facts = judge.run(label, {**world.made, "compare": drawn}, config, world.context)
    assert facts["asked"]["null"] == {"asked": 60, "answered": 60, "failed": 0}
    judged = pa.concat_tables([label.read_part("judgments", bucket, JUDGMENT) for bucket in range(2)])
    assert judged.num_rows == 30 * 2 * 2
    assert set(judged["comparison_id"].to_pylist()) == set(world.pairs(drawn)["comparison_id"].to_pylist())
