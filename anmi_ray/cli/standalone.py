"""`anmi rerank` and `anmi evaluate`: the last two steps of the path on files, for anyone's runs and collections."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import environment
from anmi_ray.core.errors import DataError, from_os_error
from anmi_ray.core.records import RUN
from anmi_ray.corpus import lookup
from anmi_ray.evaluation import measures, significance
from anmi_ray.models.reranker import load_reranker
from anmi_ray.stages.rerank.ranking import rerank as rerank_run
from anmi_ray.store import Flow
from anmi_ray.tables import trec


@dataclass(frozen=True)
class Evaluation:
    """Comparison rows of every run, the first being the baseline."""

    comparisons: list[dict[str, Any]]
    measures: list[str]
    baseline: str


def rerank(model: Path, collection: Path, run_file: Path, out_file: Path, depth: int, threads: int) -> Flow:
    """Score the top `depth` of every query in a TREC run with a trained model and write a TREC run of them.

    Queries of the run that the collection does not have, or none of whose documents it has, are rejected (counted).
    Raises DataError when the run shares no query or no document with the collection.
    """
    if not (model / "config.json").exists() and not (model / "modules.json").exists():
        raise DataError("holds no model", str(model), "give the folder that holds config.json or modules.json")
    run = trec.read_run(run_file)
    run = run.filter(pc.less_equal(run["rank"], depth))
    queries, documents = lookup.read_texts(str(collection), run["query_id"], run["doc_id"])
    known = run.filter(
        pc.and_(
            pc.is_in(run["query_id"], value_set=queries["query_id"].combine_chunks()),
            pc.is_in(run["doc_id"], value_set=documents["doc_id"].combine_chunks()),
        )
    )
    asked = len(pc.unique(run["query_id"]))
    if not known.num_rows:
        raise DataError(
            f"none of its {asked:,} queries and their documents are in {collection}",
            str(run_file),
            "give the collection that the run was made on: ids must agree",
        )
    reranked = rerank_run(known, queries, documents, load_reranker(str(model), threads=threads or environment.cores()))
    try:
        out_file.write_text(trec.format_run(reranked, queries, documents), encoding="utf-8")
    except OSError as error:
        raise from_os_error(error, str(out_file)) from error
    answered = len(pc.unique(reranked["query_id"]))
    return Flow("queries", asked, answered, asked - answered)


def evaluate(collection: Path, run_files: list[Path], split: str, names: list[str]) -> Evaluation:
    """Measure TREC runs against `qrels/<split>.tsv`; the first run is what the others are compared with."""
    qrels = lookup.read_qrels(str(collection), split)
    labels: list[str] = []
    tables: list[pa.Table] = []
    for path in run_files:
        run = trec.read_run(path)
        if not run.num_rows:
            raise DataError("holds no ranking", str(path), "give a TREC run file")
        label = path.stem if path.stem not in labels else str(path)
        labels.append(label)
        tables.append(RUN.table({**{c: run[c] for c in run.column_names}, "system": [label] * run.num_rows}))
    metrics = measures.evaluate(pa.concat_tables(tables), qrels, names, labels)
    rows = [asdict(row) for name in names for row in significance.compare(metrics, labels[0], labels, name)]
    return Evaluation(rows, names, labels[0])
