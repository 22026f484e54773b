"""Answers bought from judges, in immutable segments that all runs under one root share.

`answers/<judge_id>/<bucket>/<time>-<uuid>.parquet`: the judge_id hashes everything that can change an answer, the
bucket depends on the query's text, so equal questions of all runs are in one bucket. Segments are published whole and
never changed; a stage that reads a bucket merges them into one. Without locks, two concurrent runs may buy an answer
twice, within seconds of each other. The earliest final answer counts; a transient failure counts only without one, and
is asked again.
Letters: N answers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import DamagedError
from anmi_ray.core.identity import digest, id_column, id_matrix, mix_ids
from anmi_ray.core.records import ANSWER
from anmi_ray.store import Store, parquet_bytes
from anmi_ray.store.files import at_once

_REMEDY = "delete it and run again: its answers are bought anew"
_LOOK_S = 2.0  # what others answered since is not known
HASHES = ("query_hash", "first_hash", "second_hash")


def question_ids(table: pa.Table) -> NDArray[np.uint8]:
    """Ids uint8[N, 16] of the questions that the columns query_hash, first_hash, second_hash name."""
    return mix_ids(*(id_matrix(table[name]) for name in HASHES))


@dataclass(frozen=True)
class Held:
    """The answers of a bucket, one row per question.

    table: ANSWER rows.
    ids: ids of the questions, an Arrow array [N].
    superseded: answers that do not count, because an earlier final answer exists or a later one replaced a transient
    failure.
    """

    table: pa.Table
    ids: pa.FixedSizeBinaryArray
    superseded: int

    @property
    def answered(self) -> bool:
        """Whether there is an answer among them."""
        return self.table["error"].null_count > 0

    def rows(self, questions: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Row of `table` per question (uint8[Q, 16]), or -1."""
        found = pc.index_in(id_column(questions), value_set=self.ids)
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)

    def final(self, questions: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Whether a question (uint8[Q, 16]) has an answer or a failure that asking again would not change."""
        rows = self.rows(questions)
        is_final = ~self.table["transient"].to_numpy()
        return (rows >= 0) & is_final[rows] if len(is_final) else np.zeros(len(rows), np.bool_)


class Lacking:
    """Which questions of a bucket lack a final answer, also while other processes buy them.

    Segments that appeared since are read every few seconds. answered: whether the bucket has any answer.
    Letters: N questions of the bucket.
    """

    def __init__(self, log: AnswerLog, bucket: int, questions: NDArray[np.uint8]) -> None:
        self._log = log
        self._bucket = bucket
        self._ids = id_column(questions)  # [N]
        self._lacks = np.ones(len(questions), np.bool_)
        self._read: set[str] = set()
        self.answered = False
        self._due = 0.0
        self._look()

    def __call__(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The `rows` (indices of questions) without a final answer."""
        return rows[self.among(rows)]

    def among(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Mask of `rows` without a final answer."""
        if time.monotonic() >= self._due:
            self._look()
        return self._lacks[rows]

    def _look(self) -> None:
        self._due = time.monotonic() + _LOOK_S
        for name, table in self._log.tables(self._bucket, self._read).items():
            final = table.filter(pc.invert(table["transient"]))
            self._lacks &= ~pc.is_in(self._ids, value_set=id_column(question_ids(final))).to_numpy(False)
            self._read.add(name)
            self.answered |= table["error"].null_count > 0


@dataclass(frozen=True)
class AnswerLog:
    """The answers of one judge under a root."""

    store: Store
    judge_id: str

    @property
    def path(self) -> str:
        """The judge's folder in the store."""
        return f"answers/{self.judge_id}"

    def publish(self, bucket: int, table: pa.Table) -> str:
        """Make answers of one bucket visible, whole or not at all; returns the segment's name."""
        return self._write(bucket, table, f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}")

    def _write(self, bucket: int, table: pa.Table, name: str) -> str:
        name = f"{bucket:05d}/{name}.parquet"
        path = f"{self.path}/{name}"
        table = ANSWER.check(table, self.store.where(path)).cast(ANSWER.schema)
        footer = {"record": ANSWER.name, "version": ANSWER.version, "judge": self.judge_id, "bucket": bucket}
        self.store.publish(path, parquet_bytes(table, footer))
        return name

    def segments(self, bucket: int) -> list[str]:
        """Names of a bucket's segments in the judge's folder, earliest first."""
        folder = f"{bucket:05d}"
        return [f"{folder}/{name}" for name in self.store.names(f"{self.path}/{folder}")]

    def buckets(self) -> list[int]:
        """Buckets that have segments; all segments are listed."""
        return sorted({int(name.split("/")[0]) for name in self.store.tree(self.path)})

    def read(self, bucket: int) -> Held:
        """The answers of a bucket. Raises StoreError for a damaged segment or an unknown version."""
        return hold(self.tables(bucket).values())

    def merge(self, bucket: int) -> Held:
        """Read a bucket and leave its answers in one segment, named after the first and by the names of all.

        Whatever is killed in between leaves answers twice, never fewer: the next merge ends it. Two at once write the
        same file, or two whose common answers are equal.
        """
        tables = self.tables(bucket)
        held, names = hold(tables.values()), list(tables)
        if len(names) > 1:
            first = names[0].partition("/")[2].partition("-")[0]
            self._write(bucket, held.table, f"{first}-{digest('merged', *names).hex()[:12]}")
            at_once(self.store.remove, [f"{self.path}/{name}" for name in names])
        return held

    def tables(self, bucket: int, read: Set[str] = frozenset()) -> dict[str, pa.Table]:
        """The segments of a bucket that are not in `read`, by name, earliest first; see `read` for errors."""
        names = self.segments(bucket)
        while True:
            new = [name for name in names if name not in read]
            try:
                return dict(zip(new, at_once(self._segment, new), strict=True))
            except DamagedError:
                before, names = names, self.segments(bucket)
                if names == before:  # else one was merged into another meanwhile
                    raise

    def _segment(self, name: str) -> pa.Table:
        """One segment. Raises StoreError where it is damaged, DataError where it has other columns."""
        path = f"{self.path}/{name}"
        table = self.store.read_table(path, remedy=_REMEDY).replace_schema_metadata(None)
        return ANSWER.check(table, self.store.where(path)).cast(ANSWER.schema)


def hold(tables: Iterable[pa.Table]) -> Held:
    """One row a question, of ANSWER tables in the order in which they were bought."""
    table = pa.concat_tables([ANSWER.empty(), *tables]).combine_chunks()
    ids = question_ids(table)
    words = ids.view(np.uint64).reshape(-1, 2)
    transient = table["transient"].to_numpy()
    bought = np.arange(len(ids))
    # of several final answers the earliest, of several transient failures the last
    order = np.lexsort((np.where(transient, -bought, bought), transient, words[:, 1], words[:, 0]))
    words = words[order]
    first = np.ones(len(words), dtype=bool)
    first[1:] = (words[1:] != words[:-1]).any(axis=1)
    kept = np.sort(order[first])
    return Held(table.take(pa.array(kept)), id_column(ids[kept]), len(order) - len(kept))
