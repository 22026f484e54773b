"""What training, reranking and export ask of a student, and which of the two kinds a setting or a folder names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.config.train import TrainConfig
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder, Precision
from anmi_ray.models.heads import Scorer
from anmi_ray.models.loading import ModelSource, resolve
from anmi_ray.models.pairs import PairTokenizer, Ragged
from anmi_ray.models.pooling import is_bi_encoder
from anmi_ray.models.texts import TextTokenizer


class Reranker(Protocol):
    """A cross-encoder or a bi-encoder: one score per pair of query and document, higher is more relevant."""

    def __init__(self, network: Any, pairs: Any, name: str, threads: int | None = None) -> None: ...

    @property
    def network(self) -> Scorer:
        """What is trained; its transformer is `network.encoder`."""
        ...

    @property
    def pairs(self) -> PairTokenizer | TextTokenizer:
        """Texts to tokens, tokens to the network's inputs."""
        ...

    @property
    def name(self) -> str:
        """The model as its user named it."""
        ...

    @property
    def precision(self) -> Precision:
        """The transformer's number format."""
        ...

    @property
    def max_tokens(self) -> int:
        """Tokens of an input: of a pair, or of a text."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def scorer(self, dtype: Precision = "auto") -> Reranker:
        """A copy for scoring, its transformer in `dtype`."""
        ...

    def score(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """Scores float32[N] of the pairs (queries[i], documents[i])."""
        ...

    def score_tokens(
        self, queries: Ragged, query_N: NDArray[np.int64], documents: Ragged, document_N: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores float32[N] of the pairs (query_N[i], document_N[i]) of tokenised texts."""
        ...

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` in its README."""
        ...


def load_reranker(
    model: str | ModelSource,
    *,
    max_tokens: int | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    dtype: Precision = "float32",
    threads: int | None = None,
) -> Reranker:
    """A trained reranker of the kind that its folder or repository says; ConfigError as the kinds' own `load`."""
    source = resolve(model, trust_remote_code) if isinstance(model, str) else model
    kind = BiEncoder if is_bi_encoder(source) else CrossEncoder
    return kind.load(source, max_tokens=max_tokens, device=device, dtype=dtype, threads=threads)


def load_student(config: TrainConfig, device: str = "cpu") -> Reranker:
    """The model that training starts from, of the kind that `config.student` names; ConfigError as its `load`."""
    if config.student == "bi-encoder":
        return BiEncoder.load(
            config.model,
            max_tokens=config.max_tokens,
            seed=config.seed,
            device=device,
            trust_remote_code=config.trust_remote_code,
            lora=config.lora,
        )
    return CrossEncoder.load(
        config.model,
        pooling=config.pooling,
        max_tokens=config.max_tokens,
        seed=config.seed,
        device=device,
        trust_remote_code=config.trust_remote_code,
        prompt=config.prompt,
        lora=config.lora,
    )
