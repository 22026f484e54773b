"""From a table of anybody's pairwise preferences to games: rows are checked, refused ones counted, ids remembered.

The way in for people who have preferences already and no run of ours. A row is one game; equal rows are that many
games. Inside, a query or document is its rank among the sorted ids of the table, as 16 bytes, so rows may come in any
order and ties are settled by the user's own ids.
Letters: N rows of the table, P accepted rows, D rated documents (a document of two queries counts twice).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.errors import DataError
from anmi_ray.identity import id_matrix
from anmi_ray.rating.games import Games, Longs, rank_ids, ranks_of
from anmi_ray.records import REJECT
from anmi_ray.scale import Floats

TEXTS = ("query_id", "doc_a", "doc_b", "judge")
NUMBERS = ("preference", "games")
OPTIONAL = ("games", "judge")
ANCHOR_TEXTS = ("query_id", "doc_id")
ONE_QUERY = "all"  # the query's id where a table is rated as one query
_NUMBER = r"(?i)^[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|nan|inf|infinity)$"
_SHOWN = 3  # places named in a message
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """A table as read and where it came from.

    `place` names the whole; row i of the table stands at `place` + `joint` + numbers[i] (None: 1, 2, ...); `refused`
    are Reject rows of what made no row of the table; `found` are all columns that were there, if not just the table's.
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

    def places(self, rows: Longs) -> pa.Array:
        """Where the given rows of the table stand, as text."""
        numbers = rows + 1 if self.numbers is None else self.numbers[rows]
        return pc.binary_join_element_wise(self.place, pa.array(numbers).cast(pa.string()), self.joint)


@dataclass(frozen=True)
class Outcomes:
    """Accepted rows with a strength, sorted: query, first < second are ranks of ids (int64[P]), w the preference for
    `first`, strength > 0, judge the rank of the judge's name, shown +1 where `first` was doc_a, else -1.
    """

    query: Longs
    first: Longs
    second: Longs
    w: Floats
    strength: Floats
    judge: NDArray[np.int32]
    shown: NDArray[np.int8]

    def take(self, which: NDArray[Any] | slice) -> Outcomes:
        """Some of the rows, in the same order."""
        return Outcomes(*(getattr(self, column.name)[which] for column in fields(self)))

    def players(self, documents: int) -> Longs:
        """query · documents + document of both sides, int64[2P], all first ones before all second ones."""
        return np.concatenate([self.query * documents + self.first, self.query * documents + self.second])


@dataclass(frozen=True)
class Preferences:
    """What a table of preferences holds: outcomes, the sorted ids that their ranks point into, and what was refused.

    rows = accepted + rejects.num_rows. silent: documents (per query) whose every row has strength 0, so that they are
    not rated. anchors: query rank · documents + document rank of the known positives.
    """

    outcomes: Outcomes
    queries: pa.Array
    documents: pa.Array
    judges: tuple[str, ...]
    place: str
    rows: int
    silent: int
    rejects: pa.Table
    anchors: Longs = field(default_factory=lambda: np.zeros(0, np.int64))

    def games(self, outcomes: Outcomes | None = None, judged: bool = False) -> Games:
        """The solver's input, of all outcomes or of some; `judged` adds who judged and what was shown first."""
        o = self.outcomes if outcomes is None else outcomes
        n = max(len(self.documents), 1)
        keys, end = np.unique(o.players(n), return_inverse=True)
        query, doc_start = np.unique(keys // n, return_index=True)
        base = doc_start[np.searchsorted(query, o.query)]
        games = Games(
            query_ids=rank_ids(query),
            doc_ids=rank_ids(keys % n),
            doc_start=np.append(doc_start, len(keys)).astype(np.int64),
            game_start=np.append(np.searchsorted(o.query, query), len(o.query)).astype(np.int64),
            positive=np.isin(keys, self.anchors),
            first=(end[: len(o.w)] - base).astype(np.int32),
            second=(end[len(o.w) :] - base).astype(np.int32),
            w=o.w,
            answers=o.strength,
            inconsistent=np.zeros(len(o.w), np.bool_),
        )
        return replace(games, **{"judge": o.judge, "judges": self.judges, "shown": o.shown}) if judged else games

    def names(self, column: str, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The user's ids of a column query_id, doc_id or anchor_id of a result."""
        return (self.queries if column == "query_id" else self.documents).take(pa.array(ranks_of(id_matrix(ids))))

    def reasons(self) -> dict[str, tuple[int, list[str]]]:
        """{reason: (rows refused, the first few places)}, most frequent first."""
        if not self.rejects.num_rows:
            return {}
        counts = self.rejects.group_by("reason", use_threads=False).aggregate([([], "count_all"), ("place", "list")])
        found = {row["reason"]: (row["count_all"], row["place_list"][:_SHOWN]) for row in counts.to_pylist()}
        return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))

    def refuse_rejects(self, max_fraction: float) -> None:
        """Raise DataError where more than `max_fraction` of the rows were refused, saying why and where."""
        bad = self.rejects.num_rows
        if bad <= max_fraction * self.rows:
            return
        why = "; ".join(f"{n:,} {reason} ({', '.join(places)})" for reason, (n, places) in self.reasons().items())
        raise DataError(
            f"{bad:,} of {self.rows:,} rows cannot be used ({bad / self.rows:.1%}, allowed {max_fraction:.1%}): {why}",
            self.place,
            "mend these rows, or allow a larger share with --max-reject-fraction",
        )


