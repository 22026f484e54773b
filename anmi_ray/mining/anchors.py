"""Anchors: the document each example measures its gaps from, and the queries that have none.

A known positive anchors its own example. In a query without one, each document does that judges were asked about
directly and that is likelier than not to answer the query, by its rank, its rating and their answer (`relevance`): by
comparisons alone, the best of documents that all miss the point looks as good. Where nobody can be asked, rank and
rating must do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.arrays import Flags, Ints
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import find_rows
from anmi_ray.mining.categories import PLACE

Refused = tuple[str, str, str]
# Above it an anchor is likelier right than wrong; a query without one costs all of its judgments.
LIKELY = 0.5
_LABELS = {
    True: ("no gap to a known positive", "its known positives are not rated, or nothing else is"),
    False: ("no known positive", "mine.anchors is known; confirmed asks judges what answers it, rated asks nobody"),
}


@dataclass(frozen=True)
class Anchors:
    """E examples to be, sorted by (query_id, example_id)."""

    table: pa.Table  # query_id, anchor_id
    example_ids: list[bytes]
    query: Ints  # [E] index into the bucket's queries


def codes(column: pa.ChunkedArray | pa.Array, queries: pa.Array) -> Ints:
    """Index of each id in `queries`, -1 where it is not there."""
    return pc.fill_null(pc.index_in(column, value_set=queries), -1).to_numpy().astype(np.int64)


def measured(gaps: pa.Table, config: MineConfig, confirmed: pa.Table | None = None) -> pa.Table:
    """The Gap rows whose anchor anchors an example: known positives, and confirmed documents where these may.

    `confirmed` as in `compose.RuleInputs`. Raises ConfigError if `config` wants it and it is not given.
    """
    return gaps.filter(pa.array(_anchors_of(gaps, config, confirmed)))


def choose(
    gaps: pa.Table, candidates: pa.Table, queries: pa.Array, config: MineConfig, confirmed: pa.Table | None = None
) -> tuple[Anchors, list[Refused]]:
    """The anchors of a bucket, and (key, reason, detail) for every query of `queries` without any.

    `confirmed` and errors as of `measured`.
    """
    pairs = ["query_id", "anchor_id", "anchor_kind"]
    table = measured(gaps.select(pairs).group_by(pairs).aggregate([]), config, confirmed)
    anchored = pc.is_in(queries, value_set=pc.unique(table["query_id"])).to_numpy(zero_copy_only=False)
    left = queries.filter(pa.array(~anchored))
    return _sorted(table, queries), _refused(left, candidates, config, confirmed)


def _anchors_of(table: pa.Table, config: MineConfig, confirmed: pa.Table | None) -> Flags:
    """For each row of query_id, anchor_id and anchor_kind, whether its anchor anchors an example."""
    known = pc.equal(table["anchor_kind"], "known").to_numpy().astype(bool)
    if config.anchors == "known":
        return known
    if confirmed is None:
        raise ConfigError(
            f"mine.anchors: {config.anchors} needs how likely top-rated documents are", PLACE, "set anchors: known"
        )
    row = find_rows(confirmed, {"query_id": table["query_id"], "doc_id": table["anchor_id"]})
    return known | np.append(confirmed["confirmed"].to_numpy(), False)[row]  # row -1: not asked about


def _refused(left: pa.Array, candidates: pa.Table, config: MineConfig, confirmed: pa.Table | None) -> list[Refused]:
    """Why queries have no anchor."""
    labelled = set(pc.unique(candidates.filter(candidates["is_positive"])["query_id"]).to_pylist())
    if confirmed is None or config.anchors == "known":
        return [(query.hex(), *_LABELS[query in labelled]) for query in left.to_pylist()]
    aggregated = confirmed.group_by("query_id").aggregate([("probability", "max"), ("answer", "count")])
    columns = (aggregated[name].to_pylist() for name in ("query_id", "probability_max", "answer_count"))
    told = {query: (best, answers) for query, best, answers in zip(*columns, strict=True)}
    asked = config.anchors == "confirmed"
    return [(query.hex(), *_why(told.get(query), query in labelled, asked)) for query in left.to_pylist()]


def _why(told: tuple[float, int] | None, labelled: bool, asked: bool) -> tuple[str, str]:
    """Reason and detail: by the probability of the query's likeliest document and the count of those with an answer."""
    if told is None:
        return _LABELS[True] if labelled else ("no judge answered about its candidates", "none was asked about")
    best, answers = told
    likeliest = f"P(relevant) of the likeliest is {best:.2f}"
    if best > LIKELY:
        return "no gap to a confirmed document", f"{likeliest}, and nothing else is rated beside it"
    if not asked:
        return "nothing among its candidates answers it", f"{likeliest}, must be above {LIKELY}"
    if not answers:
        return "no judge answered about its candidates", likeliest
    detail = f"{likeliest}, must be above {LIKELY}; judges answered about {answers}"
    return "nothing among its candidates answers it", detail


def _sorted(table: pa.Table, queries: pa.Array) -> Anchors:
    pairs = zip(table["query_id"].to_pylist(), table["anchor_id"].to_pylist(), strict=True)
    example_ids = identity.id_array(identity.digest("example", query, anchor) for query, anchor in pairs)
    order = pa.array(identity.id_order(identity.id_matrix(table["query_id"]), identity.id_matrix(example_ids)))
    table = table.take(order)
    return Anchors(table, example_ids.take(order).to_pylist(), codes(table["query_id"], queries))
