"""From a table of anybody's pairwise preferences to games: rows are checked, refused ones counted, ids remembered.

The way in for people who have preferences already and no run of ours. A row is one game; equal rows are that many
games. Inside, a query or document is its rank among the sorted ids of the table, as 16 bytes, so rows may come in any
order and ties are settled by the user's own ids.
Letters: N rows of the table, P accepted rows, D rated documents (a document of two queries counts twice).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix
from anmi_ray.core.scale import Floats
from anmi_ray.rating.games import Games, Longs, rank_ids, ranks_of
from anmi_ray.tables.rows import Flags, Numbers, Refusals, Rows, pair_checks, preference_checks, verdict

TEXTS = ("query_id", "doc_a", "doc_b", "judge")
NUMBERS = ("preference", "games", "tie")
OPTIONAL = {"games": "1", "judge": "", "tie": ""}  # what a row without them means
ANCHOR_TEXTS = ("query_id", "doc_id")
ONE_QUERY = "all"  # the query's id where a table is rated as one query


@dataclass(frozen=True)
class Outcomes:
    """Accepted rows with a strength, sorted: query, first < second are ranks of ids (int64[P]), w the preference for
    `first`, strength > 0, judge the rank of the judge's name, shown +1 where `first` was doc_a, else -1, tie the
    probability of one that the judge told, else NaN.
    """

    query: Longs
    first: Longs
    second: Longs
    w: Floats
    strength: Floats
    judge: NDArray[np.int32]
    shown: NDArray[np.int8]
    tie: Floats

    def take(self, which: NDArray[Any] | slice) -> Outcomes:
        """Some of the rows, in the same order."""
        return Outcomes(*(getattr(self, column.name)[which] for column in fields(self)))

    def players(self, documents: int) -> Longs:
        """query · documents + document of both sides, int64[2P], all first ones before all second ones."""
        return np.concatenate([self.query * documents + self.first, self.query * documents + self.second])


@dataclass(frozen=True)
class Preferences(Refusals):
    """What a table of preferences holds: outcomes, the sorted ids that their ranks point into, and what was refused.

    rows = accepted + rejects.num_rows. silent: documents (per query) whose every row has strength 0, so that they are
    not rated. anchors: query rank · documents + document rank of the known positives.
    """

    outcomes: Outcomes
    queries: pa.Array
    documents: pa.Array
    judges: tuple[str, ...]
    silent: int
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
            tie=None if np.isnan(o.tie).all() else o.tie,
        )
        return replace(games, **{"judge": o.judge, "judges": self.judges, "shown": o.shown}) if judged else games

    def names(self, column: str, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The user's ids of a column query_id, doc_id or anchor_id of a result."""
        return (self.queries if column == "query_id" else self.documents).take(pa.array(ranks_of(id_matrix(ids))))


def read_preferences(source: pa.Table | Rows, one_query: bool = False) -> Preferences:
    """Check a table with columns query_id, doc_a, doc_b, preference [games] [judge] [tie]; ids are text or integers.

    preference in [0, 1] is of doc_a, games ≥ 0 how many games the row counts for (default 1; 0 carries nothing), judge
    any text, tie in [0, 1] a model's probability of a tie, 1 - E|C| (empty where it was not told). Rows that cannot be
    used are refused with reason and place. `one_query` ignores query_id. DataError: a column is missing or of a type
    that cannot hold such values.
    """
    rows = source if isinstance(source, Rows) else Rows(source)
    _need(rows, [name for name in (*TEXTS, *NUMBERS) if name not in OPTIONAL], one_query)
    count = rows.table.num_rows
    there = rows.table.column_names
    query = _constant(ONE_QUERY, count) if one_query else rows.text("query_id")
    a = rows.text("doc_a")
    b = rows.text("doc_b")
    judge = pc.fill_null(rows.text("judge"), "") if "judge" in there else _constant("", count)
    preference = rows.number("preference")
    games = rows.number("games") if "games" in there else (np.ones(count), {})
    tie = rows.number("tie") if "tie" in there else (np.full(count, np.nan), {})
    checks = pair_checks(query, a, b) | preference_checks(preference) | _games_checks(games) | _tie_checks(tie)
    code = verdict(checks)
    rejects = rows.rejects(checks, code, (query, a, b), NUMBERS)

    good = np.flatnonzero(code == 0)
    query, a, b, judge = (column.take(pa.array(good)) for column in (query, a, b, judge))
    queries = pc.unique(query).sort()
    judges = pc.unique(judge).sort()
    documents = pc.unique(pa.concat_arrays([a, b])).sort()
    outcomes = _outcomes(
        _rank(query, queries), _rank(a, documents), _rank(b, documents), preference[0][good],
        games[0][good], _rank(judge, judges), tie[0][good],
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
    query = _constant(ONE_QUERY, rows.table.num_rows) if one_query else rows.text("query_id")
    n = len(preferences.documents)
    o = preferences.outcomes
    q, d = (
        pc.fill_null(pc.index_in(column, value_set=known), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        for column, known in ((query, preferences.queries), (rows.text("doc_id"), preferences.documents))
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


def _need(rows: Rows, needed: Sequence[str], one_query: bool) -> None:
    remedy = "rename the columns"
    if "query_id" not in rows.columns:
        remedy = "rename the columns; a table about one query needs no query_id with --all-one-query"
    needed = [name for name in needed if not (one_query and name == "query_id")]
    rows.need(needed, (*TEXTS, *NUMBERS, *ANCHOR_TEXTS), remedy)


def _constant(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _games_checks(games: Numbers) -> dict[str, Flags]:
    g, wrong = games
    checks = {f"games {why}": flags for why, flags in wrong.items()}
    return checks | {"games NaN": np.isnan(g), "games infinite": np.isinf(g), "games negative": g < 0.0}


def _tie_checks(tie: Numbers) -> dict[str, Flags]:
    t, wrong = tie
    checks = {f"tie {why}": flags for why, flags in wrong.items() if why != "missing"}
    return checks | {"tie outside [0, 1]": (t < 0.0) | (t > 1.0)}


def _rank(column: pa.Array, known: pa.Array) -> Longs:
    return pc.index_in(column, value_set=known).to_numpy(zero_copy_only=False).astype(np.int64)


def _outcomes(
    query: Longs, a: Longs, b: Longs, preference: Floats, strength: Floats, judge: Longs, tie: Floats
) -> Outcomes:
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
        tie,
    )
    o = outcomes
    return o.take(np.lexsort((o.tie, o.shown, o.judge, o.strength, o.w, o.second, o.first, o.query)))
