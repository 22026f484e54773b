"""Settings that every training shares: where a network starts, what of it learns, how fast, on which engine."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from anmi_ray.config.base import Settings, StartModel
from anmi_ray.core.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16"]
Offload = Literal["none", "optimizer", "parameters"]


def _rising(shares: tuple[float, ...]) -> tuple[float, ...]:
    if sorted(set(shares)) != list(shares):
        raise ValueError("expected rising shares, such as [0.5, 1.0]")
    return shares


Shares = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], AfterValidator(_rising)]
"""Shares of something, each larger than the one before."""


class LoraConfig(Settings):
    """Adapters of low rank, W + (alpha / rank) B A: the transformer's weights W stay, A and B are trained."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank of an adapter's matrices."""
    alpha: float = Field(default=32.0, gt=0)
    """An adapter's weight times its rank."""
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of the linear layers that get one, such as [query, value]; null: all in the transformer."""


class LearnConfig(StartModel):
    """A network's start, its optimiser and its engine.

    group: what the settings of one are called in a file; items: what its data are, as in `lists_per_step`.
    """

    group: ClassVar[str]
    items: ClassVar[str]
    former_default = MappingProxyType({"engine": "deepspeed"})

    max_tokens: int = Field(default=128, ge=16, le=32_768)
    """Tokens of an input, a bi-encoder's text or a query with its documents; the longest texts are cut."""
    dropout: float | None = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability everywhere in the model; null: as the model was trained."""
    freeze_embeddings: bool = True
    """Keep the token embeddings as they are."""
    freeze_layers: int = Field(default=0, ge=0)
    """Lowest transformer layers kept as they are."""
    lora: LoraConfig | None = None
    """Train adapters of low rank and the head alone; merged into the weights at export (needs peft)."""

    epochs: float = Field(default=1.0, gt=0)
    """Passes over the examples (of distillation: the pairs); fractions are allowed."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; overrides epochs."""
    learning_rate: float = Field(default=4e-4, gt=0, le=1.0)
    """Peak learning rate of the transformer."""
    head_learning_rate: float = Field(default=1e-3, gt=0, le=1.0)
    """Peak learning rate of the scoring head."""
    layer_decay: float = Field(default=1.0, gt=0, le=1.0)
    """Factor on the learning rate per layer below the highest; 1: all alike."""

    precision: Precision = "auto"
    """Arithmetic of the forward pass; auto: bfloat16 where the processor computes it natively."""
    dev_points: Shares = (0.25, 0.5, 0.75, 1.0)
    """Shares of the run at which dev is evaluated; the best point is exported."""
    engine: Literal["auto", "deepspeed", "ddp"] = "auto"
    """What computes a step; auto: DeepSpeed where it offloads, or is installed and has several workers to partition
    over, else DDP."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    """DeepSpeed: what is partitioned over workers (ZeRO stage)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the head's initial weights, the order of lists and dropout."""

    @property
    def per_step(self) -> int:
        """Items of the data (lists, or pairs of documents) of an optimiser step."""
        raise NotImplementedError

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if this number of workers cannot share a step evenly."""
        if self.per_step % workers:
            raise ConfigError(
                f"{self.items}_per_step is {self.per_step}, not a multiple of {workers} workers",
                f"{self.group}.{self.items}_per_step",
                "choose a multiple of execution.train.num_workers",
            )

    def _problems(self) -> Iterator[str]:
        if self.lora is not None and (self.freeze_layers or not self.freeze_embeddings):
            setting = "freeze_layers" if self.freeze_layers else "freeze_embeddings: false"
            yield f"lora keeps all of the transformer as it is: leave {setting} out"
