"""Encode texts into unit vectors, or into a unit vector per token, for dense and late-interaction retrieval.

Batches are formed here, so vectors do not depend on how callers split their work. They have few shapes, because kernels
for each shape stay in memory on a CPU; those of token vectors have one shape per text length, so the bytes of a vector
depend only on its text.
A ColBERT checkpoint has its own projection, markers, query padding and skipped tokens. For other encoders the last
hidden states of all tokens count, special ones included: without these rankings are no better (all-MiniLM-L6-v2 on
SciFact: nDCG@10 of .656 to .660 instead of .661).
Legend: N texts, d dimensions, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.models.cross_encoder import positions
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable
from anmi_ray.models.pairs import MULTIPLE, shaped_batches
from anmi_ray.models.pooling import is_colbert, read_token_vectors
from anmi_ray.models.reranker import torch_settings

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer

Dtype = Literal["float32", "bfloat16"]
_Model = TypeVar("_Model", "SentenceTransformer", "MultiVectorEncoder")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCH_TOKENS = {"cpu": 1024, "cuda": 65_536}
"""Padded tokens of a batch. On a CPU 4,096 take 15 % more time and 16,384 twice as much: they exceed the cache."""
_CHARACTERS = 1000  # of a text per token that is encoded


def within_reach(texts: Sequence[str], max_tokens: int) -> list[str]:
    """Cut texts to what `max_tokens` can reach, so that huge texts are not tokenized whole."""
    return [text[: max_tokens * _CHARACTERS] for text in texts]


def token_ids(tokenizer: Any, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Token ids of each text, special ones included, cut at `limit`."""
    coded = tokenizer(
        within_reach(texts, limit), truncation=True, max_length=limit, padding=False, return_attention_mask=False
    )
    return coded["input_ids"]


def unit(vectors: NDArray[np.float32], source: ModelSource, setting: str) -> NDArray[np.float32]:
    """Normalize rows to length 1. Raises DataError, naming the `setting` of precision, if one is not finite or zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise DataError(
            "the encoder gave vectors that are not finite or are zero",
            f"model {source.name}",
            f"use {setting}: float32, or another model",
        )
    return vectors / norms


class _Loaded:
    """A sentence-transformers model in memory."""

    _model: Any

    def __init__(self, source: ModelSource, threads: int, device: str) -> None:
        self.source = source
        self.threads = threads
        self._budget = BATCH_TOKENS["cpu" if device == "cpu" else "cuda"]

    @property
    def dimension(self) -> int:
        """Length d of a vector."""
        size = self._model.get_embedding_dimension()
        assert size is not None
        return size


class Encoder(_Loaded):
    """A bi-encoder for texts. Raises ConfigError if the model cannot be loaded."""

    def __init__(
        self,
        source: ModelSource,
        max_tokens: int = 256,
        dtype: Dtype = "float32",
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        from sentence_transformers import SentenceTransformer  # half a second

        super().__init__(source, threads, device)
        self._model = load(SentenceTransformer, source, dtype, device)
        if is_colbert(source):
            self._model = _of_texts(self._model, source)
        limit = self._model.max_seq_length
        self.max_tokens = min(max_tokens, limit) if limit and limit > 0 else max_tokens

    @property
    def revision(self) -> str:
        """Revision of the weights."""
        return self.source.revision

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> NDArray[np.float32]:
        """Unit vectors float32[N, d] of `texts`, each after `prompt` and cut at `max_tokens`.

        Raises DataError if a vector is not finite.
        """
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if not len(texts):
            return vectors
        whole = [prompt + text for text in texts] if prompt else texts
        tokens = token_ids(self._model.tokenizer, whole, self.max_tokens)
        with torch_settings(self.threads), torch.inference_mode():
            for rows, width, most in shaped_batches([len(ids) for ids in tokens], self._budget, self.max_tokens):
                while rows:
                    size = most if len(rows) >= most else 1 << (len(rows).bit_length() - 1)
                    vectors[rows[:size]] = self._forward([tokens[row] for row in rows[:size]], width)
                    rows = rows[size:]
        return unit(vectors, self.source, "retrieve.dense.dtype")

    def _forward(self, tokens: list[list[int]], width: int) -> NDArray[np.float32]:
        padded = self._model.tokenizer.pad(
            {"input_ids": tokens}, padding="max_length", max_length=width, return_tensors="pt"
        )
        features = {name: value.to(self._model.device) for name, value in padded.items()}
        output = self._model(features)["sentence_embedding"]
        return output.float().cpu().numpy()


def _of_texts(model: SentenceTransformer, source: ModelSource) -> SentenceTransformer:
    """The transformer of a late-interaction model with its folder's pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling = read_token_vectors(source)
    if pooling is None:
        raise ConfigError(
            "it is a ColBERT checkpoint, which has no vector of a text",
            f"model {source.name}",
            "set retrieve.late.model to it, and retrieve.dense.model to a bi-encoder",
        )
    size = model.get_embedding_dimension()
    assert size is not None
    return SentenceTransformer(modules=[model[0], Pooling(size, pooling.pooling)], device=str(model.device)).eval()


def load(kind: type[_Model], source: ModelSource, dtype: Dtype, device: str) -> _Model:
    """Load a sentence-transformers model for inference.

    Raises ConfigError if it cannot be loaded, or tokenizer and weights do not match.
    """
    from sentence_transformers import SentenceTransformer

    kind_name = "sentence encoder" if kind is SentenceTransformer else "ColBERT checkpoint"
    with loadable(source, kind_name, "model with safetensors weights that sentence-transformers can load"):
        model = kind(
            source.path_or_id,
            device=device,
            **source.options,
            model_kwargs={"dtype": _DTYPES[dtype], "use_safetensors": True},
        )
    first: Any = model[0]
    if rows := embedding_rows(getattr(first, "auto_model", None)):
        check_vocabulary(first.tokenizer, rows, source.name)
    return model.eval()


