"""The encoder judge through Ray and the answer log: actors load it, only what is missing is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import judge
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import inputs, quiet
from tests.models.tiny import write_tiny_classifier

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUERIES, BUCKETS, DOCUMENTS = 2, 2, 40


def test_encoders_judge_through_ray_and_are_not_asked_again(ray_local: None, tmp_path: Path) -> None:
    sources = inputs(Store(str(tmp_path / "root")), QUERIES, BUCKETS, DOCUMENTS)
    reranker = write_tiny_classifier(tmp_path / "reranker", ["score"])
    pair = write_tiny_classifier(tmp_path / "pair", ["A", "B"])
    labels = {"first_label": "A", "second_label": "B"}
    judges: list[dict[str, object]] = [
        {"kind": "encoder", "name": "reranker", "model": str(reranker)},
        {"kind": "encoder", "name": "pair", "model": str(pair), "form": "pairwise", **labels},
    ]

    def run(name: str, *given: dict[str, object]) -> Artifact:
        store = Store(str(tmp_path / "root"))
        artifact = Artifact(store, "judge", name)
        execution = ExecutionConfig(root=str(tmp_path / "root"), buckets=BUCKETS, chunk=280, askers=1)
        config = JudgeConfig.model_validate({"judges": list(given)})
        facts = judge.run(artifact, sources, config, Context(store, execution, BUCKETS, 0, quiet))
        artifact.complete(facts.pop("flows"), **facts)
        return artifact

    first, again = run("first", *judges), run("again", {**judges[0], "name": "other"})
    asked = (first.manifest() or {})["asked"]
    comparisons = [sources["compare"].read_part("comparisons", bucket, COMPARISON) for bucket in range(BUCKETS)]
    count = 2 * sum(table.num_rows for table in comparisons)
    assert [(asked[one]["asked"], asked[one]["failed"]) for one in ("reranker", "pair")] == [(count, 0)] * 2
    assert (again.manifest() or {})["asked"] == {"other": {"asked": 0, "answered": 0, "failed": 0}}
    table = pa.concat_tables([first.read_part("judgments", bucket, JUDGMENT) for bucket in range(BUCKETS)])
    p = table["p_a"].to_numpy().reshape(-1, 2, 2)  # comparison, judge (pair, reranker), order
    np.testing.assert_allclose(p[:, 1, 0], p[:, 1, 1], atol=1e-9)  # a reranker knows no order
    assert np.abs(p[:, 0, 0] - p[:, 0, 1]).max() > 1e-3
    with pytest.raises(ConfigError, match="has 2 labels"):
        run("wrong", {"kind": "encoder", "model": str(pair)})
