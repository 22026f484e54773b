"""Loads a reranker of the kind, cross-encoder or bi-encoder, that a setting or a folder names."""

from __future__ import annotations

from functools import partial

from anmi_ray.config.train import TrainConfig
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.loading import ModelSource, resolve
from anmi_ray.models.pooling import is_bi_encoder
from anmi_ray.models.reranker import Precision, Reranker


def load_reranker(
    model: str | ModelSource,
    *,
    max_tokens: int | None = None,
    dtype: Precision = "float32",
    threads: int | None = None,
) -> Reranker:
    """A trained reranker of the kind that its folder or repository says; ConfigError as the kinds' own `load`."""
    source = resolve(model) if isinstance(model, str) else model
    kind = BiEncoder if is_bi_encoder(source) else CrossEncoder
    return kind.load(source, max_tokens=max_tokens, dtype=dtype, threads=threads)


def load_student(config: TrainConfig, device: str = "cpu") -> Reranker:
    """The model that training starts from, of the kind that `config.student` names; ConfigError as its `load`."""
    source = resolve(config.model, config.trust_remote_code)
    load = BiEncoder.load
    if config.student == "cross-encoder":
        load = partial(CrossEncoder.load, pooling=config.pooling, prompt=config.prompt)
    return load(source, max_tokens=config.max_tokens, seed=config.seed, device=device, lora=config.lora)
