"""Records: named, versioned Arrow schemas with key and invariants, checked where tables cross boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import ID, ID_BYTES

Invariant = Callable[[pa.Table], str | None]  # its docstring says what must hold: the reference prints it


_TYPES = {"id": ID, "text": pa.string(), "int": pa.int32(), "long": pa.int64(), "real": pa.float64()}
_TYPES |= {f"{name}s": pa.list_(kind) for name, kind in _TYPES.items()}
_TYPES |= {"flag": pa.bool_(), "ranks": pa.map_(pa.string(), pa.int32())}


def schema_of(*columns: str) -> pa.Schema:
    """A schema from groups of columns: a type and the names of its columns. Only types with `?` may be null.

    >>> schema_of("id query_id", "real? score").field("score").nullable
    True
    """
    groups = [(kind.removesuffix("?"), kind.endswith("?"), names) for kind, *names in map(str.split, columns)]
    return pa.schema([pa.field(name, _TYPES[kind], nullable=null) for kind, null, names in groups for name in names])


@dataclass(frozen=True)
class Record:
    """A named, versioned schema with a unique `key` and invariants (each returns what is wrong, or None)."""

    name: str
    version: int
    key: tuple[str, ...]
    schema: pa.Schema
    invariants: tuple[Invariant, ...] = ()

    def empty(self) -> pa.Table:
        """A table of this record without rows."""
        return self.schema.empty_table()

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Build a table of this record from columns (arrays or sequences), checked against the schema only."""
        arrays = [_as_array(columns[field.name], field.type) for field in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def check(self, table: pa.Table, place: str) -> pa.Table:
        """Return `table` if it is a valid table of this record, else raise DataError naming `place`."""
        if table.schema.names != self.schema.names or table.schema.types != self.schema.types:
            raise DataError(
                f"not a {self.name} table (version {self.version}): has {_columns(table.schema)}, "
                f"must have {_columns(self.schema)}",
                place,
                "recompute the stage that wrote it",
            )
        for field in self.schema:
            if not field.nullable and table.column(field.name).null_count:
                raise DataError(f"{self.name}.{field.name} holds nulls", place, "recompute the stage that wrote it")
        checks = (lambda t: _duplicate_key(t, self.key), *self.invariants)
        for problem in filter(None, (check(table) for check in checks)):  # the first: a check may rely on those before
            raise DataError(f"{self.name}: {problem}", place, "recompute the stage that wrote it")
        return table


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _as_array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == kind else values.cast(kind)
    if isinstance(values, np.ndarray) and kind == ID and values.dtype == np.uint8:
        if values.ndim != 2 or values.shape[1] != ID_BYTES:
            raise AssertionError(f"ids must be uint8[N, {ID_BYTES}], not {values.shape}")
        flat = np.ascontiguousarray(values)
        return pa.FixedSizeBinaryArray.from_buffers(ID, len(flat), [None, pa.py_buffer(flat.tobytes())])
    return pa.array(values, type=kind)


def _duplicate_key(table: pa.Table, key: tuple[str, ...]) -> str | None:
    if not key or table.num_rows < 2:
        return None
    counts = table.select(list(key)).group_by(list(key)).aggregate([([], "count_all")])
    doubled = table.num_rows - counts.num_rows
    return f"{doubled} rows repeat a key ({', '.join(key)})" if doubled else None


def every(condition: Callable[[pa.Table], pa.ChunkedArray], problem: str) -> Invariant:
    """`condition` (bool per row; null is false) holds in every row."""

    def invariant(table: pa.Table) -> str | None:
        bad = pc.sum(pc.invert(pc.fill_null(condition(table), False))).as_py() if table.num_rows else 0
        return f"{bad} rows: {problem}" if bad else None

    invariant.__doc__ = f"Otherwise the error: {problem}."
    return invariant


def one_of(column: str, allowed: tuple[str, ...]) -> Invariant:
    """A text column holds only these words."""

    def condition(table: pa.Table) -> Any:
        return pc.is_in(table[column], value_set=pa.array(allowed))  # not made at import: it imports pandas

    return every(condition, f"{column} must be one of {', '.join(allowed)}")


def finite(*columns: str) -> Invariant:
    """Columns hold finite numbers, or nulls."""

    def invariant(table: pa.Table) -> str | None:
        for column in columns:
            values = pc.drop_null(table[column])
            if len(values) and not pc.all(pc.is_finite(values)).as_py():
                return f"{column} holds values that are not finite"
        return None

    invariant.__doc__ = f"Finite, or null: {', '.join(columns)}."
    return invariant


def between(column: str, low: float, high: float) -> Invariant:
    """A column holds numbers from `low` to `high`, or nulls; NaN is outside."""

    def invariant(table: pa.Table) -> str | None:
        values = pc.drop_null(table[column])
        if not len(values):
            return None
        inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
        bad = len(values) - pc.sum(inside).as_py()
        return f"{bad} rows: {column} outside [{low}, {high}]" if bad else None

    invariant.__doc__ = f"{column} is at least {low:g} and at most {high:g}, or null."
    return invariant


def constant(by: str, *columns: str) -> Invariant:
    """Rows with the same `by` have the same value in each of `columns`."""

    def invariant(table: pa.Table) -> str | None:
        counts = table.group_by([by]).aggregate([(column, "count_distinct") for column in columns])
        for column in columns:
            bad = pc.sum(pc.greater(counts[f"{column}_count_distinct"], 1)).as_py() or 0
            if bad:
                return f"{bad} values of {by} have more than one {column}"
        return None

    invariant.__doc__ = f"Rows with the same {by} have the same {', '.join(columns)}."
    return invariant
