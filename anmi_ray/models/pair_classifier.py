"""The distilled judge: a sequence classification model that reads a query and two documents.

A head that the weights lack, or that has other labels, is drawn anew. Legend: N inputs, L labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.config.learning import LearnConfig
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.classifier import Coded, encoded
from anmi_ray.models.cross_encoder import seeded, token_limit
from anmi_ray.models.decoder import DECODER_POOLINGS, LastTokenScorer, choose_pooling, pad_by_end
from anmi_ray.models.export import write_readme, write_transformer
from anmi_ray.models.heads import ClassifierScorer, Scorer, draw, output_layer, start
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable, resolve
from anmi_ray.models.lora import add_adapters, is_adapted, merged
from anmi_ray.models.pairs import MULTIPLE, Batch, Ragged, check_fast, ragged
from anmi_ray.models.reranker import Precision, resolve_precision


class PairInputs:
    """Tokenized inputs to assemble into padded batches; `types` are segment ids, None if the model has no segments."""

    def __init__(self, ids: Ragged, types: Ragged | None, pad: int) -> None:
        self.ids = ids
        self.types = types
        self.pad = pad

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each input."""
        return self.ids.lengths

    def batch(self, row_N: NDArray[np.int64]) -> Batch:
        """Padded inputs [N, T] of the given rows; T is a multiple of 8."""
        length_N = self.lengths[row_N]
        width = -(-int(length_N.max()) // MULTIPLE) * MULTIPLE
        at_N = np.zeros(len(row_N), dtype=np.int64)
        ids = np.full((len(row_N), width), self.pad, dtype=np.int64)
        self.ids.put(row_N, length_N, ids, at_N)
        mask = (np.arange(width) < length_N[:, None]).astype(np.int64)
        if self.types is None:
            return Batch(ids, mask, None)
        types = np.zeros_like(ids)
        self.types.put(row_N, length_N, types, at_N)
        return Batch(ids, mask, types)


class PairClassifier:
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

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Coded:
        """The tokenizer's own inputs for texts, or for (text, pair), neither cut nor padded."""
        return encoded(self.tokenizer, texts, pairs)

    def inputs(self, coded: Coded) -> PairInputs:
        """Prepare inputs by name, none longer than `max_tokens`, for batching."""
        segments = "token_type_ids" in self.tokenizer.model_input_names
        types = ragged(coded["token_type_ids"]) if segments else None
        return PairInputs(ragged(coded["input_ids"]), types, int(self.tokenizer.pad_token_id))  # type: ignore[arg-type]

    def scorer(self, dtype: Precision = "auto") -> PairClassifier:
        """A copy for inference: transformer in `dtype`, head in float32, adapters merged."""
        adapted = is_adapted(self.network)
        network = cast(ClassifierScorer, merged(self.network)) if adapted else copy.deepcopy(self.network)
        clone = copy.copy(self)
        clone.network = network.eval().requires_grad_(False)
        clone.precision = resolve_precision(dtype, self.device)
        clone.network.cast(clone.precision)
        return clone

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` in its README, and the files `beside`."""
        assert self.precision == "float32", "export the trained model, not a copy for inference"
        folder = Path(folder)
        network = merged(self.network) if is_adapted(self.network) else self.network
        write_transformer(network.encoder, self.tokenizer, self.max_tokens, folder)
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
    where: Any = source.path_or_id
    decoder = choose_pooling(where, source.options, None, False) in DECODER_POOLINGS
    names = dict(enumerate(labels))
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        where,
        num_labels=len(labels),
        id2label=names,
        label2id={label: number for number, label in names.items()},
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        use_safetensors=True,
        dtype=torch.float32,
        **source.options,
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


_USE = """Reads a query and two documents and says which answers better; labels: {labels}. Distilled by anmi_ray from
an ensemble of judges. `judge.json` describes its input texts. Ask in both orders and average, as the judge
`{{kind: encoder, form: pairwise, model: PATH_OF_THIS_FOLDER}}` of anmi_ray does. vLLM's classification runner loads the
folder too (`LLM(folder, runner="pooling").classify`): give it token ids and, for two segments, where the second begins
(`compressed_token_type_ids`).
"""
