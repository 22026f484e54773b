"""Rerank texts or TREC runs with a trained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from anmi_ray.api import arguments
from anmi_ray.api.runs import Run
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError, gpu_memory_named
from anmi_ray.core.records import RUN, find_rows
from anmi_ray.store import Flow

if TYPE_CHECKING:
    from anmi_ray.config.corpus import OwnDocument
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
    """Score texts for a query with a trained model: columns rank (from 1), score, index (in `texts`) and text.

    `model` is a folder that holds one, a run, or the name of a run under `root`. Higher scores are more relevant; of
    equal ones the earlier text stands first. The model is kept in memory for the next call. `threads`: 0 takes all
    cores. `device`: cpu, cuda, or auto, a GPU where torch sees one. `precision`: float32, bfloat16, float16, or auto,
    bfloat16 where the device computes it natively. `scores`: what retrievers and other rerankers said of the texts, a
    list each; the model's are then fused with them by the weights that the run has chosen on dev queries (of a folder,
    those of its fusion.json). `min_relevance`: texts whose P(relevant) by the model's own score is lower are left out,
    and a column `relevance` says it of the others; 0 keeps all. The run has fitted it on dev queries (of a folder,
    relevance.json holds it).
    Raises ConfigError where what is given is no text or no scores, there is no such run or device, or the run has no
    model, no P(relevant) or no such fusion; DataError where a folder holds no model or scores are not finite or not of
    all texts.

    >>> ranking = anmi_ray.rerank("quickstart", "sort a list", ["Tuples are immutable.", "list.sort() sorts it."])
    >>> ranking.column_names, ranking["rank"].to_pylist()
    (['rank', 'score', 'index', 'text'], [1, 2])
    """
    arguments.text(query, "query")
    arguments.threads(threads)
    texts = arguments.texts(texts, "texts")
    given = {} if scores is None else arguments.scores(scores, "scores")
    place = _place(model, root)
    folder = place.model if isinstance(place, Run) else _checked(place)
    fusion = None if scores is None else _fusion(place)
    if fusion is not None:
        fusion.check(given, "scores")
    calibrated = None if min_relevance is None else _relevance(place, min_relevance)
    where = _where(device, precision)
    own = np.zeros(0)
    if texts:
        with gpu_memory_named(_full):
            own = _loaded(folder, threads, where, precision).score([query] * len(texts), texts)
    score = own if fusion is None or not texts else fused(fusion, own, given)
    table = pa.table({"score": pa.array(score, pa.float32()), "index": pa.array(range(len(texts)), pa.int64())})
    table = table.append_column("text", pa.array(texts, pa.string()))
    if calibrated is not None:
        table = table.append_column("relevance", pa.array(calibrated.curve.of(own), pa.float64()))
        table = table.filter(pc.greater_equal(table["relevance"], min_relevance))
    table = table.sort_by([("score", "descending"), ("index", "ascending")])
    return table.add_column(0, "rank", pa.array(range(1, table.num_rows + 1), pa.int64()))


def fused(fusion: ServedFusion, score: NDArray[Any], scores: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """float64[N]: the scores of N texts of one query, the model's and by system the others', fused.

    Raises DataError where scores are not finite or not of all texts.
    """
    from anmi_ray.stages.rerank import ranking

    count = len(score)
    given = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    if odd := [name for name, values in given.items() if values.shape != (count,) or not np.isfinite(values).all()]:
        raise DataError(f"not a finite number for each of {count} texts", f"scores of {odd[0]}", "give one each")
    row = {"query_id": [bytes(16)] * count, "doc_id": [at.to_bytes(16, "big") for at in range(count)]}
    run = RUN.table({**row, "system": ["run"] * count, "rank": range(1, count + 1), "score": [0.0] * count})
    reranked = ranking.ranked(run, score.astype(np.float64))
    partners = {name: ranking.ranked(run, values, name) for name, values in given.items()}
    table = fusion.fuse(reranked, run, partners, count)
    found = np.empty(count)
    found[[int.from_bytes(doc, "big") for doc in table["doc_id"].to_pylist()]] = table["score"].to_numpy()
    return found


def _place(model: str | Path | Run, root: str) -> Path | Run:
    """The folder or the run that `model` names. Raises ConfigError where it is neither."""
    if isinstance(model, Run | Path):
        return model
    arguments.text(model, "model")
    return Path(model) if Path(model).is_dir() else Run(model, root)


def _fusion(place: Path | Run) -> ServedFusion:
    """Return the fusion of a folder or run. Raises ConfigError if it has none."""
    from anmi_ray.api.export import fusion_of
    from anmi_ray.evaluation import fusion

    if isinstance(place, Path):
        return fusion.read_served(place)
    found = fusion_of(place.artifact("evaluate", "fusion"))
    if found is None:
        raise ConfigError(
            "the run has chosen no weights of a fusion", f"run {place.name}", "give it dev queries and evaluate.fusion"
        )
    return found


def _relevance(place: Path | Run, least: float = 0.0) -> Relevance:
    """Return P(relevant) of a model. Raises ConfigError without a curve, or if `least` is not a probability."""
    from anmi_ray.evaluation import relevance

    arguments.share(least, "min_relevance", "probability")
    found = _calibrated(place)
    if found is None:
        raise relevance.missing(_called(place))
    return found


def _called(place: Path | Run) -> str:
    """Return the name of a model's folder or run for messages."""
    return str(place) if isinstance(place, Path) else f"run {place.name}"


