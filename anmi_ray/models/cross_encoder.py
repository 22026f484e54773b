"""The cross-encoder: a transformer that reads query and document together and gives one score, a raw logit.

The score is computed in models/heads.py for encoders and in models/decoder.py for decoders. Legend: N pairs, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.train import Pooling
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.decoder import (
    LastTokenScorer,
    YesNoScorer,
    check_logits,
    choose_pooling,
    no_yes,
    pad_by_end,
)
from anmi_ray.models.export import write_cross_encoder
from anmi_ray.models.heads import (
    ClassifierScorer,
    MeanScorer,
    Scorer,
    add_adapters,
    fold_labels,
    load_classifier,
    merged,
    start,
)
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable, resolve
from anmi_ray.models.pairs import Batch, PairTokenizer, TokenPairs, scoring_batches
from anmi_ray.models.pooling import DENSE_FOLDER, SCORE_FOLDER, draws_head, has_mean_head
from anmi_ray.models.prompts import prompt_for
from anmi_ray.models.reranker import SCORE_TOKENS, Precision, Reranker, torch_settings

_AFTER_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")  # their positions start after its index


class CrossEncoder(Reranker):
    """A reranker whose score is a raw logit of the pair."""

    pairs: PairTokenizer  # pyright: ignore[reportIncompatibleVariableOverride]
    drawn_head = False  # whether the weights lacked it

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
        prompt: str | None = None,
        lora: LoraConfig | None = None,
    ) -> CrossEncoder:
        """Load a reranker, or start one from a bi-encoder with a head drawn from `seed`.

        pooling: None: as the folder was exported, else yes-no for a causal language model, last for another decoder,
            cls for an encoder.
        max_tokens: None: the tokenizer's limit, which for an exported model is the one it was trained with.
        dtype: other than float32 for scoring only; the head stays float32.
        threads: of `score` on a CPU; None: the process's.
        prompt: what a decoder reads (models/prompts.py).
        lora: adapters to add, drawn from `seed`.
        Raises ConfigError if the model cannot be loaded, tokenizer and weights do not match, its classifier has labels
        other than no and yes, `max_tokens` exceeds the positions, or the architecture lacks `pooling`.
        """
        source = resolve(model, trust_remote_code) if isinstance(model, str) else model
        where = source.path_or_id
        with loadable(source, "cross-encoder"):
            trained_head = trained_mean_head(source)
            pooling = choose_pooling(where, source.options, pooling, trained_head is not None)
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, use_fast=True, **source.options)
            with seeded(derived_seed("head", seed)):
                network, new = _network(source, pooling, tokenizer)
                if new and not trained_head:
                    start(network)
                if lora is not None:
                    add_adapters(network, lora)
        if isinstance(network, MeanScorer) and trained_head:
            network.dense.load_state_dict(trained_head[0])
            network.out.load_state_dict(trained_head[1])
        check_vocabulary(tokenizer, embedding_rows(network.encoder), source.name)
        asked = prompt_for(tokenizer, prompt) if isinstance(network, LastTokenScorer | YesNoScorer) else None
        limit = token_limit(network.encoder, int(tokenizer.model_max_length), max_tokens)
        pairs = PairTokenizer(tokenizer, limit, asked)
        loaded = cls(network.to(device).eval(), pairs, source.name, threads)
        loaded.drawn_head = new and not (trained_head and isinstance(network, MeanScorer))
        loaded._cast(dtype)
        return loaded

    @property
    def pooling(self) -> Pooling:
        """How the score is computed from the last states."""
        if isinstance(self.network, MeanScorer):
            return "mean"
        if isinstance(self.network, LastTokenScorer):
            return "last"
        return "yes-no" if isinstance(self.network, YesNoScorer) else "cls"

    def _scoring_network(self) -> Scorer:
        return merged(self.network)

    def score_tokens(self, tokens: TokenPairs, token_budget: int = SCORE_TOKENS) -> NDArray[np.float32]:
        """Raw logits float32[N]."""
        lengths = self.pairs.pair_lengths(tokens)

        def score(budget: int) -> NDArray[np.float32]:
            batches = scoring_batches(lengths, budget, self.device)
            inputs = (tensors(self.pairs.batch(tokens.take(rows)), self.device) for rows in batches)
            return in_order(batches, [self.network(**batch) for batch in inputs])

        with torch_settings(self.threads), torch.inference_mode():
            return self._as_memory_allows(score, token_budget)

    def _write(self, folder: Path, card: str) -> Path:
        return write_cross_encoder(self.network, self.pairs, folder, card)


def in_order(rows: Sequence[NDArray[np.int64]], scores: Sequence[Tensor]) -> NDArray[np.float32]:
    """Scores float32[N] of the rows 0 to N - 1 from those of batches; fetched at once, so that a GPU need not wait."""
    found = np.zeros(sum(map(len, rows)), dtype=np.float32)
    if len(found):
        found[np.concatenate(rows)] = torch.cat([*scores]).cpu().numpy()
    return found


def tensors(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch as the model's named inputs."""
    inputs = {"input_ids": torch.from_numpy(batch.ids), "attention_mask": torch.from_numpy(batch.mask)}
    if batch.type_ids is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.type_ids)
    return {name: value.to(device, non_blocking=True) for name, value in inputs.items()}