def read_preferences(source: pa.Table | Rows, one_query: bool = False) -> Preferences:
    """Check a table with columns query_id, doc_a, doc_b, preference [games] [judge]; ids are text or integers.

    preference in [0, 1] is of doc_a, games ≥ 0 how many games the row counts for (default 1; 0 carries nothing), judge
    any text. Rows that cannot be used are refused with reason and place. `one_query` ignores query_id. DataError: a
    column is missing or of a type that cannot hold such values.
    """
    rows = source if isinstance(source, Rows) else Rows(source)
    _need(rows, [name for name in (*TEXTS, *NUMBERS) if name not in OPTIONAL], one_query)
    count = rows.table.num_rows
    query = _constant(ONE_QUERY, count) if one_query else _text(rows, "query_id")
    a, b = _text(rows, "doc_a"), _text(rows, "doc_b")
    judge = pc.fill_null(_text(rows, "judge"), "") if "judge" in rows.table.column_names else _constant("", count)
    preference, silent_preference = _number(rows, "preference")
    games, silent_games = _number(rows, "games") if "games" in rows.table.column_names else _ones(count)
    code, reasons = _verdict(query, a, b, (preference, silent_preference), (games, silent_games))
    rejects = pa.concat_tables([rows.refused, _rejects(rows, code, reasons, query, a, b)])

    good = np.flatnonzero(code == 0)
    query, a, b, judge = (column.take(pa.array(good)) for column in (query, a, b, judge))
    queries, judges = pc.unique(query).sort(), pc.unique(judge).sort()
    documents = pc.unique(pa.concat_arrays([a, b])).sort()
    outcomes = _outcomes(
        _rank(query, queries), _rank(a, documents), _rank(b, documents), preference[good], games[good],
        _rank(judge, judges),
    )  # fmt: skip
    played = outcomes.take(outcomes.strength > 0.0)
    return Preferences(
        outcomes=played,
        queries=queries,
        documents=documents,
        judges=tuple(judges.to_pylist()),
        place=rows.place,
        rows=count + rows.refused.num_rows,
        silent=len(np.unique(outcomes.players(len(documents)))) - len(np.unique(played.players(len(documents)))),
        rejects=rejects,
    )


