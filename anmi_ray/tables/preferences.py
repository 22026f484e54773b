"""Read users' preferences: files and tables that say which of two documents is better.

A row is one answer. Columns are query_id, doc_a, doc_b (text or integers) and preference for doc_a, in [0, 1]; callers
also read some of

    winner              a, b or tie, in place of preference; also in the words of _WINNERS
    judge               who answered; empty without the column
    order               ab: doc_a was shown first, ba: doc_b; also in capitals and in the words of _FIRST and _SECOND;
                        ab without the column
    error               why the judge failed; such a row has no preference
    round               a whole number that distinguishes repeated questions; 0 without the column
    games               number of games for which the row counts; 1 without the column
    length_a, length_b  of the texts, in any unit

Blanks around ids, names and words are removed. Rows that cannot be used are rejects with reason and place.
Letter: N usable rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.records import REJECT
from anmi_ray.tables import formats
from anmi_ray.tables.rows import Flags, Longs, Refusals, Rows, rows_of, verdict

ONE_QUERY = "all"  # the query's id if a table is read as one query
# Values of `order`, in lower case and without what _JOINTS matches. Not 0, 1, true and false, whose meaning differs
# between tools.
_FIRST = ("ab", "a", "doca", "afirst", "docafirst", "first", "original", "unswapped", "notswapped", "normal", "forward")
_SECOND = (
    *("ba", "b", "docb", "bfirst", "docbfirst", "second", "swapped", "swap"),
    *("reversed", "reverse", "flipped", "backward"),
)
_WINNERS = (("a", "doca", "first", "modela"), ("b", "docb", "second", "modelb"), ("tie", "draw", "equal", "tiebothbad"))
_JOINTS = r"[\s\pZ,/_|()-]+"
_LENGTHS = ("length_a", "length_b")
_ERROR = 200  # characters kept of an error, by which failures are counted
_RENAME = "rename the columns, or name them with --columns, which anmi rate and anmi audit take"
_NAMES = ("query_id", "doc_a", "doc_b", "judge")
_NEEDED = ("query_id", "doc_a", "doc_b", "preference")
_DEFAULTS = {"games": "1"}  # values of keys that a JSON object lacks and others have
Checks = dict[str, Flags]  # rows to refuse, by reason


@dataclass(frozen=True)
class Reading:
    """The columns that a caller reads.

    texts, numbers: columns of ids and words, and of numbers.
    orders_needed: whether a row without an order is refused if others have one; else its order is unknown.
    no_query: the remedy if query_id is missing.
    """

    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    orders_needed: bool
    no_query: str = _RENAME

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return self.texts + self.numbers


GAMES = Reading(
    (*_NEEDED[:3], "winner", "judge", "order", "error"),
    (_NEEDED[3], "games"),
    orders_needed=False,
    no_query=f"{_RENAME}; a table about one query needs no query_id with --all-one-query",
)
ANSWERS = Reading(
    (*_NEEDED[:3], "winner", "judge", "order", "error"), (_NEEDED[3], "round", *_LENGTHS), orders_needed=True
)


@dataclass(frozen=True)
class PreferenceRows(Refusals):
    """Usable rows, and Reject rows of the others; rows = N + rejects.num_rows.

    query, doc_a, doc_b, judge: text[N].
    error: text[N], null if the judge answered.
    preference: float64[N], NaN if the judge failed.
    shown: int8[N], 1 if doc_a was shown first, -1 if doc_b was, 0 unknown.
    round: int64[N]; games: float64[N].
    log_length: float64[N], ln(length of doc_a / length of doc_b), NaN unknown.
    number: int64[N]; the place of row i is place + joint + number[i].
    """

    query: pa.Array
    doc_a: pa.Array
    doc_b: pa.Array
    judge: pa.Array
    error: pa.Array
    preference: NDArray[np.float64]
    shown: NDArray[np.int8]
    round: Longs
    games: NDArray[np.float64]
    log_length: NDArray[np.float64]
    number: Longs
    joint: str

    def places(self, rows: Longs | slice = slice(None)) -> pa.Array:
        """Return the places of some rows, as text."""
        return pc.binary_join_element_wise(self.place, pa.array(self.number[rows]).cast(pa.string()), self.joint)

    def keys(self, rows: Longs | slice = slice(None)) -> pa.Array:
        """Return the keys of some rows: "query: doc_a, doc_b"."""
        which = pa.array(np.arange(len(self.number))[rows])
        query, a, b = (column.take(which) for column in (self.query, self.doc_a, self.doc_b))
        return pc.binary_join_element_wise(pc.binary_join_element_wise(query, a, ": "), b, ", ")

    def refuse(self, rows: Longs, reason: str) -> pa.Table:
        """Return some rows as Rejects."""
        count = len(rows)
        columns = {"place": self.places(rows), "key": self.keys(rows)}
        return REJECT.table({**columns, "reason": [reason] * count, "detail": [""] * count})


def read_preferences(
    path: Path, reading: Reading, one_query: bool = False, columns: Mapping[str, str] | None = None
) -> PreferenceRows:
    """Read and check all rows of a file in any format of `tables.formats`.

    one_query: query_id is neither needed nor read.
    columns: other names of columns, by ours.
    Raises DataError if the file cannot be read, or a column is missing or of an unsuitable type.
    """
    return check_preferences(Rows.joined(_batches(path, reading, columns or {})), reading, one_query)


def read_preference_batches(path: Path, reading: Reading) -> Iterator[PreferenceRows]:
    """`read_preferences`, some hundred thousand rows at a time; at least one batch."""
    return (check_preferences(rows, reading) for rows in _batches(path, reading, {}))


def _batches(path: Path, reading: Reading, named: Mapping[str, str]) -> Iterator[Rows]:
    texts, numbers = ([named.get(name, name) for name in names] for names in (reading.texts, reading.numbers))
    defaults = {named.get(name, name): value for name, value in _DEFAULTS.items()}
    batches = formats.read_batches(path, texts, numbers, defaults, free=named.get("error", "error"))
    return (rows.renamed(named) for rows in batches)


def check_preferences(source: Any, reading: Reading, one_query: bool = False) -> PreferenceRows:
    """Check a table (see `rows_of`). Raises DataError if a column is missing or of an unsuitable type."""
    rows = rows_of(source)
    by_winner = "winner" in rows.columns and "preference" not in rows.columns
    given = {"query_id": one_query, "preference": by_winner}
    needed = [name for name in _NEEDED if not given.get(name)]
    if set(_LENGTHS) <= set(reading.numbers) and set(rows.columns) & set(_LENGTHS):
        needed += _LENGTHS
    remedy = _RENAME if "query_id" in rows.columns else reading.no_query
    rows.need(needed, reading.columns, remedy)
    there = set(rows.table.column_names).intersection(reading.columns)
    count = rows.table.num_rows
    query = pa.repeat(ONE_QUERY, count) if one_query else rows.text("query_id")
    a = rows.text("doc_a")
    b = rows.text("doc_b")
    error = rows.text("error") if "error" in there else pa.nulls(count, pa.string())
    error = pc.utf8_slice_codeunits(pc.replace_substring_regex(error, r"\s+", " "), 0, _ERROR)
    failed = error.is_valid().to_numpy(zero_copy_only=False)
    shown, order_checks = _shown(rows) if "order" in there else (np.ones(count, np.int8), {})
    round_, round_checks = _round(rows) if "round" in there else (np.zeros(count, np.int64), {})
    preference, preference_checks = (_winner if by_winner else _preference)(rows, failed)
    games, games_checks = _games(rows) if "games" in there else (np.ones(count), {})
    log_length, length_checks = _log_length(rows) if "length_a" in there else (np.full(count, np.nan), {})
    if not reading.orders_needed:
        order_checks.pop("order missing", None)
    checks = _pair_checks(query, a, b) | order_checks | round_checks
    checks |= preference_checks | games_checks | length_checks
    code = verdict(checks)
    good = np.flatnonzero(code == 0)
    judge = pc.fill_null(rows.text("judge"), "") if "judge" in there else pa.repeat("", count)
    query_good, a_good, b_good, judge, error = (column.take(pa.array(good)) for column in (query, a, b, judge, error))
    return PreferenceRows(
        place=rows.place,
        rows=count + rows.refused.num_rows,
        stripped=rows.stripped(there.intersection(_NAMES) - ({"query_id"} if one_query else set())),
        rejects=rows.rejects(checks, code, (query, a, b), (*reading.numbers, "order")),
        query=query_good,
        doc_a=a_good,
        doc_b=b_good,
        judge=judge,
        error=error,
        preference=preference[good],
        shown=shown[good],
        round=round_[good],
        games=games[good],
        log_length=log_length[good],
        number=good + 1 if rows.numbers is None else rows.numbers[good],
        joint=rows.joint,
    )


def _pair_checks(query: pa.Array, a: pa.Array, b: pa.Array) -> Checks:
    return {
        "query_id missing": query.is_null().to_numpy(zero_copy_only=False),
        "document missing": pc.or_(a.is_null(), b.is_null()).to_numpy(zero_copy_only=False),
        "document compared with itself": pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False),
    }


def _are_words(rows: Rows, column: str, sets: Sequence[Sequence[str]]) -> list[Flags]:
    """Return, for each set, bool[N]: whether a column holds one of its words, in any case and without joints."""
    word = pc.replace_substring_regex(pc.utf8_lower(rows.text(column)), _JOINTS, "")
    return [pc.is_in(word, value_set=pa.array(words)).to_numpy(zero_copy_only=False) for words in sets]


def _shown(rows: Rows) -> tuple[NDArray[np.int8], Checks]:
    first, second = _are_words(rows, "order", (_FIRST, _SECOND))
    missing = rows.text("order").is_null().to_numpy(zero_copy_only=False)
    checks = {"order missing": missing, "order neither ab nor ba": ~(first | second | missing)}
    return first.astype(np.int8) - second.astype(np.int8), checks


def _round(rows: Rows) -> tuple[Longs, Checks]:
    value, _ = rows.number("round")
    whole = (np.abs(value) < 2**31) & (value == np.round(value))  # NaN is not
    return np.where(whole, value, 0.0).astype(np.int64), {"round no whole number": ~whole}


def _preference(rows: Rows, failed: Flags) -> tuple[NDArray[np.float64], Checks]:
    p, wrong = rows.number("preference")
    checks = _named("preference", wrong)
    checks |= {"preference NaN": np.isnan(p), "preference outside [0, 1]": ~((p >= 0.0) & (p <= 1.0))}
    return np.where(failed, np.nan, p), {why: flags & ~failed for why, flags in checks.items()}


def _winner(rows: Rows, failed: Flags) -> tuple[NDArray[np.float64], Checks]:
    first, second, tie = _are_words(rows, "winner", _WINNERS)
    known = first | second | tie
    return np.where(known & ~failed, first + 0.5 * tie, np.nan), {"winner neither a, b nor tie": ~known & ~failed}


def _games(rows: Rows) -> tuple[NDArray[np.float64], Checks]:
    games, wrong = rows.number("games")
    checks = {"games NaN": np.isnan(games), "games infinite": np.isinf(games), "games negative": games < 0.0}
    return games, _named("games", wrong) | checks


def _named(column: str, wrong: Mapping[str, Flags]) -> Checks:
    return {f"{column} {why}": flags for why, flags in wrong.items()}


def _log_length(rows: Rows) -> tuple[NDArray[np.float64], Checks]:
    checks: Checks = {}
    lengths: list[NDArray[np.float64]] = []
    for name in _LENGTHS:
        value, wrong = rows.number(name)
        bad = ~((value > 0.0) & (value < np.inf)) & ~wrong["missing"]
        checks[f"{name} no number above 0"] = bad
        lengths.append(np.where(bad, np.nan, value))
    return np.log(lengths[0]) - np.log(lengths[1]), checks