def _calibrated(place: Path | Run) -> Relevance | None:
    from anmi_ray.evaluation import relevance

    return relevance.find(place) if isinstance(place, Path) else place.relevance()


def calibration_of(model: str, root: str) -> Relevance | None:
    """What the scores of a model, named as for `model_of`, are worth; None where it does not say.

    Raises DataError where a folder's file is damaged.
    """
    is_published = not (Path(model).is_dir() or names_run(model))
    return None if is_published else _calibrated(_place(model, root))


def names_run(model: str) -> bool:
    """Whether `model` is neither a folder nor a model of the hub, but a run's name."""
    from anmi_ray.models import loading

    return not (Path(model).is_dir() or "/" in model or model == loading.PACKAGED)


def model_of(model: str, root: str) -> tuple[str, str | ModelSource]:
    """What to call `model`, and what `load` takes: a folder, a run of that name under `root`, else one of the hub.

    Raises ConfigError where it is none of these or the run has no model, DataError where the folder holds none.
    """
    from anmi_ray.models import loading

    if Path(model).is_dir():
        return Path(model).resolve().name, str(_checked(Path(model)).resolve())
    if not names_run(model):
        return model, loading.resolve(model)
    run = Run(model, root)
    return run.name, str(run.model.resolve())


def _checked(folder: Path) -> Path:
    """A folder that holds a model. Raises DataError."""
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise DataError("holds no model", str(folder), "give the folder that holds config.json or modules.json")
    return folder


def load(
    model: str | ModelSource, threads: int = 0, device: Device = "cpu", precision: Precision = "float32"
) -> Reranker:
    """A reranker or an embedder, to score with; threads 0: all cores.

    Raises ConfigError where its head would have to be drawn, there is no such device, or the model does not fit there.
    """
    from anmi_ray.models.cross_encoder import CrossEncoder
    from anmi_ray.models.kinds import load_reranker

    where = _where(device, precision)
    with gpu_memory_named(_full):
        found = load_reranker(model, dtype=precision, threads=threads or environment.cores(), device=where)
    if isinstance(found, CrossEncoder) and found.drawn_head:
        what = "it has no scoring head and is no reranker: one drawn at random would rank"
        raise ConfigError(what, f"model {found.name}", "give a cross-encoder, an embedder, or a model that is trained")
    return found


def _where(device: Device, precision: Precision) -> Literal["cpu", "cuda"]:
    """Return the torch device. Raises ConfigError if it is unknown or does not exist."""
    from anmi_ray.models import reranker

    arguments.one_of(device, reranker.Device, "device")
    arguments.one_of(precision, reranker.Precision, "precision")
    return reranker.resolve_device(device)


def _full(said: str) -> ConfigError:
    remedy = "compute in 16 bits (precision bfloat16), on the CPU, or end what else holds the GPU"
    return ConfigError(f"its memory does not suffice: {said}", "the GPU", remedy)


