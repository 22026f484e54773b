"""Convert checked preference rows to games, keeping the users' ids.

For users who have preferences and no run of ours. A row is one game, so equal rows are several games; a judge's failure
is not an outcome. Internally, a query or document is its rank among the sorted ids of the table, as 16 bytes: the order
of rows does not matter, and ties are settled by the user's own ids.
Letter: P rows that count for a game.
"""

from __future__ import annotations

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
from anmi_ray.tables.preferences import GAMES, ONE_QUERY, PreferenceRows
from anmi_ray.tables.rows import Refusals, Rows

ANCHOR_TEXTS = ("query_id", "doc_id")


@dataclass(frozen=True)
class Outcomes:
    """Rows with a strength, sorted: query, first < second are ranks of ids (int64[P]), w the preference for `first`,
    strength > 0, judge the rank of the judge's name, shown 1 where `first` was shown first, -1 where `second` was, 0
    unknown.
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
class Preferences(Refusals):
    """What a table of preferences holds: outcomes, the sorted ids that their ranks point into, and what was refused.

    failures: rows in which the judge failed, which do not count. silent: documents (per query) whose every row is one
    or has strength 0, so that they are not rated. anchors: query rank · documents + document rank of the positives.
    """

    outcomes: Outcomes
    queries: pa.Array
    documents: pa.Array
    judges: tuple[str, ...]
    failures: int
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
        )
        return replace(games, **{"judge": o.judge, "judges": self.judges, "shown": o.shown}) if judged else games

    def names(self, column: str, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The user's ids of a column query_id, doc_id or anchor_id of a result."""
        return (self.queries if column == "query_id" else self.documents).take(pa.array(ranks_of(id_matrix(ids))))


def outcomes_of(rows: PreferenceRows) -> Preferences:
    """Return the outcomes of rows read as GAMES: every row with an answer is a game."""
    queries = pc.unique(rows.query).sort()
    judges = pc.unique(rows.judge).sort()
    documents = pc.unique(pa.concat_arrays([rows.doc_a, rows.doc_b])).sort()
    failed = rows.error.is_valid().to_numpy(zero_copy_only=False)
    strength = np.where(failed, 0.0, rows.games)
    a = _rank(rows.doc_a, documents)
    b = _rank(rows.doc_b, documents)
    swap = a > b
    outcomes = Outcomes(  # every row from the side of its smaller id
        query=_rank(rows.query, queries),
        first=np.minimum(a, b),
        second=np.maximum(a, b),
        w=np.where(swap, 1.0 - rows.preference, rows.preference),
        strength=strength,
        judge=_rank(rows.judge, judges).astype(np.int32),
        shown=np.where(swap, -rows.shown, rows.shown).astype(np.int8),
    )
    o = outcomes.take(strength > 0.0)
    played = o.take(np.lexsort((o.shown, o.judge, o.strength, o.w, o.second, o.first, o.query)))
    n = len(documents)
    return Preferences(
        outcomes=played,
        queries=queries,
        documents=documents,
        judges=tuple(judges.to_pylist()),
        place=rows.place,
        rows=rows.rows,
        failures=int(failed.sum()),
        silent=len(np.unique(outcomes.players(n))) - len(np.unique(played.players(n))),
        rejects=rows.rejects,
        stripped=rows.stripped,
    )


def with_anchors(preferences: Preferences, source: pa.Table | Rows, one_query: bool = False) -> tuple[Preferences, int]:
    """The preferences with known positives (columns query_id, doc_id), and how many of those are no rated documents.

    DataError: a column is missing, or none of them is rated.
    """
    rows = source if isinstance(source, Rows) else Rows(source)
    remedy = "rename the columns" if "query_id" in rows.columns else GAMES.no_query
    rows.need([name for name in ANCHOR_TEXTS if not (one_query and name == "query_id")], ANCHOR_TEXTS, remedy)
    count = rows.table.num_rows
    query = pa.repeat(pa.scalar(ONE_QUERY, pa.string()), count) if one_query else rows.text("query_id")
    n = len(preferences.documents)
    o = preferences.outcomes
    q, d = (
        pc.fill_null(pc.index_in(column, value_set=ids), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        for column, ids in ((query, preferences.queries), (rows.text("doc_id"), preferences.documents))
    )
    rated = o.players(n)
    is_rated = (q >= 0) & (d >= 0) & np.isin(q * n + d, rated)
    missing = int(np.sum(~is_rated)) + rows.refused.num_rows
    if not is_rated.any():
        raise DataError(
            f"none of its {missing:,} rows names a rated document",
            rows.place,
            "give query_id and doc_id as written in the preferences",
        )
    return replace(preferences, anchors=np.unique((q * n + d)[is_rated])), missing


def _rank(column: pa.Array, ids: pa.Array) -> Longs:
    return pc.index_in(column, value_set=ids).to_numpy(zero_copy_only=False).astype(np.int64)
