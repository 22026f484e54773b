"""The scoring process: the model of `anmi rerank`, used by one thread.

Legend: N texts, d dimensions.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anmi_ray.api import reranking
from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.serving.settings import ServiceSettings

Task = Literal["score", "query", "document"]
"""Score pairs of a query and a text, or embed texts as queries or as documents."""


@dataclass(frozen=True)
class ModelInfo:
    """A loaded model.

    `name`: its name in answers.
    `curve`: P(relevant) of its scores, if calibrated.
    """

    name: str = ""
    curve: RelevanceCurve | None = None


@dataclass(frozen=True)
class Computed:
    """Results of N texts.

    `values`: scores float32[N], or vectors float32[N, d]; None if the model has no vectors of texts.
    `tokens`: tokens of each text, int64[N].
    `model`: the model that computed them.
    `max_tokens`: tokens of an input that it reads at most.
    """

    values: NDArray[np.float32] | None
    tokens: NDArray[np.int64]
    model: ModelInfo = field(default_factory=ModelInfo)
    max_tokens: int = 0


def model_info(settings: ServiceSettings) -> ModelInfo:
    """Describe the model that the settings name.

    Raises ConfigError if it is missing, DataError if a folder has no model or its relevance.json is damaged.
    """
    name, _ = reranking.model_of(settings.model, settings.root)
    calibrated = reranking.calibration_of(settings.model, settings.root)
    return ModelInfo(settings.name or name, calibrated and calibrated.curve)


class ModelScorer:
    """A model in memory. Computes one batch at a time: torch's threads belong to the process."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.model = model_info(settings)
        _, place = reranking.model_of(settings.model, settings.root)
        self._model: Any = reranking.load(place, settings.threads_each, settings.device, settings.precision)
        self._thread = ThreadPoolExecutor(1)

    async def compute(self, task: Task, queries: list[str], texts: list[str]) -> Computed:
        """Scores of pairs, or unit vectors of texts."""
        body = self._scores if task == "score" else self._vectors
        return await asyncio.get_running_loop().run_in_executor(self._thread, body, task, queries, texts)

    def _scores(self, task: Task, queries: list[str], texts: list[str]) -> Computed:
        tokens = self._model.tokens(queries, texts)
        lengths = np.asarray(self._model.pairs.pair_lengths(tokens), dtype=np.int64)
        return Computed(self._model.score_tokens(tokens), lengths, self.model, self._model.max_tokens)

    def _vectors(self, task: Task, queries: list[str], texts: list[str]) -> Computed:
        model = self._model
        if not isinstance(model, BiEncoder) or model.pooling is None:
            return Computed(None, np.zeros(len(texts), dtype=np.int64), self.model, model.max_tokens)
        lists = model.pairs.of_queries(texts) if task == "query" else model.pairs.of_documents(texts)
        vectors = model.vectors(lists, np.arange(len(texts)))
        return Computed(vectors, model.pairs.lengths(lists), self.model, model.max_tokens)
