"""A run's judged pairs, bucket by bucket: their ids, what each judge said in each order, gaps and ratings.

A pair that was asked about in several rounds is one here: its answers are averaged. Letters: P pairs of a bucket, J
judges who answered there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.arrays import Reals
from anmi_ray.core.identity import comparison_id, id_array, id_matrix
from anmi_ray.core.records import COMPARISON, GAP, JUDGMENT, RATING, find_rows
from anmi_ray.judging.protocol import ORDERS
from anmi_ray.store import Artifact


@dataclass(frozen=True)
class JudgedPairs:
    """pairs: pair, query_id, doc_a, doc_b (ids), sorted by pair; p_a float64[P, J, 2] of the judges' answers in the
    orders ab and ba, NaN where one failed or was not asked. A pair that no judge answered is not here.
    """

    pairs: pa.Table
    judges: tuple[str, ...]
    p_a: Reals

    def sides(self) -> Reals:
        """What each judge prefers over its orders, float64[P, J]: 1 doc_a, -1 doc_b, 0 neither, NaN: it is silent."""
        answered = ~np.isnan(self.p_a)
        total = np.where(answered, self.p_a - 0.5, 0.0).sum(axis=2)
        total = np.where(np.abs(total) < 1e-9, 0.0, total)  # orders that contradict each other, but for rounding
        return np.where(answered.any(axis=2), np.sign(total), np.nan)

    def rows(self, wanted: pa.Array) -> NDArray[np.int64]:
        """Rows of the pairs among `wanted` ids."""
        return np.flatnonzero(pc.is_in(self.pairs["pair"], value_set=wanted).to_numpy())


def judged_pairs(rounds: Iterable[tuple[Artifact, Artifact]], bucket: int) -> JudgedPairs:
    """The judged pairs of a bucket, from (comparisons, judgments) of every round of questions."""
    compared: list[pa.Table] = []
    judged: list[pa.Table] = []
    for comparisons, judgments in rounds:
        table = _named(comparisons.read_part("comparisons", bucket, COMPARISON))
        said = judgments.read_part("judgments", bucket, JUDGMENT)
        said = said.filter(pc.is_valid(said["p_a"]))
        row = find_rows(table, {"comparison_id": said["comparison_id"]})
        compared.append(table.drop_columns(["comparison_id"]))
        judged.append(said.append_column("pair", table["pair"].take(pa.array(row))))
    said = pa.concat_tables(judged)
    table = pa.concat_tables(compared)
    table = table.filter(pc.is_in(table["pair"], value_set=pc.unique(said["pair"])))
    table = table.take(pa.array(_first_of_each(table["pair"])))
    return _with_answers(table, said)


def _named(comparisons: pa.Table) -> pa.Table:
    """Comparisons with the pair's own id, the same in all rounds."""
    columns = ("query_id", "doc_a", "doc_b")
    ids = comparisons["comparison_id"].to_pylist()
    later = np.flatnonzero(comparisons["round"].to_numpy() > 0)
    again = comparisons.take(pa.array(later))
    names = zip(*(again[name].to_pylist() for name in columns), strict=True)
    for place, name in zip(later.tolist(), names, strict=True):
        ids[place] = comparison_id(*name)
    return comparisons.select(["comparison_id", *columns]).append_column("pair", id_array(ids))


def _first_of_each(ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """The first row of each id, in the order of ids."""
    return np.unique(id_matrix(ids).view("V16").ravel(), return_index=True)[1]


def _with_answers(table: pa.Table, said: pa.Table) -> JudgedPairs:
    judges = sorted(pc.unique(said["judge"]).to_pylist())
    shape = (table.num_rows, len(judges), 2)
    row = find_rows(table, {"pair": said["pair"]})
    judge = pc.index_in(said["judge"], value_set=pa.array(judges, pa.string())).to_numpy().astype(np.int64)
    order = pc.index_in(said["order"], value_set=pa.array(ORDERS)).to_numpy().astype(np.int64)
    cell = np.ravel_multi_index((row, judge, order), shape) if len(row) else np.zeros(0, np.int64)
    size = int(np.prod(shape))
    count = np.bincount(cell, minlength=size)
    total = np.bincount(cell, said["p_a"].to_numpy().astype(np.float64), size)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return JudgedPairs(table, tuple(judges), mean.reshape(shape))


def gaps_of(fitted: Artifact, pairs: pa.Table, bucket: int) -> tuple[Reals, Reals]:
    """(gap, its error) float64[P] in Elo points where one document of the pair is an anchor of the other, else NaN."""
    gaps = fitted.read_part("gaps", bucket, GAP, ["query_id", "anchor_id", "doc_id", "gap_elo", "gap_se_elo"])
    found = [np.full(pairs.num_rows, np.nan) for _ in range(2)]
    for anchor, document in (("doc_a", "doc_b"), ("doc_b", "doc_a")):
        keys = {"query_id": pairs["query_id"], "anchor_id": pairs[anchor], "doc_id": pairs[document]}
        row = find_rows(gaps, keys)
        for values, column in zip(found, ("gap_elo", "gap_se_elo"), strict=True):
            values[row >= 0] = gaps[column].to_numpy()[row[row >= 0]]
    return found[0], found[1]


def rating_differences(fitted: Artifact, pairs: pa.Table, bucket: int) -> Reals:
    """How far the ratings of a pair's documents are apart, float64[P] in Elo points; NaN where one is not rated."""
    ratings = fitted.read_part("ratings", bucket, RATING, ["query_id", "doc_id", "rating_elo"])
    value = np.append(ratings["rating_elo"].to_numpy().astype(np.float64), np.nan)
    rows = [find_rows(ratings, {"query_id": pairs["query_id"], "doc_id": pairs[name]}) for name in ("doc_a", "doc_b")]
    return np.abs(value[rows[0]] - value[rows[1]])


def names_of(table: pa.Table, ids: pa.ChunkedArray, key: str, columns: Iterable[str]) -> Mapping[str, list[str]]:
    """Texts `columns` of the rows of `table` whose `key` are `ids`."""
    rows = pa.array(find_rows(table, {key: ids}))
    return {name: table[name].take(rows).to_pylist() for name in columns}


def each_bucket(rounds: list[tuple[Artifact, Artifact]], buckets: int) -> Iterator[tuple[int, JudgedPairs]]:
    """The judged pairs of all buckets that have some."""
    for bucket in range(buckets):
        found = judged_pairs(rounds, bucket)
        if found.pairs.num_rows:
            yield bucket, found


def ids_of(pairs: Iterable[str]) -> pa.Array:
    """Ids in hexadecimal as a column; what is none is left out."""
    found = [bytes.fromhex(pair) for pair in pairs if len(pair) == 32 and set(pair) <= set("0123456789abcdef")]
    return id_array(found)


def hexadecimal(column: pa.ChunkedArray) -> list[str]:
    """A column of ids in hexadecimal."""
    return [value.hex() for value in column.to_pylist()]
