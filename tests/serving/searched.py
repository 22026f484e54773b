"""A whole run for tests of search: every retriever that is here, two shards, a student that has vectors of texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from anmi_ray.api.runs import Run
from anmi_ray.config.load import load
from anmi_ray.core.identity import rng
from anmi_ray.core.records import DOCUMENT, RUN
from anmi_ray.pipeline.run import run
from anmi_ray.stages.ingest import of_queries, queries_of
from tests.models.tiny import WORDS, write_tiny_bert
from tests.retrieval.java import ABSENT
from tests.small import ALONE, write_config

DEPTH, RERANKED = 30, 12
RETRIEVERS = ["bm25", *([] if ABSENT else ["lucene"]), "dense", "late"]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"> </script> \u202e word7"


def write_collection(folder: Path) -> Path:
    """82 documents and 36 queries of words that the tiny model knows; two documents have words of a query."""
    random = rng("searched")
    queries = [(f"q{i}", " ".join(random.choice(WORDS, 4))) for i in range(36)]
    documents = [(f"o{i}", "", " ".join(random.choice(WORDS, 12))) for i in range(9)]
    documents += [("hostile", HOSTILE, HOSTILE)]
    for name, text in queries:
        for i in range(2):
            words = [*random.choice(WORDS, 8), *text.split()[: 3 - i]]
            documents.append((f"{name}d{i}", f"about {words[0]}", " ".join(random.permutation(words))))
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text} for name, title, text in documents]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": n, "text": t}) + "\n" for n, t in queries))
    for split, part in (("train", queries[:24]), ("dev", queries[24:30]), ("test", queries[30:])):
        lines = [f"{name}\t{name}d{i}\t1" for name, _ in part for i in range(2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def write_run(folder: Path) -> None:
    """Carry out run `searched` with `folder / "root"` as its root."""
    collection = write_collection(folder / "collection")
    model = str(write_tiny_bert(folder / "tiny"))
    config = write_config(
        folder / "searched.yaml",
        collection,
        name="searched",
        corpus={"reader": "beir", "path": str(collection), "shard_documents": 50},
        retrieve={
            "retrievers": RETRIEVERS,
            "depth": DEPTH,
            "candidates": 14,
            "random_negatives": 3,
            "dense": {"model": model, "dtype": "float32", "max_tokens": 32},
            "late": {"model": model, "dtype": "float32"},
        },
        train={"student": "bi-encoder", "model": model, "lists_per_step": 8, "max_steps": 2, "max_tokens": 48,
               "dev_points": [1.0]},
        rerank={"depth": RERANKED, "precision": "float32", "start": False},
        evaluate={"partners": ["hybrid"]},
        execution={**ALONE, "buckets": 1},
    )  # fmt: skip
    run(load(config, [f"execution.root={folder / 'root'}"]), last="evaluate")


def buckets(run: Run) -> range:
    return range(int((run.artifact("ingest").manifest() or {})["buckets"]))


def wanted(run: Run) -> Iterator[tuple[str, dict[str, list[tuple[str, float]]]]]:
    """Of every test query its text, and each system's documents with their scores as the run has them."""
    ingest = run.artifact("ingest")
    shards = range(int((ingest.manifest() or {})["shards"]))
    documents = pa.concat_tables([ingest.read_part("documents", shard, DOCUMENT) for shard in shards])
    names = dict(zip(documents["doc_id"].to_pylist(), documents["external_id"].to_pylist(), strict=True))
    fused = run.artifact("evaluate").read_part("fused", 0, RUN)
    for bucket in buckets(run):
        queries = queries_of(ingest, bucket, "test")
        parts = [of_queries(fused, queries)]
        parts += [
            of_queries(run.artifact(stage).read_part("runs", bucket, RUN), queries) for stage in ("retrieve", "rerank")
        ]
        every = pa.concat_tables(parts).sort_by([("system", "ascending"), ("rank", "ascending")]).to_pylist()
        for query in queries.to_pylist():
            systems: dict[str, list[tuple[str, float]]] = {}
            for row in every:
                if row["query_id"] == query["query_id"]:
                    systems.setdefault(row["system"], []).append((names[row["doc_id"]], row["score"]))
            yield query["text"], systems
