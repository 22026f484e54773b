"""Training lists: Example tables joined with their texts, each text tokenized once.

Letters: E lists, P documents of all lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix, uniforms
from anmi_ray.models.pairs import Ragged, TextsTokenizer, TokenPairs
from anmi_ray.models.texts import TextTokenizer
from anmi_ray.training.tokens import TokenCache, copies, tokenised

# Residual sd of a student trained on exact ratings, relative to their sd within a query. At .5 its scores correlate
# with the ratings by .87; a document with a standard error of this size weighs half.
MISFIT = 0.5


class Shuffle:
    """Shuffles of items with ids uint8[E, 16], one per epoch; the last one is cached."""

    def __init__(self, id_E: NDArray[np.uint8]) -> None:
        self._id_E = id_E
        self._newest: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._id_E)

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return item indices in the order of `epoch`, by hash of (seed, epoch, item)."""
        newest = self._newest
        if newest is None or newest[0] != (seed, epoch):
            order = np.argsort(uniforms(self._id_E, "order", seed, epoch), kind="stable")
            newest = self._newest = (seed, epoch), order
        return newest[1]


@dataclass(frozen=True)
class TrainingSet:
    """All lists, tokenized: list e has documents start_E[e] to start_E[e + 1], the anchor first.

    Ratings, gaps and their standard errors are in Elo points, and NaN for random documents, which are never rated.
    copy_D: number of each text of `documents`, shared by copies.
    own_Q: for each of `queries`, the document that is the query itself, or -1.
    """

    example_E: NDArray[np.uint8]
    query_E: NDArray[np.int64]
    mean_E: NDArray[np.float64]
    spread_E: NDArray[np.float64]
    start_E: NDArray[np.int64]
    document_P: NDArray[np.int64]
    doc_id_P: NDArray[np.uint8]
    rating_P: NDArray[np.float64]
    rating_error_P: NDArray[np.float64]
    weight_P: NDArray[np.float64]
    gap_P: NDArray[np.float64]
    gap_error_P: NDArray[np.float64]
    tier_P: NDArray[np.int64]
    tokens_P: NDArray[np.int64]
    queries: Ragged
    documents: Ragged
    pairs: TextsTokenizer
    copy_D: NDArray[np.int64]
    own_Q: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_E)

    @cached_property
    def order(self) -> Shuffle:
        """Order of the lists in an epoch."""
        return Shuffle(self.example_E)

    @cached_property
    def by_query(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(order, start): the lists of query q are order[start[q]:start[q + 1]]."""
        order = np.argsort(self.query_E, kind="stable")
        return order, np.searchsorted(self.query_E[order], np.arange(len(self.queries) + 1))

    @cached_property
    def rating_precision_P(self) -> NDArray[np.float64]:
        """Weights of documents in the regression on ratings (`precision`)."""
        return precision(self.rating_error_P, self._spread_P)

    @cached_property
    def gap_precision_P(self) -> NDArray[np.float64]:
        """Weights of documents in the regression on margins, whose target is their gap to the anchor."""
        return precision(np.where(self.is_negative_P, self.gap_error_P, np.nan), self._spread_P)

    @cached_property
    def is_negative_P(self) -> NDArray[np.bool_]:
        """Documents that are neither the anchor nor possibly relevant instead of it."""
        return self.tier_P > 0

    @property
    def _spread_P(self) -> NDArray[np.float64]:
        return np.repeat(self.spread_E, np.diff(self.start_E))

    @property
    def cut(self) -> int:
        """Number of truncated documents, if the model encodes texts separately."""
        return self.pairs.cut(self.documents) if isinstance(self.pairs, TextTokenizer) else 0


def prepare(
    examples: Iterable[pa.Table],
    texts: Sequence[pa.Table],
    queries: Sequence[pa.Table],
    pairs: TextsTokenizer,
    cache: TokenCache | None = None,
    own: Sequence[pa.Table] = (),
) -> TrainingSet:
    """Join Example tables with their texts and tokenize each text once; lists are sorted by example.

    texts, queries: Text and Query tables (of all splits), read one at a time.
    own: tables of pairs of a query and the document that is the query itself.
    cache: keeps the token lists; None: in memory.
    Raises DataError without examples, or if an example has only an anchor, a text is missing, or a query's ratings are
    all equal.
    """
    example = pa.concat_tables(list(examples))
    if not example.num_rows:
        raise DataError("no examples to train on", "examples", "loosen mine's rules or judge more queries")
    if not (example["rating_sd"].to_numpy() > 0).all():
        raise DataError("a query's ratings have no spread", "examples", "recompute the mine stage, which floors it")
    example = example.combine_chunks().sort_by([("example_id", "ascending")])
    lengths = pc.list_value_length(example["doc_ids"]).to_numpy()
    if alone := int((lengths < 2).sum()):
        first = example["example_id"][int(np.argmin(lengths))].as_py().hex()
        raise DataError(
            f"{alone} of {len(lengths)} are an anchor without another document, the first is {first}",
            "examples",
            "recompute the mine stage, which refuses them, or leave these out",
        )
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    doc_ids = pc.list_flatten(example["doc_ids"]).combine_chunks()
    document, document_ids = numbered(doc_ids)
    query, query_ids = numbered(example["query_id"].combine_chunks())
    documents, list_D = tokenised(texts, "doc_id", ("title", "text"), document_ids, "texts", pairs, cache)
    document = list_D[document]
    query_lists, list_Q = tokenised(queries, "query_id", ("text",), query_ids, "queries", pairs, cache)
    query = list_Q[query]
    apart = isinstance(pairs, TextTokenizer)  # documents can be negatives of other lists
    return TrainingSet(
        example_E=id_matrix(example["example_id"]),
        query_E=query,
        mean_E=example["rating_mean"].to_numpy(),
        spread_E=example["rating_sd"].to_numpy(),
        start_E=start,
        document_P=document,
        doc_id_P=id_matrix(doc_ids),
        rating_P=_reals(example["ratings"]),
        rating_error_P=_reals(example["rating_errors"]),
        weight_P=_reals(example["weights"]),
        gap_P=_reals(example["gaps"]),
        gap_error_P=_reals(example["gap_errors"]),
        tier_P=pc.list_flatten(example["tiers"]).combine_chunks().to_numpy().astype(np.int64),
        tokens_P=pairs.pair_lengths(TokenPairs(query_lists, np.repeat(query, lengths), documents, document)),
        queries=query_lists,
        documents=documents,
        pairs=pairs,
        copy_D=copies(texts, document_ids)[np.argsort(list_D)] if apart else np.arange(len(documents)),
        own_Q=_own(own, query_ids, document_ids, list_D)[np.argsort(list_Q)],
    )


def _own(
    tables: Sequence[pa.Table], query_ids: pa.Array, document_ids: pa.Array, list_D: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each of `query_ids` the token list of its own document, by `tables` (query_id, doc_id); -1 if none."""
    own = np.full(len(query_ids), -1)
    for table in tables:
        at = pc.index_in(table["query_id"].combine_chunks(), value_set=query_ids)
        same = pc.index_in(table["doc_id"].combine_chunks(), value_set=document_ids)
        both = pc.and_(at.is_valid(), same.is_valid())
        own[at.filter(both).to_numpy()] = list_D[same.filter(both).to_numpy()]
    return own


def precision(error_P: NDArray[np.float64], spread_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of squared errors, with mean 1, by the standard errors of their targets; 0 without a target (error NaN).

    s²/(se² + s²) over its mean, with s = MISFIT σ_q.

    >>> precision(np.array([0.0, 50.0, np.nan]), np.array([100.0, 100.0, 100.0]))
    array([1.33333333, 0.66666667, 0.        ])
    """
    irreducible = (MISFIT * spread_P) ** 2
    weight = np.nan_to_num(irreducible / (error_P**2 + irreducible))
    known = weight > 0
    return weight / weight[known].mean() if known.any() else weight


def numbered(ids: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Index of each id among the distinct ids, and the distinct ids."""
    array = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    coded = array.dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary


def _reals(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """Flatten a column of lists of reals, nulls as NaN."""
    return pc.list_flatten(lists).combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
