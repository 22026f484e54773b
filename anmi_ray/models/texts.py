"""Tokenize single texts for a bi-encoder: queries and documents separately, and the pairs to compare.

Each distinct text appears once in the inputs of a forward pass, however many pairs use it.
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
from anmi_ray.models.pairs import MULTIPLE, Batch, Ragged, length_batches, token_lists


@dataclass(frozen=True)
class TextPairs:
    """Batches of X distinct texts of similar length, and the pairs of them that get a score.

    The n-th score is that of list `list_N[n]`'s query, vector `query_L[list_N[n]]`, and of document `document_N[n]` of
    D, vector `document_D[document_N[n]]`; vectors are counted from 0 over the batches, one after the other.
    `recompute`: keep no activations for the backward pass, but compute each batch again there.
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


class TextTokenizer:
    """Puts single texts into a fast tokenizer's special tokens, cut to `max_tokens` with these.

    `query_prompt` and `document_prompt` stand before every query and document, as the model was trained. Raises
    ConfigError if the tokenizer has no fast form or no padding token, or `max_tokens` leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        max_tokens: int,
        query_prompt: str = "",
        document_prompt: str = "",
    ) -> None:
        if not tokenizer.is_fast or tokenizer.pad_token_id is None:
            raise ConfigError(
                "the model has no fast tokenizer with a padding token",
                tokenizer.name_or_path,
                "choose a model with one",
            )
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.query_prompt = query_prompt
        self.document_prompt = document_prompt
        self.pad: int = int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        self.segments = "token_type_ids" in tokenizer.model_input_names
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
        """What decides token lists besides the tokenizer and `max_tokens`."""
        return self.query_prompt, self.document_prompt

    def texts(self, texts: Sequence[str]) -> Ragged:
        """Token lists of `texts` as they are, without special tokens, of which the first `max_tokens` are kept."""
        return token_lists(self.tokenizer, texts, self.max_tokens)

    def of_queries(self, texts: Sequence[str]) -> Ragged:
        """Token lists of queries, each after its prompt."""
        return self.texts([self.query_prompt + text for text in texts] if self.query_prompt else texts)

    def of_documents(self, texts: Sequence[str]) -> Ragged:
        """Token lists of documents, each after its prompt."""
        return self.texts([self.document_prompt + text for text in texts] if self.document_prompt else texts)

    def lengths(self, texts: Ragged) -> NDArray[np.int64]:
        """Tokens of every text, special tokens included; of a text without any, the one that stands for it."""
        return np.maximum(np.minimum(texts.lengths, self.room) + (self.max_tokens - self.room), 1)

    def cut(self, documents: Ragged) -> int:
        """How many of the documents are read in part."""
        return int((documents.lengths > self.room).sum())

    def pair_lengths(
        self, queries: Ragged, query_N: NDArray[np.int64], documents: Ragged, document_N: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Tokens that every pair costs: its document's, because a query is computed once for all of its documents."""
        del queries, query_N
        return self.lengths(documents)[document_N]

    def batch(self, lists: Sequence[NDArray[np.int32]]) -> Batch:
        """Padded inputs [X, T] of token lists; T is a multiple of 8.

        For a text of no token, where the tokenizer adds none either, one padding token is read: of none at all a
        network gives no number.
        """
        kept = np.array([min(len(ids), self.room) for ids in lists], dtype=np.int64)
        longest = max(int(kept.max()) + self.max_tokens - self.room, 1)
        width = min(-(-longest // MULTIPLE) * MULTIPLE, max(self.max_tokens, longest))
        ids = np.full((len(lists), width), self.pad, dtype=np.int64)
        before = len(self._before)
        after = len(self._after)
        ids[:, :before] = self._before
        for row, (tokens, count) in enumerate(zip(lists, kept, strict=True)):
            ids[row, before : before + count] = tokens[:count]
            ids[row, before + count : before + count + after] = self._after
        mask = (np.arange(width) < np.maximum(kept + before + after, 1)[:, None]).astype(np.int64)
        return Batch(ids, mask, np.zeros_like(ids) if self.segments else None)

    def pairs(
        self,
        queries: Ragged,
        query_L: NDArray[np.int64],
        documents: Ragged,
        list_N: NDArray[np.int64],
        document_N: NDArray[np.int64],
        token_budget: int,
        on_gpu: bool = False,
    ) -> TextPairs:
        """Inputs of the pairs (query_L[list_N[i]], document_N[i]), in their order, in batches as `length_batches`."""
        query_rows, query_of_L = np.unique(query_L, return_inverse=True)
        document_rows, document_of_N = np.unique(document_N, return_inverse=True)
        lists = [*(queries[int(i)] for i in query_rows), *(documents[int(i)] for i in document_rows)]
        lengths = np.concatenate([self.lengths(queries)[query_rows], self.lengths(documents)[document_rows]])
        chosen = length_batches(lengths, token_budget, on_gpu)
        place = np.argsort(np.concatenate(chosen), kind="stable")
        return TextPairs(
            batches=[self.batch([lists[row] for row in rows]) for rows in chosen],
            query_L=place[query_of_L],
            list_N=list_N,
            document_D=place[len(query_rows) :],
            document_N=document_of_N,
        )
