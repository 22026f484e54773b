"""Anchors: the positive of each example, from which gaps are measured, and queries without one.

A known positive anchors its own example. In a query without known positives, the anchors are documents that judges were
asked about directly and whose estimated P(relevant), given first stage, rating and answer, exceeds one half
(`relevance`), or the likeliest of them if none does. Comparisons alone cannot tell a relevant document from the best of
several irrelevant ones. Without judges to ask, first stage and rating decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
LIKELY = 0.5  # P(relevant) above which a document anchors an example
POSSIBLE = 0.05  # and above which it may anchor as the query's likeliest, and is never a negative
_LABELS = {
    True: ("no gap to a known positive", "its known positives are not rated, or nothing else is"),
    False: ("no known positive", "mine.anchors is known; set confirmed (asks judges) or rated (asks no one)"),
}


@dataclass(frozen=True)
class Anchors:
    """The E anchors of a bucket, one per example, sorted by (query_id, example_id)."""

    table: pa.Table  # query_id, anchor_id
    example_ids: list[bytes]
    query: Ints  # [E] index into the bucket's queries


def codes(column: pa.ChunkedArray | pa.Array, queries: pa.Array) -> Ints:
    """Return the index of each id in `queries`, or -1."""
    return pc.fill_null(pc.index_in(column, value_set=queries), -1).to_numpy().astype(np.int64)


def measured(gaps: pa.Table, config: MineConfig, confirmed: pa.Table | None = None) -> pa.Table:
    """Return the Gaps from anchors: known positives and, if `config` allows, confirmed documents.

    `confirmed` as in `compose.RuleInputs`. Raises ConfigError if `config` needs it and it is missing.
    """
    return gaps.filter(pa.array(_anchors_of(gaps, config, confirmed)))


def choose(
    gaps: pa.Table, candidates: pa.Table, queries: pa.Array, config: MineConfig, confirmed: pa.Table | None = None
) -> tuple[Anchors, list[Refused]]:
    """Return the anchors of a bucket, and (key, reason, detail) for each of `queries` without one.

    `confirmed` and errors as in `measured`.
    """
    pairs = ["query_id", "anchor_id", "anchor_kind"]
    table = measured(gaps.select(pairs).group_by(pairs).aggregate([]), config, confirmed)
    anchored = pc.is_in(queries, value_set=pc.unique(table["query_id"])).to_numpy(zero_copy_only=False)
    left = queries.filter(pa.array(~anchored))
    return _sorted(table, queries), _refused(left, candidates, config, confirmed)


def _anchors_of(table: pa.Table, config: MineConfig, confirmed: pa.Table | None) -> Flags:
    """Return, per row of (query_id, anchor_id, anchor_kind), whether it may anchor an example."""
    are_known = pc.equal(table["anchor_kind"], "known").to_numpy().astype(bool)
    if config.anchors == "known":
        return are_known
    if confirmed is None:
        raise ConfigError(
            f"mine.anchors: {config.anchors} needs P(relevant) of the top-rated documents", PLACE, "set anchors: known"
        )
    row = find_rows(confirmed, {"query_id": table["query_id"], "doc_id": table["anchor_id"]})
    return are_known | np.append(confirmed["may_anchor"].to_numpy(), False)[row]  # row -1: not asked about


def _refused(left: pa.Array, candidates: pa.Table, config: MineConfig, confirmed: pa.Table | None) -> list[Refused]:
    """Return why each query has no anchor."""
    labelled = set(pc.unique(candidates.filter(candidates["is_positive"])["query_id"]).to_pylist())
    if confirmed is None or config.anchors == "known":
        return [(query.hex(), *_LABELS[query in labelled]) for query in left.to_pylist()]
    figures = [("probability", "max"), ("answer", "count"), ("may_anchor", "any")]
    aggregated = confirmed.group_by("query_id").aggregate(figures)
    of_query = {row["query_id"]: row for row in aggregated.to_pylist()}
    confirms = config.anchors == "confirmed"
    return [(query.hex(), *_why(of_query.get(query), query in labelled, confirms)) for query in left.to_pylist()]


def _why(figures: dict[str, Any] | None, labelled: bool, confirms: bool) -> tuple[str, str]:
    """Return reason and detail, given P(relevant) of the likeliest, the count of answers, and if any may anchor."""
    if figures is None:
        return _LABELS[True] if labelled else ("no judge answered about its candidates", "none was asked about")
    answers, probability = figures["answer_count"], f"P(relevant) of the likeliest is {figures['probability_max']:.2f}"
    if confirms and not answers:
        return "no judge answered about its candidates", probability
    if figures["may_anchor_any"]:
        return "no gap to a confirmed document", f"{probability}; no other document is rated"
    return "nothing among its candidates answers it", probability + f"; judges answered about {answers}" * confirms


def _sorted(table: pa.Table, queries: pa.Array) -> Anchors:
    pairs = zip(table["query_id"].to_pylist(), table["anchor_id"].to_pylist(), strict=True)
    example_ids = identity.id_array(identity.digest("example", query, anchor) for query, anchor in pairs)
    order = pa.array(identity.id_order(identity.id_matrix(table["query_id"]), identity.id_matrix(example_ids)))
    table = table.take(order)
    return Anchors(table, example_ids.take(order).to_pylist(), codes(table["query_id"], queries))
