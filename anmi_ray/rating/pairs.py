"""From records to games: both orders and all judges of a pair become one preference and one strength.

A judge that answered in both orders gives w = (p_AB + p_BA)/2 about doc_a and one answer; in one order half an
answer; in none nothing. A judge whose two orders prefer different documents keeps its w (near one half) with less
strength. The judges' mean, weighted by strength, is the pair's w. What cannot be used becomes a Reject row, so that
comparisons in = games + rejects, and compared candidates in = rated documents + rejects.
Letters: C comparisons, J judges, 2 orders, N ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity, records
from anmi_ray.core.identity import ID_BYTES, id_column, id_matrix, id_order
from anmi_ray.core.scale import Floats
from anmi_ray.rating.games import Games, Longs

Ids = NDArray[np.uint8]
_PLACE = "rate"
_PAIR = ("query_id", "doc_a", "doc_b")


def combine_orders(p_CJ2: Floats, weight_J: Floats | None = None) -> tuple[Floats, Floats]:
    """Return (w, answers) per comparison from p_a[C, J, order], NaN without an answer.

    methods 3: w = mean over orders, then over judges weighted by their strength: 1 for both orders, 1/2 for one, times
    the judge's own weight. w is NaN without answers.
    """
    ab = p_CJ2[:, :, 0]
    ba = p_CJ2[:, :, 1]
    has_ab = ~np.isnan(ab)
    has_ba = ~np.isnan(ba)
    ab = np.where(has_ab, ab, 0.5)
    ba = np.where(has_ba, ba, 0.5)
    strength_CJ = 0.5 * has_ab + 0.5 * has_ba
    if weight_J is not None:
        strength_CJ = strength_CJ * weight_J
    # a missing order was set to 1/2, so its sum with the other is counted once by the sum of the answered ones
    votes = np.maximum(has_ab.astype(np.int64) + has_ba, 1)
    w_CJ = (ab * has_ab + ba * has_ba) / votes
    answers_C = strength_CJ.sum(axis=1)
    with np.errstate(invalid="ignore"):
        w_C = (strength_CJ * w_CJ).sum(axis=1) / answers_C
    return w_C, answers_C


def preferences(judgments: pa.Table, comparisons: pa.Table, weights: Mapping[str, float] | None = None) -> pa.Table:
    """Return the preference of every pair: query_id, doc_a, doc_b, preference (of doc_a, 0 to 1), sorted by the ids.

    The preference is the w of `combine_orders`, as a fit reads it with these settings; of a pair that was compared in
    several rounds the mean of their w by strength. Pairs without an answer, or whose judges all weigh 0, are left out.
    """
    p_CJ2, judges, _, _ = _answers(judgments, comparisons)
    weight_J = np.array([(weights or {}).get(name, 1.0) for name in judges])
    w_C, answers_C = combine_orders(p_CJ2, weight_J)
    used = np.flatnonzero(answers_C > 0.0)
    ids = [id_matrix(comparisons[name])[used] for name in _PAIR]
    order = id_order(*ids)
    keys = np.hstack(ids)[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    pair = np.cumsum(first) - 1
    strength = answers_C[used][order]
    total = np.bincount(pair, strength)
    columns = {name: id_column(column[order][first]) for name, column in zip(_PAIR, ids, strict=True)}
    return pa.table({**columns, "preference": np.bincount(pair, strength * w_C[used][order]) / total})


def read_games(
    judgments: pa.Table,
    comparisons: pa.Table,
    candidates: pa.Table,
    single_answers: Literal["both-orders"] | bool = False,
    weights: Mapping[str, float] | None = None,
) -> tuple[Games, pa.Table]:
    """The games of one bucket, and Reject rows for what could not become one.

    A game is a pair with all its answers, or with `single_answers` each answer alone, half as strong as an answer in
    both orders, with its judge and what was shown first; "both-orders" knows that only of pairs that the judge answered
    in both, for a file may name the winner first. Documents come sorted by (query_id, doc_id) and games by their
    documents, so row order in the inputs is immaterial. `weights`: by judge, how many answers one of its counts for.
    """
    doc_keys, positive = _candidate_keys(candidates)
    query_C = id_matrix(comparisons["query_id"])
    first = positions(np.hstack([query_C, id_matrix(comparisons["doc_a"])]), doc_keys)
    second = positions(np.hstack([query_C, id_matrix(comparisons["doc_b"])]), doc_keys)
    p_CJ2, judges, failed_C, strays = _answers(judgments, comparisons)
    weight_J = np.array([(weights or {}).get(name, 1.0) for name in judges])
    w, answers = combine_orders(p_CJ2, weight_J)

    are_candidates = (first >= 0) & (second >= 0)
    used = np.flatnonzero(are_candidates & (answers > 0.0))
    used = used[np.lexsort((second[used], first[used]))]
    games, rated = _games(doc_keys, positive, first[used], second[used], w[used], answers[used])
    if single_answers:
        games = _single(games, p_CJ2[used], judges, weight_J, single_answers is True)

    pair_ids = id_matrix(comparisons["comparison_id"])
    silent = np.flatnonzero(are_candidates & (answers <= 0.0))
    foreign = np.flatnonzero(~are_candidates)
    failures = [f"{n} judgments, none with an answer" if n else "not judged" for n in failed_C[silent].tolist()]
    rejects = [
        _rejects(query_C[silent], pair_ids[silent], "no answer", failures),
        _rejects(query_C[foreign], pair_ids[foreign], "not candidates", "a document is not a compared candidate"),
        strays,
        _rejects(doc_keys[~rated, :ID_BYTES], doc_keys[~rated, ID_BYTES:], "no games", "no pair with an answer"),
    ]
    return games, pa.concat_tables(rejects)


def _single(games: Games, p_PJ2: Floats, judges: tuple[str, ...], weight_J: Floats, every: bool) -> Games:
    """Return each answer p_a[P, J, order] as a separate game with a known presentation order."""
    game, judge, order = np.nonzero(~np.isnan(p_PJ2) & (weight_J > 0.0)[:, None])
    both_PJ = np.asarray(~np.isnan(p_PJ2).any(axis=2), dtype=np.bool_)
    order_known = every | both_PJ[game, judge]
    per_query = np.bincount(games.query_of_game[game], minlength=games.queries)
    return replace(
        games,
        game_start=np.concatenate([[0], np.cumsum(per_query)]).astype(np.int64),
        first=games.first[game],
        second=games.second[game],
        w=p_PJ2[game, judge, order],
        answers=0.5 * weight_J[judge],
        judges=judges,
        judge=judge.astype(np.int32),
        shown=np.where(order_known, np.where(order == 0, 1, -1), 0).astype(np.int8),
    )


def positions(needles: Ids, haystack: Ids) -> Longs:
    """Row of `haystack` (uint8[M, b], distinct) equal to each row of `needles` (uint8[N, b]), -1 if none."""
    index = pc.index_in(_fixed(needles), value_set=_fixed(haystack))
    return pc.fill_null(index, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def _fixed(ids: Ids) -> pa.FixedSizeBinaryArray:
    kind = pa.binary(ids.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids))])


def _candidate_keys(candidates: pa.Table) -> tuple[Ids, NDArray[np.bool_]]:
    """(query_id + doc_id) of every compared candidate, sorted, and its is_positive."""
    compared = candidates.filter(pc.not_equal(candidates["source"], "random"))
    ids = id_matrix(compared["query_id"]), id_matrix(compared["doc_id"])
    order = id_order(*ids)
    return np.hstack(ids)[order], compared["is_positive"].to_numpy()[order].astype(np.bool_)


def _answers(judgments: pa.Table, comparisons: pa.Table) -> tuple[Floats, tuple[str, ...], Longs, pa.Table]:
    """(p_a[C, J, order] with NaN for no answer, judges, judgments without answer per comparison, rejects of strays)."""
    pair = positions(id_matrix(judgments["comparison_id"]), id_matrix(comparisons["comparison_id"]))
    names = pc.unique(judgments["judge"]).sort()  # a fixed order of judges: sums do not depend on row order
    judge = pc.index_in(judgments["judge"], value_set=names).to_numpy().astype(np.int64)
    order = pc.equal(judgments["order"], "ba").to_numpy().astype(np.int64)
    p_a = pc.fill_null(judgments["p_a"], float("nan")).to_numpy()
    known_pair = pair >= 0
    p_CJ2 = np.full((comparisons.num_rows, len(names), 2), np.nan)
    p_CJ2[pair[known_pair], judge[known_pair], order[known_pair]] = p_a[known_pair]
    failed = np.bincount(pair[known_pair & np.isnan(p_a)], minlength=comparisons.num_rows)
    stray = np.flatnonzero(~known_pair)
    rejects = _rejects(
        id_matrix(judgments["query_id"])[stray],
        id_matrix(judgments["comparison_id"])[stray],
        "unknown comparison",
        "a judgment of a pair that is not a comparison of this bucket",
    )
    return p_CJ2, tuple(names.to_pylist()), failed, rejects


def _games(
    doc_keys: Ids, positive: NDArray[np.bool_], first: Longs, second: Longs, w: Floats, answers: Floats
) -> tuple[Games, NDArray[np.bool_]]:
    rated = np.zeros(len(doc_keys), dtype=np.bool_)
    rated[first] = rated[second] = True
    new = np.cumsum(rated) - 1
    keys = np.ascontiguousarray(doc_keys[rated])
    query_ids = keys[:, :ID_BYTES]
    starts = np.ones(len(keys), dtype=np.bool_)
    starts[1:] = (query_ids[1:] != query_ids[:-1]).any(axis=1)
    doc_start = np.append(np.flatnonzero(starts), len(keys)).astype(np.int64)
    query_of_doc = np.cumsum(starts) - 1
    query_of_game = query_of_doc[new[first]]
    games_per_query = np.bincount(query_of_game, minlength=len(doc_start) - 1)
    base = doc_start[query_of_game]
    games = Games(
        query_ids=np.ascontiguousarray(query_ids[doc_start[:-1]]),
        doc_ids=np.ascontiguousarray(keys[:, ID_BYTES:]),
        doc_start=doc_start,
        game_start=np.concatenate([[0], np.cumsum(games_per_query)]).astype(np.int64),
        positive=positive[rated],
        first=(new[first] - base).astype(np.int32),
        second=(new[second] - base).astype(np.int32),
        w=w,
        answers=answers,
    )
    return games, rated


def _rejects(query: Ids, key: Ids, reason: str, detail: str | list[str]) -> pa.Table:
    n = len(key)
    return records.REJECT.table(
        {
            "place": [f"{_PLACE} query {row.tobytes().hex()}" for row in query],
            "key": [row.tobytes().hex() for row in key],
            "reason": [reason] * n,
            "detail": [detail] * n if isinstance(detail, str) else detail,
        }
    )


def hide_positives(candidates: pa.Table, share: float) -> pa.Table:
    """Candidates with `is_positive` unset for `share` of every query's known positives (rounded down, one stays).

    A share of 1 hides them all.

    Which ones follows from a hash of query and document: neither order nor buckets matter.
    """
    rows = np.flatnonzero(candidates["is_positive"].to_numpy())
    if share <= 0 or not len(rows):
        return candidates
    query_ids, doc_ids = (identity.id_matrix(candidates[name])[rows] for name in ("query_id", "doc_id"))
    query = pc.dictionary_encode(identity.id_column(query_ids)).indices.to_numpy().astype(np.int64)
    order = np.lexsort((identity.uniforms(query_ids ^ doc_ids, "rate", "hide"), query))
    count = np.bincount(query)
    place = np.arange(len(rows)) - (np.cumsum(count) - count)[query[order]]
    most = count if share == 1 else count - 1
    hidden = order[place < np.minimum(np.floor(share * count), most)[query[order]]]
    is_positive = candidates["is_positive"].to_numpy().copy()
    is_positive[rows[hidden]] = False
    at = candidates.schema.get_field_index("is_positive")
    return candidates.set_column(at, candidates.schema.field(at), pa.array(is_positive))