Task = Literal["query", "document"]
QUERY_TOKENS = 32
DOCUMENT_TOKENS = 128
"""Default length limits; a ColBERT checkpoint has its own."""

_WIDTH = 2 * MULTIPLE  # padded lengths are multiples of it


def check(source: ModelSource, config: LateConfig) -> None:
    """Raise ConfigError on settings that a ColBERT checkpoint does not support. Loads nothing."""
    for name in ("query_prompt", "document_prompt"):
        if getattr(config, name) is not None and is_colbert(source):
            raise ConfigError(
                f"{source.name} is a ColBERT checkpoint, which has its own markers",
                f"retrieve.late.{name}",
                "leave it out",
            )


class TokenEncoder(_Loaded):
    """An encoder of token vectors; `limits` are the lengths that queries and documents are cut to, in tokens.

    Raises ConfigError if it cannot be loaded, and as `check`.
    """

    def __init__(
        self, source: ModelSource, config: LateConfig, dtype: Dtype = "float32", threads: int = 1, device: str = "cpu"
    ) -> None:
        from sentence_transformers import MultiVectorEncoder, SentenceTransformer

        check(source, config)
        super().__init__(source, threads, device)
        if is_colbert(source):
            self._model = load(MultiVectorEncoder, source, dtype, device)
            self._prompts = {task: self._model.prompts.get(task) or "" for task in ("query", "document")}
        else:
            self._model = _without_pooling(load(SentenceTransformer, source, dtype, device), source.name)
            self._prompts = {"query": config.query_prompt or "", "document": config.document_prompt or ""}
        self._first: Any = self._model[0]  # the transformer
        self.limits = self._cut(config)

    def encode(self, texts: Sequence[str], task: Task) -> list[NDArray[np.float32]]:
        """Unit vectors float32[T, d] of each text; of all tokens if a checkpoint would skip every one.

        Raises DataError if a vector is not finite or zero.
        """
        prompt = self._prompts[task]
        limit = self.limits[task]
        whole = within_reach([prompt + text for text in texts], limit)
        if not whole:
            return []
        lengths = [len(ids) for ids in token_ids(self._model.tokenizer, whole, limit)]
        encoded: list[NDArray[np.float32]] = [np.zeros((0, self.dimension), dtype=np.float32)] * len(whole)
        with torch_settings(self.threads), torch.inference_mode():
            for rows, width in self._batches(whole, lengths, limit):
                for row, vectors in zip(rows, self._forward([whole[row] for row in rows], task, width), strict=True):
                    encoded[row] = unit(vectors, self.source, "retrieve.late.dtype")
        return encoded

    def _batches(self, texts: Sequence[str], lengths: Sequence[int], limit: int) -> Iterator[tuple[list[int], int]]:
        """Yield (rows, width) of batches; on a CPU all of one width are filled up with the shortest text."""
        for rows, width, most in shaped_batches(lengths, self._budget, limit, _WIDTH):
            if self._model.device.type != "cpu":
                yield rows, width
                continue
            shortest = min(rows, key=lambda row: len(texts[row]))
            yield rows + [shortest] * (most - len(rows)), width

    def _forward(self, texts: list[str], task: Task, width: int) -> Iterator[NDArray[np.float32]]:
        padded: dict[str, Any] = {"processing_kwargs": {"text": {"padding": "max_length", "max_length": width}}}
        expansion = self._first.query_expansion if task == "query" else None
        if expansion is not None and expansion["strategy"] == "fixed":
            padded = {}  # to the expansion's own length
        features = self._model.preprocess(texts, task=task, **padded)
        features = {name: to.to(self._model.device) if torch.is_tensor(to) else to for name, to in features.items()}
        attended = features["attention_mask"].bool()
        output = self._model(features, task=task)
        masks = output["attention_mask"].bool().cpu(), attended.cpu()
        for vectors, kept, there in zip(output["token_embeddings"].float().cpu(), *masks, strict=True):
            yield vectors[kept if kept.any() else there].numpy()

    def _cut(self, config: LateConfig) -> dict[str, int]:
        """Set the model's length limits from the settings, else from its checkpoint; return them."""
        first = self._first
        held = positions(first.auto_model) or first.max_seq_length or DOCUMENT_TOKENS
        document = config.max_tokens or first.document_length or DOCUMENT_TOKENS
        expansion = first.query_expansion
        own = expansion["length"] if expansion is not None else first.query_length
        query = config.query_tokens or own or QUERY_TOKENS
        limits = {"query": min(query, held), "document": min(document, held)}
        first.query_length = limits["query"]
        first.document_length = limits["document"]
        if expansion is not None:
            first.query_expansion = {**expansion, "length": limits["query"]}
        return limits


def _without_pooling(model: SentenceTransformer, name: str) -> MultiVectorEncoder:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer

    if not isinstance(model[0], Transformer):
        raise ConfigError(
            f"its first module is {type(model[0]).__name__}, which has no hidden states",
            f"model {name}",
            "set retrieve.late.model to a transformer, or to a ColBERT checkpoint",
        )
    return MultiVectorEncoder(modules=[model[0]], device=str(model.device)).eval()
