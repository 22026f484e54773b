"""Tokens of query-document pairs: each text is tokenized once, a pair is assembled from two token lists.

The result equals the tokenizer called on the pair (truncation "longest_first"), or on the whole prompt of a decoder.
Legend: N pairs, L lists, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.prompts import Prompt, TextReader

MULTIPLE = 8  # padded lengths are multiples of this: few distinct shapes, aligned kernels
_CHUNK = 4096  # texts per call of the tokenizer: bounds what its Python lists take


def document_text(title: str, text: str) -> str:
    r"""The one text form of a document that every model reads: title and body on two lines.

    >>> document_text("Title", "Body"), document_text("", "Body")
    ('Title\nBody', 'Body')
    """
    return f"{title}\n{text}" if title and text else title or text


@dataclass(frozen=True)
class Ragged:
    """Token lists end to end: list i is `values[start[i]:start[i + 1]]`, the first of `lengths[i]` tokens."""

    values: NDArray[np.int32]
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, i: int) -> NDArray[np.int32]:
        return self.values[self.start[i] : self.start[i + 1]]

    def put(
        self, list_N: NDArray[np.int64], kept_N: NDArray[np.int64], to_NT: NDArray[np.int64], at_N: NDArray[np.int64]
    ) -> None:
        """Write the first `kept_N` tokens of lists `list_N` into the rows of `to_NT`, from column `at_N` on."""
        row = np.repeat(np.arange(len(list_N)), kept_N)
        within = np.arange(len(row)) - np.repeat(np.cumsum(kept_N) - kept_N, kept_N)
        to_NT[row, at_N[row] + within] = self.values[self.start[list_N][row] + within]


class TokenPairs(NamedTuple):
    """Pairs of tokenized texts: pair n is queries[query_N[n]] and documents[document_N[n]]."""

    queries: Ragged
    query_N: NDArray[np.int64]
    documents: Ragged
    document_N: NDArray[np.int64]

    def take(self, row_N: NDArray[np.int64]) -> TokenPairs:
        """The pairs of the given rows."""
        return self._replace(query_N=self.query_N[row_N], document_N=self.document_N[row_N])


@dataclass(frozen=True)
class Batch:
    """Padded inputs of one forward pass.

    type_ids: None if the model has no segments.
    some_counted: 1 for tokens that count in the score of token vectors; None: all of `mask`.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None
    some_counted: NDArray[np.int64] | None = None

    @property
    def counted(self) -> NDArray[np.int64]:
        """1 for tokens that count in the score of token vectors."""
        return self.mask if self.some_counted is None else self.some_counted

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.ids.size


def token_lists(tokenizer: transformers.PreTrainedTokenizerBase, texts: Sequence[str], kept: int) -> Ragged:
    """Token lists of `texts`, without special tokens, of which the first `kept` are kept."""

    def coded(some: list[str]) -> Any:
        return tokenizer(
            some,
            add_special_tokens=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # a text longer than the model is not worth a warning: inputs are cut
        )["input_ids"]

    return _ragged(coded, texts, kept)


def _ragged(coded: Callable[[list[str]], Sequence[Any]], texts: Sequence[str], kept: int) -> Ragged:
    lists: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    for i in range(0, len(texts), _CHUNK):
        token_ids = coded(list(texts[i : i + _CHUNK]))
        lengths.extend(len(ids) for ids in token_ids)
        lists.extend(np.array(ids[:kept], dtype=np.int32) for ids in token_ids)
    return replace(ragged(lists), lengths=np.array(lengths, dtype=np.int64))


def ragged(lists: Sequence[Any]) -> Ragged:
    """Whole token lists, end to end."""
    lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(lengths, out=start[1:])
    values = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in lists]) if lists else np.zeros(0, np.int32)
    return Ragged(values, start, lengths)


