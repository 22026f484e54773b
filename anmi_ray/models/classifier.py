"""Sequence classification models: trained ones, for judging, and the distilled judge, which is trained here.

The distilled judge reads a query and two documents; a head that its weights lack, or with other labels, is drawn anew.
Legend: N inputs, T tokens, L labels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.config.learning import LearnConfig
from anmi_ray.core.errors import ConfigError, gpu_memory_named
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder, seeded, tensors, token_limit
from anmi_ray.models.decoder import DECODER_POOLINGS, LastTokenScorer, choose_pooling, pad_by_end, says_yes_or_no
from anmi_ray.models.export import write_readme, write_transformer
from anmi_ray.models.heads import (
    ClassifierScorer,
    Scorer,
    add_adapters,
    draw,
    fold_labels,
    load_classifier,
    merged,
    output_layer,
    plain,
    start,
)
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable, resolve
from anmi_ray.models.pairs import MULTIPLE, Batch, PairTokenizer, check_fast, length_batches, ragged, scoring_batches
from anmi_ray.models.pooling import has_mean_head, is_bi_encoder
from anmi_ray.models.prompts import declared
from anmi_ray.models.reranker import SCORE_TOKENS, Precision, resolve_precision, torch_settings

Dtype = Literal["float32", "bfloat16", "float16"]
Coded = dict[str, list[Any]]  # a model's inputs by name, one list or array of integers each, neither cut nor padded


@dataclass(frozen=True)
class Resources:
    """Device and threads of a model.

    device: torch's name
    threads: on a CPU; None: the process's
    """

    device: str = "cpu"
    threads: int | None = None

    @property
    def budget(self) -> int:
        """Padded tokens of a forward pass."""
        return SCORE_TOKENS if self.device == "cpu" else 16 * SCORE_TOKENS


class TokenInputs:
    """Tokenized inputs, none longer than the model's limit, to assemble into padded batches.

    multiple: padded lengths are multiples of it.
    single: whether an input has one document, so that a pair's logit is a difference of two scores.
    """

    single = False

    def __init__(self, coded: Coded, tokenizer: transformers.PreTrainedTokenizerBase, multiple: int = MULTIPLE) -> None:
        self._ids = ragged(coded["input_ids"])
        self._types = ragged(coded["token_type_ids"]) if "token_type_ids" in coded else None
        self._pad: Any = tokenizer.pad_token_id
        self._multiple = multiple

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each input."""
        return self._ids.lengths

    def batch(self, row_N: NDArray[np.int64]) -> Batch:
        """Padded inputs [N, T] of the given rows."""
        length_N = self.lengths[row_N]
        width = -(-int(length_N.max()) // self._multiple) * self._multiple
        start_N = np.zeros(len(row_N), dtype=np.int64)
        ids = np.full((len(row_N), width), self._pad, dtype=np.int64)
        self._ids.put(row_N, length_N, ids, start_N)
        mask = (np.arange(width) < length_N[:, None]).astype(np.int64)
        if self._types is None:
            return Batch(ids, mask, None)
        types = np.zeros_like(ids)
        self._types.put(row_N, length_N, types, start_N)
        return Batch(ids, mask, types)

    def inputs(
        self, row_N: NDArray[np.int64], token_budget: int, on_gpu: bool = False
    ) -> tuple[list[Batch], NDArray[np.int64]]:
        """Batches of similar length, and the position in `row_N` of each output."""
        parts = length_batches(self.lengths[row_N], token_budget, on_gpu)
        return [self.batch(row_N[part]) for part in parts], np.concatenate(parts)

    @torch.inference_mode()
    def infer(self, model: Classifier | PairClassifier, row_N: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits float32[N, L] of the given rows."""
        device = next(model.network.parameters()).device
        batches = scoring_batches(self.lengths[row_N], SCORE_TOKENS, device)
        outputs = [model.network(**tensors(self.batch(row_N[part]), device)) for part in batches]  # a GPU runs on
        logits = np.zeros((len(row_N), len(model.labels)), dtype=np.float32)
        for part, output in zip(batches, outputs, strict=True):
            logits[part] = output.reshape(len(part), -1).float().cpu().numpy()
        return logits


class WithTokenizer:
    """Something with a fast tokenizer."""

    tokenizer: transformers.PreTrainedTokenizerBase

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Coded:
        """The tokenizer's own inputs for texts, or for (text, pair), neither cut nor padded."""
        second = None if pairs is None else list(pairs)
        coded = self.tokenizer(list(texts), second, truncation=False, padding=False, verbose=False)
        return {name: coded[name] for name in self.tokenizer.model_input_names if name in coded}  # type: ignore[misc]


class Classifier(WithTokenizer):
    """A sequence classification model with its fast tokenizer. Raises ConfigError if it cannot be loaded.

    labels: names of its L logits, in order.
    max_tokens: None: what positions and tokenizer allow.
    """

    def __init__(
        self, source: ModelSource, max_tokens: int | None = None, dtype: Dtype = "float32", use: Resources | None = None
    ) -> None:
        self.name = source.name
        self.use = use or Resources()
        wanted = "folder or hub id with safetensors weights, a classification head and a fast tokenizer"
        with loadable(source, "sequence classification model", wanted):
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(source.path_or_id, **source.options)
            with seeded(0):
                model, loading = load_classifier(source)
        if loading["missing_keys"]:
            raise ConfigError(
                f"its weights lack {', '.join(sorted(loading['missing_keys'])[:3])}: it was not trained to classify",
                f"model {source.name}",
                "give a model with a trained sequence classification head",
            )
        check_fast(self.tokenizer, source.name)
        check_vocabulary(self.tokenizer, embedding_rows(model), source.name)
        model.config.pad_token_id = self.tokenizer.pad_token_id  # decoders look it up to find the last token
        labels: dict[int, str] = model.config.id2label or {}  # pyright: ignore[reportAssignmentType]
        self.labels = tuple(str(labels[i]) for i in sorted(labels))
        self.max_tokens = token_limit(model, int(self.tokenizer.model_max_length), max_tokens)
        self.network = ClassifierScorer(model).to(self.use.device).eval().requires_grad_(False)
        self.network.cast(dtype)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Logits float64[N, L] of texts, or of (text, pair), none longer than `max_tokens`; ConfigError: no memory."""
        return self.logits_of(self.encode(texts, pairs))

    def logits_of(self, coded: Coded) -> NDArray[np.float64]:
        """Logits float64[N, L] of N inputs; ConfigError: no memory."""
        # a multiple that divides the limit cannot exceed the positions
        inputs = TokenInputs(coded, self.tokenizer, MULTIPLE if self.max_tokens % MULTIPLE == 0 else 1)
        with computing(self.name, self.use):
            return inputs.infer(self, np.arange(len(inputs.lengths))).astype(np.float64)


def load_scorer(
    source: ModelSource, max_tokens: int | None = None, dtype: Dtype = "float32", use: Resources | None = None
) -> CrossEncoder | BiEncoder:
    """Load a trained reranker for scoring only. Raises ConfigError if it cannot be loaded or is a classifier."""
    use = use or Resources()
    if is_bi_encoder(source):
        return BiEncoder.load(source, max_tokens=max_tokens, dtype=dtype, device=use.device, threads=use.threads)
    if has_mean_head(source) or (source.is_local and says_yes_or_no(source.path_or_id)):
        return CrossEncoder.load(source, max_tokens=max_tokens, dtype=dtype, device=use.device, threads=use.threads)
    classifier = Classifier(source, max_tokens, dtype, use)
    fold_labels(classifier.network, source.name)
    pairs = PairTokenizer(classifier.tokenizer, classifier.max_tokens, declared(classifier.tokenizer))
    scorer = CrossEncoder(classifier.network, pairs, source.name, use.threads)
    scorer.precision = dtype
    return scorer


def score(
    scorer: CrossEncoder | BiEncoder, queries: Sequence[str], documents: Sequence[str], use: Resources
) -> NDArray[np.float64]:
    """Logits (cosines of a bi-encoder) float64[N] of (queries[i], documents[i]). ConfigError: out of memory."""
    with computing(scorer.name, use):
        return scorer.score_tokens(scorer.tokens(queries, documents)).astype(np.float64)


@contextmanager
def computing(name: str, use: Resources) -> Iterator[None]:
    """Run inference on the given threads. Raises ConfigError if memory does not hold a batch."""
    threads = use.threads if use.device == "cpu" else None
    place = f"model {name}, batches of up to {use.budget:,} tokens"
    with gpu_memory_named(place, _GPU_FULL), torch_settings(threads), torch.inference_mode():
        yield


class PairClassifier(WithTokenizer):
    """The classifier with its tokenizer.

    beside: files that `export` writes next to the weights, content by name.
    """

    def __init__(
        self,
        network: ClassifierScorer,
        tokenizer: transformers.PreTrainedTokenizerBase,
        name: str,
        max_tokens: int,
        target: Target,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.name = name
        self.max_tokens = max_tokens
        self.target: Target = target
        self.precision: Precision = "float32"
        self.beside: dict[str, str] = {}

    @classmethod
    def start(cls, config: LearnConfig, target: Target, device: str = "cpu") -> PairClassifier:
        """Load the model that `config` names; a head for `target` is drawn from its seed if missing.

        Raises ConfigError if it cannot be loaded, tokenizer and weights do not match, or `max_tokens` exceeds the
        positions.
        """
        source = resolve(config.model, config.trust_remote_code)
        with loadable(source, "sequence classification model"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.path_or_id, use_fast=True, **source.options)
            with seeded(derived_seed("head", config.seed)):
                network = _network(source, tokenizer, LABELS[target], config)
                if config.lora is not None:
                    add_adapters(network, config.lora)
        check_fast(tokenizer, source.name)
        check_vocabulary(tokenizer, embedding_rows(network.encoder), source.name)
        limit = token_limit(network.encoder, int(tokenizer.model_max_length), config.max_tokens)
        return cls(network.to(device).eval(), tokenizer, source.name, limit, target)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the L logits."""
        return LABELS[self.target]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def inputs(self, coded: Coded) -> TokenInputs:
        """Prepare inputs by name, none longer than `max_tokens`, for batching."""
        return TokenInputs(coded, self.tokenizer)

    def scorer(self, dtype: Precision = "auto") -> PairClassifier:
        """A copy for inference: transformer in `dtype`, head in float32, adapters merged."""
        clone = copy.copy(self)
        clone.network = cast(ClassifierScorer, merged(self.network)).eval().requires_grad_(False)
        clone.precision = resolve_precision(dtype, self.device)
        clone.network.cast(clone.precision)
        return clone

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` in its README, and the files `beside`."""
        assert self.precision == "float32", "export the trained model, not a copy for inference"
        folder = Path(folder)
        write_transformer(plain(self.network).encoder, self.tokenizer, self.max_tokens, folder)
        body = f"{_USE.format(labels=', '.join(self.labels))}\n{card.strip()}"
        write_readme(folder, "Pairwise judge", self.max_tokens, body, "text-classification")
        for name, text in self.beside.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder


@torch.no_grad()
def sharpen(network: Scorer, beta: float, columns: Sequence[int]) -> None:
    """Multiply the given logits by `beta`, in the weights."""
    last = output_layer(network)
    for column in columns:
        last.weight[column] *= beta
        if last.bias is not None:
            last.bias[column] *= beta


def _network(
    source: ModelSource, tokenizer: transformers.PreTrainedTokenizerBase, labels: tuple[str, ...], config: LearnConfig
) -> ClassifierScorer:
    decoder = choose_pooling(source.path_or_id, source.options, None, False) in DECODER_POOLINGS
    names = dict(enumerate(labels))
    model, loading = load_classifier(
        source,
        num_labels=len(labels),
        id2label=names,
        label2id={label: number for number, label in names.items()},
        ignore_mismatched_sizes=True,
    )
    if decoder:
        pad_by_end(tokenizer, model)
        network: ClassifierScorer = LastTokenScorer(model)
    else:
        network = ClassifierScorer(model)
    if loading["missing_keys"]:
        start(network, whole_head=not decoder)
    if loading["mismatched_keys"]:
        draw([output_layer(network)])
    return network


_GPU_FULL = "set dtype: bfloat16, or raise gpus, so that fewer share a GPU"
_USE = """Reads a query and two documents and says which answers better; labels: {labels}. Distilled by anmi_ray from
an ensemble of judges. `judge.json` describes its input texts. Ask in both orders and average, as the judge
`{{kind: encoder, form: pairwise, model: PATH_OF_THIS_FOLDER}}` of anmi_ray does. vLLM's classification runner loads the
folder too (`LLM(folder, runner="pooling").classify`): give it token ids and, for two segments, where the second begins
(`compressed_token_type_ids`).
"""
