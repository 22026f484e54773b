"""ColBERT checkpoints as students: a projection of the hidden states, and the checkpoint's own form of texts.

sentence-transformers reads the three layouts, its own, PyLate's and Stanford's (HF_ColBERT); weights and settings are
taken from there. The form: markers before texts, length limits, queries filled up with [MASK], words that do not count
in the score (Khattab and Zaharia 2020, "ColBERT", 3.2). Legend: X texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

import numpy as np
import transformers
from numpy.typing import NDArray
from torch import nn

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import positions, seeded, token_limit
from anmi_ray.models.encoder import load
from anmi_ray.models.loading import ModelSource
from anmi_ray.models.pairs import Batch, Ragged, ragged, token_lists
from anmi_ray.models.pooling import activations, markers
from anmi_ray.models.texts import TextTokenizer

# Bits of a token in a list, above any vocabulary's ids
_UNSEEN = 1 << 29  # no token attends to it
_UNCOUNTED = 1 << 30  # no score reads it
_LAST = ["MultiVectorMask", "Normalize"]  # modules after the projection, in either order
_KEPT = "keep_only_token_ids"


@dataclass(frozen=True)
class ColbertForm:
    """How texts are cut, filled up and counted; lengths in tokens, special ones and the marker's included.

    query_tokens: length that queries are cut to.
    filled: length that queries are filled up to, with token `filler`.
    attended: whether tokens attend to fillers.
    skipped: tokens that do not count in the kinds of text `skipped_in`.
    """

    query_tokens: int
    filled: int = 0
    filler: int = 0
    attended: bool = False
    skipped: tuple[int, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)


class ColbertTokenizer(TextTokenizer):
    """A TextTokenizer in a checkpoint's form, whose token lists are whole inputs with bits for how tokens count.

    If no token of a text would count, all that are attended to count, as in retrieval.
    saved: the checkpoint's settings by file, for its export.
    """

    def __init__(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        max_tokens: int,
        prompts: Mapping[str, str],
        form: ColbertForm,
        saved: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__(tokenizer, max_tokens, prompts["query"], prompts["document"])
        self.colbert = form
        self.saved = saved
        for task, prompt, limit in (
            ("query", self.query_prompt, form.query_tokens),
            ("document", self.document_prompt, max_tokens),
        ):
            around = self.max_tokens - self.room + len(token_lists(tokenizer, [prompt], limit)[0])
            if limit <= around:
                of_query = task == "query"
                raise ConfigError(
                    f"a {task} has {limit} tokens, {around} of them special or its marker's",
                    f"model {tokenizer.name_or_path}" if of_query else "max_tokens",
                    f"raise {'the length of queries in its settings' if of_query else 'it'} above {around}",
                )

    @property
    def form(self) -> tuple[Any, ...]:
        return *super().form, astuple(self.colbert)

    def of_queries(self, texts: Sequence[str]) -> Ragged:
        form = self.colbert
        return self._whole(texts, "query", self.query_prompt, form.query_tokens, form.filled)

    def of_documents(self, texts: Sequence[str]) -> Ragged:
        return self._whole(texts, "document", self.document_prompt, self.max_tokens, 0)

    def _whole(self, texts: Sequence[str], task: str, prompt: str, limit: int, filled: int) -> Ragged:
        room = limit - (self.max_tokens - self.room)
        inside = token_lists(self.tokenizer, [prompt + text for text in texts] if prompt else texts, room)
        skipped = self.colbert.skipped if task in self.colbert.skipped_in else ()
        whole = ragged([self._framed(inside[i], filled, skipped) for i in range(len(inside))])
        longer = inside.lengths + self.max_tokens - self.room
        return replace(whole, lengths=np.where(inside.lengths > room, longer, whole.lengths))

    def _framed(self, inside: NDArray[np.int32], filled: int, skipped: tuple[int, ...]) -> NDArray[np.int64]:
        """A text's tokens [T] with special ones, fillers and bits."""
        ids = np.concatenate([self._before, inside, self._after])
        fillers = np.full(max(filled - len(ids), 0), self.colbert.filler)
        seen = np.repeat([True, self.colbert.attended], [len(ids), len(fillers)])
        ids = np.concatenate([ids, fillers])
        counted = ~np.isin(ids, skipped)
        if not counted.any():
            counted = seen
        return ids + _UNSEEN * ~seen + _UNCOUNTED * ~counted

    def lengths(self, texts: Ragged) -> NDArray[np.int64]:
        return np.diff(texts.start)

    def cut(self, documents: Ragged) -> int:
        return int((documents.lengths > self.max_tokens).sum())

    def batch(self, lists: Sequence[NDArray[np.int32]]) -> Batch:
        width = self.width(max(map(len, lists)))
        marked = np.full((len(lists), width), self.pad | _UNSEEN | _UNCOUNTED, dtype=np.int64)
        for row, tokens in enumerate(lists):
            marked[row, : len(tokens)] = tokens
        ids = marked & (_UNSEEN - 1)
        mask = (marked & _UNSEEN == 0).astype(np.int64)
        counted = (marked & _UNCOUNTED == 0).astype(np.int64)
        return Batch(ids, mask, np.zeros_like(ids) if self.segments else None, counted)