def with_anchors(preferences: Preferences, source: pa.Table | Rows, one_query: bool = False) -> tuple[Preferences, int]:
    """The preferences with known positives (columns query_id, doc_id), and how many of those are no rated documents.

    DataError: a column is missing, or none of them is rated.
    """
    rows = source if isinstance(source, Rows) else Rows(source)
    _need(rows, ANCHOR_TEXTS, one_query)
    query = _constant(ONE_QUERY, rows.table.num_rows) if one_query else _text(rows, "query_id")
    n, o = len(preferences.documents), preferences.outcomes
    q, d = (
        pc.fill_null(pc.index_in(column, value_set=known), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        for column, known in ((query, preferences.queries), (_text(rows, "doc_id"), preferences.documents))
    )
    rated = o.players(n)
    found = (q >= 0) & (d >= 0) & np.isin(q * n + d, rated)
    missing = int(np.sum(~found)) + rows.refused.num_rows
    if not found.any():
        raise DataError(
            f"none of its {missing:,} rows names a rated document",
            rows.place,
            "give query_id and doc_id as they stand in the preferences",
        )
    return replace(preferences, anchors=np.unique((q * n + d)[found])), missing


def _need(rows: Rows, needed: list[str] | tuple[str, ...], one_query: bool) -> None:
    found = rows.columns
    doubled = sorted({name for name in found if found.count(name) > 1 and name in (*TEXTS, *NUMBERS, *ANCHOR_TEXTS)})
    if doubled:
        raise DataError(f"has several columns {', '.join(doubled)}", rows.place, "keep one column of each name")
    missing = [name for name in needed if name not in found and not (one_query and name == "query_id")]
    if not missing:
        return
    shown = ", ".join(repr(name) for name in found) or "none"
    remedy = "rename the columns"
    if "query_id" in missing:
        remedy = "rename the columns; a table about one query needs no query_id with --all-one-query"
    raise DataError(
        f"has no column {', '.join(missing)}; its columns are {shown}, needed are {', '.join(needed)}",
        rows.place,
        remedy,
    )


def _constant(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _ones(count: int) -> tuple[Floats, Mapping[str, Flags]]:
    return np.ones(count), {}


def _text(rows: Rows, name: str) -> pa.Array:
    """A column of ids as text, null where there is none."""
    column = rows.table[name].combine_chunks()
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(f"{name} holds {kind}; ids must be text or integers", rows.place, "convert the column")
    text = array.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _number(rows: Rows, name: str) -> tuple[Floats, Mapping[str, Flags]]:
    """A column of numbers as float64, NaN where there is none, and which rows hold nothing or no number."""
    column = rows.table[name]
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise DataError(f"{name} holds {kind}; it must hold numbers", rows.place, "convert the column")
        missing = column.is_null().to_numpy()
        return pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(), {"missing": missing}
    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    empty = pc.fill_null(pc.equal(text, ""), True)
    valid = pc.and_(pc.invert(empty), pc.fill_null(pc.match_substring_regex(text, _NUMBER), False))
    value = pc.if_else(valid, text, pa.scalar(None, pa.string())).cast(pa.float64())
    garbled = pc.and_(pc.invert(empty), pc.invert(valid)).to_numpy()
    return pc.fill_null(value, float("nan")).to_numpy(), {"missing": empty.to_numpy(), "not a number": garbled}


def _verdict(
    query: pa.Array,
    a: pa.Array,
    b: pa.Array,
    preference: tuple[Floats, Mapping[str, Flags]],
    games: tuple[Floats, Mapping[str, Flags]],
) -> tuple[NDArray[np.int64], list[str]]:
    """Which reason refuses each row, the first that applies (its number from 1; 0: accepted), and the reasons."""
    p, g = preference[0], games[0]
    checks: dict[str, Any] = {
        "query_id missing": query.is_null().to_numpy(zero_copy_only=False),
        "document missing": pc.or_(a.is_null(), b.is_null()).to_numpy(zero_copy_only=False),
        "document compared with itself": pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False),
    }
    checks |= {f"preference {why}": flags for why, flags in preference[1].items()}
    checks |= {"preference NaN": np.isnan(p), "preference outside [0, 1]": ~((p >= 0.0) & (p <= 1.0))}
    checks |= {f"games {why}": flags for why, flags in games[1].items()}
    checks |= {"games NaN": np.isnan(g), "games infinite": np.isinf(g), "games negative": g < 0.0}
    code = np.zeros(len(p), np.int64)
    for number, flags in reversed(list(enumerate(checks.values(), 1))):
        code[flags] = number
    return code, list(checks)


def _rejects(
    rows: Rows, code: NDArray[np.int64], reasons: list[str], query: pa.Array, a: pa.Array, b: pa.Array
) -> pa.Table:
    """Reject rows of what `code` refuses; key is "query: doc_a, doc_b", detail the value that is wrong."""
    bad = np.flatnonzero(code)
    reason = np.array(["", *reasons])[code[bad]]
    query, a, b = (pc.fill_null(column.take(pa.array(bad)), "") for column in (query, a, b))
    key = pc.binary_join_element_wise(pc.binary_join_element_wise(query, a, ": "), b, ", ")
    detail = np.full(len(bad), "", dtype=object)
    for name in NUMBERS:
        mine = np.char.startswith(reason, f"{name} ")
        if mine.any():
            held = rows.table[name].take(pa.array(bad[mine])).cast(pa.string())
            detail[mine] = pc.fill_null(held, "").to_numpy(zero_copy_only=False)
    return REJECT.table({"place": rows.places(bad), "key": key, "reason": reason.tolist(), "detail": detail})


def _rank(column: pa.Array, known: pa.Array) -> Longs:
    return pc.index_in(column, value_set=known).to_numpy(zero_copy_only=False).astype(np.int64)


def _outcomes(query: Longs, a: Longs, b: Longs, preference: Floats, strength: Floats, judge: Longs) -> Outcomes:
    """Every row from the side of its smaller id, in an order that depends on no other."""
    swap = a > b
    outcomes = Outcomes(
        query,
        np.minimum(a, b),
        np.maximum(a, b),
        np.where(swap, 1.0 - preference, preference),
        strength,
        judge.astype(np.int32),
        np.where(swap, -1, 1).astype(np.int8),
    )
    o = outcomes
    return o.take(np.lexsort((o.shown, o.judge, o.strength, o.w, o.second, o.first, o.query)))
