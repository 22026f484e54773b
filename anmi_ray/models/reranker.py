"""The common interface of cross-encoders and bi-encoders: score, train, export. Legend: N pairs."""

from __future__ import annotations

import copy
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError, out_of_gpu_memory
from anmi_ray.models.heads import FloatName, Scorer
from anmi_ray.models.pairs import TextsTokenizer, TokenPairs

Precision = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
T = TypeVar("T")
SCORE_TOKENS = 4096  # padded tokens of a scoring batch: larger ones leave a CPU's cache


class Reranker(ABC):
    """A network with its tokenizer; one score per pair of query and document, higher is more relevant.

    name: the model as its user named it.
    precision: number format of the transformer.
    threads: of scoring on a CPU; None: the process's.
    """

    network: Scorer
    pairs: TextsTokenizer

    def __init__(self, network: Any, pairs: Any, name: str, threads: int | None = None) -> None:
        self.network = network
        self.pairs = pairs
        self.name = name
        self.threads = threads
        self.precision: Precision = "float32"
        self._budget: int | None = None  # largest token budget known to fit into memory

    @property
    def max_tokens(self) -> int:
        """Number of tokens that an input, a pair or a text, is cut to."""
        return self.pairs.max_tokens

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.network.parameters()).device

    def scorer(self, dtype: Precision = "auto") -> Self:
        """A copy for scoring, its transformer in `dtype`, its head in float32."""
        network = self._scoring_network().eval().requires_grad_(False)
        clone = type(self)(network, self.pairs, self.name, self.threads)
        clone._cast(dtype)
        return clone

    def _scoring_network(self) -> Scorer:
        return copy.deepcopy(self.network)

    def _cast(self, dtype: Precision) -> None:
        self.precision = resolve_precision(dtype, self.device)
        if self.precision != "float32":
            self.network.cast(self.precision)

    def score(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """Scores float32[N] of the pairs (queries[i], documents[i]); repeated texts are tokenized once."""
        assert len(queries) == len(documents)
        return self.score_tokens(self.tokens(queries, documents))

    def tokens(self, queries: Sequence[str], documents: Sequence[str]) -> TokenPairs:
        """Tokenize the distinct texts of the pairs (queries[i], documents[i])."""
        query_texts, query_N = distinct(queries)
        texts, document_N = distinct(documents)
        return TokenPairs(self.pairs.of_queries(query_texts), query_N, self.pairs.of_documents(texts), document_N)

    @abstractmethod
    def score_tokens(self, tokens: TokenPairs, token_budget: int = SCORE_TOKENS) -> NDArray[np.float32]:
        """Scores float32[N] of N pairs, in batches of at most `token_budget` padded tokens (more on a GPU)."""

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` in its README."""
        assert self.precision == "float32", "export the trained model, not a scoring copy"
        return self._write(Path(folder), card)

    @abstractmethod
    def _write(self, folder: Path, card: str) -> Path: ...

    def _as_memory_allows(self, compute: Callable[[int], T], token_budget: int) -> T:
        """Return `compute(budget)`, halving the budget for good whenever a batch exceeds a GPU's memory."""
        budget = min(token_budget, self._budget or token_budget)
        while True:
            try:
                return compute(budget)
            except RuntimeError as error:
                if budget <= 1 or not out_of_gpu_memory(error):
                    raise
            budget //= 2  # outside of except, which keeps the failed batch alive
            self._budget = budget
            torch.cuda.empty_cache()


def resolve_device(device: Device, instead: str = "take the CPU") -> Literal["cpu", "cuda"]:
    """Return the device; auto: a GPU if any. Raises ConfigError, with the remedy `instead`, if torch sees none."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        why = "no GPU is seen" if torch.version.cuda else "this torch is built for CPUs alone"
        raise ConfigError(f"{why} on {platform.node()}", "a GPU to compute on", f"{instead}, or see `anmi doctor`")
    return "cuda"


def native_bfloat16(device: torch.device) -> bool:
    """Return whether `device` computes bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(capabilities[1] or torch.cpu._is_amx_tile_supported())


@overload
def resolve_precision(
    precision: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> Literal["float32", "bfloat16"]: ...
@overload
def resolve_precision(precision: Precision, device: torch.device) -> FloatName: ...
def resolve_precision(precision: Precision, device: torch.device) -> FloatName:
    """Number format of the forward pass; auto: bfloat16 if `device` computes it natively."""
    if precision == "auto":
        return "bfloat16" if native_bfloat16(device) else "float32"
    return precision


def distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts in order of first appearance, and the index of each text."""
    position: dict[str, int] = {}
    index = np.array([position.setdefault(text, len(position)) for text in texts], dtype=np.int64)
    return list(position), index


@contextmanager
def torch_settings(threads: int | None) -> Iterator[None]:
    """Set the process's threads (None: unchanged) inside the context, and disable cuDNN's attention on a GPU.

    cuDNN makes a plan for each new shape of a batch, which takes milliseconds, and batches of texts rarely repeat one.
    """
    before = torch.get_num_threads()
    planned = torch.backends.cuda.cudnn_sdp_enabled()
    torch.set_num_threads(threads or before)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.enable_cudnn_sdp(planned)
