"""The reranker: a transformer that reads query and document together and gives one score (a raw logit).

Two heads. "cls" is the architecture's own sequence classification head with one label. "mean" reads the mean token
through a dense layer with GELU, as the bi-encoder that it starts from was pooled.
Both export to a folder that `sentence_transformers.CrossEncoder` loads and scores alike (models/export.py).
Legend: N pairs, T tokens.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from anmi_ray.errors import ConfigError
from anmi_ray.identity import seed as derived_seed
from anmi_ray.models.loading import ModelSource, resolve
from anmi_ray.models.pairs import Batch, PairTokenizer, Ragged, document_text, length_batches

__all__ = ["CrossEncoder", "Precision", "document_text", "resolve_precision"]

Pooling = Literal["cls", "mean"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
SCORE_TOKENS = 4096  # padded tokens of a scoring batch: larger ones leave a CPU's cache
INITIAL_SPREAD = 0.02  # sd of new weights, BERT's own
DENSE_FOLDER, SCORE_FOLDER = "2_Dense", "3_Dense"


class Float32Linear(nn.Linear):
    """A linear layer that computes in float32 whatever the autocast or the weights: scores keep their ties apart."""

    def forward(self, input: Tensor) -> Tensor:
        """x Wᵀ + b in float32."""
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(input.float(), self.weight.float(), bias)


class MeanScorer(nn.Module):
    """score = w · GELU(W mean(h) + b) + c over the unmasked tokens' last hidden states h [N, T, d]."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        size = int(encoder.config.hidden_size)
        self.encoder = encoder
        self.dense, self.out = Float32Linear(size, size), Float32Linear(size, 1)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=INITIAL_SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N]."""
        hidden = self.encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (hidden.float() * mask).sum(1) / mask.sum(1)
        return self.out(nn.functional.gelu(self.dense(mean))).squeeze(-1)


class ClassifierScorer(nn.Module):
    """The one logit of a sequence classification model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = model
        for head in _head_modules(model):
            for module in head.modules():
                if type(module) is nn.Linear:
                    module.__class__ = Float32Linear

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N]; of a model with L > 1 labels, logits float32[N, L]."""
        return self.encoder(**inputs).logits.float().squeeze(-1)

    def cast(self, precision: Literal["float32", "bfloat16", "float16"]) -> None:
        """Give the transformer's weights another precision; the head stays float32."""
        _cast(self, precision)


