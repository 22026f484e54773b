"""Score heads of encoders, and low-rank adapters.

A head is the architecture's own classification head, or a dense layer on the mean token; decoders: models/decoder.py.
Adapters (LoRA, arXiv:2106.09685) are peft's: W + (α/r) B A with A and B trained, W frozen.
Legend: N pairs, T tokens, d width of the transformer.
"""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from anmi_ray.config.learning import LoraConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.loading import ModelSource

FloatName = Literal["float32", "bfloat16", "float16"]
INITIAL_SPREAD = 0.02  # sd of new weights, BERT's own
_ADAPTER = "lora_"  # begins the names of adapters' parameters
_BINARY = (["label0", "label1"], ["0", "1"], ["no", "yes"], ["false", "true"])  # labels whose second means relevant


class Float32Linear(nn.Linear):
    """A linear layer that computes in float32 despite autocast or weights, so that rounding makes no ties."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(input.float(), self.weight.float(), bias)


class Scorer(nn.Module):
    """A transformer, `encoder`, with a head; forward returns scores float32[N]."""

    encoder: transformers.PreTrainedModel

    def head(self) -> list[nn.Module]:
        """Modules above the transformer: they stay float32 and have their own learning rate."""
        raise NotImplementedError

    def score_layer(self) -> nn.Module | None:
        """The module in whose input [N, d] the score is linear, or None."""
        layers = [module for head in self.head() for module in head.modules()]
        return next((m for m in reversed(layers) if isinstance(m, nn.Linear) and m.out_features == 1), None)

    def cast(self, precision: FloatName) -> None:
        """Convert the transformer's weights; the head stays float32."""
        if precision == "float32":
            return
        head = {id(parameter) for module in self.head() for parameter in module.parameters()}
        for parameter in self.parameters():
            if id(parameter) not in head:
                parameter.data = parameter.data.to(getattr(torch, precision))


class MeanScorer(Scorer):
    """score = w · GELU(W mean(h) + b) + c over the unmasked tokens' last hidden states h [N, T, d]."""

    def __init__(self, encoder: transformers.PreTrainedModel) -> None:
        super().__init__()
        size = int(encoder.config.hidden_size)
        self.encoder = encoder
        self.dense = Float32Linear(size, size)
        self.out = Float32Linear(size, 1)
        draw([self.dense, self.out])

    def forward(self, **inputs: Tensor) -> Tensor:
        hidden = self.encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (hidden.float() * mask).sum(1) / mask.sum(1)
        return self.out(nn.functional.gelu(self.dense(mean))).squeeze(-1)

    def head(self) -> list[nn.Module]:
        return [self.dense, self.out]


class ClassifierScorer(Scorer):
    """The one logit of a sequence classification model."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.encoder = model
        for head in self.head():
            for module in head.modules():
                if type(module) is nn.Linear:
                    module.__class__ = Float32Linear

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores float32[N], or logits float32[N, L] of a model with L > 1 labels."""
        return self.encoder(**inputs).logits.float().squeeze(-1)

    def head(self) -> list[nn.Module]:
        """Modules other than the base model, and the base model's pooler."""
        base = self.encoder.base_model
        heads = [module for module in self.encoder.children() if module is not base]
        pooler = getattr(base, "pooler", None)
        return [*heads, pooler] if isinstance(pooler, nn.Module) else heads


def load_classifier(source: ModelSource, **settings: Any) -> tuple[transformers.PreTrainedModel, dict[str, Any]]:
    """Load a sequence classification model, and what transformers says of missing and mismatched weights."""
    settings |= source.options | {"output_loading_info": True, "use_safetensors": True, "dtype": torch.float32}
    loaded: Any = transformers.AutoModelForSequenceClassification.from_pretrained(source.path_or_id, **settings)
    return loaded


def output_layer(network: Scorer) -> nn.Linear:
    """The linear layer whose outputs are the logits."""
    layers = [module for head in network.head() for module in head.modules() if isinstance(module, nn.Linear)]
    wanted = network.encoder.config.num_labels
    outputs = [layer for layer in layers if layer.out_features == wanted]
    assert outputs, "a sequence classification model has a layer with as many outputs as labels"
    return outputs[-1]


