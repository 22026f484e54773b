"""Read ids and numbers from users' rows, and reject rows that cannot be used, with place and reason."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import BLANKS
from anmi_ray.core.records import REJECT, reject_rows
from anmi_ray.tables.delimited import DELIMITERS, delimiter_of
from anmi_ray.tables.streams import LineError

# Numbers as Python and Arrow both read them: ASCII digits, a point, no "1_0", "1,5", "0x10".
_DECIMAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_REAL = re.compile(_DECIMAL)
_LARGEST = 10**9  # whole numbers below it fit an int32
_NUMBER = rf"^({_DECIMAL}|[+-]?(?i:nan|inf|infinity))$"  # in a column; later checks refuse what is not finite
_DECIMAL_COMMA = r"^[+-]?[0-9]*,[0-9]+$"
_BLANKS = " \t\n\r\f\v"  # around a number
_SHOWN = 3  # places, and reasons, named in a message
_VALUE = 40  # characters of a refused value in a message
_COLUMNS = 200  # characters of a table's columns that a message names
Flags = NDArray[np.bool_]
Longs = NDArray[np.int64]
Numbers = tuple[NDArray[np.float64], Mapping[str, Flags]]  # values, NaN if missing; rows by what is wrong


def real_of(text: str) -> float | None:
    """Parse a finite number with optional surrounding blanks; None if it is not one.

    >>> real_of(" -1.5e3 "), real_of("1_0"), real_of("nan"), real_of("1e400")
    (-1500.0, None, None, None)
    """
    number = text.strip(_BLANKS)
    value = float(number) if _REAL.fullmatch(number) else math.inf
    return value if math.isfinite(value) else None


def whole_of(text: str) -> int | None:
    """Parse a whole number of at most nine digits, also as a float (`2.0`); None if it is not one.

    >>> whole_of("+2"), whole_of("2.0"), whole_of("1.5"), whole_of("1_0"), whole_of("10000000000")
    (2, 2, None, None, None)
    """
    value = real_of(text)
    return int(value) if value is not None and value.is_integer() and abs(value) < _LARGEST else None


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def misread(line: str, usual: str) -> str:
    r"""Explain in a message why a line lacks its usual separator: it has another, or consists of several lines.

    Old programs end lines with a carriage return alone. Tabs count as spaces.

    >>> misread("q,0,d,1", " "), misread("q 0 d,1", " "), misread("q 0 d 1\rq 0 e 1", " ")
    (', but columns separated by commas', '', ', but lines that end with carriage returns alone')
    """
    if "\r" in line.rstrip("\r\n"):
        return ", but lines that end with carriage returns alone"
    line = line.strip().replace("\t", " ") if usual == " " else line
    found = delimiter_of(line, usual)
    return "" if found == usual or usual in line else f", but columns separated by {DELIMITERS[found]}"


@dataclass(frozen=True)
class Rows:
    """A table as read, and where it came from.

    place: of the whole; row i is at place + joint + numbers[i] (None: 1, 2, ...).
    refused: Reject rows of lines that could not be read.
    found: names of all columns of the source, if not just the table's.
    """

    table: pa.Table
    place: str = "table"
    joint: str = " row "
    numbers: Longs | None = None
    refused: pa.Table = field(default_factory=REJECT.empty)
    found: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """Names of all columns of the source."""
        return self.table.column_names if self.found is None else list(self.found)

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Rows:
        """Join the batches of a file, at least one."""
        batches = list(parts)
        numbers = [part.numbers for part in batches if part.numbers is not None]
        return replace(
            batches[0],
            table=pa.concat_tables([part.table for part in batches]),
            numbers=np.concatenate(numbers) if numbers else None,
            refused=pa.concat_tables([part.refused for part in batches]),
        )

    def renamed(self, columns: Mapping[str, str]) -> Rows:
        """Rename columns to ours, given theirs by our name; a column that already has such a name is dropped.

        Raises DataError if a column is missing.
        """
        if not columns:
            return self
        if missing := [theirs for theirs in columns.values() if theirs not in self.columns]:
            shown = ", ".join(repr(name) for name in self.columns) or "none"
            message = f"has no column {', '.join(missing)}; its columns are {shown}"
            raise DataError(message, self.place, "correct --columns NAME=COLUMN,...")
        ours = {theirs: name for name, theirs in columns.items()}
        kept = [at for at, name in enumerate(self.table.column_names) if name in ours or name not in columns]
        table = self.table.select(kept)
        table = table.rename_columns([ours.get(name, name) for name in table.column_names])
        found = tuple(ours.get(name, name) for name in self.columns if name in ours or name not in columns)
        return replace(self, table=table, found=found)

    def places(self, rows: Longs) -> pa.Array:
        """Return the places of the given rows, as text."""
        numbers = rows + 1 if self.numbers is None else self.numbers[rows]
        return pc.binary_join_element_wise(self.place, pa.array(numbers).cast(pa.string()), self.joint)

    def need(self, needed: Sequence[str], known: Sequence[str], remedy: str = "rename the columns") -> None:
        """Raise DataError if a column of `needed` is missing or one of `known` is repeated."""
        doubled = sorted({name for name in self.columns if self.columns.count(name) > 1 and name in known})
        if doubled:
            raise DataError(f"has several columns {', '.join(doubled)}", self.place, "keep one column of each name")
        if needed and not self.columns:
            for row in self.refused.slice(0, 1).to_pylist():
                raise DataError(
                    f"no line can be read; of the first: {row['detail']}",
                    row["place"],
                    "correct it, or name the file by its format",
                )
            raise DataError("is empty", self.place, f"give a table with columns {', '.join(needed)}")
        missing = [name for name in needed if name not in self.columns]
        if missing:
            shown = ", ".join(repr(name) for name in self.columns)[:_COLUMNS] or "none"
            raise DataError(
                f"has no column {', '.join(missing)}; its columns are {shown}, needed are {', '.join(needed)}",
                self.place,
                remedy,
            )

    def text(self, name: str) -> pa.Array:
        """Return a column of ids or words as text, stripped, null if empty. Raises DataError for other types."""
        text = pc.utf8_trim(self._cells(name), characters=BLANKS)
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)

    def stripped(self, names: Iterable[str]) -> int:
        """Count cells of these columns with blanks around an id or a word, which `text` removes."""
        cells = [self._cells(name) for name in names]
        kept = [pc.utf8_trim(column, characters=BLANKS) for column in cells]
        return sum(pc.sum(pc.not_equal(*pair)).as_py() or 0 for pair in zip(cells, kept, strict=True))

    def _cells(self, name: str) -> pa.Array:
        column = self.table[name].combine_chunks()
        array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = array.type
        if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise DataError(f"{name} holds {kind}; ids must be text or integers", self.place, "convert the column")
        return array.cast(pa.string())

    def number(self, name: str) -> Numbers:
        """Return a column as float64 (NaN if missing), and which rows are empty or not numbers."""
        column = self.table[name]
        kind = column.type
        if pa.types.is_boolean(kind):
            raise DataError(f"{name} holds true or false; expected numbers", self.place, "write 1 or 0")
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                raise DataError(f"{name} holds {kind}; it must hold numbers", self.place, "convert the column")
            missing = column.is_null().to_numpy()
            return pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(), {"missing": missing}
        text = pc.utf8_trim(column.cast(pa.string()), characters=_BLANKS)
        empty = pc.fill_null(pc.equal(text, ""), True)
        valid = pc.and_(pc.invert(empty), pc.fill_null(pc.match_substring_regex(text, _NUMBER), False))
        value = pc.if_else(valid, text, pa.scalar(None, pa.string())).cast(pa.float64())
        garbled = pc.and_(pc.invert(empty), pc.invert(valid))
        comma = pc.and_(garbled, pc.fill_null(pc.match_substring_regex(text, _DECIMAL_COMMA), False))
        boolean = pc.fill_null(pc.match_substring_regex(text, "^(?i:true|false)$"), False)
        wrong = {"missing": empty, "with a decimal comma (write a point)": comma}
        wrong |= {"true or false (write 1 or 0)": boolean, "not a number": garbled}
        return pc.fill_null(value, float("nan")).to_numpy(), {why: rows.to_numpy() for why, rows in wrong.items()}

    def rejects(
        self, checks: Mapping[str, Flags], code: Longs, key: tuple[pa.Array, pa.Array, pa.Array], named: Sequence[str]
    ) -> pa.Table:
        """Return Reject rows of unreadable lines, then of the rows that `code` (see `verdict`) refuses.

        The key is "query: doc_a, doc_b" of the three columns; the detail of a reason that starts with a column of
        `named` is the value in that column.
        """
        bad = np.flatnonzero(code)
        reason = np.array(["", *checks])[code[bad]]
        query, a, b = (pc.fill_null(column.take(pa.array(bad)), "") for column in key)
        pair = pc.binary_join_element_wise(pc.binary_join_element_wise(query, a, ": "), b, ", ")
        detail = np.full(len(bad), "", dtype=object)
        for name in named:
            mine = np.char.startswith(reason, f"{name} ")
            if mine.any():
                held = self.table[name].take(pa.array(bad[mine])).cast(pa.string())
                detail[mine] = pc.fill_null(held, "").to_numpy(zero_copy_only=False)
        rows = {"place": self.places(bad), "key": pair, "reason": reason.tolist(), "detail": detail}
        return pa.concat_tables([self.refused, REJECT.table(rows)])


def rows_of(source: Any) -> Rows:
    """Return the rows of an Arrow table, a dict of columns, or a data frame. Raises DataError."""
    if isinstance(source, Rows):
        return source
    try:
        return Rows(source if isinstance(source, pa.Table) else pa.table(source))
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        remedy = "give a file's name, an Arrow table, a data frame, or a dict of columns"
        raise DataError(f"no table can be made of {type(source).__name__}: {error}", "table", remedy) from None


def verdict(checks: Mapping[str, Flags]) -> Longs:
    """Return the number, from 1, of the first check that refuses each row; 0 for usable rows."""
    flags = np.stack(list(checks.values()))
    return np.where(flags.any(axis=0), flags.argmax(axis=0) + 1, 0)


@dataclass(frozen=True)
class Refusals:
    """The number of rows of a source, and Reject rows of those that were refused.

    stripped: number of ids and names from which blanks around them were removed.
    """

    place: str
    rows: int
    rejects: pa.Table
    stripped: int = field(default=0, kw_only=True)

    def reasons(self) -> dict[str, tuple[int, list[str]]]:
        """{reason: (rows refused, the first few places with the values there)}, most frequent first."""
        if not self.rejects.num_rows:
            return {}
        value = pc.utf8_slice_codeunits(self.rejects["detail"], 0, _VALUE)
        shown = pc.binary_join_element_wise(self.rejects["place"], value, ": ")
        shown = pc.if_else(pc.equal(value, ""), self.rejects["place"], shown)
        groups = pa.table({"reason": self.rejects["reason"], "shown": shown}).group_by("reason", use_threads=False)
        counts = groups.aggregate([([], "count_all"), ("shown", "list")])
        found = {row["reason"]: (row["count_all"], row["shown_list"][:_SHOWN]) for row in counts.to_pylist()}
        return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))

    def refuse_rejects(self, max_fraction: float) -> None:
        """Raise DataError if more than `max_fraction` of the rows were refused, with reasons and places."""
        bad = self.rejects.num_rows
        if bad <= max_fraction * self.rows:
            return
        reasons = list(self.reasons().items())
        most = _SHOWN if len(reasons) == 1 else 1
        parts = [f"{n:,} {reason} ({', '.join(places[:most])})" for reason, (n, places) in reasons[:_SHOWN]]
        why = "; ".join([*parts, *([f"{len(reasons) - _SHOWN} other reasons"] if len(reasons) > _SHOWN else [])])
        raise DataError(
            f"{bad:,} of {self.rows:,} rows cannot be used ({bad / self.rows:.1%}, allowed {max_fraction:.1%}): {why}",
            self.place,
            "correct these rows, or allow a larger share with --max-reject-fraction",
        )

    def said(self) -> list[str]:
        """Return lines of text: rows read, accepted and rejected, then the reasons with places."""
        bad = self.rejects.num_rows
        lines = [f"rows           {self.rows:,} read, {self.rows - bad:,} accepted, {bad:,} rejected"]
        for reason, (count, places) in self.reasons().items():
            more = ", ..." if count > len(places) else ""
            lines.append(f"               {count:,} {reason} ({', '.join(places)}{more})")
        if self.stripped:
            lines.append(f"               {self.stripped:,} ids or names had blanks around them, which were removed")
        return lines


def refused_lines(place: str, errors: Iterable[tuple[int, LineError]]) -> pa.Table:
    """Return Reject rows of records that could not be read, given their numbers."""
    return reject_rows((f"{place}:{number}", error.key, error.reason, error.detail) for number, error in errors)
