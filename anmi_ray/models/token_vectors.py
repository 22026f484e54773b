"""Encode texts into token vectors for late-interaction retrieval: a unit vector per token that counts.

A ColBERT checkpoint has its own projection, markers, query padding and skipped tokens. For other encoders the last
hidden states of all tokens count, special ones included: without these rankings are no better (all-MiniLM-L6-v2 on
SciFact: nDCG@10 of .656 to .660 instead of .661). Batches have one shape per text length, so the bytes of a vector
depend only on its text. T tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import positions
from anmi_ray.models.encoder import BATCH_TOKENS, Dtype, load, token_ids, unit, within_reach
from anmi_ray.models.loading import ModelSource
from anmi_ray.models.pairs import MULTIPLE, shaped_batches
from anmi_ray.models.pooling import is_colbert
from anmi_ray.models.speed import torch_settings

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer

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


class TokenEncoder:
    """An encoder of token vectors; `limits` are the lengths that queries and documents are cut to, in tokens.

    Raises ConfigError if it cannot be loaded, and as `check`.
    """

    def __init__(
        self, source: ModelSource, config: LateConfig, dtype: Dtype = "float32", threads: int = 1, device: str = "cpu"
    ) -> None:
        from sentence_transformers import MultiVectorEncoder, SentenceTransformer

        check(source, config)
        self.source = source
        self.threads = threads
        self._budget = BATCH_TOKENS["cpu" if device == "cpu" else "cuda"]
        if is_colbert(source):
            self._model = load(MultiVectorEncoder, source, dtype, device)
            self._prompts = {task: self._model.prompts.get(task) or "" for task in ("query", "document")}
        else:
            self._model = _without_pooling(load(SentenceTransformer, source, dtype, device), source.name)
            self._prompts = {"query": config.query_prompt or "", "document": config.document_prompt or ""}
        self._first: Any = self._model[0]  # the transformer
        self.limits = self._cut(config)

    @property
    def dimension(self) -> int:
        """Length d of a vector."""
        size = self._model.get_embedding_dimension()
        assert size is not None
        return size

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
