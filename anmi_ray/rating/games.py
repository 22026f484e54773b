"""The solver's input: all games of a bucket of queries in flat arrays, cut by offsets, without a Python object a query.

Letters: Q queries, D documents (all queries together), P games (all queries together). Documents are sorted by
(query_id, doc_id); games are in their query's order and name documents by their position inside the query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from anmi_ray.core.identity import ID_BYTES
from anmi_ray.core.scale import Floats

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Games:
    """Documents that played and the games between them, per query.

    query_ids uint8[Q, 16]; doc_ids uint8[D, 16]; doc_start, game_start int64[Q + 1]; positive bool[D];
    first, second int32[P] (positions inside the query, its games sorted by `first`); w float64[P], the preference for
    `first`; answers float64[P], how many judges' answers it holds (strength before dispersion). Where games are single
    answers: judge int32[P] into `judges`, and shown int8[P], 1 where `first` was shown first, -1 where `second` was,
    0 unknown; without them no judge's leaning can be told.
    """

    query_ids: NDArray[np.uint8]
    doc_ids: NDArray[np.uint8]
    doc_start: Longs
    game_start: Longs
    positive: NDArray[np.bool_]
    first: NDArray[np.int32]
    second: NDArray[np.int32]
    w: Floats
    answers: Floats
    judges: tuple[str, ...] = ()
    judge: NDArray[np.int32] | None = None
    shown: NDArray[np.int8] | None = None

    def __post_init__(self) -> None:
        falls = np.flatnonzero(self.first[1:] < self.first[:-1]) + 1
        if not np.isin(falls, self.game_start).all():  # the solver goes through the documents by their games
            raise AssertionError("games of a query must be sorted by their first document")

    @property
    def queries(self) -> int:
        """Q, the queries with at least one game."""
        return len(self.query_ids)

    @property
    def documents(self) -> Longs:
        """Documents per query, int64[Q]."""
        return np.diff(self.doc_start)

    @property
    def games(self) -> Longs:
        """Games (pairs with an answer) per query, int64[Q]."""
        return np.diff(self.game_start)

    @property
    def query_of_doc(self) -> Longs:
        """Query index of every document, int64[D]."""
        return np.repeat(np.arange(self.queries), self.documents)

    @property
    def query_of_game(self) -> Longs:
        """Query index of every game, int64[P]."""
        return np.repeat(np.arange(self.queries), self.games)

    def global_ends(self) -> tuple[Longs, Longs]:
        """(first, second) as positions in the bucket's documents, int64[P] each."""
        start = np.repeat(self.doc_start[:-1], self.games)
        return start + self.first, start + self.second

    def pairs(self) -> tuple[Longs, Longs]:
        """(pair, sign) of every game, int64[P] each: games of two documents share a number, in the order of queries,
        smaller and larger document; sign is 1 where the game's first document is the smaller one, else -1.
        """
        first, second = self.global_ends()
        key = np.minimum(first, second) * len(self.doc_ids) + np.maximum(first, second)
        return np.unique(key, return_inverse=True)[1], np.where(first < second, 1, -1)

    def offset(self, leaning: Floats) -> Floats | None:
        """What every game's gap gains from its judge's leaning (float64[J]) towards the document shown first."""
        if self.judge is None or self.shown is None or not leaning.any():
            return None
        return leaning[self.judge] * self.shown

    def by_judge(self, by_offset: Floats) -> Floats:
        """Derivatives in every judge's leaning, float64[J], from those in every game's offset."""
        if self.judge is None or self.shown is None:
            return np.zeros(len(self.judges))
        return np.bincount(self.judge, by_offset * self.shown, len(self.judges)).astype(np.float64)


def bounded(games: Games, documents: int) -> Games:
    """The games, every larger query cut to the first `documents` that a breadth-first walk reaches.

    The walk starts at the query's first document and, if it ends early, again at the next unreached one. It ignores
    outcomes, so estimates from the piece are unbiased.
    """
    if not games.queries or games.documents.max() <= documents:
        return games
    keep = np.ones(len(games.doc_ids), dtype=np.bool_)
    first, second = games.global_ends()
    for q in np.flatnonzero(games.documents > documents):
        d0 = int(games.doc_start[q])
        n = int(games.documents[q])
        played = slice(games.game_start[q], games.game_start[q + 1])
        ends = (
            np.concatenate([games.first[played], games.second[played]]),
            np.concatenate([games.second[played], games.first[played]]),
        )
        graph = sparse.csr_array((np.ones(len(ends[0])), ends), shape=(n, n))
        reached: list[NDArray[np.int32]] = []
        seen = np.zeros(n, dtype=np.bool_)
        while sum(map(len, reached)) < documents:
            piece = csgraph.breadth_first_order(graph, int(np.argmin(seen)), return_predecessors=False)
            seen[piece] = True
            reached.append(piece)
        keep[d0 : d0 + n] = False
        keep[d0 + np.concatenate(reached)[:documents]] = True
    inside = keep[first] & keep[second]
    played_in = np.zeros_like(keep)
    played_in[first[inside]] = played_in[second[inside]] = True
    return subset(games, keep & played_in, inside)


def subset(games: Games, keep: NDArray[np.bool_], inside: NDArray[np.bool_]) -> Games:
    """The documents kept (bool[D]) and the games inside (bool[P]), whose documents are all kept; queries stay."""
    new = np.cumsum(keep) - 1
    first, second = games.global_ends()
    documents = np.add.reduceat(keep, games.doc_start[:-1], dtype=np.int64)
    played = np.bincount(games.query_of_game[inside], minlength=games.queries)
    doc_start = np.concatenate([[0], np.cumsum(documents)]).astype(np.int64)
    base = np.repeat(doc_start[:-1], played)
    return replace(
        games,
        doc_ids=games.doc_ids[keep],
        doc_start=doc_start,
        game_start=np.concatenate([[0], np.cumsum(played)]).astype(np.int64),
        positive=games.positive[keep],
        first=(new[first[inside]] - base).astype(np.int32),
        second=(new[second[inside]] - base).astype(np.int32),
        w=games.w[inside],
        answers=games.answers[inside],
        judge=None if games.judge is None else games.judge[inside],
        shown=None if games.shown is None else games.shown[inside],
    )


def rank_ids(rank: Longs) -> NDArray[np.uint8]:
    """Ranks int64[N] as ids uint8[N, 16] that sort as the ranks do."""
    ids = np.zeros((len(rank), ID_BYTES), np.uint8)
    ids[:, ID_BYTES - 8 :] = rank.astype(">u8").view(np.uint8).reshape(-1, 8)
    return ids


def ranks_of(ids: NDArray[np.uint8]) -> Longs:
    """The inverse of `rank_ids`.

    >>> ranks_of(rank_ids(np.array([7, 300]))).tolist()
    [7, 300]
    """
    return np.ascontiguousarray(ids[:, ID_BYTES - 8 :]).view(">u8").reshape(-1).astype(np.int64)
