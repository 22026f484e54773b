"""Rerank texts or TREC runs with a trained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from anmi_ray.api.runs import Run, collection_of
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError, gpu_memory_named
from anmi_ray.core.records import RUN, find_rows
from anmi_ray.store import Flow

if TYPE_CHECKING:
    from anmi_ray.config.corpus import OwnDocument
    from anmi_ray.corpus.lookup import CorpusFiles
    from anmi_ray.evaluation.fusion import ServedFusion
    from anmi_ray.evaluation.relevance import Relevance
    from anmi_ray.models.loading import ModelSource
    from anmi_ray.models.reranker import Device, Precision, Reranker
    from anmi_ray.tables.trec import NamedRun


def rerank(
    model: str | Path | Run,
    query: str,
    texts: Sequence[str],
    *,
    scores: Mapping[str, Sequence[float]] | None = None,
    min_relevance: float | None = None,
    root: str = "results",
    threads: int = 0,
    device: Device = "auto",
    precision: Precision = "float32",
) -> pa.Table:
    """Score texts for a query with a trained model; return columns rank (from 1), score, index (in `texts`) and text.

    Higher scores are more relevant; ties keep the order of the texts. The model stays in memory for the next call.

    model: a folder, a run, or the name of a run under `root`
    scores: scores of other systems for the texts, by name; the model's are fused with them, by weights that the run
        chose on dev queries (in a folder: fusion.json)
    min_relevance: drop texts whose P(relevant) by the model's own score is lower, and add a column `relevance`; the run
        fitted it on dev queries (in a folder: relevance.json)
    threads: 0 uses all cores
    device: cpu, cuda, or auto, a GPU if torch finds one
    precision: float32, bfloat16, float16, or auto, bfloat16 if the device supports it natively

    Raise ConfigError if the run or device does not exist, the run lacks a model, P(relevant) or such a fusion, or
    texts is a string; DataError if a folder has no model, or scores are not one finite number per text.

    >>> ranking = anmi_ray.rerank("quickstart", "sort a list", ["Tuples are immutable.", "list.sort() sorts it."])
    >>> ranking.column_names, ranking["rank"].to_pylist()
    (['rank', 'score', 'index', 'text'], [1, 2])
    """
    if isinstance(texts, str):  # its characters would be ranked
        raise ConfigError("expected a list of texts, got one text", "texts", "give [text]")
    texts = list(texts)
    place = _place(model, root)
    source = place.model if isinstance(place, Run) else _checked(place)
    fusion = None if scores is None else _fusion(place, scores, "scores")
    calibrated = None if min_relevance is None else _relevance(place, required=True)
    own = np.zeros(0)
    if texts:
        with gpu_memory_named("the GPU", _GPU_FULL):
            own = _loaded(source, threads, device, precision).score([query] * len(texts), texts)
    score = own if fusion is None or not texts else fused(fusion, own, scores or {})
    table = pa.table({"score": pa.array(score, pa.float32()), "index": pa.array(range(len(texts)), pa.int64())})
    table = table.append_column("text", pa.array(texts, pa.string()))
    if calibrated is not None:
        table = table.append_column("relevance", pa.array(calibrated.curve.of(own), pa.float64()))
        table = table.filter(pc.greater_equal(table["relevance"], min_relevance))
    table = table.sort_by([("score", "descending"), ("index", "ascending")])
    return table.add_column(0, "rank", pa.array(range(1, table.num_rows + 1), pa.int64()))


def fused(fusion: ServedFusion, score: NDArray[Any], scores: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """Return float64[N]: the model's and other systems' scores for N texts of one query, fused.

    Raise DataError if scores are not one finite number per text.
    """
    from anmi_ray.stages.rerank import ranking

    count = len(score)
    given = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    if odd := [name for name, values in given.items() if values.shape != (count,) or not np.isfinite(values).all()]:
        raise DataError(f"expected a finite number for each of {count} texts", f"scores of {odd[0]}", "give one each")
    row = {"query_id": [bytes(16)] * count, "doc_id": [at.to_bytes(16, "big") for at in range(count)]}
    run = RUN.table({**row, "system": ["run"] * count, "rank": range(1, count + 1), "score": [0.0] * count})
    reranked = ranking.ranked(run, score.astype(np.float64))
    partners = {name: ranking.ranked(run, values, name) for name, values in given.items()}
    table = fusion.fuse(reranked, run, partners, count)
    found = np.empty(count)
    found[[int.from_bytes(doc, "big") for doc in table["doc_id"].to_pylist()]] = table["score"].to_numpy()
    return found


def _place(model: str | Path | Run, root: str) -> Path | Run:
    """Return the run that `model` names, or else a folder, which may not exist."""
    if isinstance(model, Run | Path):
        return model
    return Run(model, root) if names_run(model) else Path(model)


def _fusion(place: Path | Run, given: Mapping[str, Any], option: str) -> ServedFusion:
    """Return the fusion of a folder or run. Raise ConfigError if it has none, or not of the systems in `given`."""
    from anmi_ray.evaluation import fusion

    if isinstance(place, Path):
        found = fusion.read_served(place)
    elif (found := place.fusion()) is None:
        place.artifact("evaluate", "fusion")  # raises if the run is not evaluated
        remedy = "give it dev queries and evaluate.fusion"
        raise ConfigError("the run has not chosen weights of a fusion", f"run {place.name}", remedy)
    found.check(given, option)
    return found


def _relevance(place: Path | Run, required: bool) -> Relevance | None:
    """Return P(relevant) of a model. Raise ConfigError if it is required and missing."""
    from anmi_ray.evaluation import relevance

    found = place.relevance() if isinstance(place, Run) else relevance.find(place)
    if found is None and required:
        raise relevance.missing(_named(place))
    return found


def _named(place: Path | Run) -> str:
    return f"run {place.name}" if isinstance(place, Run) else str(place)


def calibration_of(model: str, root: str) -> Relevance | None:
    """Return P(relevant) of a model, named as for `model_of`, or None. Raise DataError if a folder's is damaged."""
    return _relevance(_place(model, root), required=False)