class TextsTokenizer(ABC):
    """A fast tokenizer whose token lists are assembled into model inputs, cut to `max_tokens` with special tokens.

    Raises ConfigError if the tokenizer is not fast or has no padding token.
    """

    def __init__(self, tokenizer: transformers.PreTrainedTokenizerBase, max_tokens: int) -> None:
        check_fast(tokenizer, tokenizer.name_or_path)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.pad: int = int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        self.segments = "token_type_ids" in tokenizer.model_input_names

    def width(self, longest: int) -> int:
        """Padded length of a batch whose longest input has this many tokens."""
        return min(-(-longest // MULTIPLE) * MULTIPLE, max(self.max_tokens, longest))

    @property
    @abstractmethod
    def form(self) -> tuple[Any, ...]:
        """What determines token lists besides the tokenizer and `max_tokens`."""

    @abstractmethod
    def of_queries(self, texts: Sequence[str]) -> Ragged:
        """Token lists of queries, as the model reads them."""

    @abstractmethod
    def of_documents(self, texts: Sequence[str]) -> Ragged:
        """Token lists of documents, as the model reads them."""

    @abstractmethod
    def pair_lengths(self, tokens: TokenPairs) -> NDArray[np.int64]:
        """Number of tokens that each pair costs, special tokens included."""

    @abstractmethod
    def inputs(
        self, tokens: TokenPairs, list_N: NDArray[np.int64], token_budget: int, on_gpu: bool = False
    ) -> tuple[Any, NDArray[np.int64]]:
        """Inputs of pairs in `length_batches`, and the pair of each score; list_N[n] is the list of pair n."""


def check_fast(tokenizer: transformers.PreTrainedTokenizerBase, name: str) -> None:
    """Raise ConfigError unless the tokenizer of the model `name` is fast and has a padding token."""
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ConfigError("has no fast tokenizer with a padding token", f"model {name}", "choose a model with one")


class PairTokenizer(TextsTokenizer):
    """Assembles pairs in the tokenizer's own template, or in `prompt`, whose tokens are never cut.

    Also raises ConfigError if `max_tokens` leaves no room for text, or a prompt ends in padding.
    """

    def __init__(
        self, tokenizer: transformers.PreTrainedTokenizerBase, max_tokens: int, prompt: Prompt | None = None
    ) -> None:
        super().__init__(tokenizer, max_tokens)
        self.prompt = prompt
        self._reader = None if prompt is None else TextReader(tokenizer, prompt)
        self._frame, self._types = self._template() if prompt is None else (self._prompted(prompt), [0] * 5)
        self.special = sum(len(piece) for piece in self._frame)
        if max_tokens <= self.special + 1:
            around = "special" if prompt is None else "the prompt's"
            raise ConfigError(f"max_tokens is {max_tokens}, {self.special} of them {around}", "max_tokens", "raise it")

    def _prompted(self, prompt: Prompt) -> list[NDArray[np.int64]]:
        """The prompt's tokens before, between and after the two texts."""
        coded = [self.tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in prompt.frame]
        if coded[-1] and coded[-1][-1] == self.pad:
            raise ConfigError(
                f"ends in {self.tokenizer.pad_token}, the padding token, and the score is read at the last other one",
                "train.prompt",
                "end it otherwise",
            )
        return [np.array(ids, dtype=np.int64) for ids in coded]

    def _template(self) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Special tokens before, between and after the two texts; segment ids of the five pieces, in order."""
        coded = self.tokenizer("a", "b", return_token_type_ids=True)
        side = np.array([-1 if part is None else part for part in coded.sequence_ids(0)])
        first, second = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
        ends = [first[0], first[-1] + 1, second[0], second[-1] + 1]
        ids = np.split(np.array(coded["input_ids"]), ends)
        types = np.split(np.array(coded["token_type_ids"]), ends)
        return [ids[0], ids[2], ids[4]], [int(piece[0]) if len(piece) else 0 for piece in types]

    @property
    def form(self) -> tuple[Any, ...]:
        return () if self.prompt is None else (self.prompt.text,)

    def of_queries(self, texts: Sequence[str]) -> Ragged:
        return self._ragged(texts, ("", "") if self.prompt is None else self.prompt.around_query)

    def of_documents(self, texts: Sequence[str]) -> Ragged:
        return self._ragged(texts, ("", "") if self.prompt is None else self.prompt.around_document)

    def _ragged(self, texts: Sequence[str], around: tuple[str, str]) -> Ragged:
        reader = self._reader
        if reader is None:
            return token_lists(self.tokenizer, texts, self.max_tokens)
        return _ragged(lambda some: reader(some, around), texts, self.max_tokens)

    def cut(
        self, query_N: NDArray[np.int64], document_N: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens kept of the query and of the document, from the tokens they have ("longest_first").

        The shorter one stays whole while the longer can give way; else both get half, the longer the odd token.
        """
        room = self.max_tokens - self.special
        short = np.minimum(query_N, document_N)
        long = np.maximum(query_N, document_N)
        fits = short + long <= room
        whole = short + np.maximum(short, room - short) <= room
        kept_short = np.where(fits | whole, short, room // 2)
        kept_long = np.where(fits, long, np.where(whole, room - short, room - room // 2))
        swap = query_N > document_N
        return np.where(swap, kept_long, kept_short), np.where(swap, kept_short, kept_long)

    def _kept(self, tokens: TokenPairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.cut(tokens.queries.lengths[tokens.query_N], tokens.documents.lengths[tokens.document_N])

    def pair_lengths(self, tokens: TokenPairs) -> NDArray[np.int64]:
        first, second = self._kept(tokens)
        return first + second + self.special

    def batch(self, tokens: TokenPairs) -> Batch:
        """Padded inputs [N, T] of the pairs; T is a multiple of 8."""
        first, second = self._kept(tokens)
        width = self.width(int((first + second).max()) + self.special)
        ids = np.full((len(first), width), self.pad, dtype=np.int64)
        before, between, after = (np.full(len(first), len(piece)) for piece in self._frame)
        length_5N = np.stack([before, first, between, second, after])
        end_5N = np.cumsum(length_5N, axis=0)
        begin_5N = end_5N - length_5N
        for piece, at_N in zip(self._frame, begin_5N[::2], strict=True):
            ids[np.arange(len(ids))[:, None], at_N[:, None] + np.arange(len(piece))] = piece
        tokens.queries.put(tokens.query_N, first, ids, begin_5N[1])
        tokens.documents.put(tokens.document_N, second, ids, begin_5N[3])
        column = np.arange(width)
        mask = (column < end_5N[-1][:, None]).astype(np.int64)
        types = np.zeros_like(ids) if self.segments else None
        for begin_N, end_N, segment in zip(begin_5N, end_5N, self._types, strict=True):
            if types is not None and segment:
                types[(column >= begin_N[:, None]) & (column < end_N[:, None])] = segment
        return Batch(ids, mask, types)

    def inputs(
        self, tokens: TokenPairs, list_N: NDArray[np.int64], token_budget: int, on_gpu: bool = False
    ) -> tuple[list[Batch], NDArray[np.int64]]:
        rows = length_batches(self.pair_lengths(tokens), token_budget, on_gpu)
        return [self.batch(tokens.take(row_N)) for row_N in rows], np.concatenate(rows)


def length_batches(length_N: NDArray[np.int64], token_budget: int, on_gpu: bool = False) -> list[NDArray[np.int64]]:
    """Batches of indices of similar length, longest first, each of at most `token_budget` padded tokens (or one pair).

    On a CPU a padded token costs as much as a real one: from eight pairs on, a batch ends before padding exceeds an
    eighth of its width. On a GPU, where kernel launches dominate short passes, it may reach an eighth of the budget.
    """
    order = np.argsort(-length_N, kind="stable")
    batches: list[NDArray[np.int64]] = []
    begin = 0
    while begin < len(order):
        width = max(-(-int(length_N[order[begin]]) // MULTIPLE), 1) * MULTIPLE
        stop = min(begin + max(token_budget // width, 1), len(order))
        if on_gpu:
            padding = np.cumsum(width - length_N[order[begin:stop]])
            stop = begin + max(int(np.searchsorted(padding, token_budget // 8, "right")), 1)
        else:
            narrow = np.flatnonzero(length_N[order[begin + 8 : stop]] < width - max(width // 8, MULTIPLE))
            stop = begin + 8 + int(narrow[0]) if len(narrow) else stop
        batches.append(order[begin:stop])
        begin = stop
    return batches


def scoring_batches(length_N: NDArray[np.int64], token_budget: int, device: torch.device) -> list[NDArray[np.int64]]:
    """`length_batches` for inference on `device`; a GPU gets sixteen times a CPU's budget."""
    if device.type == "cpu":
        return length_batches(length_N, token_budget)
    return length_batches(length_N, 16 * token_budget, on_gpu=True)


def shaped_batches(
    lengths: Sequence[int], token_budget: int, limit: int, multiple: int = MULTIPLE
) -> Iterator[tuple[list[int], int, int]]:
    """Yield (indices, width, most) for batches padded to one width, a multiple of `multiple` or the limit.

    `most` is the number of texts that the token budget allows at that width; all but a width's last batch are full. So
    batches have few shapes, at the cost of more padding than `length_batches`.
    """
    by_width: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_width.setdefault(min(max(-(-length // multiple), 1) * multiple, limit), []).append(index)
    for width, chosen in sorted(by_width.items()):
        most = max(1, token_budget // width)
        for start in range(0, len(chosen), most):
            yield chosen[start : start + most], width, most