class CrossEncoder:
    """A reranker with its tokenizer: `score` for use, `network` for training, `export` to a Hugging Face folder."""

    def __init__(
        self, network: MeanScorer | ClassifierScorer, pairs: PairTokenizer, name: str, threads: int | None = None
    ) -> None:
        self.network, self.pairs, self.name, self.threads = network, pairs, name, threads
        self.precision: Precision = "float32"
        self.drawn_head = False  # the weights lacked it

    @classmethod
    def load(
        cls,
        model: str | ModelSource,
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
        device: str = "cpu",
        trust_remote_code: bool = False,
        dtype: Precision = "float32",
        threads: int | None = None,
        whole_head: bool = True,
        equal_segments: bool = True,
    ) -> CrossEncoder:
        """Load a reranker, or start one from a bi-encoder: the head that the weights lack is drawn from `seed`.

        Such a start draws the pooler too if `whole_head` (a bi-encoder's is untrained), and gives both segments the
        first one's embedding if `equal_segments` (a bi-encoder never saw a second).

        `pooling` None: mean where the folder was exported with it, else cls. `max_tokens` None: the tokenizer's own
        limit, which is what an exported model was trained with; more is allowed up to the model's positions. `dtype`
        other than float32 is for scoring only (the head stays float32); `threads` are those of `score` on a CPU, None
        leaves the process's. Raises ConfigError where there is no such model, no safetensors weights, no fast
        tokenizer, the tokenizer knows more ids than the model, or `max_tokens` exceeds the positions.
        """
        source = resolve(model, trust_remote_code) if isinstance(model, str) else model
        where, revision, trust = source.path_or_id, source.hub_revision, source.trust_remote_code
        trained_head = trained_mean_head(where)
        pooling = pooling or ("mean" if trained_head else "cls")
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, revision=revision, trust_remote_code=trust, use_fast=True)
            with quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed("head", seed))
                network, new = _network(where, revision, trust, pooling)
                if new and not trained_head:
                    _start(network, whole_head, equal_segments)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"cannot be loaded as a cross-encoder: {str(error).splitlines()[0]}",
                f"model {source.name}",
                "give a model with safetensors weights and a fast tokenizer",
            ) from error
        if isinstance(network, MeanScorer) and trained_head:
            network.dense.load_state_dict(trained_head[0])
            network.out.load_state_dict(trained_head[1])
        check_vocabulary(network.encoder, tokenizer, source.name)
        pairs = PairTokenizer(tokenizer, token_limit(network.encoder, int(tokenizer.model_max_length), max_tokens))
        loaded = cls(cast(MeanScorer | ClassifierScorer, network.to(device).eval()), pairs, source.name, threads)
        loaded.drawn_head = new and not trained_head
        loaded._cast(dtype)
        return loaded

    @property
    def max_tokens(self) -> int:
        """Tokens that a pair is cut to."""
        return self.pairs.max_tokens

    @property
    def pooling(self) -> Pooling:
        """What the score is read from."""
        return "mean" if isinstance(self.network, MeanScorer) else "cls"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def scorer(self, dtype: Precision = "auto") -> CrossEncoder:
        """A copy for scoring, its transformer in `dtype`, its head in float32."""
        network = copy.deepcopy(self.network).eval().requires_grad_(False)
        clone = CrossEncoder(network, self.pairs, self.name, self.threads)
        clone._cast(dtype)
        return clone

    def _cast(self, dtype: Precision) -> None:
        self.precision = resolve_precision(dtype, self.device)
        _cast(self.network, self.precision)

    def score(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """Raw logits float32[N] of the pairs (queries[i], documents[i]); repeated texts are tokenised once."""
        if len(queries) != len(documents):
            raise AssertionError(f"{len(queries)} queries and {len(documents)} documents are no pairs")
        query_texts, query_N = distinct(queries)
        texts, document_N = distinct(documents)
        return self.score_tokens(self.pairs.texts(query_texts), query_N, self.pairs.texts(texts), document_N)

    def score_tokens(
        self,
        queries: Ragged,
        query_N: NDArray[np.int64],
        documents: Ragged,
        document_N: NDArray[np.int64],
        token_budget: int = SCORE_TOKENS,
    ) -> NDArray[np.float32]:
        """Raw logits float32[N] of the pairs (query_N[i], document_N[i]) of tokenised texts."""
        scores = np.zeros(len(query_N), dtype=np.float32)
        lengths = self.pairs.pair_lengths(queries, query_N, documents, document_N)
        budget = token_budget if self.device.type == "cpu" else 16 * token_budget
        with torch_threads(self.threads), torch.inference_mode():
            for rows in length_batches(lengths, budget):
                batch = self.pairs.batch(queries, query_N[rows], documents, document_N[rows])
                scores[rows] = self.network(**tensors(batch, self.device)).cpu().numpy()
        return scores

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` in its README; see models/export.py."""
        from anmi_ray.models.export import write

        return write(self, Path(folder), card)


def tensors(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch as the model's named inputs."""
    inputs = {"input_ids": torch.from_numpy(batch.ids), "attention_mask": torch.from_numpy(batch.mask)}
    if batch.type_ids is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.type_ids)
    return {name: value.to(device, non_blocking=True) for name, value in inputs.items()}


def head_layers(network: nn.Module) -> list[nn.Module]:
    """The modules above the transformer."""
    if isinstance(network, MeanScorer):
        return [network.dense, network.out]
    return _head_modules(cast(PreTrainedModel, network.encoder))


def _cast(network: nn.Module, precision: Literal["float32", "bfloat16", "float16"]) -> None:
    """The transformer's weights in another precision; the head stays float32."""
    if precision == "float32":
        return
    head = {id(parameter) for module in head_layers(network) for parameter in module.parameters()}
    for parameter in network.parameters():
        if id(parameter) not in head:
            parameter.data = parameter.data.to(getattr(torch, precision))


def native_bfloat16(device: torch.device) -> bool:
    """Whether `device` computes bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(capabilities[1] or torch.cpu._is_amx_tile_supported())


@overload
def resolve_precision(
    precision: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> Literal["float32", "bfloat16"]: ...
@overload
def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bfloat16", "float16"]: ...
def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bfloat16", "float16"]:
    """The number format of the forward pass: auto is bfloat16 where `device` computes it natively."""
    if precision == "auto":
        return "bfloat16" if native_bfloat16(device) else "float32"
    return precision


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Torch's thread count is the process's: set it for a while and put it back. None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _network(
    where: str, revision: str | None, trust: bool, pooling: Pooling
) -> tuple[MeanScorer | ClassifierScorer, bool]:
    """The network, and whether the weights lack its head."""
    options = {
        "revision": revision,
        "trust_remote_code": trust,
        "use_safetensors": True,
        "dtype": torch.float32,
        "attn_implementation": "sdpa",
    }
    if pooling == "cls":
        model, found = AutoModelForSequenceClassification.from_pretrained(
            where, num_labels=1, output_loading_info=True, **options
        )
        return ClassifierScorer(model), bool(found["missing_keys"])
    encoder = AutoModel.from_pretrained(where, **options)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # reads [CLS]; unused parameters would only travel along
    return MeanScorer(encoder), True


def _start(network: MeanScorer | ClassifierScorer, whole_head: bool, equal_segments: bool) -> None:
    """Make a cross-encoder's start of a bi-encoder's weights."""
    encoder = cast(PreTrainedModel, network.encoder)
    if whole_head and isinstance(network, ClassifierScorer):
        for head in _head_modules(encoder):
            for layer in head.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=INITIAL_SPREAD)
                    nn.init.zeros_(layer.bias)
    segments = getattr(getattr(encoder.base_model, "embeddings", None), "token_type_embeddings", None)
    if equal_segments and isinstance(segments, nn.Embedding):
        with torch.no_grad():
            segments.weight.copy_(segments.weight[0].expand_as(segments.weight))


def _head_modules(model: PreTrainedModel) -> list[nn.Module]:
    """A classification model's modules beside its base model, and the base model's pooler."""
    base = model.base_model
    heads = [module for module in model.children() if module is not base]
    pooler = getattr(base, "pooler", None)
    return [*heads, pooler] if isinstance(pooler, nn.Module) else heads


def positions(encoder: nn.Module) -> int | None:
    """Tokens that the model has positions for, or None where their number is not bounded."""
    config = cast(PreTrainedModel, encoder).config
    # RoBERTa's positions start after the padding index.
    offset = (config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    held = getattr(config, "max_position_embeddings", None)
    return held - offset if held else None


def token_limit(encoder: nn.Module, tokenizer_limit: int, asked: int | None) -> int:
    """Tokens that a pair is cut to: as asked, else what both the model's positions and its tokenizer allow."""
    held = positions(encoder)
    if asked and held and asked > held:
        raise ConfigError(f"is {asked}, and the model has {held} positions", "max_tokens", f"set it to at most {held}")
    return asked or min(held or tokenizer_limit, tokenizer_limit)


def check_vocabulary(encoder: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise ConfigError where the tokenizer knows ids for which the model has no embedding."""
    rows = cast(nn.Embedding, cast(PreTrainedModel, encoder).get_input_embeddings()).num_embeddings
    word, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if highest >= rows:
        raise ConfigError(
            f"the tokenizer's ids go up to {highest} ({word!r}), and the model has {rows} embeddings",
            f"model {name}",
            "give the model its own tokenizer, or resize its embeddings and save it anew",
        )


def trained_mean_head(where: str) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """The weights of an exported mean head in a local folder: (dense, out)."""
    config = Path(where) / SCORE_FOLDER / "config.json"
    if not config.is_file() or json.loads(config.read_text()).get("module_output_name") != "scores":
        return None
    states = [load_file(Path(where) / folder / "model.safetensors") for folder in (DENSE_FOLDER, SCORE_FOLDER)]
    dense, out = ({name.removeprefix("linear."): value for name, value in state.items()} for state in states)
    return dense, out


def distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts in order of first appearance, and where each text stands among them."""
    position: dict[str, int] = {}
    index = np.array([position.setdefault(text, len(position)) for text in texts], dtype=np.int64)
    return list(position), index


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' report of new head weights and its progress bar: a new head is what we ask for."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()
