"""Decoders as rerankers: the score is read at the last token, the only one that sees the whole prompt.

"last": transformers' sequence classification class with one label.
"yes-no": a causal language model's logit of "yes" minus that of "no" as the next token, as Qwen3-Reranker scores.
Legend: N pairs, T tokens, d width of the transformer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from anmi_ray.config.train import Pooling
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.card import NO, YES
from anmi_ray.models.heads import ClassifierScorer, FloatName, Scorer
from anmi_ray.models.prompts import has_roles

DECODER_POOLINGS = ("last", "yes-no")
_SCALED = ("logit_scale", "logits_scaling")  # factors on the logits: Cohere's, Granite's


class LastTokenScorer(ClassifierScorer):
    """The logit of a decoder's classification model at the last token."""

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N]; tokens may be padded on either side."""
        hidden = self.encoder.base_model(**inputs, use_cache=False).last_hidden_state
        score: nn.Module = self.encoder.score  # type: ignore[assignment]
        return score(last_token(hidden, inputs["attention_mask"])).float().squeeze(-1)


class YesNoScorer(Scorer):
    """w_yes · h − w_no · h, with output embeddings w and the last token's hidden state h.

    no_yes: ids of the two tokens; only their rows of w are used.
    """

    def __init__(self, model: transformers.PreTrainedModel, no_yes: tuple[int, int]) -> None:
        super().__init__()
        self.encoder = model
        self.no_yes = no_yes
        self.readout = _Readout(getattr(model.config.get_text_config(), "final_logit_softcapping", None))
        self._exact: tuple[Tensor, Tensor | None] | None = None

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N]; tokens may be padded on either side."""
        hidden = self.encoder.base_model(**inputs, use_cache=False).last_hidden_state
        return self.readout(last_token(hidden, inputs["attention_mask"]), *(self._exact or self._rows()))

    def _rows(self) -> tuple[Tensor, Tensor | None]:
        out: Any = self.encoder.get_output_embeddings()
        rows = list(self.no_yes)
        return out.weight[rows], None if out.bias is None else out.bias[rows]

    def head(self) -> list[nn.Module]:
        return []  # the output embeddings are often the input embeddings too

    def score_layer(self) -> nn.Module | None:
        # with a cap the score is not linear in h
        return None if self.readout.cap else self.readout

    def cast(self, precision: FloatName) -> None:
        """Convert the transformer's weights; the two rows that score stay float32."""
        if precision != "float32":
            with torch.no_grad():
                weight, bias = self._rows()
                self._exact = weight.clone(), None if bias is None else bias.clone()
        super().cast(precision)


class _Readout(nn.Module):
    """The difference of two logits in float32; `cap` c (Gemma 2) makes each c · tanh(x / c)."""

    def __init__(self, cap: float | None) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, hidden_Nd: Tensor, weight_2d: Tensor, bias_2: Tensor | None) -> Tensor:
        with torch.autocast(hidden_Nd.device.type, enabled=False):
            hidden = hidden_Nd.float()
            weight = weight_2d.float()
            if not self.cap:
                shift = 0.0 if bias_2 is None else (bias_2[1] - bias_2[0]).float()
                return hidden @ (weight[1] - weight[0]) + shift
            logits = nn.functional.linear(hidden, weight, None if bias_2 is None else bias_2.float())
            logits = self.cap * torch.tanh(logits / self.cap)
            return logits[:, 1] - logits[:, 0]


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Hidden state [N, d] of each pair's last token that is not padding, which may be on either side."""
    position = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), position]


def is_decoder(config: Any) -> bool:
    """Return whether an architecture has a causal language model and no masked one."""
    return (
        type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        and type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING
    )


def choose_pooling(where: str, options: dict[str, Any], asked: Pooling | None, trained_head: bool) -> Pooling:
    """Return the pooling: as requested, else by the model. Raises ConfigError if the architecture lacks it."""
    config = transformers.AutoConfig.from_pretrained(where, **options)
    decoder = is_decoder(config)
    if asked is None:
        if trained_head or not decoder:
            return "mean" if trained_head else "cls"
        return "yes-no" if str((config.architectures or [""])[0]).endswith("ForCausalLM") else "last"
    if decoder and asked == "cls":
        raise ConfigError(
            f"cls reads the first token, which in a decoder ({config.model_type}) has seen no other",
            "train.pooling",
            "choose last (a new scoring layer at the last token) or yes-no (the language model's own logits)",
        )
    if not decoder and asked in DECODER_POOLINGS:
        raise ConfigError(
            f"{asked} is for decoders, and {config.model_type} is an encoder", "train.pooling", "choose cls or mean"
        )
    return asked


def says_yes_or_no(folder: str) -> bool:
    """Return whether a folder holds a causal language model with a prompt for a query and a document."""
    config = Path(folder) / "config.json"
    template = Path(folder) / "chat_template.jinja"
    if not template.is_file() or not config.is_file():
        return False
    architectures = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""]
    return architectures[0].endswith("ForCausalLM") and has_roles(template.read_text(encoding="utf-8"))


def check_logits(model: transformers.PreTrainedModel) -> None:
    """Raise ConfigError if logits are not the output embeddings times h, apart from a cap."""
    config = model.config.get_text_config()
    scaled = [name for name in _SCALED if getattr(config, name, None) not in (None, 1.0)]
    if scaled or model.get_output_embeddings() is None:
        what = f"scales its logits ({', '.join(scaled)})" if scaled else "has no output embeddings"
        raise ConfigError(f"{config.model_type} {what}", "train.pooling: yes-no", "choose pooling: last")


def no_yes(tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, int]:
    """Ids of "no" and "yes". Raises ConfigError if one of them is not a single token."""
    ids = [tokenizer.convert_tokens_to_ids(word) for word in (NO, YES)]
    if any(token_id is None or token_id == tokenizer.unk_token_id for token_id in ids):
        raise ConfigError(
            f"the tokenizer has no single tokens {NO!r} and {YES!r}", "train.pooling: yes-no", "choose pooling: last"
        )
    return ids[0], ids[1]  # type: ignore[return-value]


def pad_by_end(tokenizer: transformers.PreTrainedTokenizerBase, model: transformers.PreTrainedModel) -> None:
    """Pad with the end-of-text token if the tokenizer has no padding token; also set it in the model's config."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
