"""What a process that scores does: the model of `anmi rerank`, asked by one thread.

Legend: N texts, d dimensions.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from anmi_ray.api import reranking
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.serving.model_version import ModelVersion
from anmi_ray.serving.queue import Computed, What
from anmi_ray.serving.settings import ServiceSettings


class ModelScorer:
    """A model in memory. One batch is computed at a time: torch's threads are the process's."""

    def __init__(self, model: ModelVersion, settings: ServiceSettings) -> None:
        _, place = reranking.model_of(model.place, settings.root)
        self._model: Any = reranking.load(place, settings.threads_each, settings.device, settings.precision)
        self.model = model
        self._thread = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Let go of the model, after the batches under way."""
        self._thread.shutdown()
        self._model: Any = None

    async def compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        """Scores float32[N] of pairs, or unit vectors float32[N, d] of texts; None where the model has no vectors."""
        body = self._scores if what == "score" else self._vectors
        model = self.model
        max_tokens = self._model.max_tokens
        found = await asyncio.get_running_loop().run_in_executor(self._thread, body, what, queries, texts)
        return replace(found, model=model, max_tokens=max_tokens)

    def _scores(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        tokens = self._model.tokens(queries, texts)
        lengths = self._model.pairs.pair_lengths(*tokens)
        return Computed(self._model.score_tokens(*tokens), np.asarray(lengths, dtype=np.int64))

    def _vectors(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        model = self._model
        if not isinstance(model, BiEncoder) or model.pooling is None:
            return Computed(None, np.zeros(len(texts), dtype=np.int64))
        lists = model.pairs.of_queries(texts) if what == "query" else model.pairs.of_documents(texts)
        return Computed(model.vectors(lists, np.arange(len(texts))), model.pairs.lengths(lists))
