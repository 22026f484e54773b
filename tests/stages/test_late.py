"""Late interaction as a retriever of whole runs: over shards and buckets, resumed, and what is refused before work."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import CANDIDATE, RUN
from anmi_ray.models.loading import PACKAGED
from anmi_ray.models.loading import resolve as find
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.run import run
from anmi_ray.runtime import exchange, tasks
from anmi_ray.stages.retrieve import late, search
from anmi_ray.store import Artifact, Store
from tests.models.tiny import write_tiny_bert
from tests.small import write_collection, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_local")]
LATE = ("retrieve.retrievers=[dense,late]", "retrieve.dense.dtype=float32", "retrieve.depth=14")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("few") / "collection", train=8, dev=4, test=6, others=60)


def experiment(folder: Path, collection: Path, *overrides: str) -> Experiment:
    config = write_config(folder / "late.yaml", collection)
    return load(config, [f"execution.root={folder / 'root'}", "execution.threads=1", *overrides])


def made(settings: Experiment, stage: str) -> Artifact:
    return Artifact(Store(settings.execution.root), stage, resolve(settings)[stage].fingerprint)


def rows(settings: Experiment, part: str = "runs") -> pa.Table:
    record = {"runs": RUN, "candidates": CANDIDATE}[part]
    read = [made(settings, "retrieve").read_part(part, bucket, record) for bucket in range(settings.execution.buckets)]
    return pa.concat_tables(read)


def of_system(runs: pa.Table, name: str) -> pa.Table:
    keys = [("query_id", "ascending"), ("rank", "ascending")]
    return runs.filter(pc.equal(runs["system"], name)).sort_by(keys)


@pytest.fixture(scope="module")
def whole(ray_local: None, few: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    settings = experiment(tmp_path_factory.mktemp("whole"), few, *LATE)
    run(settings, last="retrieve")
    return settings


def test_late_has_runs_of_its_own_and_takes_part_in_fusion(whole: Experiment) -> None:
    runs = rows(whole)
    assert set(runs["system"].to_pylist()) == {"dense", "late", "hybrid"}
    queries = pc.count_distinct(runs["query_id"]).as_py()
    assert queries == 10
    assert of_system(runs, "late").num_rows == 14 * queries
    assert pc.min(of_system(runs, "late")["score"]).as_py() > 0
    ranks = [dict(row) for row in rows(whole, "candidates")["retriever_ranks"].to_pylist()]
    assert any(set(found) == {"dense", "late"} for found in ranks)
    assert not (Path(whole.execution.root) / made(whole, "retrieve").path / "exchange").exists()


def test_shards_and_buckets_give_the_same_late_runs(whole: Experiment, few: Path, tmp_path: Path) -> None:
    """To the byte: of dense retrieval the documents and ranks are, but a vector's last bits depend on its batch."""
    settings = experiment(tmp_path, few, *LATE, "corpus.shard_documents=23", "execution.buckets=2")
    run(settings, last="retrieve")
    assert (made(settings, "ingest").manifest() or {})["shards"] > 3
    one, many = rows(whole), rows(settings)
    assert of_system(one, "late").equals(of_system(many, "late"))
    assert of_system(one, "dense").drop_columns("score").equals(of_system(many, "dense").drop_columns("score"))


def test_beside_bm25(few: Path, tmp_path: Path) -> None:
    settings = experiment(tmp_path, few, "retrieve.retrievers=[bm25,late]", "corpus.shard_documents=40")
    run(settings, last="retrieve")
    runs = rows(settings)
    found = {name: set(map(str, of_system(runs, name).select(["query_id", "doc_id"]).to_pylist())) for name in
             ("bm25", "late", "hybrid")}  # fmt: skip
    assert found["bm25"] == found["late"] == found["hybrid"]
    assert not of_system(runs, "bm25").equals(of_system(runs, "late"))


def test_exchange_files_that_are_there_are_not_made_again(whole: Experiment) -> None:
    store = Store(whole.execution.root)
    artifact, ingest = Artifact(store, "retrieve", "resumed"), made(whole, "ingest")
    buckets, steps = whole.execution.buckets, list[tuple[int, int, str]]()

    def progress(done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        steps.append((done, total, unit))

    context = tasks.Context(store, whole.execution, buckets, whole.seed, progress)
    search._search(artifact, ingest, whole.retrieve, context, 1)
    steps.clear()
    late.rescore(artifact, ingest, whole.retrieve, context, 1)
    pooled = [(i, buckets, "buckets pooled") for i in range(buckets + 1)]
    assert steps == [*pooled, (0, 1, "shards rescored"), (1, 1, "shards rescored")]
    folder = Path(store.uri(artifact.path)) / "exchange"
    content = {file.name: file.read_bytes() for file in folder.iterdir()}
    times = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    (folder / "pairs-00001.parquet").write_bytes(content["pairs-00001.parquet"][:-9])
    (folder / "late-00000.parquet").unlink()
    late.rescore(artifact, ingest, whole.retrieve, context, 1)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == content
    again = {file.name for file in folder.iterdir() if file.stat().st_mtime_ns != times[file.name]}
    assert again == {"pairs-00001.parquet", "late-00000.parquet"}
    exchange.forget(artifact)


def test_a_model_that_settings_do_not_go_with_is_said_before_the_search(few: Path, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "ColBERT"}')
    settings = experiment(tmp_path, few, *LATE, f"retrieve.late.model={folder}", "retrieve.late.query_prompt='query: '")
    with pytest.raises(ConfigError, match="is a ColBERT checkpoint"):
        run(settings, last="retrieve")
    assert not (tmp_path / "root" / made(settings, "retrieve").path / "exchange").exists()


def test_the_model_counts_only_where_it_is_used(few: Path, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    without, used = experiment(tmp_path, few), experiment(tmp_path, few, *LATE)
    assert "model of late" not in resolve(without)["retrieve"].inputs
    assert resolve(used)["retrieve"].inputs["model of late"] == find(PACKAGED).revision
    other = [resolve(experiment(tmp_path, few, *LATE, f"retrieve.late.model={folder}"))["retrieve"]]
    write_tiny_bert(folder, seed=1)
    other.append(resolve(experiment(tmp_path, few, *LATE, f"retrieve.late.model={folder}"))["retrieve"])
    assert other[0].settings == other[1].settings
    assert other[0].fingerprint != other[1].fingerprint
