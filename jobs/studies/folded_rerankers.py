"""Cross-encoders for collections without train queries: trained on the shown positives of other queries, by folds.

What a miner would have: for every shown positive of a train query, documents from the top of the hybrid that are not
shown as positive, and a random one. Hidden positives are among those negatives as often as they are in life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.identity import digest, hash_sample, rng
from anmi_ray.models.reranker import load_student
from anmi_ray.records import EXAMPLE, by_query
from anmi_ray.training.batching import prepare
from anmi_ray.training.loop import train
from jobs.studies.hidden_positives import Grades, Ranking, hidden, judged_often
from jobs.studies.retrieved import Retrieved, retrieved

DEPTH = 50  # documents of the hybrid that are reranked
LISTS = 4  # of a train query, an anchor each, at most
NEGATIVES, TOP = 4, 50  # of a list, from so many first documents that are not shown as positive
CHEAP: dict[str, Any] = {
    "engine": "ddp",
    "max_steps": 40,
    "lists_per_step": 6,
    "max_tokens": 96,
    "freeze_layers": 3,
    "learning_rate": 4e-4,
    "average_decay": 0.9,
    "dev_points": [],
    "balance": {"alpha": 1.0},  # labels alone: nothing is rated
}


def tasks(of: Experiment, least: int, folds: int, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every training of a collection by name, as JSON values."""
    given = of.model_dump_json(exclude_defaults=True)  # some defaults are refused where they are given
    shared = {"experiment": given, "least": least, "folds": folds, "config": {**CHEAP, **config}}
    return {f"{of.name}-fold{fold}": {**shared, "fold": fold} for fold in range(folds)}


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """One training: the fold's queries, each with its documents by falling score, as hexadecimal."""
    from anmi_ray.stages.rerank import rerank

    data = _read(task["experiment"])
    grades, hybrid = grades_of(data), rankings(data)["hybrid"]
    shown = {query: _shown(query, graded, task["least"]) for query, graded in grades.items()}
    names = sorted(query for query, docs in shown.items() if docs and hybrid.get(query))
    tested = set(hash_sample(names, len(names), "folds")[task["fold"] :: task["folds"]])
    config = TrainConfig.model_validate(task["config"])
    model = load_student(config)
    table = examples(data, {query: shown[query] for query in names if query not in tested}, hybrid)
    trained = train(model, prepare([table], [data.texts], [data.queries], model.pairs), None, config, TrainExecution())
    runs = data.runs.filter(pc.and_(pc.equal(data.runs["system"], "hybrid"), pc.less_equal(data.runs["rank"], DEPTH)))
    asked = sorted(tested & judged_often(grades, task["least"]).keys())
    run = runs.filter(pc.is_in(runs["query_id"], value_set=pa.array(asked, runs["query_id"].type)))
    scored = rerank(run, data.queries, data.texts, trained.model.scorer("auto"), "reranker")
    return {"ranking": {query.hex(): [doc.hex() for doc in docs] for query, docs in ordered(scored).items()}}


def ranking_of(found: Sequence[Mapping[str, Any]]) -> dict[bytes, list[bytes]]:
    """The rankings of all folds, by query."""
    parts = [one["ranking"].items() for one in found]
    return {bytes.fromhex(query): [bytes.fromhex(doc) for doc in docs] for part in parts for query, docs in part}


def examples(data: Retrieved, shown: Mapping[bytes, Sequence[bytes]], hybrid: Mapping[bytes, Ranking]) -> pa.Table:
    """Lists of a shown positive, NEGATIVES of the first TOP of the hybrid that are not, and any other document.

    Nothing is rated: all negatives are unrated and weigh 1, as random documents do.
    """
    texts = sorted(pc.unique(data.texts["doc_id"]).to_pylist())
    held = set(texts)  # a positive that no retriever found has no text here
    rows: list[dict[str, Any]] = []
    for query, positives in sorted(shown.items()):
        pool = [doc for doc in hybrid[query] if doc not in positives][:TOP]
        for anchor in hash_sample([doc for doc in positives if doc in held], LISTS, "anchors", query):
            draw = rng("negatives", query, anchor)
            drawn = [pool[i] for i in draw.choice(len(pool), min(NEGATIVES, len(pool)), replace=False).tolist()]
            other = next(doc for doc in (texts[i] for i in draw.permutation(len(texts)).tolist())
                         if doc not in positives and doc not in drawn)  # fmt: skip
            rows.append(_example(query, anchor, [*drawn, other]))
    return EXAMPLE.table({name: [row[name] for row in rows] for name in EXAMPLE.schema.names})


def _example(query: bytes, anchor: bytes, negatives: Sequence[bytes]) -> dict[str, Any]:
    unrated = [None] * len(negatives)
    return {
        "query_id": query,
        "example_id": digest("example", query, anchor),
        "doc_ids": [anchor, *negatives],
        "ratings": [0.0, *unrated],
        "weights": [1.0] * (1 + len(negatives)),
        "categories": ["anchor", *["random"] * len(negatives)],
        "tiers": [0] * (1 + len(negatives)),
        "gaps": [0.0, *unrated],
        "gap_errors": [0.0, *unrated],
        "rating_mean": 0.0,
        "rating_sd": 1.0,
    }


def grades_of(data: Retrieved) -> dict[bytes, Grades]:
    """The grades of every query's documents that the collection has."""
    qrels = data.qrels.filter(pc.is_in(data.qrels["doc_id"], value_set=pa.array(data.documents, pa.binary(16))))
    return {
        query: dict(zip(rows["doc_id"].to_pylist(), rows["grade"].to_pylist(), strict=True))
        for query, rows in by_query(qrels)
    }


def rankings(data: Retrieved) -> dict[str, dict[bytes, list[bytes]]]:
    """Every retrieved system's documents by query, from rank 1 down."""
    systems = sorted(pc.unique(data.runs["system"]).to_pylist())
    return {name: ordered(data.runs.filter(pc.equal(data.runs["system"], name))) for name in systems}


def ordered(run: pa.Table) -> dict[bytes, list[bytes]]:
    """The documents by query, from rank 1 down."""
    return {query: rows.sort_by("rank")["doc_id"].to_pylist() for query, rows in by_query(run)}


def _shown(query: bytes, graded: Grades, least: int) -> list[bytes]:
    """The positives that training may know: the half that the first seed shows."""
    positives = sorted(doc for doc, grade in graded.items() if grade >= least)
    return sorted(set(positives) - hidden(query, positives, "half", 0)) if positives else []


@lru_cache(maxsize=1)
def _read(experiment: str) -> Retrieved:
    return retrieved(Experiment.model_validate_json(experiment))