def _loaded(folder: Path, threads: int, device: Device, precision: Precision) -> Reranker:
    written_ns = max(file.stat().st_mtime_ns for file in folder.iterdir())  # trained anew: read anew
    key = folder.resolve(), threads, device, precision, written_ns
    if key not in _kept:
        _kept.clear()  # before: a GPU's memory may not hold two
        _kept[key] = load(str(folder.resolve()), threads, device, precision)
    return _kept[key]


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
    """Score the top `depth` of every query in a TREC run with a trained model and write a TREC run of them.

    `model`: a folder, a run under `root`, what is installed, or of the hub (org/model@revision) with a head of its own.
    `partners`: TREC runs of the systems that the model's fusion names; their scores are added as it says.
    Queries of the run that the collection does not have, or none of whose documents it has, are rejected (counted).
    `say` is told where its ranks contradict its scores, how many ids the collection does not have, and how many
    are left of `min_relevance`: those whose P(relevant) is lower are left out. `table_file`: a table of the ranking,
    with P(relevant) where the model says it; `say` is told where not. `own_document`: as corpus.own_document. `device`
    and `precision`: as for `rerank`. Raises DataError where half of a run's queries or documents, or more, are not in
    the collection.
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.stages.ingest import of_queries
    from anmi_ray.stages.rerank import ranking
    from anmi_ray.tables import formats, trec

    how = threads, _where(device, precision), precision
    given = partners or {}
    place = Run(str(model), root) if names_run(str(model)) else Path(model)
    _, source = model_of(str(model), root)
    fusion = _fusion(place) if given else None
    if fusion is not None:
        fusion.check(given, "--fuse")
    calibrated = _calibrated_for(place, min_relevance, table_file, say)
    named = _one_system(run_file, say)
    run = _top(named, collection, depth, own_document, say)
    others = {name: _one_system(path, say) for name, path in given.items()}
    runs = {trec.place_of(given[name]): one for name, one in others.items()} | {trec.place_of(run_file): named}
    lookup.check_ids(str(collection), runs, {}, say)
    queries, documents = lookup.read_texts(str(collection), run["query_id"], run["doc_id"])
    known = _known(run, queries, documents, collection, run_file)
    with gpu_memory_named(_full):
        loaded = _loaded(Path(source), *how) if isinstance(source, str) else load(source, *how)
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


def _top(run: NamedRun, collection: Path, depth: int, rule: OwnDocument, say: Callable[[str], None] | None) -> pa.Table:
    """The top `depth` of every query, without the query's own document."""
    from anmi_ray.corpus import lookup, own_documents

    texts = partial(lookup.read_texts, str(collection))
    own = own_documents.find_in_run(run.table, run.documents, rule, texts, say=say)
    table = own_documents.leave_out(run.table, own)
    return table.filter(pc.less_equal(table["rank"], depth))


def _calibrated_for(
    place: Path | Run, least: float | None, table_file: Path | None, say: Callable[[str], None] | None
) -> Relevance | None:
    """Return P(relevant) if requested. Raises ConfigError if `least` needs a curve that does not exist."""
    if least is not None:
        return _relevance(place, least)
    found = None if table_file is None else _calibrated(place)
    if table_file is not None and found is None and say is not None:
        say(f"{table_file}: has no column relevance, since {_called(place)} has no calibrated P(relevant)")
    return found


def _known(run: pa.Table, queries: pa.Table, documents: pa.Table, collection: Path, run_file: Path) -> pa.Table:
    """Return the rows of `run` whose query and document exist. Raises DataError if there are none."""
    tables = {"query_id": queries, "doc_id": documents}
    there = [pc.is_in(run[name], value_set=table[name].combine_chunks()) for name, table in tables.items()]
    known = run.filter(pc.and_(*there))
    if not known.num_rows:
        what = f"none of its {len(pc.unique(run['query_id'])):,} queries and their documents are in {collection}"
        raise DataError(what, str(run_file), "give the collection that the run was made on: ids must agree")
    return known


def _relevant(
    run: pa.Table, own: pa.Table, calibrated: Relevance, least: float, say: Callable[[str], None] | None
) -> pa.Table:
    """`run` with P(relevant) as a column `relevance`, by the model's `own` scores, without documents of less."""
    from anmi_ray.stages.rerank import ranking

    def worth(rows: pa.Table) -> NDArray[np.float64]:
        at = find_rows(own, {name: rows[name] for name in ("query_id", "doc_id")})
        return calibrated.curve.of(own["score"].to_numpy()[at])

    kept = run.filter(pa.array(worth(run) >= least))
    if say is not None and least > 0:
        before, after = (pc.count_distinct(table["query_id"]).as_py() for table in (run, kept))
        left = f"{kept.num_rows:,} of {run.num_rows:,} documents are relevant with a probability of {least:g} or more"
        say(f"{left}; {before - after:,} of {before:,} queries have none")
    if kept.num_rows:
        kept = ranking.ranked(kept, kept["score"].to_numpy())
    return kept.append_column("relevance", pa.array(worth(kept)))


def _one_system(path: Path, say: Callable[[str], None] | None) -> NamedRun:
    """The run of a file that holds one system. Raises DataError."""
    from anmi_ray.tables import trec

    run = trec.read_named_run(path, say=say)
    tags = pc.unique(run.table["system"]).to_pylist()
    if len(tags) != 1:
        what = f"holds {len(tags)} systems (tags {', '.join(tags[:3])})" if tags else "holds no ranking"
        raise DataError(what, str(path), "give a TREC run file of one tag, the last field of a line")
    return run
