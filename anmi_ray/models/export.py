"""Write models as Hugging Face folders: safetensors, tokenizer, configuration and a README.

`CrossEncoder(folder)`, `SentenceTransformer(folder)` and `MultiVectorEncoder(folder)` of sentence-transformers give the
same scores. Its own `save` is not used: it names modules by paths that vLLM, TEI and older versions do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import save_file
from torch import nn

from anmi_ray.models.heads import MeanScorer, Scorer, plain
from anmi_ray.models.pairs import PairTokenizer
from anmi_ray.models.pooling import DENSE_FOLDER, SCORE_FOLDER, VectorPooling
from anmi_ray.models.texts import TextTokenizer

_TRANSFORMER = "sentence_bert_config.json"
_IDENTITY = "torch.nn.modules.linear.Identity"
_MODULES = "sentence_transformers.models."
_NORMALIZE = f"{_MODULES}Normalize"
_MASK = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
_TOKENS = {f"module_{end}_name": "token_embeddings" for end in ("input", "output")}
_POOLINGS: Mapping[VectorPooling, str] = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
_VECTORS = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"}
_TOKEN_VECTORS = {"model_type": "MultiVectorEncoder", "similarity_fn_name": "meanmaxsim"}
Module = tuple[str, str, Mapping[str, Any] | None]  # folder, class, settings
_README = """---
library_name: {library}
pipeline_tag: {task}
---
# {title}

Trained by anmi_ray from pairwise preferences instead of human labels. `anmi export` writes the full model card.
Inputs are cut to {max_tokens} tokens.

{body}
"""


def write_cross_encoder(scorer: Scorer, pairs: PairTokenizer, folder: Path, card: str = "") -> Path:
    """Write a cross-encoder that gives raw logits: the default activation for one label would be a sigmoid.

    A mean head becomes the modules Pooling, Dense, Dense. A decoder's prompt becomes a chat template of the roles query
    and document, which sentence-transformers and vLLM apply.
    """
    network = plain(scorer)
    network.encoder.config.sentence_transformers = {"activation_fn": _IDENTITY}
    tokenizer = pairs.tokenizer
    template = tokenizer.chat_template
    if pairs.prompt is not None:
        tokenizer.chat_template = pairs.prompt.chat_template()
    write_transformer(network.encoder, tokenizer, pairs.max_tokens, folder)
    tokenizer.chat_template = template
    if isinstance(network, MeanScorer):
        modules = [
            _pooling("mean", network.dense.in_features),
            _dense(DENSE_FOLDER, network.dense, "torch.nn.modules.activation.GELU", "sentence_embedding"),
            _dense(SCORE_FOLDER, network.out, _IDENTITY, "sentence_embedding", "scores"),
        ]
        settings = {"activation_fn": _IDENTITY, "default_prompt_name": None, "model_type": "CrossEncoder"}
        _write_modules(folder, modules, settings | {"prompts": {}}, _limit(pairs.max_tokens))
        _save_dense(network.dense, folder / DENSE_FOLDER)
        _save_dense(network.out, folder / SCORE_FOLDER)
    elif pairs.prompt is None:
        _write_json(folder / _TRANSFORMER, _limit(pairs.max_tokens))
    return write_readme(folder, "Cross-encoder", pairs.max_tokens, card)


def write_embedder(
    network: Scorer, texts: TextTokenizer, pooling: VectorPooling, folder: Path, card: str = "", tokens: bool = False
) -> Path:
    """Write a model of unit vectors: one per text, or one per token, whose pooling into one is in 1_Pooling."""
    pooled = _pooling(pooling, network.encoder.config.hidden_size)
    if not tokens:
        return _write_vectors(network, texts, [pooled, ("2_Normalize", _NORMALIZE, {})], _VECTORS, folder, card)
    modules = [("1_MultiVectorMask", _MASK, {"skiplist_words": []}), ("2_Normalize", _NORMALIZE, _TOKENS)]
    _write_json(folder / pooled[0] / "config.json", pooled[2])
    return _write_vectors(network, texts, modules, _TOKEN_VECTORS, folder, card)


def write_colbert(
    network: Scorer,
    layers: Sequence[nn.Linear],
    texts: TextTokenizer,
    saved: Mapping[str, Mapping[str, Any]],
    folder: Path,
    card: str = "",
) -> Path:
    """Write a ColBERT checkpoint with `layers` as its projection and its settings `saved`, by file."""
    modules = [_dense(f"{i}_Dense", layer, _IDENTITY, *_TOKENS.values()) for i, layer in enumerate(layers, start=1)]
    modules.append((f"{len(layers) + 1}_MultiVectorMask", _MASK, saved["mask"]))
    modules.append((f"{len(layers) + 2}_Normalize", _NORMALIZE, _TOKENS))
    _write_vectors(network, texts, modules, _TOKEN_VECTORS, folder, card, saved["transformer"])
    for (path, _, _), layer in zip(modules, layers, strict=False):
        _save_dense(layer, folder / path)
    return folder


def write_transformer(
    encoder: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    max_tokens: int,
    folder: Path,
) -> None:
    """Write weights and a fast tokenizer with the length limit in its files; the tokenizer is left as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder.save_pretrained(folder)
    before = tokenizer.model_max_length
    tokenizer.model_max_length = max_tokens
    tokenizer.backend_tokenizer.no_truncation()  # type: ignore[attr-defined]  # state of past calls, not a setting
    tokenizer.backend_tokenizer.no_padding()  # type: ignore[attr-defined]
    tokenizer.save_pretrained(folder)
    tokenizer.model_max_length = before


