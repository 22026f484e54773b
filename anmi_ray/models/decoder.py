"""Decoders as rerankers: the score is read at a pair's last token, the only one that has seen the whole prompt.

"last": transformers' own sequence classification class with one label, whose linear layer reads the last token.
"yes-no": a causal language model's logit of "yes" less that of "no" as the next token, as Qwen3-Reranker scores.
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
    """The one logit of a decoder's classification model, computed at the last token alone."""

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N]; tokens may be padded on either side."""
        hidden = self.encoder.base_model(**inputs, use_cache=False).last_hidden_state
        score: nn.Module = self.encoder.score  # type: ignore[assignment]
        return score(last_token(hidden, inputs["attention_mask"])).float().squeeze(-1)


class YesNoScorer(Scorer):
    """w_yes · h − w_no · h, of the output embeddings w and the last token's hidden state h.

    Two rows of the output embeddings are read, at one position: the logits of the vocabulary are never made.
    `no_yes` are the two tokens' ids.
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
        """None: the output embeddings are the language model's, and often its input embeddings too."""
        return []

    def score_layer(self) -> nn.Module | None:
        """The readout, unless it caps its logits: then the score is not linear in h."""
        return None if self.readout.cap else self.readout

    def cast(self, precision: FloatName) -> None:
        """Give the transformer's weights another precision; the two rows that score stay float32."""
        if precision != "float32":
            with torch.no_grad():
                weight, bias = self._rows()
                self._exact = weight.clone(), None if bias is None else bias.clone()
        super().cast(precision)


class _Readout(nn.Module):
    """The difference of two logits, in float32; both run through c · tanh(x / c) where `cap` gives c (Gemma 2)."""

    def __init__(self, cap: float | None) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, hidden_Nd: Tensor, weight_2d: Tensor, bias_2: Tensor | None) -> Tensor:
        """Scores float32[N]."""
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
    """The hidden state [N, d] of each pair's last token that is not padding, on whichever side it is padded."""
    position = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), position]


def is_decoder(config: Any) -> bool:
    """Whether an architecture is made to write the next token, and not (also) to fill gaps as encoders are."""
    return (
        type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        and type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING
    )


def choose_pooling(where: str, options: dict[str, Any], asked: Pooling | None, trained_head: bool) -> Pooling:
    """Return the kind of score: as requested, else as the model in `where` was made. Raises ConfigError."""
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
    """Whether a local folder holds a causal language model with a prompt for a query and a document."""
    config = Path(folder) / "config.json"
    template = Path(folder) / "chat_template.jinja"
    if not template.is_file() or not config.is_file():
        return False
    architectures = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""]
    return architectures[0].endswith("ForCausalLM") and has_roles(template.read_text(encoding="utf-8"))


def check_logits(model: transformers.PreTrainedModel) -> None:
    """Raise ConfigError where logits are more than the output embeddings times h (or their cap)."""
    config = model.config.get_text_config()
    scaled = [name for name in _SCALED if getattr(config, name, None) not in (None, 1.0)]
    if scaled or model.get_output_embeddings() is None:
        what = f"scales its logits ({', '.join(scaled)})" if scaled else "has no output embeddings"
        raise ConfigError(f"{config.model_type} {what}", "train.pooling: yes-no", "choose pooling: last")


def no_yes(tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, int]:
    """The ids of "no" and "yes"; ConfigError where one of them is not a single token."""
    ids = [tokenizer.convert_tokens_to_ids(word) for word in (NO, YES)]
    if any(token_id is None or token_id == tokenizer.unk_token_id for token_id in ids):
        raise ConfigError(
            f"the tokenizer has no single tokens {NO!r} and {YES!r}", "train.pooling: yes-no", "choose pooling: last"
        )
    return ids[0], ids[1]  # type: ignore[return-value]


def pad_by_end(tokenizer: transformers.PreTrainedTokenizerBase, model: transformers.PreTrainedModel) -> None:
    """Use the end-of-text token for padding if there is no padding token, also in the model's config."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