def _network(
    source: ModelSource, pooling: Pooling, tokenizer: transformers.PreTrainedTokenizerBase
) -> tuple[Scorer, bool]:
    """Return the network, and whether the weights lack its head."""
    where = source.path_or_id
    options = source.options | {"use_safetensors": True, "dtype": torch.float32}
    if pooling in ("cls", "last"):
        new_head = {"num_labels": 1} if draws_head(source, "cross-encoder", pooling) else {}
        model, loading = load_classifier(source, **new_head)
        if pooling == "last":
            pad_by_end(tokenizer, model)
        network = LastTokenScorer(model) if pooling == "last" else ClassifierScorer(model)
        fold_labels(network, source.name)
        return network, bool(loading["missing_keys"])
    if pooling == "yes-no":
        model = transformers.AutoModelForCausalLM.from_pretrained(where, **options)
        check_logits(model)
        pad_by_end(tokenizer, model)
        return YesNoScorer(model, no_yes(tokenizer)), False
    encoder = transformers.AutoModel.from_pretrained(where, **options)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # reads [CLS]: unused here
    return MeanScorer(encoder), True


def positions(encoder: nn.Module) -> int | None:
    """Number of the model's positions, None if unbounded."""
    config = cast("transformers.PreTrainedModel", encoder).config
    offset = (config.pad_token_id or 0) + 1 if config.model_type in _AFTER_PADDING else 0
    offset = 2 if config.model_type == "mpnet" else offset
    held = getattr(config, "max_position_embeddings", None)
    return held - offset if held else None


def token_limit(encoder: nn.Module, tokenizer_limit: int, asked: int | None) -> int:
    """Number of tokens that inputs are cut to: `asked`, else what positions and tokenizer allow."""
    held = positions(encoder)
    if asked and held and asked > held:
        raise ConfigError(f"is {asked}, and the model has {held} positions", "max_tokens", f"set it to at most {held}")
    return asked or min(held or tokenizer_limit, tokenizer_limit)


def trained_mean_head(source: ModelSource) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """Weights (dense, out) of the mean head in an exported folder."""
    if not has_mean_head(source):
        return None
    where = Path(source.path_or_id)
    states = [load_file(where / folder / "model.safetensors") for folder in (DENSE_FOLDER, SCORE_FOLDER)]
    dense, out = ({name.removeprefix("linear."): value for name, value in state.items()} for state in states)
    return dense, out


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw missing weights from `seed`, without transformers' progress bar and its report of missing weights."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()