@torch.no_grad()
def fold_labels(network: ClassifierScorer, name: str) -> None:
    """Turn a classifier with the labels "not relevant" and "relevant" into a model of one logit, their difference.

    Raises ConfigError for other labels.
    """
    config: Any = network.encoder.config
    labels = [str(config.id2label[i]) for i in sorted(config.id2label)]
    if len(labels) == 1:
        return
    plain = [re.sub(r"[^a-z0-9]", "", label.lower()) for label in labels]
    negated = len(plain) == 2 and plain[0] != plain[1] and plain[0].endswith(plain[1])
    if not negated and plain not in _BINARY:
        raise ConfigError(
            f"has {len(labels)} labels ({', '.join(labels)}); expected one logit, or the labels no and yes",
            f"model {name}",
            "give a reranker; a model that reads both documents can be a judge with form: pairwise",
        )
    last = output_layer(network)
    for part in ("weight", "bias"):
        both = getattr(last, part)
        if both is not None:
            setattr(last, part, nn.Parameter(both[1:] - both[:1], requires_grad=both.requires_grad))
    last.out_features = 1
    config.num_labels = 1


def draw(modules: list[nn.Module]) -> None:
    """Draw new weights for every linear layer of `modules`."""
    for head in modules:
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=INITIAL_SPREAD)
                if layer.bias is not None:  # ModernBERT's head has none
                    nn.init.zeros_(layer.bias)


def start(network: Scorer, whole_head: bool = True) -> None:
    """Prepare a bi-encoder's weights for a cross-encoder: draw the untrained head, and copy segment 0 to the others."""
    if whole_head and isinstance(network, ClassifierScorer):
        draw(network.head())
    segments = getattr(getattr(network.encoder.base_model, "embeddings", None), "token_type_embeddings", None)
    if isinstance(segments, nn.Embedding):
        with torch.no_grad():
            segments.weight.copy_(segments.weight[0].expand_as(segments.weight))


def transformer_layers(encoder: transformers.PreTrainedModel) -> list[nn.Module]:
    """The transformer's layers, lowest first. Raises ConfigError if the architecture has no list of them."""
    wanted = encoder.config.num_hidden_layers
    for module in encoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise ConfigError(
        f"{type(encoder).__name__} has no list of {wanted} layers",
        "train.freeze_layers",
        "leave freeze_layers at 0, layer_decay at 1 and lora out for this architecture",
    )


def add_adapters(network: Scorer, config: LoraConfig) -> None:
    """Add adapters to linear layers of the transformer, and freeze all but them and the head.

    New weights come from torch's generator. Raises ConfigError if peft is missing or a target is not a layer.
    """
    inside = {id(module) for layer in transformer_layers(network.encoder) for module in layer.modules()}
    modules = network.encoder.named_modules()
    layers = [name for name, module in modules if isinstance(module, nn.Linear) and id(module) in inside]
    short = {name.rpartition(".")[2] for name in layers}
    if unknown := sorted(set(config.targets or ()) - short):
        raise ConfigError(
            f"the model has no linear layer {', '.join(unknown)} to adapt",
            "train.lora.targets",
            f"choose among {', '.join(sorted(short))}, or leave it out for all",
        )
    names = [name for name in layers if not config.targets or name.rpartition(".")[2] in config.targets]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import peft  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        remedy = f"{environment.install('lora')}, or leave lora out"
        raise ConfigError(f"peft cannot be imported: {error}", "train.lora", remedy) from error
    alpha: Any = config.alpha  # peft declares int and takes any number
    settings = peft.LoraConfig(r=config.rank, lora_alpha=alpha, target_modules=names, bias="none")
    peft.inject_adapter_in_model(settings, network.encoder)
    for layer in network.head():
        layer.requires_grad_(True)


def is_adapted(network: nn.Module) -> bool:
    """Return whether `network` has adapters."""
    return any(is_adapter(name) for name, _ in network.named_parameters())


def is_adapter(name: str) -> bool:
    """Return whether a parameter or module of this name belongs to an adapter."""
    return _ADAPTER in name


def plain(network: Scorer) -> Scorer:
    """The network, or a copy with its adapters added to the weights."""
    return merged(network) if is_adapted(network) else network


def merged(network: Scorer) -> Scorer:
    """Copy `network` with any adapters added to the weights; the copy is a plain model."""
    whole = copy.deepcopy(network)
    for name, module in list(whole.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            module.merge()  # type: ignore[operator]
            parent, _, last = name.rpartition(".")
            setattr(whole.get_submodule(parent), last, module.base_layer)
    for mark in ("peft_config", "_hf_peft_config_loaded"):
        if mark in vars(whole.encoder):
            delattr(whole.encoder, mark)
    return whole
