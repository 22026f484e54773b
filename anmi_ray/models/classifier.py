"""Sequence classification models for judging; weights without a trained head are an error here.

Legend: N inputs, T tokens, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError, JudgeError, gpu_memory_named
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import SCORE_TOKENS, CrossEncoder, seeded, token_limit
from anmi_ray.models.decoder import says_yes_or_no
from anmi_ray.models.heads import ClassifierScorer, fold_labels
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable
from anmi_ray.models.pairs import MULTIPLE, PairTokenizer, check_fast, length_batches
from anmi_ray.models.pooling import has_mean_head, is_bi_encoder
from anmi_ray.models.prompts import declared
from anmi_ray.models.speed import torch_settings

Dtype = Literal["float32", "bfloat16", "float16"]
Coded = dict[str, list[Any]]  # a model's inputs by name, one list or array of integers each, neither cut nor padded


@dataclass(frozen=True)
class Resources:
    """What a model computes with.

    device: torch's name
    threads: on a CPU; None: the process's
    batch_tokens: padded tokens of a forward pass; None: the default
    """

    device: str = "cpu"
    threads: int | None = None
    batch_tokens: int | None = None

    @property
    def budget(self) -> int:
        """Padded tokens of a forward pass."""
        return self.batch_tokens or (SCORE_TOKENS if self.device == "cpu" else 16 * SCORE_TOKENS)


class Classifier:
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
            self.tokenizer: transformers.PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
                source.path_or_id, **source.options
            )
            options = source.options | {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
            with seeded(0):
                model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
                    source.path_or_id, **options
                )
        if loading["missing_keys"]:
            raise ConfigError(
                f"its weights lack {', '.join(sorted(loading['missing_keys'])[:3])}: it was not trained to classify",
                f"model {source.name}",
                "give a model with a trained sequence classification head",
            )
        check_fast(self.tokenizer, source.name)
        check_vocabulary(self.tokenizer, embedding_rows(model), source.name)
        model.config.pad_token_id = self.tokenizer.pad_token_id  # decoders look it up to find the last token
        self.labels = tuple(str(model.config.id2label[i]) for i in sorted(model.config.id2label))
        self.max_tokens = token_limit(model, int(self.tokenizer.model_max_length), max_tokens)
        self.network = ClassifierScorer(model).to(self.use.device).eval().requires_grad_(False)
        self.network.cast(dtype)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Logits float64[N, L] of texts, or of (text, pair), none longer than `max_tokens`; JudgeError: no memory."""
        return self.logits_of(self.encode(texts, pairs))

    def logits_of(self, coded: Coded) -> NDArray[np.float64]:
        """Logits float64[N, L] of N inputs; JudgeError: no memory."""
        lengths = np.array([len(ids) for ids in coded["input_ids"]], dtype=np.int64)
        logits = np.zeros((len(lengths), len(self.labels)))
        with computing(self.name, self.use):
            batches = length_batches(lengths, self.use.budget, self.use.device != "cpu")
            outputs = [self.network(**self._padded(coded, rows)) for rows in batches]  # fetched later: a GPU runs on
            for rows, output in zip(batches, outputs, strict=True):
                logits[rows] = output.reshape(len(rows), -1).double().cpu().numpy()
        return logits

    def _padded(self, coded: Coded, rows: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """The inputs `rows`, padded on the right."""
        width = max(len(coded["input_ids"][row]) for row in rows)
        if self.max_tokens % MULTIPLE == 0:  # else padding could exceed the positions
            width = -(-width // MULTIPLE) * MULTIPLE
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id}
        inputs = {}
        for name, values in coded.items():
            padded = np.full((len(rows), width), padding.get(name, 0), dtype=np.int64)
            for at, row in enumerate(rows):
                padded[at, : len(values[row])] = values[row]
            inputs[name] = torch.from_numpy(padded).to(self.use.device)
        return inputs

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Coded:
        """The tokenizer's own inputs for texts, or for (text, pair), neither cut nor padded."""
        return encoded(self.tokenizer, texts, pairs)


def encoded(
    tokenizer: transformers.PreTrainedTokenizerBase, texts: Sequence[str], pairs: Sequence[str] | None
) -> Coded:
    """The tokenizer's own inputs for texts, or for (text, pair), neither cut nor padded."""
    second = None if pairs is None else list(pairs)
    coded = tokenizer(list(texts), second, truncation=False, padding=False, verbose=False)
    return {name: coded[name] for name in tokenizer.model_input_names if name in coded}  # type: ignore[misc]


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
    """Logits (cosines of a bi-encoder) float64[N] of (queries[i], documents[i]). JudgeError: out of memory."""
    budget = use.budget if use.device == "cpu" else use.budget // 16  # rerankers raise it on a GPU by themselves
    if isinstance(scorer, BiEncoder):
        with computing(scorer.name, use):
            return scorer.score_known(queries, documents, budget).astype(np.float64)
    tokens = scorer.tokens(queries, documents)
    with computing(scorer.name, use):
        return scorer.score_tokens(*tokens, budget).astype(np.float64)


@contextmanager
def computing(name: str, use: Resources) -> Iterator[None]:
    """Run inference on the given threads. Raises JudgeError if memory does not hold a batch."""

    def full(said: str) -> JudgeError:
        return JudgeError(
            f"a batch of up to {use.budget:,} tokens does not fit into the memory of {use.device}: {said}",
            f"model {name}",
            "lower batch_tokens, set dtype: bfloat16, or raise gpus, so that fewer share a GPU",
        )

    threads = use.threads if use.device == "cpu" else None
    with gpu_memory_named(full), torch_settings(threads), torch.inference_mode():
        yield
