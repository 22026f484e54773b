"""What mine reads, made by hand: tables of a bucket from ratings and positives, or the rules' view of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, GAP, RATING, RELEVANCE, Record
from anmi_ray.mining.negatives import Negatives


@dataclass(frozen=True)
class Tables:
    """What mine reads, for one bucket."""

    ratings: pa.Table
    gaps: pa.Table
    candidates: pa.Table
    confirmed: pa.Table

    def shuffled(self, seed: int) -> Tables:
        rng = np.random.default_rng(seed)
        parts = (self.ratings, self.gaps, self.candidates, self.confirmed)
        return Tables(*(table.take(pa.array(rng.permutation(table.num_rows))) for table in parts))


@dataclass(frozen=True)
class Query:
    """Ratings of its documents in points, which are known positives, the error of every gap.

    The retriever ranks documents in the order of `ratings`; `scores` are its similarities, 0 where not given. `said`
    are judges' probabilities that documents answer the query, by document, NaN where nobody answered.
    """

    ratings: list[float]
    positives: tuple[int, ...] = (0,)
    gap_se: float = 50.0
    randoms: int = 0
    rated: bool = True
    scores: tuple[float, ...] = ()
    said: tuple[tuple[int, float], ...] = ()


def doc_id(query: int, document: int) -> bytes:
    return identity.doc_id(f"q{query}d{document}")


def make_tables(queries: list[Query]) -> Tables:
    """Documents are d0, d1, … by `ratings`, then random ones; in a query without a positive the top four have gaps."""
    candidates: list[tuple[Any, ...]] = []
    ratings: list[tuple[Any, ...]] = []
    gaps: list[tuple[Any, ...]] = []
    confirmed: list[tuple[Any, ...]] = []
    for q, of in enumerate(queries):
        query, size = identity.query_id(f"q{q}"), len(of.ratings)
        candidates += [
            (query, doc_id(q, d), "retrieved", d in of.positives, d + 1, of.scores[d] if of.scores else 0.0)
            for d in range(size)
        ]
        candidates += [(query, doc_id(q, size + r), "random", False, None, 0.0) for r in range(of.randoms)]
        if not of.rated:
            continue
        said = [(d, 0.0 if p != p else p, None if p != p else p) for d, p in of.said]
        first = max(said, key=lambda row: row[1], default=None)
        confirmed += [(query, doc_id(q, row[0]), *row[1:], row[1] > (0.05 if row is first else 0.5)) for row in said]
        ratings += [(query, doc_id(q, d), rating, rating / 277.21) for d, rating in enumerate(of.ratings)]
        anchors = of.positives or tuple(np.argsort(-np.array(of.ratings), kind="stable")[:4].tolist())
        kind = "known" if of.positives else "top-rated"
        gaps += [
            (query, doc_id(q, a), doc_id(q, d), of.ratings[a] - of.ratings[d], of.gap_se, kind)
            for a in anchors
            for d in range(size)
            if d != a
        ]
    names = "query_id doc_id source is_positive rank similarity"
    none = pa.array([[] for _ in candidates], type=pa.map_(pa.string(), pa.int32()))
    fused = [None if row[4] is None else 1.0 / row[4] for row in candidates]
    return Tables(
        _table(RATING, ratings, "query_id doc_id rating_elo latent", std_err_elo=90.0, games=24.0, component=0),
        _table(GAP, gaps, "query_id anchor_id doc_id gap_elo gap_se_elo anchor_kind"),
        _table(CANDIDATE, candidates, names, fused_score=fused, retriever_ranks=none),
        _table(RELEVANCE, confirmed, "query_id doc_id probability answer may_anchor", by_judges=0.5),
    )


def _table(kind: Record, rows: list[tuple[Any, ...]], names: str, **rest: Any) -> pa.Table:
    """Rows under the names, with further columns: whole ones, or a value for all."""
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names.split())}
    more = {name: value if isinstance(value, list | pa.Array) else [value] * len(rows) for name, value in rest.items()}
    return kind.table(more | columns)


def pool(gap: Any, gap_se: Any = 0.0, **columns: Any) -> Negatives:
    """Documents of one example, or of `example`; columns that are not given are unknown."""
    gap = np.asarray(gap, dtype=np.float64)
    unknown = dict.fromkeys(("rank", "score", "anchor_score", "direct", "relevance"), np.nan)
    filled: dict[str, Any] = {"example": 0, "is_positive": False, "anchor_rating": 0.0, "spread": 200.0, **unknown}
    filled |= columns | {"gap_se": np.float64(1.0) * gap_se}
    return Negatives(
        draw_ids=np.random.default_rng(len(gap)).integers(0, 256, (len(gap), 16)).astype(np.uint8),
        gap=gap,
        **{name: np.broadcast_to(np.asarray(value), gap.shape).copy() for name, value in filled.items()},
    )
