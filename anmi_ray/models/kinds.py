"""Load a reranker of the kind that a setting or a folder names."""

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
    """Load a trained reranker of the kind of its folder or repository. Raises ConfigError as `load` of the kinds."""
    source = resolve(model) if isinstance(model, str) else model
    kind = LateInteraction if is_colbert(source) else BiEncoder if is_bi_encoder(source) else CrossEncoder
    return kind.load(source, max_tokens=max_tokens, dtype=dtype, threads=threads, device=device)


def reads_apart(model: str | ModelSource) -> bool:
    """Return whether a trained reranker encodes texts separately, once for all pairs."""
    source = resolve(model) if isinstance(model, str) else model
    return is_colbert(source) or is_bi_encoder(source)


def load_student(config: TrainConfig, device: str = "cpu") -> Reranker:
    """Load the model that training starts from. Raises ConfigError as `load` of its kind."""
    source = resolve(config.model, config.trust_remote_code)
    load = loader(config.student, config.pooling, config.prompt)
    return load(source, max_tokens=config.max_tokens, seed=config.seed, device=device, lora=config.lora)


def loader(student: Student, pooling: Pooling, prompt: str | None) -> Callable[..., Reranker]:
    """Return the `load` of a student's kind, with a cross-encoder's arguments."""
    if student == "cross-encoder":
        return partial(CrossEncoder.load, pooling=pooling, prompt=prompt)
    return BiEncoder.load if student == "bi-encoder" else LateInteraction.load