def names_run(model: str) -> bool:
    """Return True if `model` is a run's name, neither a folder nor a model of the hub."""
    from anmi_ray.models import loading

    return not (Path(model).is_dir() or "/" in model or model == loading.PACKAGED)


def model_of(model: str, root: str) -> tuple[str, str | ModelSource]:
    """Return the name of `model` and what `load` takes, for a folder, a run under `root`, or a model of the hub.

    Raise ConfigError for anything else or if the run has no model, DataError if the folder has none.
    """
    from anmi_ray.models import loading

    if Path(model).is_dir():
        return Path(model).resolve().name, str(_checked(Path(model)).resolve())
    if not names_run(model):
        return model, loading.resolve(model)
    run = Run(model, root)
    return run.name, str(run.model.resolve())


def _checked(folder: Path) -> Path:
    """Return a folder that contains a model. Raise DataError if it does not."""
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise DataError("holds no model", str(folder), "give a folder with config.json or modules.json")
    return folder


def load(
    model: str | ModelSource, threads: int = 0, device: Device = "cpu", precision: Precision = "float32"
) -> Reranker:
    """Load a reranker or an embedder for scoring; threads 0: all cores.

    Raise ConfigError if it has no scoring head, the device does not exist, or the model does not fit there.
    """
    from anmi_ray.models.cross_encoder import CrossEncoder
    from anmi_ray.models.kinds import load_reranker
    from anmi_ray.models.reranker import resolve_device

    where = resolve_device(device)
    with gpu_memory_named("the GPU", _GPU_FULL):
        found = load_reranker(model, dtype=precision, threads=threads or environment.cores(), device=where)
    if isinstance(found, CrossEncoder) and found.drawn_head:
        what = "the model has no scoring head; a random one would rank"
        raise ConfigError(what, f"model {found.name}", "give a cross-encoder, an embedder, or a trained model")
    return found


def _loaded(model: str | Path, threads: int, device: Device, precision: Precision) -> Reranker:
    """Return the model of a folder, which is kept in memory until another one is needed."""
    from anmi_ray.models.reranker import resolve_device

    folder = Path(model).resolve()
    written_ns = max(file.stat().st_mtime_ns for file in folder.iterdir())
    key = folder, threads, resolve_device(device), precision, written_ns
    if key not in _kept:
        _kept.clear()  # first: two may not fit into a GPU's memory
        _kept[key] = load(str(folder), threads, device, precision)
    return _kept[key]


_GPU_FULL = "use 16 bits (precision bfloat16), use the CPU, or stop other processes on the GPU"
_kept: dict[tuple[Any, ...], Reranker] = {}  # the model of the last call


