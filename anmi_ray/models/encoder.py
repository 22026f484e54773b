"""Encode texts into unit vectors, for dense retrieval and the similarity judge.

Batches are formed here, so vectors do not depend on how callers split their work. They have few shapes (widths are
multiples of eight, sizes a full batch's or powers of two), because kernels for each shape stay in memory on a CPU.
N texts, d dimensions, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable
from anmi_ray.models.pairs import shaped_batches
from anmi_ray.models.pooling import is_colbert, read_token_vectors
from anmi_ray.models.speed import torch_settings

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


class Encoder:
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

        self.source = source
        self.threads = threads
        self._budget = BATCH_TOKENS["cpu" if device == "cpu" else "cuda"]
        self._model = load(SentenceTransformer, source, dtype, device)
        if is_colbert(source):
            self._model = _of_texts(self._model, source)
        limit = self._model.max_seq_length
        self.max_tokens = min(max_tokens, limit) if limit and limit > 0 else max_tokens

    @property
    def revision(self) -> str:
        """Revision of the weights."""
        return self.source.revision

    @property
    def dimension(self) -> int:
        """Length d of a vector."""
        size = self._model.get_embedding_dimension()
        assert size is not None
        return size

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
