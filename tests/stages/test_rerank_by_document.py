"""Scores by document: those of the model on every pair, each document encoded once; and a whole run with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.core.identity import bucket_of, doc_id, query_id, rng
from anmi_ray.core.records import METRIC, QUERY, RUN, TEXT_OF
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.stages.rerank import scoring
from anmi_ray.store import Artifact, Store
from tests.models.test_token_vectors import write_pylate
from tests.models.tiny import write_tiny_bert
from tests.small import start_from
from tests.stages.runs import World

BUCKETS = 4


def some_run(queries: int, documents: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """A Run of random documents for every query, with what `pairs_of` reads of the texts."""
    draw = rng("by document")
    asked = [(query_id(f"q{i}"), f"word{i % 50} word{i % 7}") for i in range(queries)]
    texts = [(doc_id(f"d{i}"), f"word{i % 60} " * (1 + i % 9)) for i in range(documents)]
    rows = [
        {"query_id": query, "doc_id": texts[row][0], "system": "hybrid", "rank": rank, "score": 1.0 / rank}
        for query, _ in asked
        for rank, row in enumerate(draw.permutation(documents)[: int(draw.integers(0, 8))], 1)
    ]
    found = RUN.table({name: [row[name] for row in rows] for name in RUN.schema.names})
    return (
        found,
        pa.table({"query_id": [query for query, _ in asked], "text": [text for _, text in asked]}),
        pa.table({"doc_id": [doc for doc, _ in texts], "title": ["title"] * documents, "text": [t for _, t in texts]}),
    )


@dataclass
class Given:
    """Pairs to score, of every bucket."""

    top: pa.Table
    queries: pa.Table
    texts: pa.Table

    def of_bucket(self, bucket: int) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        return self.queries, self.top, self.top, self.texts


@pytest.mark.parametrize("colbert", [False, True])
def test_scores_are_the_models_and_a_document_is_encoded_once(tmp_path: Path, colbert: bool) -> None:
    start = write_tiny_bert(tmp_path / "tiny")
    model = LateInteraction.load(str(write_pylate(tmp_path / "colbert", start) if colbert else start))
    top, queries, texts = some_run(40, 30)
    artifact = Artifact(Store(str(tmp_path / "root")), "rerank", "0123456789abcdef")
    bucket_N = np.array([bucket_of(query, BUCKETS) for query in top["query_id"].to_pylist()])
    tops = [top.filter(pa.array(bucket_N == bucket)) for bucket in range(BUCKETS)]
    for bucket, part in enumerate(tops):
        scoring.ask(artifact, bucket, Given(part, queries, texts), BUCKETS)  # type: ignore[arg-type]
    encoded: list[int] = []
    model.network.register_forward_hook(lambda _module, _args, output: encoded.append(len(output[0])))
    for number in range(BUCKETS):
        scoring.score(artifact, number, BUCKETS, lambda: model)
    slices = {(bucket_of(row["doc_id"], BUCKETS), row["query_id"]) for row in top.to_pylist()}
    assert sum(encoded) == pc.count_distinct(top["doc_id"]).as_py() + len(slices)  # a query once in every slice
    for bucket, part in enumerate(tops):
        found = scoring.scores_of(artifact, bucket, BUCKETS, part)
        wanted = model.score(*scoring.pairs_of(part, queries, texts))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_nothing_asked_nothing_scored(tmp_path: Path) -> None:
    top, queries, texts = some_run(3, 9)
    artifact = Artifact(Store(str(tmp_path)), "rerank", "0123456789abcdef")
    scoring.ask(artifact, 0, Given(top.slice(0, 0), queries, texts), 1)  # type: ignore[arg-type]
    scoring.score(artifact, 0, 1, partial(pytest.fail, "a model was loaded"))
    assert scoring.scores_of(artifact, 0, 1, top.slice(0, 0)).shape == (0,)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("trained_in_one_task")
def test_a_run_with_a_late_interaction_student(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    """Its scores are the exported model's, the start's those of before; again nothing is computed.

    Another training fuses the first one's model with its own, and finds the start's scores.
    """
    train = {"student": "late-interaction", "model": str(write_tiny_bert(tmp_path / "bert")), "lists_per_step": 8}
    train |= {"max_steps": 2, "max_tokens": 48, "dev_points": [1.0]}
    rerank = {"depth": 10, "precision": "float32"}
    world = World(tmp_path, small_collection, train=train, rerank=rerank)
    start_from(prepared, world.root, "mine")
    done = world.carry_out(last="report")
    said = r"[1-9]\d* of \d+ documents are longer than train.max_tokens, 48: the rest is not read"
    assert [text for text in done.told.notices if re.fullmatch(said, text)]
    runs = done.part("rerank", "runs", RUN)
    assert set(runs["system"].to_pylist()) == {"reranked", "start"}
    queries, documents = done.part("ingest", "queries", QUERY), done.part("retrieve", "texts", TEXT_OF)
    for system, folder in (("reranked", str(done.folder("train") / "model")), ("start", train["model"])):
        found = runs.filter(pc.and_(pc.equal(runs["system"], system), pc.less_equal(runs["rank"], 10)))
        scores = LateInteraction.load(folder, max_tokens=48).score(*scoring.pairs_of(found, queries, documents))
        np.testing.assert_allclose(found["score"].to_numpy(), scores, atol=1e-5)
    assert not [name for name in done.store.tree("") if "/exchange/" in name]
    metrics = done.artifact("evaluate").read_part("metrics", 0, METRIC)
    assert {"reranked", "start", "start+hybrid", "reranked+hybrid"} <= set(metrics["system"].to_pylist())
    assert not world.carry_out(last="report").told.computed

    second = world.carry_out(
        "name=ensemble",
        "train.max_steps=1",
        f"rerank.peers=[{{name: first, run: {done.settings.name}, precision: float32}}]",
        "evaluate.partners=[bm25, dense, first]",
        last="report",
    )
    both = second.part("rerank", "runs", RUN)
    for system, before in (("first", "reranked"), ("start", "start")):  # dev queries too, and the same scores
        ours, theirs = (one.filter(pc.equal(one["system"], name)) for one, name in ((both, system), (runs, before)))
        assert ours.drop("system").equals(theirs.drop("system"))
    assert second.artifact("evaluate").read_json("fusion.json")["parts"] == ["reranked", "bm25", "dense", "first"]
    starts = [one for one in done.store.tree("artifacts/peer") if one.endswith("manifest.json")]
    assert len(starts) == 2  # the start's, which both runs share, and the first run's model
