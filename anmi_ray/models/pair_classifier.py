"""A transformer that reads a query and two documents and says which answers better: what a distilled judge is made of.

Any sequence classification architecture, with the labels of a target. A head that the weights lack, or that
has other labels, is drawn anew. Documents are put into the model's texts where both stages and judges do so; here
tokenised inputs come in.
Legend: N inputs, L labels.
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
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.classifier import Coded
from anmi_ray.models.cross_encoder import quiet, token_limit
from anmi_ray.models.decoder import DECODER_POOLINGS, LastTokenScorer, choose_pooling, pad_by_end
from anmi_ray.models.heads import ClassifierScorer, Scorer, draw, output_layer, start
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable, resolve
from anmi_ray.models.lora import add_adapters, is_adapted, merged
from anmi_ray.models.pairs import MULTIPLE, Batch, Ragged, ragged
from anmi_ray.models.reranker import Precision, resolve_precision
from anmi_ray.models.reranker_folder import save_tokenizer


class PairInputs:
    """Tokenised inputs, put into padded batches: `ids` and, of models with segments, `types`, list by list."""

    def __init__(self, ids: Ragged, types: Ragged | None, pad: int) -> None:
        self.ids = ids
        self.types = types
        self.pad = pad

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every input."""
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
    """The classifier with its tokenizer: `network` for training, `export` to a folder that judges load.

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
        """The model that `config` names, with a head for `target` drawn from its seed where it has none.

        Raises ConfigError where there is no such model, no safetensors weights, no fast tokenizer with a padding token,
        the tokenizer knows more ids than the model, or `max_tokens` exceeds its positions.
        """
        source = resolve(config.model, config.trust_remote_code)
        with loadable(source, "sequence classification model"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.path_or_id, use_fast=True, **source.options)
            with quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed("head", config.seed))
                network = _network(source, tokenizer, LABELS[target], config)
                if config.lora is not None:
                    add_adapters(network, config.lora)
        if not tokenizer.is_fast or tokenizer.pad_token_id is None:
            remedy = "choose a model with one"
            raise ConfigError("has no fast tokenizer with a padding token", f"model {source.name}", remedy)
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
        coded = self.tokenizer(
            list(texts), None if pairs is None else list(pairs), truncation=False, padding=False, verbose=False
        )
        return {name: coded[name] for name in ("input_ids", "token_type_ids") if name in coded}  # type: ignore[misc]

    def inputs(self, coded: Coded) -> PairInputs:
        """Inputs by name, none longer than `max_tokens`, as lists of tokens to put batches together from."""
        segments = "token_type_ids" in self.tokenizer.model_input_names
        types = ragged(coded["token_type_ids"]) if segments else None
        return PairInputs(ragged(coded["input_ids"]), types, int(self.tokenizer.pad_token_id))  # type: ignore[arg-type]

    def scorer(self, dtype: Precision = "auto") -> PairClassifier:
        """A copy for inference, its transformer in `dtype`, its head in float32, adapters merged into the weights."""
        adapted = is_adapted(self.network)
        network = cast(ClassifierScorer, merged(self.network)) if adapted else copy.deepcopy(self.network)
        clone = copy.copy(self)
        clone.network = network.eval().requires_grad_(False)
        clone.precision = resolve_precision(dtype, self.device)
        clone.network.cast(clone.precision)
        return clone

    def export(self, folder: str | Path, card: str = "") -> Path:
        """Write a Hugging Face folder with `card` as its README, and the files `beside`."""
        assert self.precision == "float32", "export the trained model, not a copy for inference"
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        network = merged(self.network) if is_adapted(self.network) else self.network
        network.encoder.save_pretrained(folder)
        save_tokenizer(self.tokenizer, self.max_tokens, folder)
        body = _CARD.format(body=card.strip(), max_tokens=self.max_tokens, labels=", ".join(self.labels))
        (folder / "README.md").write_text(body, encoding="utf-8")
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


_CARD = """---
library_name: transformers
pipeline_tag: text-classification
tags: [pairwise-judge, text-ranking]
---
# Pairwise judge

Reads a query and two documents and says which of them answers better. Distilled by anmi_ray from an ensemble of judges.
Its labels: {labels}. `judge.json` says how query and documents are put into its texts, at most {max_tokens} tokens
together. Ask it in both orders and average: `{{kind: encoder, form: pairwise, model: PATH_OF_THIS_FOLDER}}` in a panel
of anmi_ray does so. vLLM's classification runner loads the folder as well (`LLM(folder, runner="pooling").classify`):
give it token ids, and of a model with two segments where the second begins (`compressed_token_type_ids`).

{body}
"""
