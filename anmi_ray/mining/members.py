"""Build the Example table from each example's documents: anchor, negatives, random negatives, rated extras.

Letters: E examples, M members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.arrays import Flags, Ints, Reals, rank_within
from anmi_ray.core.records import EXAMPLE
from anmi_ray.mining.anchors import Anchors
from anmi_ray.mining.bucket import Pool, RatedBucket
from anmi_ray.mining.categories import CATEGORIES, TIERS
from anmi_ray.mining.negatives import RuleVerdict


@dataclass(frozen=True)
class Members:
    """M documents of examples in one role, in order within each example."""

    example: Ints
    doc: Ints  # row in the bucket's candidates
    weight: Reals
    category: Ints  # index into CATEGORIES
    gap: Reals  # NaN: none
    gap_se: Reals  # NaN: none


def anchor_members(pool: Pool) -> Members:
    """Return the anchors: weight 1, gap 0."""
    size = len(pool.anchor)
    category = np.full(size, CATEGORIES.index("anchor"))
    return Members(np.arange(size), pool.anchor, np.ones(size), category, np.zeros(size), np.zeros(size))


def rated_members(taken: Ints, pool: Pool, ruled: RuleVerdict) -> Members:
    """Return rows `taken` of the pool with their weights and categories."""
    assert ruled.category is not None
    return Members(
        pool.negatives.example[taken],
        pool.doc[taken],
        ruled.weight[taken],
        ruled.category[taken],
        pool.gap[taken],
        pool.gap_se[taken],
    )


def random_members(anchors: Anchors, bucket: RatedBucket, is_copy: Flags, config: MineConfig, seed: int) -> Members:
    """Draw `random_negatives` of the query's random corpus documents per example, by hash of (example, document)."""
    per_query = np.bincount(anchors.query, minlength=len(bucket.queries))
    first = np.concatenate([[0], np.cumsum(per_query)[:-1]])
    by_query = np.argsort(anchors.query, kind="stable")  # examples grouped by query
    row = np.flatnonzero(bucket.is_random & ~is_copy)
    copies = per_query[bucket.query[row]]
    doc = np.repeat(row, copies)
    nth = np.arange(len(doc)) - np.repeat(np.cumsum(copies) - copies, copies)
    example = by_query[first[bucket.query[doc]] + nth]
    ids = identity.id_matrix(identity.id_array(anchors.example_ids))[example]
    luck = identity.uniforms(ids ^ identity.id_matrix(bucket.candidates["doc_id"])[doc], "mine", seed, "random")
    rank = rank_within(example, luck)
    taken = np.flatnonzero(rank < config.random_negatives)
    taken = taken[np.lexsort((rank[taken], example[taken]))]
    size = len(taken)
    none = np.full(len(taken), np.nan)
    return Members(example[taken], doc[taken], np.ones(size), np.full(size, CATEGORIES.index("random")), none, none)


def examples(anchors: Anchors, kept: Flags, roles: Sequence[Members], bucket: RatedBucket) -> pa.Table:
    """Return the Examples in `kept` (flags [E]); each lists its members by role."""
    number = np.cumsum(kept) - 1
    role = np.repeat(np.arange(len(roles)), [len(part.example) for part in roles])
    example, doc, weight, category, gap, gap_se = (
        np.concatenate([getattr(part, name) for part in roles])
        for name in ("example", "doc", "weight", "category", "gap", "gap_se")
    )
    rows = np.flatnonzero(kept[example])
    rows = rows[np.lexsort((rows, role[rows], example[rows]))]
    counts = np.bincount(number[example[rows]], minlength=int(kept.sum()))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

    def lists(values: pa.Array | pa.ChunkedArray) -> pa.Array:
        flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return pa.ListArray.from_arrays(offsets, flat)

    tiers = np.array([TIERS[name] for name in CATEGORIES], dtype=np.int32)
    names = pa.DictionaryArray.from_arrays(pa.array(category[rows]), pa.array(CATEGORIES)).cast(pa.string())
    which = pa.array(np.flatnonzero(kept))
    query = anchors.query[kept]
    return EXAMPLE.table(
        {
            "query_id": anchors.table["query_id"].take(which),
            "example_id": identity.id_array(anchors.example_ids).take(which),
            "doc_ids": lists(bucket.candidates["doc_id"].take(pa.array(doc[rows]))),
            "ratings": lists(_with_nulls(bucket.rating[doc[rows]])),
            "rating_errors": lists(_with_nulls(bucket.error[doc[rows]])),
            "weights": lists(pa.array(weight[rows])),
            "categories": lists(names),
            "tiers": lists(pa.array(tiers[category[rows]])),
            "gaps": lists(_with_nulls(gap[rows])),
            "gap_errors": lists(_with_nulls(gap_se[rows])),
            "rating_mean": bucket.mean[query],
            "rating_sd": bucket.sd[query],
        }
    )


def _with_nulls(values: Reals) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))
