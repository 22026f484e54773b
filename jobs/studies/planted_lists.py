"""False negatives with names: a query's other known positive put into an anchor's list as if it were a negative.

It is relevant by the collection's labels and by the simulated panel alike, so what it does to a model is damage by
either. Only queries with several positives have one; each gives one list, so no document is both anchor and negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import identity
from anmi_ray.config.mine import MineConfig
from anmi_ray.mining.compose import weights_of
from anmi_ray.mining.negatives import Common, Negatives
from anmi_ray.records import EXAMPLE

LISTS = ("doc_ids", "ratings", "weights", "categories", "tiers", "gaps", "gap_errors")


@dataclass(frozen=True)
class FalseNegative:
    """A positive of the query beside the list's anchor, with what the judges' ratings say of it, in Elo points."""

    doc_id: bytes
    rating: float
    gap: float
    gap_error: float


def siblings(examples: pa.Table, qrels: pa.Table, gaps: pa.Table, ratings: pa.Table) -> dict[bytes, FalseNegative]:
    """By example, the query's first other known positive; of every query the first example by hash of its id."""
    positives: dict[bytes, list[bytes]] = {}
    for row in qrels.filter(pc.greater(qrels["grade"], 0)).to_pylist():
        positives.setdefault(row["query_id"], []).append(row["doc_id"])
    several = {query for query, docs in positives.items() if len(docs) > 1}
    ids = pa.array(sorted(several), type=identity.ID)
    rated = {(row["query_id"], row["doc_id"]): row["rating_elo"] for row in _of(ratings, ids)}
    gap_of = {(row["query_id"], row["anchor_id"], row["doc_id"]): row for row in _of(gaps, ids)}
    found: dict[bytes, FalseNegative] = {}
    seen: set[bytes] = set()
    for row in sorted(_of(examples, ids), key=lambda row: row["example_id"]):
        query, anchor = row["query_id"], row["doc_ids"][0]
        others = [d for d in sorted(positives[query]) if (query, anchor, d) in gap_of and d not in row["doc_ids"]]
        if query in seen or not others:
            continue
        seen.add(query)
        gap = gap_of[query, anchor, others[0]]
        found[row["example_id"]] = FalseNegative(others[0], rated[query, others[0]], gap["gap_elo"], gap["gap_se_elo"])
    return found


def _of(table: pa.Table, queries: pa.Array) -> list[dict[str, Any]]:
    return table.filter(pc.is_in(table["query_id"], value_set=queries)).to_pylist()


def rule_weights(chosen: Iterable[FalseNegative], config: MineConfig) -> NDArray[np.float64]:
    """What the settings' allow and weigh rules, which may read the gap and its error alone, give each."""
    rows = list(chosen)
    unknown = np.full(len(rows), np.nan)
    negatives = Negatives(
        example=np.arange(len(rows)),
        draw_ids=np.zeros((len(rows), 16), dtype=np.uint8),
        gap=np.array([one.gap for one in rows], dtype=np.float64),
        gap_se=np.array([one.gap_error for one in rows], dtype=np.float64),
        is_positive=np.zeros(len(rows), dtype=bool),  # the label is what nobody knows
        anchor_rating=unknown,
        spread=unknown,
        rank=unknown,
        score=unknown,
        anchor_score=unknown,
        direct=unknown,
        relevance=unknown,
    )
    return weights_of(negatives, Common(config, seed=0)).weight


def plant(
    examples: pa.Table, chosen: Mapping[bytes, FalseNegative], weights: Mapping[bytes, float] | None = None
) -> pa.Table:
    """The examples with the chosen ones' false negatives at the end of their lists, weight 1 or `weights`'.

    Nothing else changes: no other document, weight, list, or order.
    """
    rows = examples.to_pylist()
    for row in rows:
        if (one := chosen.get(row["example_id"])) is None:
            continue
        weight = 1.0 if weights is None else weights[row["example_id"]]
        new = (one.doc_id, one.rating, weight, "planted", 1, one.gap, one.gap_error)
        for name, value in zip(LISTS, new, strict=True):
            row[name] = [*row[name], value]
    return EXAMPLE.table({name: [row[name] for row in rows] for name in examples.column_names})


def unweighted(examples: pa.Table) -> pa.Table:
    """The examples with weight 1 for every document."""
    ones = [[1.0] * len(weights) for weights in examples["weights"].to_pylist()]
    at = examples.column_names.index("weights")
    return examples.set_column(at, examples.schema.field(at), pa.array(ones, type=examples.schema.field(at).type))


def pick(
    examples: pa.Table, plantable: Mapping[bytes, FalseNegative], share: float, seed: int
) -> tuple[pa.Table, list[bytes]]:
    """The study's examples, and those of them that may be planted, in the order in which they are.

    As many others, drawn by hash from queries without a false negative, as make the plantable ones `share` of all.
    """
    order = identity.hash_sample(sorted(plantable), len(plantable), "planted", seed)
    others = examples.filter(pc.invert(pc.is_in(examples["query_id"], value_set=_queries(examples, order))))
    count = round(len(order) * (1 / share - 1))
    rest = identity.hash_sample(sorted(others["example_id"].to_pylist()), count, "beside planted", seed)
    wanted = pa.array([*order, *rest], type=identity.ID)
    return examples.filter(pc.is_in(examples["example_id"], value_set=wanted)), order


def _queries(examples: pa.Table, example_ids: list[bytes]) -> pa.Array:
    among = pa.array(example_ids, type=identity.ID)
    return pc.unique(examples.filter(pc.is_in(examples["example_id"], value_set=among))["query_id"])