def write_readme(folder: Path, title: str, max_tokens: int, body: str, task: str = "text-ranking") -> Path:
    """Write the README of a model that no run has measured yet; returns `folder`."""
    library = "transformers" if task == "text-classification" else "sentence-transformers"
    text = _README.format(library=library, task=task, title=title, max_tokens=max_tokens, body=body.strip())
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder


def _write_vectors(
    network: Scorer,
    texts: TextTokenizer,
    modules: Sequence[Module],
    kind: Mapping[str, str],
    folder: Path,
    card: str,
    transformer: Mapping[str, Any] | None = None,
) -> Path:
    write_transformer(plain(network).encoder, texts.tokenizer, texts.max_tokens, folder)
    settings = {
        "default_prompt_name": None,
        "model_type": kind["model_type"],
        "prompts": {"query": texts.query_prompt, "document": texts.document_prompt},
        "similarity_fn_name": kind["similarity_fn_name"],
    }
    _write_modules(folder, modules, settings, _limit(texts.max_tokens) if transformer is None else transformer)
    title = "Bi-encoder" if kind is _VECTORS else "Late-interaction reranker"
    return write_readme(folder, title, texts.max_tokens, card, "sentence-similarity")


def _pooling(pooling: VectorPooling, size: int) -> Module:
    modes = {f"pooling_mode_{name}": mode == pooling for mode, name in _POOLINGS.items()}
    return "1_Pooling", f"{_MODULES}Pooling", {"word_embedding_dimension": size, **modes}


def _dense(path: str, layer: nn.Linear, activation: str, reads: str, gives: str = "sentence_embedding") -> Module:
    """A linear layer and its activation, from one named tensor to another."""
    settings = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": activation,
        "module_input_name": reads,
        "module_output_name": gives,
    }
    return path, f"{_MODULES}Dense", settings


def _limit(max_tokens: int) -> dict[str, Any]:
    return {"max_seq_length": max_tokens, "do_lower_case": False}


def _save_dense(layer: nn.Linear, folder: Path) -> None:
    state = {f"linear.{key}": value.detach().cpu().contiguous() for key, value in layer.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def _write_modules(
    folder: Path, modules: Sequence[Module], settings: Mapping[str, Any], transformer: Mapping[str, Any]
) -> None:
    """Describe a transformer followed by `modules`."""
    listed = enumerate([("", f"{_MODULES}Transformer", None), *modules])
    names = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind, _) in listed]
    _write_json(folder / "modules.json", names)
    _write_json(folder / "config_sentence_transformers.json", settings)
    _write_json(folder / _TRANSFORMER, transformer)
    for path, _, own in modules:
        _write_json(folder / path / "config.json", own)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