def read(
    source: ModelSource, max_tokens: int | None
) -> tuple[transformers.PreTrainedModel, list[nn.Linear], ColbertTokenizer]:
    """Load a checkpoint's transformer, the layers of its projection, lowest first, and its tokenizer.

    max_tokens: of documents; None: the checkpoint's.
    Raises ConfigError if it cannot be loaded, has unsupported modules or activations, a marker that its tokenizer
    lacks, or inputs longer than its positions.
    """
    from sentence_transformers import MultiVectorEncoder

    with seeded(0):  # a pooler that the weights lack is drawn, though nothing reads it
        model = load(MultiVectorEncoder, source, "float32", "cpu")
    first, *above = cast(list[Any], list(model))
    _check_modules(source, first, above)
    encoder, tokenizer = first.auto_model, first.tokenizer
    # a marker is a token with or without the space after it (PyLate)
    if missing := [one for one in markers(source) if {one, one.strip()}.isdisjoint(tokenizer.tokenize(one))]:
        raise ConfigError(
            f"its marker {missing[0]!r} is not a token of its tokenizer",
            f"model {source.name}",
            "give the tokenizer that it was trained with, or name one of its tokens in the checkpoint's settings",
        )
    limit = token_limit(encoder, first.document_length or int(tokenizer.model_max_length), max_tokens)
    mask = next(module for module in above if type(module).__name__ == "MultiVectorMask")
    form = _form(source, first, mask, limit)
    of_transformer = {"query_length": form.query_tokens, "document_length": limit}
    if first.query_expansion is not None:
        of_transformer |= {"query_expansion": first.query_expansion}
    saved = {
        "transformer": of_transformer,
        "mask": {"skiplist_words": mask.skiplist_words, "skiplist_tasks": mask.skiplist_tasks},
    }
    prompts = {task: model.prompts.get(task) or "" for task in ("query", "document")}
    layers = [module.linear for module in above if type(module).__name__ == "Dense"]
    return encoder, layers, ColbertTokenizer(tokenizer, limit, prompts, form, saved)


def _check_modules(source: ModelSource, first: Any, above: Sequence[Any]) -> None:
    """Raise ConfigError on modules that are not supported here."""
    kinds = [type(module).__name__ for module in above]
    dense = [module for module, kind in zip(above, kinds, strict=True) if kind == "Dense"]
    if (
        type(first).__name__ != "Transformer"
        or kinds[: len(dense)] != ["Dense"] * len(dense)
        or sorted(kinds[len(dense) :]) != _LAST
    ):
        raise ConfigError(
            f"its modules are {', '.join([type(first).__name__, *kinds])}",
            f"model {source.name}",
            f"give a ColBERT checkpoint of Transformer, any number of Dense, and {' and '.join(_LAST)}",
        )
    named = activations(source) or [""] * len(dense)  # Stanford's has no file for it
    curved = [name for one, name in zip(dense, named, strict=True) if type(one.activation_function) is not nn.Identity]
    odd = [f"a Dense with the activation {name}" for name in curved]
    odd += ["a Dense with a residual" for module in dense if module.use_residual]
    odd += ["a MultiVectorMask that keeps listed tokens alone" for one in above if getattr(one, _KEPT, None)]
    for one, kind in zip(above, kinds, strict=True):
        if {getattr(one, f"module_{end}_name", "token_embeddings") for end in ("input", "output")} != {
            "token_embeddings"
        }:
            odd.append(f"a {kind} of whole texts")
    if odd:
        raise ConfigError(
            f"it has {odd[0]}",
            f"model {source.name}",
            "give a ColBERT checkpoint with a linear projection of its tokens (torch.nn.modules.linear.Identity)",
        )


def _form(source: ModelSource, first: Any, mask: Any, limit: int) -> ColbertForm:
    """The form of sentence-transformers' Transformer and MultiVectorMask; `limit`: tokens of a document."""
    tokenizer, expansion = first.tokenizer, first.query_expansion
    unknown = {None, tokenizer.unk_token_id}
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in mask.skiplist_words}
    skipped = sorted({i for word, i in ids.items() if i not in unknown or word == tokenizer.unk_token})
    held = positions(first.auto_model)
    own = first.query_length or (int(tokenizer.model_max_length) if first.document_length else limit)
    form = ColbertForm(min(own, held or own), skipped=tuple(skipped), skipped_in=tuple(mask.skiplist_tasks))
    if expansion is None:
        return form
    filled = int(expansion["length"])
    if held and filled > held:
        raise ConfigError(
            f"it fills queries up to {filled} tokens, and has {held} positions",
            f"model {source.name}",
            f"set the length in its settings (query_expansion, query_length or query_maxlen) to at most {held}",
        )
    filler = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    if expansion["token"] is not None:
        filler = tokenizer.convert_tokens_to_ids(expansion["token"])
    most = filled if expansion["strategy"] == "fixed" else max(form.query_tokens, filled)
    return replace(form, query_tokens=most, filled=filled, filler=int(filler), attended=expansion["attend"])
