"""Anchors: the document each example measures its gaps from, and the queries that have none.

A known positive anchors its own example. Without one, the top-rated document may, but only where the query's ratings
vary more than noise would (a deviance test against equal ratings): the maximum of pure-noise ratings looks excellent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import find_rows
from anmi_ray.mining.categories import PLACE

Refused = tuple[str, str, str]
_EQUAL_P = 0.01  # p-value below which equal ratings are rejected: one query in a hundred is anchored by noise


@dataclass(frozen=True)
class Anchors:
    """E examples to be, sorted by (query_id, example_id)."""

    table: pa.Table  # query_id, anchor_id
    example_ids: list[bytes]
    query: Ints  # [E] index into the bucket's queries


def codes(column: pa.ChunkedArray | pa.Array, queries: pa.Array) -> Ints:
    """Index of each id in `queries`, -1 where it is not there."""
    return pc.fill_null(pc.index_in(column, value_set=queries), -1).to_numpy().astype(np.int64)


def choose(
    gaps: pa.Table,
    candidates: pa.Table,
    queries: pa.Array,
    config: MineConfig,
    fits: pa.Table | None,
) -> tuple[Anchors, list[Refused]]:
    """The anchors of a bucket, and (key, reason, detail) for every query of `queries` without any.

    Raises ConfigError if top-rated anchors are wanted but no fits are given.
    """
    positive_rows = candidates.filter(candidates["is_positive"])
    labelled = pc.is_in(queries, value_set=pc.unique(positive_rows["query_id"])).to_numpy(zero_copy_only=False)
    varied, p_values = _varied(queries, config, fits)

    every = gaps.select(["query_id", "anchor_id", "anchor_kind"]).group_by(["query_id", "anchor_id", "anchor_kind"])
    table = every.aggregate([])
    query = codes(table["query_id"], queries)
    is_known = pc.equal(table["anchor_kind"], "known").to_numpy()
    table = table.filter(pa.array(np.where(labelled[query], is_known, ~is_known & varied[query])))
    anchored = pc.is_in(queries, value_set=pc.unique(table["query_id"])).to_numpy(zero_copy_only=False)

    refused: list[Refused] = []
    for index in np.flatnonzero(~anchored).tolist():
        key = queries[index].as_py().hex()
        if labelled[index]:
            refused.append((key, "no gap to a known positive", "its known positives are not rated, or nothing else is"))
        elif config.top_rated_anchors:
            detail = f"p-value of equal ratings {p_values[index]:.3g}, must be below {_EQUAL_P}"
            refused.append((key, "no known positive, and the ratings may be noise", detail))
        else:
            refused.append((key, "no known positive", "mine.top_rated_anchors is false"))
    return _sorted(table, queries), refused


def _sorted(table: pa.Table, queries: pa.Array) -> Anchors:
    pairs = zip(table["query_id"].to_pylist(), table["anchor_id"].to_pylist(), strict=True)
    example_ids = identity.id_array(identity.digest("example", query, anchor) for query, anchor in pairs)
    order = pa.array(identity.id_order(identity.id_matrix(table["query_id"]), identity.id_matrix(example_ids)))
    table = table.take(order)
    return Anchors(table, example_ids.take(order).to_pylist(), codes(table["query_id"], queries))


def _varied(queries: pa.Array, config: MineConfig, fits: pa.Table | None) -> tuple[Flags, Reals]:
    """Queries whose fit converged and rejects equal ratings, with the p-values."""
    p_values = np.ones(len(queries))
    if not config.top_rated_anchors:
        return np.zeros(len(queries), dtype=bool), p_values
    if fits is None:
        raise ConfigError(
            "mine.top_rated_anchors needs the fits of the ratings", PLACE, "pass fits, or set top_rated_anchors: false"
        )
    row = find_rows(fits, {"query_id": queries})
    there = row >= 0
    p_values[there] = fits["equal_ratings_p"].to_numpy()[row[there]]
    converged = np.zeros(len(queries), dtype=bool)
    converged[there] = fits["converged"].to_numpy()[row[there]]
    return converged & (p_values < _EQUAL_P), p_values
