from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, FIT, GAP, RATING


@dataclass(frozen=True)
class Tables:
    """What mine reads, for one bucket."""

    ratings: pa.Table
    gaps: pa.Table
    candidates: pa.Table
    fits: pa.Table

    def shuffled(self, seed: int) -> Tables:
        rng = np.random.default_rng(seed)
        parts = (self.ratings, self.gaps, self.candidates, self.fits)
        return Tables(*(table.take(pa.array(rng.permutation(table.num_rows))) for table in parts))


@dataclass(frozen=True)
class QuerySpec:
    """One query: ratings of its documents in points, which are known positives, the error of every gap.

    The retriever ranks documents in the order of `ratings`; `scores` are its similarities, 0 where not given.
    """

    ratings: list[float]
    positives: tuple[int, ...] = (0,)
    gap_se: float = 50.0
    randoms: int = 0
    rated: bool = True
    equal_ratings_p: float = 1e-6
    scores: tuple[float, ...] = ()


def doc(query: int, document: int) -> bytes:
    return identity.doc_id(f"q{query}d{document}")


def build(specs: list[QuerySpec]) -> Tables:
    """Documents are d0, d1, ... in the order of `ratings`, then random ones; unlabelled queries anchor the top."""
    candidates: list[tuple[bytes, bytes, str, bool, int | None, float]] = []
    ratings: list[tuple[bytes, bytes, float]] = []
    gaps: list[tuple[bytes, bytes, bytes, float, float, str]] = []
    fits: list[tuple[bytes, float]] = []
    for q, spec in enumerate(specs):
        query, size = identity.query_id(f"q{q}"), len(spec.ratings)
        candidates += [
            (query, doc(q, d), "retrieved", d in spec.positives, d + 1, spec.scores[d] if spec.scores else 0.0)
            for d in range(size)
        ]
        candidates += [(query, doc(q, size + r), "random", False, None, 0.0) for r in range(spec.randoms)]
        if not spec.rated:
            continue
        fits.append((query, spec.equal_ratings_p))
        ratings += [(query, doc(q, d), rating) for d, rating in enumerate(spec.ratings)]
        anchors = spec.positives or (int(np.argmax(spec.ratings)),)
        kind = "known" if spec.positives else "top-rated"
        gaps += [
            (query, doc(q, a), doc(q, d), spec.ratings[a] - spec.ratings[d], spec.gap_se, kind)
            for a in anchors
            for d in range(size)
            if d != a
        ]
    return Tables(_ratings(ratings), _gaps(gaps), _candidates(candidates), _fits(fits))


def _candidates(rows: list[tuple[bytes, bytes, str, bool, int | None, float]]) -> pa.Table:
    return CANDIDATE.table(
        {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "source": [row[2] for row in rows],
            "is_positive": [row[3] for row in rows],
            "rank": [row[4] for row in rows],
            "fused_score": [None if row[4] is None else 1.0 / row[4] for row in rows],
            "retriever_ranks": pa.array([[] for _ in rows], type=pa.map_(pa.string(), pa.int32())),
            "similarity": [row[5] for row in rows],
        }
    )


def _ratings(rows: list[tuple[bytes, bytes, float]]) -> pa.Table:
    return RATING.table(
        {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "rating_elo": [row[2] for row in rows],
            "std_err_elo": [90.0] * len(rows),
            "latent": [row[2] / 277.21 for row in rows],
            "games": [24.0] * len(rows),
            "component": [0] * len(rows),
        }
    )


def _gaps(rows: list[tuple[bytes, bytes, bytes, float, float, str]]) -> pa.Table:
    return GAP.table(
        {
            "query_id": [row[0] for row in rows],
            "anchor_id": [row[1] for row in rows],
            "doc_id": [row[2] for row in rows],
            "gap_elo": [row[3] for row in rows],
            "gap_se_elo": [row[4] for row in rows],
            "anchor_kind": [row[5] for row in rows],
        }
    )


def _fits(rows: list[tuple[bytes, float]]) -> pa.Table:
    return FIT.table(
        {
            **{field.name: [1] * len(rows) for field in FIT.schema},
            "query_id": [row[0] for row in rows],
            "converged": [True] * len(rows),
            "estimate": ["mean"] * len(rows),
            "equal_ratings_p": [row[1] for row in rows],
        }
    )


@pytest.fixture
def make_tables() -> Callable[[list[QuerySpec]], Tables]:
    return build


@pytest.fixture
def spec() -> type[QuerySpec]:
    return QuerySpec


@pytest.fixture
def doc_id() -> Callable[[int, int], bytes]:
    return doc