def rerank_run(
    model: str | Path,
    collection: Path,
    run_file: Path,
    out_file: Path,
    depth: int,
    threads: int,
    partners: Mapping[str, Path] | None = None,
    say: Callable[[str], None] | None = None,
    min_relevance: float | None = None,
    table_file: Path | None = None,
    device: Device = "auto",
    precision: Precision = "float32",
    root: str = "results",
    own_document: OwnDocument = "same-text",
) -> Flow:
    """Score the top `depth` documents per query of a TREC run with a trained model, and write the ranking.

    model: a folder, a run, or a model of the hub (org/model@revision); collection: a BEIR folder or a run
    partners: runs for its fusion; say: receives messages about ranks, unknown ids, and documents below `min_relevance`
    table_file: table of the ranking, with P(relevant) if known
    min_relevance, device, precision: as for `rerank`; own_document: as corpus.own_document

    Queries without a text or a known document are rejected. Raise DataError if half or more of the ids are unknown.
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.stages.ingest import of_queries
    from anmi_ray.stages.rerank import ranking
    from anmi_ray.tables import formats, trec

    given = partners or {}
    place = _place(model, root)
    source = model_of(str(model), root)[1]
    fusion = _fusion(place, given, "--fuse") if given else None
    wanted = min_relevance is not None or table_file is not None
    calibrated = _relevance(place, required=min_relevance is not None) if wanted else None
    if table_file is not None and calibrated is None and say is not None:
        say(f"{table_file}: has no column relevance, since {_named(place)} has no calibrated P(relevant)")
    named = trec.one_system(run_file, say)
    files = collection_of(collection, root)
    run = _top(named, files, depth, own_document, say)
    others = {name: trec.one_system(path, say) for name, path in given.items()}
    runs = {trec.place_of(given[name]): one for name, one in others.items()} | {trec.place_of(run_file): named}
    lookup.check_ids(files, runs, {}, say)
    queries, documents = lookup.read_texts(files, run["query_id"], run["doc_id"])
    known = _known(run, queries, documents, files.place, run_file)
    with gpu_memory_named("the GPU", _GPU_FULL):
        how = threads, device, precision
        loaded = _loaded(source, *how) if isinstance(source, str) else load(source, *how)
        own = reranked = ranking.rerank(known, queries, documents, loaded)
    if fusion is not None:
        scores = {name: of_queries(one.table, queries) for name, one in others.items()}
        reranked = fusion.fuse(own, known, scores, depth)
    asked, answered = (len(pc.unique(table["query_id"])) for table in (run, reranked))
    if calibrated is not None:
        reranked = _relevant(reranked, own, calibrated, min_relevance or 0.0, say)
    if table_file is not None:
        formats.write_table(trec.named(reranked, queries, documents).drop_columns("system"), table_file)
    formats.write_text(trec.format_run(reranked, queries, documents), out_file)
    return Flow("queries", asked, answered, asked - answered)


def _top(
    run: NamedRun, files: CorpusFiles, depth: int, rule: OwnDocument, say: Callable[[str], None] | None
) -> pa.Table:
    """Return the top `depth` documents per query, without the query's own document."""
    from anmi_ray.corpus import lookup, own_documents

    texts = partial(lookup.read_texts, files)
    own = own_documents.find_in_run(run.table, run.documents, rule, texts, say=say)
    table = own_documents.leave_out(run.table, own)
    return table.filter(pc.less_equal(table["rank"], depth))


def _known(run: pa.Table, queries: pa.Table, documents: pa.Table, place: str, run_file: Path) -> pa.Table:
    """Return the rows of `run` whose query and document exist. Raise DataError if there are none."""
    tables = {"query_id": queries, "doc_id": documents}
    there = [pc.is_in(run[name], value_set=table[name].combine_chunks()) for name, table in tables.items()]
    known = run.filter(pc.and_(*there))
    if not known.num_rows:
        what = f"none of its {len(pc.unique(run['query_id'])):,} queries and their documents are in {place}"
        raise DataError(what, str(run_file), "give the collection of the run: ids must agree")
    return known


def _relevant(
    run: pa.Table, own: pa.Table, calibrated: Relevance, least: float, say: Callable[[str], None] | None
) -> pa.Table:
    """Return documents with P(relevant) >= `least` by the model's `own` scores, and it as a column `relevance`."""
    from anmi_ray.stages.rerank import ranking

    def relevance(rows: pa.Table) -> NDArray[np.float64]:
        at = find_rows(own, {name: rows[name] for name in ("query_id", "doc_id")})
        return calibrated.curve.of(own["score"].to_numpy()[at])

    kept = run.filter(pa.array(relevance(run) >= least))
    if say is not None and least > 0:
        before, after = (pc.count_distinct(table["query_id"]).as_py() for table in (run, kept))
        left = f"{kept.num_rows:,} of {run.num_rows:,} documents have P(relevant) >= {least:g}"
        say(f"{left}; {before - after:,} of {before:,} queries have no such document")
    if kept.num_rows:
        kept = ranking.ranked(kept, kept["score"].to_numpy())
    return kept.append_column("relevance", pa.array(relevance(kept)))
