"""The lists that a reranker is trained on: Example tables joined with their texts, each text tokenised once.

Legend: E lists, P documents of all lists.
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
from anmi_ray.models.pairs import PairTokenizer, Ragged
from anmi_ray.models.texts import TextTokenizer
from anmi_ray.training.tokens import TokenCache, tokenised


class Shuffle:
    """Items with ids uint8[E, 16] in an order of their own in every epoch; the newest order is kept."""

    def __init__(self, id_E: NDArray[np.uint8]) -> None:
        self._id_E = id_E
        self._newest: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The items' indices in the order of `epoch`: by hash of the item under (seed, epoch)."""
        newest = self._newest
        if newest is None or newest[0] != (seed, epoch):
            order = np.argsort(uniforms(self._id_E, "order", seed, epoch), kind="stable")
            newest = self._newest = (seed, epoch), order
        return newest[1]


@dataclass(frozen=True)
class TrainingSet:
    """All lists, tokenised: list e holds documents start_E[e] to start_E[e + 1], the anchor first.

    Ratings and gaps are NaN for random documents, which are never rated.
    """

    example_E: NDArray[np.uint8]
    query_E: NDArray[np.int64]
    mean_E: NDArray[np.float64]
    spread_E: NDArray[np.float64]
    start_E: NDArray[np.int64]
    document_P: NDArray[np.int64]
    doc_id_P: NDArray[np.uint8]
    rating_P: NDArray[np.float64]
    weight_P: NDArray[np.float64]
    gap_P: NDArray[np.float64]
    tier_P: NDArray[np.int64]
    tokens_P: NDArray[np.int64]
    queries: Ragged
    documents: Ragged
    pairs: PairTokenizer | TextTokenizer

    def __len__(self) -> int:
        return len(self.query_E)

    @cached_property
    def order(self) -> Shuffle:
        """The lists in the order of an epoch."""
        return Shuffle(self.example_E)

    @cached_property
    def by_query(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lists by query: those of query q are order[start[q]:start[q + 1]]."""
        order = np.argsort(self.query_E, kind="stable")
        return order, np.searchsorted(self.query_E[order], np.arange(len(self.queries) + 1))

    @property
    def inputs(self) -> str:
        """What the model reads at once, in words."""
        return "texts" if isinstance(self.pairs, TextTokenizer) else "pairs"

    @property
    def cut(self) -> int:
        """Distinct documents that are read in part, where the model reads each text alone."""
        return self.pairs.cut(self.documents) if isinstance(self.pairs, TextTokenizer) else 0

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        longest = int(self.tokens_P.max())
        if isinstance(self.pairs, TextTokenizer):
            return max(longest, int(self.pairs.lengths(self.queries).max()))
        return longest


def prepare(
    examples: Iterable[pa.Table],
    texts: Sequence[pa.Table],
    queries: Sequence[pa.Table],
    pairs: PairTokenizer | TextTokenizer,
    cache: TokenCache | None = None,
) -> TrainingSet:
    """Join Example tables with their texts and tokenise each text once; sorted by example, whatever the files' order.

    `texts` are Text tables, `queries` Query tables (all splits allowed), read one at a time. Token lists are kept in
    memory, or in `cache`. Raises DataError where there is no example, an example is its anchor alone, a text is
    missing, or a query's ratings have no spread.
    """
    example = pa.concat_tables(list(examples))
    if not example.num_rows:
        raise DataError("there is no example to train on", "examples", "loosen mine's rules or judge more queries")
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
    return TrainingSet(
        example_E=id_matrix(example["example_id"]),
        query_E=query,
        mean_E=example["rating_mean"].to_numpy(),
        spread_E=example["rating_sd"].to_numpy(),
        start_E=start,
        document_P=document,
        doc_id_P=id_matrix(doc_ids),
        rating_P=_reals(example["ratings"]),
        weight_P=_reals(example["weights"]),
        gap_P=_reals(example["gaps"]),
        tier_P=pc.list_flatten(example["tiers"]).combine_chunks().to_numpy().astype(np.int64),
        tokens_P=pairs.pair_lengths(query_lists, np.repeat(query, lengths), documents, document),
        queries=query_lists,
        documents=documents,
        pairs=pairs,
    )


def numbered(ids: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Every id's position among the distinct ids, and these."""
    array = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    coded = array.dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary


def _reals(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of lists of reals end to end, nulls as NaN."""
    return pc.list_flatten(lists).combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
