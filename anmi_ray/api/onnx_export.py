"""ONNX files of an exported model, with their effect on nDCG@10 of the run's held-out queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import environment
from anmi_ray.core.records import QREL, RUN
from anmi_ray.store import Artifact

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers
    from anmi_ray.models.reranker import Reranker

MEASURE = "nDCG@10"
MOST_PAIRS = 10_000  # pairs that a file scores: two minutes for a small model on two cores


def write_onnx(folder: Path, wanted: Sequence[Numbers], artifacts: Mapping[str, Artifact]) -> list[dict[str, Any]]:
    """Write the ONNX files `wanted` of the model in `folder`; return name, size and nDCG@10 of each.

    nDCG@10 is of labelled test queries of the run, else of dev queries, up to MOST_PAIRS, and is compared with the
    run's own scores; missing if the run was not reranked or has no such query. Raises ConfigError as
    `onnx_files.write`.
    """
    from anmi_ray.models import onnx_files
    from anmi_ray.models.kinds import load_reranker

    model = load_reranker(str(folder), threads=environment.cores())
    onnx_files.check(model)
    sizes: dict[Numbers, int] = {}
    for numbers in wanted:
        before = _bytes_under(folder)
        onnx_files.write(model, folder, numbers)
        sizes[numbers] = _bytes_under(folder) - before  # graphs above 2 GiB have several files
    held_out = _held_out(artifacts)
    return [
        {"file": onnx_files.FILES[numbers], "bytes": size}
        | (_measured(onnx_files.reading(model, folder / onnx_files.FILES[numbers]), *held_out) if held_out else {})
        for numbers, size in sizes.items()
    ]


def _bytes_under(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _held_out(artifacts: Mapping[str, Artifact]) -> tuple[str, pa.Table, list[tuple[pa.Table, ...]]] | None:
    """Return split, qrels, and by bucket: queries, the hybrid's run, its top, texts, and the run's own ranking."""
    from anmi_ray.stages.ingest import of_queries
    from anmi_ray.stages.rerank.ranking import SYSTEM
    from anmi_ray.stages.rerank.scoring import Asked

    rerank = artifacts.get("rerank")
    manifest = None if rerank is None else rerank.manifest()
    if rerank is None or manifest is None:
        return None
    ingest, depth = artifacts["ingest"], manifest["depth"]
    buckets = range((ingest.manifest() or {})["buckets"])
    qrels = pa.concat_tables(ingest.read_part("qrels", bucket, QREL) for bucket in buckets)
    labelled = pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"])
    for split in ("test", "dev"):
        left = max(1, MOST_PAIRS // depth)
        found: list[tuple[pa.Table, ...]] = []
        for bucket in buckets:
            queries, *tables = Asked(artifacts["retrieve"], ingest, depth, (split,)).of_bucket(bucket)
            queries = queries.filter(pc.is_in(queries["query_id"], value_set=labelled)).sort_by("query_id")[:left]
            left -= queries.num_rows
            runs = of_queries(rerank.read_part("runs", bucket, RUN), queries)
            hybrid, top = (of_queries(table, queries) for table in tables[:2])
            if top.num_rows:
                found.append((queries, hybrid, top, tables[2], runs.filter(pc.equal(runs["system"], SYSTEM))))
        if found:
            queries = pa.concat_tables(part[0] for part in found)
            return split, of_queries(qrels, queries), found
    return None


def _measured(model: Reranker, split: str, qrels: pa.Table, parts: Sequence[tuple[pa.Table, ...]]) -> dict[str, Any]:
    """Return the model's nDCG@10, and its difference to the run's with an interval over queries."""
    from anmi_ray.evaluation import measures, significance
    from anmi_ray.stages.rerank import ranking

    runs: list[pa.Table] = []
    for queries, hybrid, top, texts, own in parts:
        runs += [own, ranking.with_tail(ranking.rerank(top, queries, texts, model, "onnx"), hybrid)]
    metrics = measures.evaluate(pa.concat_tables(runs), qrels, [MEASURE])
    row = significance.compare(metrics, ranking.SYSTEM, ["onnx"], MEASURE)[-1]
    figures = ("queries", "mean", "difference", "difference_low", "difference_high")
    return {"split": split, **{name: getattr(row, name) for name in figures}}
