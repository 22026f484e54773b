"""Writes a reranker as a Hugging Face folder: safetensors, tokenizer, config, and a model card.

`sentence_transformers.CrossEncoder(folder).predict` gives the same raw logits: the activation is saved as Identity
(its default for one label is a sigmoid) and the length limit in the tokenizer. A mean head is written as
sentence-transformers modules (Transformer, Pooling, Dense, Dense). A decoder's folder has its prompt as a chat template
of the roles query and document, which sentence-transformers and vLLM fill in; its config names the padding token.
Adapters are added to the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import save_file
from torch import nn

from anmi_ray.models.heads import MeanScorer, Scorer
from anmi_ray.models.lora import is_adapted, merged
from anmi_ray.models.pairs import PairTokenizer
from anmi_ray.models.pooling import SCORE_FOLDER, VectorPooling

DENSE_FOLDER = "2_Dense"
TRANSFORMER = "sentence_bert_config.json"
IDENTITY = "torch.nn.modules.linear.Identity"
MODULES = "sentence_transformers.models."  # the names that every version of it, vLLM and TEI know
_POOLINGS: Mapping[VectorPooling, str] = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
Module = tuple[str, str, Mapping[str, Any] | None]  # its folder, its class, its settings


def write(scorer: Scorer, pairs: PairTokenizer, max_tokens: int, folder: Path, card: str = "") -> Path:
    """Write a reranker to `folder` and return it. Needs the float32 weights: a bfloat16 copy would not score alike."""
    folder.mkdir(parents=True, exist_ok=True)
    network = merged(scorer) if is_adapted(scorer) else scorer
    encoder = network.encoder
    encoder.config.sentence_transformers = {"activation_fn": IDENTITY}
    encoder.save_pretrained(folder)
    tokenizer = pairs.tokenizer
    before = tokenizer.chat_template
    if pairs.prompt is not None:
        tokenizer.chat_template = pairs.prompt.chat_template()
    save_tokenizer(tokenizer, max_tokens, folder)
    tokenizer.chat_template = before
    if isinstance(network, MeanScorer):
        _write_mean_head(network, max_tokens, folder)
    elif pairs.prompt is None:
        write_json(folder / TRANSFORMER, transformer_settings(max_tokens))
    (folder / "README.md").write_text(_CARD.format(body=card.strip(), max_tokens=max_tokens), encoding="utf-8")
    return folder


def save_tokenizer(tokenizer: transformers.PreTrainedTokenizerBase, max_tokens: int, folder: Path) -> None:
    """Write a fast tokenizer that says how long the model's inputs are; it is left as it was."""
    before = tokenizer.model_max_length
    tokenizer.model_max_length = max_tokens
    tokenizer.backend_tokenizer.no_truncation()  # type: ignore[attr-defined]  # a state of past calls, not a setting
    tokenizer.backend_tokenizer.no_padding()  # type: ignore[attr-defined]
    tokenizer.save_pretrained(folder)
    tokenizer.model_max_length = before


def pooling_module(pooling: VectorPooling, size: int) -> Module:
    """What makes one vector of the tokens', of `size` dimensions; in the keys that vLLM and TEI read too."""
    modes = {f"pooling_mode_{name}": mode == pooling for mode, name in _POOLINGS.items()}
    return "1_Pooling", f"{MODULES}Pooling", {"word_embedding_dimension": size, **modes}


def transformer_settings(max_tokens: int) -> dict[str, Any]:
    """Of a transformer that gives hidden states: how long its inputs are, in the keys that vLLM and TEI read too."""
    return {"max_seq_length": max_tokens, "do_lower_case": False}


def dense_module(path: str, layer: nn.Linear, activation: str, reads: str, gives: str) -> Module:
    """A linear layer and what comes after it, from one named tensor to another."""
    own = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": activation,
        "module_input_name": reads,
        "module_output_name": gives,
    }
    return path, f"{MODULES}Dense", own


def save_dense(layer: nn.Linear, folder: Path) -> None:
    """Write the weights of a `dense_module`."""
    state = {f"linear.{key}": value.detach().cpu().contiguous() for key, value in layer.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def write_modules(
    folder: Path, modules: Sequence[Module], settings: Mapping[str, Any], transformer: Mapping[str, Any]
) -> None:
    """Say that a folder holds the transformer and then `modules`; and `settings`, and the transformer's own."""
    listed = enumerate([("", f"{MODULES}Transformer", None), *modules])
    write_json(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind, _) in listed],
    )
    write_json(folder / "config_sentence_transformers.json", settings)
    write_json(folder / TRANSFORMER, transformer)
    for path, _, own in modules:
        write_json(folder / path / "config.json", own)


def _write_mean_head(network: MeanScorer, max_tokens: int, folder: Path) -> None:
    settings = {"activation_fn": IDENTITY, "default_prompt_name": None, "model_type": "CrossEncoder", "prompts": {}}
    layers = (
        (DENSE_FOLDER, network.dense, "torch.nn.modules.activation.GELU", "sentence_embedding"),
        (SCORE_FOLDER, network.out, IDENTITY, "scores"),
    )
    modules = [pooling_module("mean", network.dense.in_features)]
    for name, layer, activation, output in layers:
        modules.append(dense_module(name, layer, activation, "sentence_embedding", output))
    write_modules(folder, modules, settings, transformer_settings(max_tokens))
    for name, layer, *_ in layers:
        save_dense(layer, folder / name)


def write_json(path: Path, content: Any) -> None:
    """Write a file of a Hugging Face folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_CARD = """---
library_name: sentence-transformers
pipeline_tag: text-ranking
tags: [cross-encoder, reranker, text-ranking]
---
# Reranker

A cross-encoder that scores a query and a document (title and text on two lines) with one raw logit; higher is more
relevant. Trained by anmi_ray from pairwise preferences instead of human labels.

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("PATH_OF_THIS_FOLDER")
scores = model.predict([("a query", "Title\\nText of a document")])
```

A pair is cut to {max_tokens} tokens.

{body}
"""
