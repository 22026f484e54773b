"""The train stage under Ray Train with DeepSpeed: two workers, a published model, errors that come out whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import QREL, RUN
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.training.loop import Row
from tests.models.tiny import write_tiny_bert
from tests.s3 import BUCKET, S3Endpoint
from tests.training.lists import planted

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUERIES = 6


def files(folder: Path) -> list[list[str]]:
    """Example, Text and Query files of the planted problem."""
    problem = planted()
    paths: list[list[str]] = []
    for name in ("examples", "texts", "queries"):
        pq.write_table(getattr(problem, name), folder / f"{name}.parquet")
        paths.append([str(folder / f"{name}.parquet")])
    return paths


def dev_inputs() -> Any:
    """Other lists than those trained on; the document worth most is the relevant one."""
    from anmi_ray.stages.train.trainer import DevInputs

    problem = planted(lists=QUERIES, seed=7)
    documents = problem.texts["doc_id"].combine_chunks()
    each = len(documents) // QUERIES
    run = RUN.table(
        {
            "query_id": problem.queries["query_id"].take(pa.array(np.arange(len(documents)) // each)),
            "doc_id": documents,
            "system": ["hybrid"] * len(documents),
            "rank": np.tile(np.arange(1, each + 1), QUERIES),
            "score": np.zeros(len(documents)),
        }
    )
    ids = documents.to_pylist()
    best = [max(ids[i * each : (i + 1) * each], key=lambda doc: problem.worth[doc]) for i in range(QUERIES)]
    qrels = QREL.table({"query_id": problem.queries["query_id"], "doc_id": best, "grade": [1] * QUERIES})
    return DevInputs(run, qrels, problem.texts, problem.queries)


def settings(base: Path) -> TrainConfig:
    return TrainConfig(
        model=str(base),
        max_tokens=32,
        lists_per_step=8,
        max_steps=6,
        learning_rate=3e-3,
        precision="float32",
        freeze_embeddings=False,
        zero_stage=2,
        dev_points=(0.5, 1.0),
    )


def test_ranked_puts_high_scores_first_and_ties_as_before() -> None:
    from anmi_ray.stages.train.trainer import ranked

    run = dev_inputs().run
    score = np.zeros(run.num_rows, dtype=np.float32)
    score[4] = 1.0
    result = RUN.check(ranked(run, score), "ranked")

    assert result["rank"].to_pylist()[:7] == list(range(1, 8))
    query = run["query_id"].to_pylist()
    expected = sorted(range(7), key=lambda i: (-score[i], i))
    mine = [
        doc
        for doc, q in zip(result["doc_id"].to_pylist(), result["query_id"].to_pylist(), strict=True)
        if q == query[0]
    ]
    assert mine == [run["doc_id"].to_pylist()[i] for i in expected]


@pytest.mark.usefixtures("ray_local")
def test_two_workers_train_and_publish_the_best_model(tmp_path: Path) -> None:
    from anmi_ray.runtime.train_workers import GROUP
    from anmi_ray.stages.train.trainer import TrainSources, run_training

    config = settings(write_tiny_bert(tmp_path / "base"))
    rows: list[Row] = []
    execution = TrainExecution(num_workers=2, checkpoint_minutes=0.0)
    output = tmp_path / "model"
    examples, texts, queries = files(tmp_path)
    sources = TrainSources(examples, texts, queries, dev_inputs())
    result = run_training(sources, config, execution, "f1", str(output), rows.append)
    assert [row["step"] for row in result.rows] == [1, 2, 3, 4, 5, 6]
    assert result.best_step in (3, 6)
    assert result.dev == max(row["dev"] for row in result.rows if row["dev"] is not None)
    assert all({name: row[name] for name in row if name != GROUP} in result.rows for row in rows)
    assert len({row[GROUP] for row in rows}) == 1
    assert json.loads((output / "training.json").read_text()).keys() == {"rows", "best_step", "dev", "steps"}
    model = CrossEncoder.load(str(output))
    assert model.max_tokens == 32
    assert np.isfinite(model.score(["word1 word2"], ["word3"])).all()
    checkpoints = [path for path in (tmp_path / "ray" / "f1").iterdir() if path.name.startswith("checkpoint_")]
    assert 1 <= len(checkpoints) <= 3  # one may be on its way in or out
    assert len(list((tmp_path / "ray" / "tokens").glob("*.tokens"))) == 2, "queries and texts, for both workers"


@pytest.mark.usefixtures("ray_local")
def test_what_no_retry_can_change_comes_out_as_itself(tmp_path: Path) -> None:
    from anmi_ray.stages.train.trainer import TrainSources, run_training

    config = settings(write_tiny_bert(tmp_path / "base"))
    examples, texts, queries = files(tmp_path)
    pq.write_table(pq.read_table(texts[0]).slice(3), texts[0])
    with pytest.raises(DataError, match="missing") as caught:
        run_training(TrainSources(examples, texts, queries), config, TrainExecution(), "f2", str(tmp_path / "model"))
    assert caught.value.remedy
    assert not (tmp_path / "model").exists()


def kill_a_worker() -> None:
    """kill -9 of the training worker of this session's Ray."""
    found = [
        process
        for process in psutil.Process().children(recursive=True)
        if any("RayTrainWorker" in word for word in process.cmdline())
    ]
    assert len(found) == 1
    found[0].kill()


@pytest.mark.s3
@pytest.mark.long
@pytest.mark.usefixtures("ray_local")
def test_a_killed_worker_goes_on_from_object_storage(tmp_path: Path, s3: S3Endpoint) -> None:
    from anmi_ray.stages.train.trainer import TrainSources, run_training
    from anmi_ray.store import uri
    from tests.training.one_task import in_one_task

    config = settings(write_tiny_bert(tmp_path / "base")).model_copy(update={"max_steps": 20, "dev_points": ()})
    examples, texts, queries = files(tmp_path)
    sources = TrainSources(examples, texts, queries)
    with in_one_task():
        whole = run_training(sources, config, TrainExecution(), "f3", str(tmp_path / "model"))
    seen: list[Row] = []

    def on_row(row: Row) -> None:
        if not seen:
            kill_a_worker()
        seen.append(row)

    output = s3.uri("root/model", "test:test-secret@")
    execution = TrainExecution(checkpoint_minutes=0.0, trackers=("tensorboard",))
    result = run_training(sources, config, execution, "f3", output, on_row)
    assert seen[0]["step"] != config.max_steps  # it was killed on its way
    assert [row["loss"] for row in result.rows] == [row["loss"] for row in whole.rows]
    keys = s3.objects()
    assert any(key.startswith("root/ray/f3/checkpoint_") for key in keys)
    assert any(key.startswith("root/tracking/") for key in keys)
    assert "root/model/model.safetensors" in keys
    texts = [key for key in keys if key.endswith((".json", ".md"))]
    assert not [key for key in texts if b"test-secret" in s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()]
    uri.remove(uri.beside(output, "ray"))
    assert not [key for key in s3.objects() if key.startswith("root/ray/")]
    uri.remove(uri.beside(output, "ray"))  # nothing is there
