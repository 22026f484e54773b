"""Loads a reranker of the kind, cross-encoder, bi-encoder or late interaction, that a setting or a folder names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anmi_ray.config.train import Pooling, Student, TrainConfig
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import ModelSource, resolve
from anmi_ray.models.pooling import is_bi_encoder, is_colbert
from anmi_ray.models.reranker import Precision, Reranker


def load_reranker(
    model: str | ModelSource,
    *,
    max_tokens: int | None = None,
    dtype: Precision = "float32",
    threads: int | None = None,
    device: str = "cpu",
) -> Reranker:
    """A trained reranker of the kind that its folder or repository says; ConfigError as the kinds' own `load`."""
    source = resolve(model) if isinstance(model, str) else model
    kind = LateInteraction if is_colbert(source) else BiEncoder if is_bi_encoder(source) else CrossEncoder
    return kind.load(source, max_tokens=max_tokens, dtype=dtype, threads=threads, device=device)


def reads_apart(model: str | ModelSource) -> bool:
    """Whether a trained reranker encodes each text alone, so that one encoding serves every pair."""
    source = resolve(model) if isinstance(model, str) else model
    return is_colbert(source) or is_bi_encoder(source)


def load_student(config: TrainConfig, device: str = "cpu") -> Reranker:
    """The model that training starts from, of the kind that `config.student` names; ConfigError as its `load`."""
    source = resolve(config.model, config.trust_remote_code)
    load = loader(config.student, config.pooling, config.prompt)
    return load(source, max_tokens=config.max_tokens, seed=config.seed, device=device, lora=config.lora)


def loader(student: Student, pooling: Pooling, prompt: str | None) -> Callable[..., Reranker]:
    """The `load` of a student's kind, with what a cross-encoder's head needs."""
    if student == "cross-encoder":
        return partial(CrossEncoder.load, pooling=pooling, prompt=prompt)
    return BiEncoder.load if student == "bi-encoder" else LateInteraction.load
