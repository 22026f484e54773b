"""A cross-encoder for collections without train queries: trained on the shown positives of other queries, by folds.

What a miner would have: for every shown positive of a train query, documents from the top of the hybrid that are not
shown as positive, and a random one. Hidden positives are among those negatives as often as they are in life. No
collection has enough queries for a model that has never seen a query beside a document, so one is trained on the train
queries of all collections together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.identity import digest, hash_sample, rng
from anmi_ray.models.reranker import Reranker, load_student
from anmi_ray.records import EXAMPLE, by_query
from anmi_ray.training.batching import prepare
from anmi_ray.training.loop import train
from jobs.studies.hidden_positives import Grades, Ranking, hidden, judged_often
from jobs.studies.retrieved import Retrieved, retrieved

DEPTH = 50  # documents of the hybrid that are reranked
LISTS = 8  # of a train query, an anchor each, at most
NEGATIVES, TOP = 4, 50  # of a list, from so many first documents that are not shown as positive
_IDS = ("query_id", "doc_id", "doc_ids", "example_id")
CHEAP: dict[str, Any] = {
    "engine": "ddp",
    "max_steps": 400,
    "lists_per_step": 6,
    "max_tokens": 96,
    "freeze_layers": 3,
    "learning_rate": 4e-4,
    "average_decay": 0.9,
    "dev_points": [],
    "balance": {"alpha": 1.0},  # labels alone: nothing is rated
}


@dataclass(frozen=True)
class Source:
    """A collection to train for: its experiment up to retrieve, and the grade from which a document is positive."""

    of: Experiment
    least: int


def tasks(sources: Sequence[Source], folds: int, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The training of every fold by name, as JSON values."""
    given = [
        {"experiment": one.of.model_dump_json(exclude_defaults=True), "least": one.least}  # some defaults are refused
        for one in sources
    ]
    shared = {"sources": given, "folds": folds, "config": {**CHEAP, **config}}
    return {f"reranker-fold{fold}": {**shared, "fold": fold} for fold in range(folds)}


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """One training: by collection the fold's queries, each with its documents by falling score, as hexadecimal."""
    config = TrainConfig.model_validate(task["config"])
    model = load_student(config)
    splits = [_split(one, task["fold"], task["folds"]) for one in task["sources"]]
    learned, texts, queries = (list(tables) for tables in zip(*map(_learned, splits), strict=True))
    trained = train(model, prepare(learned, texts, queries, model.pairs), None, config, TrainExecution())
    scorer = trained.model.scorer("auto")
    return {"rankings": {one.name: _reranked(one, scorer) for one in splits}}


@dataclass(frozen=True)
class _Split:
    """A collection's queries in a fold: those that train, with their shown positives, and those that are reranked."""

    name: str
    data: Retrieved
    hybrid: Mapping[bytes, Ranking]
    shown: Mapping[bytes, Sequence[bytes]]
    asked: Sequence[bytes]


def _split(source: Mapping[str, Any], fold: int, folds: int) -> _Split:
    of = Experiment.model_validate_json(source["experiment"])
    data = retrieved(of)
    grades, hybrid = grades_of(data), rankings(data)["hybrid"]
    shown = {query: _shown(query, graded, source["least"]) for query, graded in grades.items()}
    names = sorted(query for query, docs in shown.items() if docs and hybrid.get(query))
    tested = set(hash_sample(names, len(names), "folds")[fold::folds])
    asked = sorted(tested & judged_often(grades, source["least"]).keys())
    return _Split(of.name, data, hybrid, {query: shown[query] for query in names if query not in tested}, asked)


def _learned(split: _Split) -> list[pa.Table]:
    """The Example table of a collection's train queries, its texts and its queries, under ids of its own."""
    table = examples(split.data, split.shown, split.hybrid)
    return [apart(one, split.name) for one in (table, split.data.texts, split.data.queries)]


def apart(table: pa.Table, name: str) -> pa.Table:
    """A table under other ids of queries, documents and examples: collections that number theirs alike meet here."""

    def other(ids: Any) -> Any:
        return [other(one) for one in ids] if isinstance(ids, list) else digest("apart", name, ids)

    for at, field in enumerate(table.schema):
        if field.name in _IDS:
            table = table.set_column(at, field, pa.array(other(table[field.name].to_pylist()), field.type))
    return table


def _reranked(split: _Split, scorer: Reranker) -> dict[str, list[str]]:
    """The first DEPTH of the hybrid of the asked queries, by falling score, as hexadecimal."""
    from anmi_ray.stages.rerank import rerank

    data = split.data
    runs = data.runs.filter(pc.and_(pc.equal(data.runs["system"], "hybrid"), pc.less_equal(data.runs["rank"], DEPTH)))
    run = runs.filter(pc.is_in(runs["query_id"], value_set=pa.array(split.asked, runs["query_id"].type)))
    scored = rerank(run, data.queries, data.texts, scorer, "reranker")
    return {query.hex(): [doc.hex() for doc in docs] for query, docs in ordered(scored).items()}


def rankings_of(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[bytes, list[bytes]]]:
    """The rankings of all folds, by collection and query."""
    ranked: dict[str, dict[bytes, list[bytes]]] = {}
    for fold in found:
        for name, rows in fold["rankings"].items():
            of_name = ranked.setdefault(name, {})
            of_name |= {bytes.fromhex(query): [bytes.fromhex(doc) for doc in docs] for query, docs in rows.items()}
    return ranked


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
