"""What `anmi demo` works on: a few queries over Python's own documentation, and what three simulated judges say.

Nothing is downloaded: documents and labels are read out of the running Python, answers are drawn from the labels.
Legend: D documents of a query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from anmi_ray.core.identity import rng
from anmi_ray.store.folders import new_folder

QUERIES, DEPTH, OPPONENTS = 12, 8, 3
_TAG = "bm25"
_Row = dict[str, str | float]


# By simulated judge: how sharply it sees differences, and its leaning to the document shown first, in logits.
JUDGES = {"careful": (3.0, 0.0), "hasty": (1.2, 0.0), "first-glance": (2.0, 1.5)}


def write_demo(to: Path) -> Path:
    """Write judgments.csv, collection/ in BEIR layout and bm25.trec to `to`, which is returned.

    Raises ConfigError where `to` is not an empty folder or absent.
    """
    from anmi_ray import corpus
    from anmi_ray.config.corpus import CorpusConfig
    from anmi_ray.config.retrieve import Bm25Config
    from anmi_ray.models.pairs import document_text
    from anmi_ray.retrieval.bm25 import Bm25Index, Counts
    from anmi_ray.tables import formats

    with new_folder(to) as beside:
        reader = corpus.read(CorpusConfig(max_train_queries=1, max_dev_queries=1, max_test_queries=QUERIES))
        documents = [row for table in reader.documents() for row in table.to_pylist()]
        named = {row["doc_id"]: row["external_id"] for row in documents}
        test = (row for row in reader.queries().to_pylist() if row["split"] == "test")
        queries = [{**row, "external_id": f"q{number}"} for number, row in enumerate(test, start=1)]
        relevant = {(row["query_id"], named[row["doc_id"]]) for row in reader.qrels().to_pylist()}
        config = Bm25Config()
        texts = [document_text(row["title"], row["text"]) for row in documents]
        index = Bm25Index(Counts.of(texts, config), config)
        top, scores = index.search([row["text"] for row in queries], DEPTH)
        found = [[documents[at] for at in row if at >= 0] for row in top]
        answers: list[_Row] = []
        lines: list[str] = []
        for query, docs, score in zip(queries, found, scores, strict=True):
            ids = [row["external_id"] for row in docs]
            answers += _answers(query["external_id"], ids, [(query["query_id"], one) in relevant for one in ids], score)
            named_lines = enumerate(zip(ids, score, strict=False), start=1)
            lines += [
                f"{query['external_id']} Q0 {one} {rank} {value:.6g} {_TAG}" for rank, (one, value) in named_lines
            ]
        formats.write_table(pa.Table.from_pylist(answers), beside / "judgments.csv")
        (beside / "bm25.trec").write_text("\n".join(lines) + "\n", encoding="utf-8")
        shown = {row["external_id"]: row for docs in found for row in docs}
        _write_collection(beside / "collection", list(shown.values()), queries, relevant)
    return to


def _answers(
    query: str, ids: Sequence[str], labels: Sequence[bool], score: Sequence[float]
) -> Iterator[dict[str, str | float]]:
    """Return each judge's answers about a ring of pairs in both orders; doc_a is shown first."""
    draw = rng("demo", query)
    strength_D = np.asarray(score[: len(ids)]) / max(score[0], 1e-9) + 2.0 * np.asarray(labels)
    steps = range(1, min(OPPONENTS, (len(ids) - 1) // 2) + 1)
    for judge, (sharpness, leaning) in JUDGES.items():
        for i, j in ((i, (i + step) % len(ids)) for i in range(len(ids)) for step in steps):
            for first, second in ((i, j), (j, i)):
                logit = sharpness * (strength_D[first] - strength_D[second]) + leaning + draw.logistic()
                pair = {"query_id": query, "doc_a": ids[first], "doc_b": ids[second]}
                yield {**pair, "preference": float(logit > 0), "judge": judge}


def _write_collection(
    folder: Path, documents: Sequence[dict[str, str]], queries: Sequence[dict[str, str]], relevant: set[tuple[str, str]]
) -> None:
    (folder / "qrels").mkdir(parents=True)
    rows = {
        "corpus": [{"_id": row["external_id"], "title": row["title"], "text": row["text"]} for row in documents],
        "queries": [{"_id": row["external_id"], "text": row["text"]} for row in queries],
    }
    for name, of_file in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_file), encoding="utf-8")
    labels = {row["query_id"]: row["external_id"] for row in queries}
    ids = {row["external_id"] for row in documents}
    graded = ((query, document) for query, document in relevant if query in labels and document in ids)
    lines = sorted(f"{labels[query]}\t{document}\t1" for query, document in graded)
    text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    (folder / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
