"""Which pairs a pilot asks about: a hash sample of a run's comparisons, known positives first, spread over queries.

Of every query the pair with the smallest hash comes before any query's second, so a pilot is about as many queries as
it can be. Half of it are pairs of one known positive and one document that is none, where there are so many: they tell
how far a judge agrees with what is known. Where both kinds are plenty, a larger pilot holds a smaller one. Buckets are
looked at one by one, and of all at most twice the pilot's pairs are kept.
Letters: P comparisons.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.identity import id_matrix, id_order, uniforms
from anmi_ray.core.records import COMPARISON
from anmi_ray.judging.protocol import candidate_rows

_KNOWN, _TURN, _CHANCE, _BUCKET = "one_positive", "turn", "chance", "bucket"  # added to a comparison's columns


def ranked(bucket: int, comparisons: pa.Table, candidates: pa.Table, pairs: int) -> pa.Table:
    """A bucket's Comparisons that may be among the run's `pairs`, for `merge` and `pick`.

    Raises DataError if a compared document is not a candidate.
    """
    a, b = candidate_rows(comparisons, candidates)
    positive = candidates["is_positive"].to_numpy().astype(np.bool_)
    known = positive[a] != positive[b] if comparisons.num_rows else np.zeros(0, np.bool_)
    chance = uniforms(id_matrix(comparisons["comparison_id"]), "pilot")
    query = pc.dictionary_encode(comparisons["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    columns = {_KNOWN: known, _TURN: _turns(2 * query + known, chance), _CHANCE: chance}
    table = comparisons
    for name, values in {**columns, _BUCKET: np.full(len(query), bucket)}.items():
        table = table.append_column(name, pa.array(values))
    return _first(table, pairs)


def merge(tables: list[pa.Table], pairs: int) -> pa.Table:
    """What of several buckets may be among the run's `pairs`, at most twice as many."""
    return _first(pa.concat_tables(tables), pairs)


def pick(table: pa.Table, pairs: int) -> dict[int, pa.Table]:
    """`pairs` of all buckets' ranked Comparisons (all, where there are fewer), by bucket, sorted by their ids."""
    known, others = (_first(table.filter(kind), pairs) for kind in (table[_KNOWN], pc.invert(table[_KNOWN])))
    first = min(known.num_rows, max((pairs + 1) // 2, pairs - others.num_rows))
    chosen = pa.concat_tables([known.slice(0, first), others.slice(0, pairs - first)])
    chosen = chosen.take(pa.array(id_order(id_matrix(chosen["query_id"]), id_matrix(chosen["comparison_id"]))))
    rows = chosen.select(COMPARISON.schema.names)
    buckets = sorted(pc.unique(chosen[_BUCKET]).to_pylist())
    return {bucket: rows.filter(pc.equal(chosen[_BUCKET], bucket)) for bucket in buckets}


def _turns(group: NDArray[np.int64], chance: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of its group have a smaller chance, int64[P]."""
    order = np.lexsort((chance, group))
    starts = np.searchsorted(group[order], group[order])
    turn = np.empty(len(group), np.int64)
    turn[order] = np.arange(len(group)) - starts
    return turn


def _first(table: pa.Table, pairs: int) -> pa.Table:
    """Of either kind the `pairs` rows whose turn comes first, in that order."""
    known = table[_KNOWN].to_numpy().astype(np.bool_)
    words = id_matrix(table["comparison_id"]).view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], table[_CHANCE].to_numpy(), table[_TURN].to_numpy()))
    kept = np.concatenate([order[known[order]][:pairs], order[~known[order]][:pairs]])
    return table.take(pa.array(kept)).combine_chunks()
