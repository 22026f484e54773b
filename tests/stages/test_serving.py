"""What a report says that reranking takes, from artifacts as the stages write them and a real model."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from anmi_ray.core.identity import doc_id, query_id
from anmi_ray.core.records import RUN
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.stages.report.figures import model_size, serving
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.store.folders import seal_folder
from tests.models.tiny import write_tiny_bert


def run_of(query: str, documents: list[str]) -> pa.Table:
    """A reranked ranking."""
    return RUN.table(
        {
            "query_id": [query_id(query)] * len(documents),
            "doc_id": list(map(doc_id, documents)),
            "system": ["reranked"] * len(documents),
            "rank": list(range(1, len(documents) + 1)),
            "score": [-float(i) for i in range(len(documents))],
        }
    )


def made(root: Path, **facts: object) -> tuple[Artifact, Artifact]:
    """The rerank artifact of three queries in two buckets, depth 2, and a train artifact with a real model."""
    store = Store(str(root))
    rerank, train = Artifact(store, "rerank", "r"), Artifact(store, "train", "t")
    buckets = [pa.concat_tables([run_of("a", ["x", "y", "z"]), run_of("b", ["y", "x"])]), run_of("c", ["x", "w", "v"])]
    for number, runs in enumerate(buckets):
        rerank.commit_bucket(number, {"runs": (RUN, runs)}, [Flow("held-out queries", 1, 1)], None)
    rerank.complete([Flow("held-out queries", 4, 3, 1)], depth=2, **facts)
    folder = root / train.path / "model"
    CrossEncoder.load(str(write_tiny_bert(root / "base")), seed=1).export(folder)
    seal_folder(train, "model")
    train.complete([Flow("examples", 1, 1)])
    return rerank, train


def test_parameters_and_bytes_are_the_model_s(tmp_path: Path) -> None:
    _, train = made(tmp_path)
    folder = tmp_path / train.path / "model"
    network = CrossEncoder.load(str(folder)).network
    assert model_size(train, "model") == (
        sum(one.numel() for one in network.parameters()),
        sum(path.stat().st_size for path in folder.glob("*.safetensors")),
    )
    (folder / "model.safetensors").unlink()
    seal_folder(train, "model")
    assert model_size(train, "model") == (None, None)


def test_seconds_are_those_of_the_trained_models_scoring(tmp_path: Path) -> None:
    rerank, train = made(tmp_path)
    assert serving(rerank, train, range(2), apart=True)["seconds"] is None  # nothing was measured
    rerank.store.publish_json("timings/reranked-r.json", {"seconds": 6.0, "cores": 2})
    found = serving(rerank, train, range(2), apart=True)
    assert (found["seconds"], found["cores"], found["queries"], found["depth"]) == (6.0, 2, 3, 2)
    assert found["documents"] == 3  # x, y and w, without those below the depth
    assert serving(rerank, train, range(2), apart=False)["documents"] is None
