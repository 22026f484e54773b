"""Rounds of an adaptive design for one bucket: first a cycle through a query's documents, then the most useful pairs.

The table of a round contains all pairs of earlier rounds too, so the last one is the whole design.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.comparisons.adaptive import Beliefs, next_pairs
from anmi_ray.comparisons.compare import compare, extended
from anmi_ray.comparisons.graph import Edges
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core.identity import id_column, id_matrix
from anmi_ray.core.records import by_query
from anmi_ray.core.scale import Model, to_latent

CYCLE = 2  # degree of the first round: the sparsest graph that stays connected if any one pair has no answer


class Known(NamedTuple):
    """A query's rated documents (uint8[n, 16], sorted) and the posterior of their ratings."""

    doc_ids: NDArray[np.uint8]
    beliefs: Beliefs


def first_round(candidates: pa.Table, config: CompareConfig, seed: int) -> tuple[pa.Table, pa.Table]:
    """Return the first round's Comparisons and the Rejects."""
    return compare(candidates, config.model_copy(update={"degree": CYCLE}), seed)


def next_round(
    before: pa.Table, known: Mapping[bytes, Known], config: CompareConfig, round_: int, model: Model
) -> pa.Table:
    """Return the Comparisons `before` plus those of round `round_` (1, 2, ...), sorted by (query_id, doc_a, doc_b).

    A query gets no more pairs if none of its pairs was answered, or if its target error is reached.
    """
    target = float(to_latent(config.target_error or 0.0, model))
    added: list[tuple[bytes, NDArray[np.uint8]]] = []
    for query, pairs in by_query(before):
        if query not in known:
            continue
        doc_ids, beliefs = known[query]
        more = pairs_after(_documents(pairs), config, round_) - pairs.num_rows
        chosen = next_pairs(beliefs, among(doc_ids, pairs), more, config.objective, model, target)
        added.append((query, doc_ids[chosen]))
    return extended(before, added, config.design, round_)


def pairs_after(documents: int, config: CompareConfig, round_: int) -> int:
    """Return a query's number of pairs after `round_` (0, 1, ...): a cycle, then equal parts per round.

    With a target error there may be fewer.

    >>> [pairs_after(100, CompareConfig(design="adaptive", degree=4, rounds=5), r) for r in range(5)]
    [100, 125, 150, 175, 200]
    """
    every = documents * (documents - 1) // 2
    first = min(documents * CYCLE // 2, every)
    total = max(first, min(documents * config.degree // 2, every))
    return first + (total - first) * round_ // (config.rounds - 1)


def pairs_in_all(first: pa.Table, config: CompareConfig) -> int:
    """Return the largest possible number of pairs after the last round, given the first round's Comparisons."""
    return sum(pairs_after(_documents(pairs), config, config.rounds - 1) for _, pairs in by_query(first))


def _documents(pairs: pa.Table) -> int:
    """Return the number of documents in a query's Comparisons."""
    return len(np.unique(np.concatenate([id_matrix(pairs[end]) for end in ("doc_a", "doc_b")]), axis=0))


def among(doc_ids: NDArray[np.uint8], pairs: pa.Table) -> Edges:
    """Return the pairs of which both documents are rated, as indices into `doc_ids`, int64[P, 2]."""
    places = [
        pc.fill_null(pc.index_in(pairs[end], value_set=id_column(doc_ids)), -1).to_numpy() for end in ("doc_a", "doc_b")
    ]
    indices = np.stack(places, axis=1).astype(np.int64)
    return indices[(indices >= 0).all(axis=1)]
