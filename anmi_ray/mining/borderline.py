"""Validation (stage 4 of the report): which borderline documents to judge against their anchor, and the outcomes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import RocketQA
from anmi_ray.core import identity
from anmi_ray.core.arrays import Reals, rank_within
from anmi_ray.core.records import COMPARISON, find_rows
from anmi_ray.mining import denoise
from anmi_ray.mining.compose import RuleInputs, pooled
from anmi_ray.mining.negatives import Negatives

_VALIDATION = "validation"
ROUND = 1
_PSEUDO_POSITIVE = 0.9  # P(relevant) above which RocketQA (Qu et al. 2021) treats a document as a positive
_PAIR = ["query_id", "doc_a", "doc_b"]


class Borderline(NamedTuple):
    """Distinct pairs of anchor and borderline document: new Comparisons, and those judged before."""

    wanted: pa.Table
    known: pa.Table


def borderline(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    comparisons: pa.Table,
    config: MineConfig,
    confirmed: pa.Table | None = None,
) -> Borderline:
    """Return the borderline pairs of one bucket, both tables sorted by (query_id, doc_a, doc_b).

    A document is paired with every anchor of its query for which it is borderline. Known positives and confirmed
    documents are never asked about. New pairs belong to round 1 and have the ids of a first comparison, by which a
    user's file refers to them.
    Raises as `compose.mine`; AssertionError if no rule validates.
    """
    if config.validation is None:
        raise AssertionError(f"{config.composition} validates nothing")
    bucket, anchors, _, pool = pooled(ratings, gaps, candidates, config, RuleInputs(confirmed=confirmed))
    rows = np.flatnonzero(denoise.to_validate(pool.negatives, config.validation))
    example = pa.array(pool.negatives.example[rows])
    anchor = anchors.table["anchor_id"].take(example).combine_chunks()
    doc = bucket.candidates["doc_id"].take(pa.array(pool.doc[rows])).combine_chunks()
    query = identity.id_matrix(anchors.table["query_id"].take(example))
    ahead = pc.less(anchor, doc).to_numpy(zero_copy_only=False)[:, None]
    anchor = identity.id_matrix(anchor)
    doc = identity.id_matrix(doc)
    pair = [query, np.where(ahead, anchor, doc), np.where(ahead, doc, anchor)]
    order = identity.id_order(*pair)
    table = pa.table({name: identity.id_column(ids[order]) for name, ids in zip(_PAIR, pair, strict=True)})
    compared = _once(comparisons)
    row = find_rows(compared, {name: table[name] for name in _PAIR})
    return Borderline(
        comparisons_of(table.filter(pa.array(row < 0)), _VALIDATION), compared.take(pa.array(row[row >= 0]))
    )


def _once(comparisons: pa.Table) -> pa.Table:
    """Return the first Comparison of each pair; a user's file may contain several rounds of a pair."""
    number = pa.array(np.arange(comparisons.num_rows))
    first = comparisons.select(_PAIR).append_column("row", number).group_by(_PAIR, use_threads=False)
    return comparisons.take(first.aggregate([("row", "min")])["row_min"].combine_chunks().sort())


def comparisons_of(pairs: pa.Table, design: str) -> pa.Table:
    """Return pairs (query_id, doc_a, doc_b) as Comparisons of round 1."""
    columns = {name: pairs[name].to_pylist() for name in _PAIR}
    ids = [identity.comparison_id(*pair) for pair in zip(*columns.values(), strict=True)]
    count = len(ids)
    more = {"round": np.full(count, ROUND, dtype=np.int32), "design": pa.repeat(pa.scalar(design), count)}
    return COMPARISON.table({"comparison_id": identity.id_array(ids), **{n: pairs[n] for n in _PAIR}, **more})


def mixture_gaps(negatives: Negatives) -> Reals:
    """Return the gaps to fit a mixture to, in Elo points: all except those of known positives."""
    return negatives.gap[~negatives.is_positive]


def verdicts(negatives: Negatives, config: MineConfig) -> dict[str, dict[str, int]]:
    """Return outcome counts of the rules that ask a model, by rule; they count (example, document) pairs.

    validate: borderline documents, and how many were rejected, got reduced or full weight, or had no answer and were
    left to the other rules.
    rocketqa: documents scored (all except known positives), negatives, and pseudo-positives (P(relevant) above .9),
    which only validate can make negatives.
    """
    counts: dict[str, dict[str, int]] = {}
    if config.validation is not None:
        rule = config.validation
        validated = denoise.to_validate(negatives, rule)
        p = negatives.direct[validated]
        counts["validate"] = {
            "borderline": int(validated.sum()),
            **{name: int(flags.sum()) for name, flags in denoise.outcomes(p).items()},
            "unjudged": int(np.isnan(p).sum()),
        }
    for rule in config.allow:
        if isinstance(rule, RocketQA):
            p = denoise.relevance(negatives)[~negatives.is_positive]
            counts["rocketqa"] = {
                "documents": len(p),
                "negatives": int((p < rule.negative_below).sum()),
                "pseudo_positives": int((p > _PSEUDO_POSITIVE).sum()),
            }
    return counts


_CONFIRMATION = "confirmation"
ASKED = 4  # documents of a query: a fifth one is its relevant document once in thirty queries


def shortlist(gaps: pa.Table, documents: pa.Table, score: Reals) -> pa.Table:
    """Return Comparisons with nothing of one bucket, sorted by (query_id, doc_a), for queries without known positives.

    They ask about the ASKED top-rated anchors of Gaps with the largest `score`, float64[N] for the rows (query_id,
    doc_id) of `documents`; ties go to smaller ids.
    """
    pairs = ["query_id", "anchor_id"]
    top = gaps.filter(pc.equal(gaps["anchor_kind"], "top-rated")).select(pairs).group_by(pairs).aggregate([])
    top = top.take(pa.array(identity.id_order(*(identity.id_matrix(top[name]) for name in pairs))))
    row = find_rows(documents, {"query_id": top["query_id"], "doc_id": top["anchor_id"]})
    query = pc.dictionary_encode(top["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    top = top.filter(pa.array(rank_within(query, -score[row]) < ASKED))
    nothing = pa.repeat(pa.scalar(identity.NOTHING, identity.ID), top.num_rows)
    return comparisons_of(
        pa.table({"query_id": top["query_id"], "doc_a": top["anchor_id"], "doc_b": nothing}), _CONFIRMATION
    )
