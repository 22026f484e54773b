"""Retrieval quality: from Run and Qrel tables to a Metric row per judged query, system and measure, by ir_measures.

Documents are ordered by rank, not by score: ties were broken when the run was written.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import measure_of
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import ID, id_array
from anmi_ray.core.records import METRIC

if TYPE_CHECKING:
    from ir_measures.measures import Measure

DEFAULT = ("nDCG@10", "MRR@10", "Recall@100")
BLOCK_QUERIES = 2_000  # the library wants nested dictionaries, about 100 bytes a row; a block bounds them


def parse(name: str) -> Measure:
    """The ir_measures measure called `name` (MRR@10, Recall@100 are its RR@10, R@100); ConfigError if unknown.

    >>> str(parse("MRR@10")), str(parse("ndcg_cut_10"))
    ('RR@10', 'nDCG@10')
    """
    try:
        return measure_of(name)
    except ValueError as error:
        raise ConfigError(str(error), "measures", "write it as ir_measures does: https://ir-measur.es") from None


def evaluate(
    run: pa.Table, qrels: pa.Table, measures: Sequence[str] = DEFAULT, systems: Sequence[str] | None = None
) -> pa.Table:
    """Metric rows of every system of `run` on every judged query, sorted by (query_id, system), measures as given.

    A judged query has at least one document of grade 1 or more; a system that returned nothing gets 0. `systems` must
    be present even if they returned nothing at all (default: those in `run`).
    nDCG is trec_eval's: gain = grade, discount 1/log₂(rank+1). Raises DataError if no query is judged.
    """
    parsed = {name: parse(name) for name in measures}
    judged = qrels.filter(pc.is_in(qrels["query_id"], value_set=_judged(qrels)))
    if not judged.num_rows:
        raise DataError("no query has a relevant document", "qrels", "give judgments of the evaluated queries")
    names = sorted(set(pc.unique(run["system"]).to_pylist()) | set(systems or ()))
    cutoffs = [None if one.params.get("judged_only") else one.params.get("cutoff") for one in parsed.values()]
    depths = [int(cutoff) for cutoff in cutoffs if isinstance(cutoff, int)]
    if len(depths) == len(cutoffs):  # rows below the deepest cutoff change no value
        run = run.filter(pc.less_equal(run["rank"], max(depths)))
    ids = sorted(pc.unique(judged["query_id"]).to_pylist())
    values = np.zeros((len(ids), len(names), len(parsed)))
    for start in range(0, len(ids), BLOCK_QUERIES):
        block = pa.array(ids[start : start + BLOCK_QUERIES], type=ID)
        grades = _nested(judged, block, "grade")
        for s, system in enumerate(names):
            ranking = _nested(run.filter(pc.equal(run["system"], system)), block, "rank")
            values[start : start + len(block), s] = _values(list(parsed.values()), grades, ranking)
    queries, systems_, measures_ = np.meshgrid(
        np.arange(len(ids)), np.arange(len(names)), np.arange(len(parsed)), indexing="ij"
    )
    return METRIC.table(
        {
            "query_id": id_array(ids).take(pa.array(queries.ravel())),
            "system": pa.array(names, type=pa.string()).take(pa.array(systems_.ravel())),
            "measure": pa.array(list(parsed), type=pa.string()).take(pa.array(measures_.ravel())),
            "value": values.ravel(),
        }
    )


def depth_of(name: str, otherwise: int = 10) -> int:
    """The cutoff of a measure; `otherwise` without one.

    >>> depth_of("nDCG@5"), depth_of("AP")
    (5, 10)
    """
    cutoff = parse(name).params.get("cutoff")
    return cutoff if isinstance(cutoff, int) else otherwise


def mean(metrics: pa.Table, system: str, measure: str) -> float:
    """Return the mean over queries of a system's measure. Raises DataError without queries."""
    rows = metrics.filter(pc.and_(pc.equal(metrics["system"], system), pc.equal(metrics["measure"], measure)))
    if not rows.num_rows:
        raise DataError(f"no {measure} of {system}", "metrics", "evaluate that system under that measure")
    return float(np.mean(rows["value"].to_numpy()))


def _judged(qrels: pa.Table) -> pa.Array:
    """Ids of the queries with at least one relevant document."""
    return pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"]).cast(ID)


def _nested(table: pa.Table, queries: pa.Array, column: str) -> dict[str, dict[str, int]]:
    """{query: {document: value}}: queries by position, as some measures need numbers; documents in hexadecimal."""
    nested: dict[str, dict[str, int]] = {}
    number = pc.index_in(table["query_id"], value_set=queries)
    valid = number.is_valid()
    columns = (
        number.filter(valid).to_pylist(),
        *(table[name].filter(valid).to_pylist() for name in ("doc_id", column)),
    )
    for query, doc, value in zip(*columns, strict=True):
        nested.setdefault(str(query), {})[doc.hex()] = value
    return nested


def _values(
    measures: Sequence[Measure], grades: dict[str, dict[str, int]], ranking: dict[str, dict[str, int]]
) -> np.ndarray:
    """Values [Q, measures], in order of the queries' positions; 0 if the system returned nothing."""
    import ir_measures

    names = np.array([str(measure) for measure in measures])  # MRR@10 and RR@10 are one measure under two names
    values = np.zeros((len(grades), len(measures)))
    if not ranking:
        return values
    scores = {query: {doc: -float(rank) for doc, rank in docs.items()} for query, docs in ranking.items()}
    try:
        for metric in ir_measures.iter_calc(list(dict.fromkeys(measures)), grades, scores):
            if metric.query_id in scores:
                values[int(metric.query_id), names == str(metric.measure)] = metric.value
    except subprocess.CalledProcessError as error:
        raise DataError(f"an external program failed: {error}", ", ".join(names), "name other measures") from None
    return values
