"""Tokenize queries and documents separately for a bi-encoder; a forward pass reads each distinct text once.

Legend: N pairs, L lists, X distinct texts, D distinct documents, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.pairs import Batch, Ragged, TextsTokenizer, TokenPairs, length_batches, token_lists


@dataclass(frozen=True)
class TextPairs:
    """Batches of X distinct texts of similar length, and the pairs to score.

    Score n is of the vectors query_L[list_N[n]] and document_D[document_N[n]], numbered over the batches in order.
    recompute: keep no activations, but compute each batch again in the backward pass.
    """

    batches: list[Batch]
    query_L: NDArray[np.int64]
    list_N: NDArray[np.int64]
    document_D: NDArray[np.int64]
    document_N: NDArray[np.int64]
    recompute: bool = False

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return sum(batch.tokens for batch in self.batches)


class TextTokenizer(TextsTokenizer):
    """Wraps single texts in a tokenizer's special tokens.

    query_prompt, document_prompt: text before each query and document.
    Also raises ConfigError if `max_tokens` leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        max_tokens: int,
        query_prompt: str = "",
        document_prompt: str = "",
    ) -> None:
        super().__init__(tokenizer, max_tokens)
        self.query_prompt = query_prompt
        self.document_prompt = document_prompt
        coded = tokenizer("a")
        ids = np.array(coded["input_ids"], dtype=np.int64)
        inside = np.flatnonzero([part is not None for part in coded.sequence_ids(0)])
        self._before = ids[: inside[0]]
        self._after = ids[inside[-1] + 1 :]
        self.room = max_tokens - len(self._before) - len(self._after)
        if self.room < 1:
            raise ConfigError(f"max_tokens is {max_tokens}, all of them special", "max_tokens", "raise it")

    @property
    def form(self) -> tuple[Any, ...]:
        return self.query_prompt, self.document_prompt

    def of_queries(self, texts: Sequence[str]) -> Ragged:
        return self._lists(texts, self.query_prompt)

    def of_documents(self, texts: Sequence[str]) -> Ragged:
        return self._lists(texts, self.document_prompt)

    def _lists(self, texts: Sequence[str], prompt: str) -> Ragged:
        return token_lists(self.tokenizer, [prompt + text for text in texts] if prompt else texts, self.max_tokens)

    def lengths(self, texts: Ragged) -> NDArray[np.int64]:
        """Number of tokens of each text, special tokens included; at least one."""
        return np.maximum(np.minimum(texts.lengths, self.room) + (self.max_tokens - self.room), 1)

    def cut(self, documents: Ragged) -> int:
        """Number of truncated documents."""
        return int((documents.lengths > self.room).sum())

    def pair_lengths(self, tokens: TokenPairs) -> NDArray[np.int64]:
        """Tokens of each pair's document: a query is computed once for all of its documents."""
        return self.lengths(tokens.documents)[tokens.document_N]

    def batch(self, lists: Sequence[NDArray[np.int32]]) -> Batch:
        """Padded inputs [X, T] of token lists; T is a multiple of 8. An empty text reads one padding token."""
        kept = np.array([min(len(ids), self.room) for ids in lists], dtype=np.int64)
        width = self.width(max(int(kept.max()) + self.max_tokens - self.room, 1))
        ids = np.full((len(lists), width), self.pad, dtype=np.int64)
        before = len(self._before)
        after = len(self._after)
        ids[:, :before] = self._before
        for row, (tokens, count) in enumerate(zip(lists, kept, strict=True)):
            ids[row, before : before + count] = tokens[:count]
            ids[row, before + count : before + count + after] = self._after
        mask = (np.arange(width) < np.maximum(kept + before + after, 1)[:, None]).astype(np.int64)
        return Batch(ids, mask, np.zeros_like(ids) if self.segments else None)

    def inputs(
        self, tokens: TokenPairs, list_N: NDArray[np.int64], token_budget: int, on_gpu: bool = False
    ) -> tuple[TextPairs, NDArray[np.int64]]:
        queries, query_N, documents, document_N = tokens
        query_rows, query_of_L = np.unique(query_N[np.unique(list_N, return_index=True)[1]], return_inverse=True)
        document_rows, document_of_N = np.unique(document_N, return_inverse=True)
        lists = [*(queries[int(i)] for i in query_rows), *(documents[int(i)] for i in document_rows)]
        lengths = np.concatenate([self.lengths(queries)[query_rows], self.lengths(documents)[document_rows]])
        chosen = length_batches(lengths, token_budget, on_gpu)
        place = np.argsort(np.concatenate(chosen), kind="stable")
        pairs = TextPairs(
            batches=[self.batch([lists[row] for row in rows]) for rows in chosen],
            query_L=place[query_of_L],
            list_N=list_N,
            document_D=place[len(query_rows) :],
            document_N=document_of_N,
        )
        return pairs, np.arange(len(list_N))
