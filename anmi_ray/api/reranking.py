"""The last two steps of the path with a model that is trained: texts or TREC runs reranked, TREC runs measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.api.runs import Run
from anmi_ray.core import environment
from anmi_ray.core.errors import DataError, from_os_error
from anmi_ray.core.records import RUN
from anmi_ray.store import Flow

if TYPE_CHECKING:
    from anmi_ray.models.reranker import Reranker


@dataclass(frozen=True)
class Evaluation:
    """Comparison rows of every run, the first being the baseline."""

    comparisons: list[dict[str, Any]]
    measures: list[str]
    baseline: str


def rerank(
    model: str | Path | Run, query: str, texts: Sequence[str], *, root: str = "results", threads: int = 0
) -> pa.Table:
    """Score texts for a query with a trained model: columns rank (from 1), score, index (in `texts`) and text.

    `model` is a folder that holds one, a run, or the name of a run under `root`. Higher scores are more relevant; of
    equal ones the earlier text stands first. The model is kept in memory for the next call. `threads`: 0 takes all
    cores. Raises ConfigError where there is no such run or it has no model, DataError where a folder holds none.

    >>> ranking = anmi_ray.rerank("quickstart", "sort a list", ["Tuples are immutable.", "list.sort() sorts it."])
    >>> ranking.column_names, ranking["rank"].to_pylist()
    (['rank', 'score', 'index', 'text'], [1, 2])
    """
    folder = _folder(model, root)
    score = _loaded(folder, threads).score([query] * len(texts), list(texts)) if texts else []
    table = pa.table({"score": pa.array(score, pa.float32()), "index": pa.array(range(len(texts)), pa.int64())})
    table = table.append_column("text", pa.array(list(texts), pa.string()))
    table = table.sort_by([("score", "descending"), ("index", "ascending")])
    return table.add_column(0, "rank", pa.array(range(1, len(texts) + 1), pa.int64()))


def _folder(model: str | Path | Run, root: str) -> Path:
    if isinstance(model, Run):
        return model.model
    if isinstance(model, Path) or Path(model).is_dir():
        return _checked(Path(model))
    return Run(model, root).model


def _checked(folder: Path) -> Path:
    """A folder that holds a model. Raises DataError."""
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise DataError("holds no model", str(folder), "give the folder that holds config.json or modules.json")
    return folder


def _loaded(folder: Path, threads: int) -> Reranker:
    written_ns = max(file.stat().st_mtime_ns for file in folder.iterdir())  # trained anew: read anew
    return _read(str(folder.resolve()), threads or environment.cores(), written_ns)


@lru_cache(maxsize=1)
def _read(folder: str, threads: int, written_ns: int) -> Reranker:
    from anmi_ray.models.kinds import load_reranker

    return load_reranker(folder, threads=threads)


def rerank_run(model: Path, collection: Path, run_file: Path, out_file: Path, depth: int, threads: int) -> Flow:
    """Score the top `depth` of every query in a TREC run with a trained model and write a TREC run of them.

    Queries of the run that the collection does not have, or none of whose documents it has, are rejected (counted).
    Raises DataError when the run shares no query or no document with the collection.
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.stages.rerank import ranking
    from anmi_ray.tables import trec

    folder = _checked(model)
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
    reranked = ranking.rerank(known, queries, documents, _loaded(folder, threads))
    try:
        out_file.write_text(trec.format_run(reranked, queries, documents), encoding="utf-8")
    except OSError as error:
        raise from_os_error(error, str(out_file)) from error
    answered = len(pc.unique(reranked["query_id"]))
    return Flow("queries", asked, answered, asked - answered)


def evaluate(collection: Path, run_files: list[Path], split: str, names: list[str]) -> Evaluation:
    """Measure TREC runs against `qrels/<split>.tsv`; the first run is what the others are compared with."""
    from anmi_ray.corpus import lookup
    from anmi_ray.evaluation import measures, significance
    from anmi_ray.tables import trec

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
