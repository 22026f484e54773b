"""Writes an encoder as a sentence-transformers folder with a plain AutoModel inside, for vectors of texts or of tokens.

One a text (Transformer, Pooling, Normalize): `sentence_transformers.SentenceTransformer(folder).encode` gives the same
unit vectors. One a token (Transformer, MultiVectorMask, Normalize): `MultiVectorEncoder(folder)` gives the same scores.
The length limit is in the tokenizer's files, prompts in the configuration. Adapters are added to the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from anmi_ray.models.colbert import ColbertTokenizer
from anmi_ray.models.heads import Scorer
from anmi_ray.models.lora import is_adapted, merged
from anmi_ray.models.pooling import VectorPooling
from anmi_ray.models.reranker_folder import (
    IDENTITY,
    MODULES,
    Module,
    dense_module,
    pooling_module,
    save_dense,
    save_tokenizer,
    transformer_settings,
    write_json,
    write_modules,
)
from anmi_ray.models.texts import TextTokenizer

_NORMALIZE = f"{MODULES}Normalize"
_MASK = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
_TOKENS = ("MultiVectorEncoder", "meanmaxsim")
_OF_TOKENS = {f"module_{end}_name": "token_embeddings" for end in ("input", "output")}


def write(
    network: Scorer, texts: TextTokenizer, pooling: VectorPooling, max_tokens: int, folder: Path, card: str = ""
) -> Path:
    """Write an embedder to `folder` and return it. Needs the float32 weights: a bfloat16 copy would not score alike."""
    modules = [pooling_module(pooling, network.encoder.config.hidden_size), ("2_Normalize", _NORMALIZE, {})]
    return _write(network, texts, max_tokens, folder, modules, _CARD, card, ("SentenceTransformer", "cosine"))


def write_token_vectors(
    network: Scorer, texts: TextTokenizer, pooling: VectorPooling, max_tokens: int, folder: Path, card: str = ""
) -> Path:
    """Write a model of token vectors; its pooling is described in 1_Pooling."""
    modules = [("1_MultiVectorMask", _MASK, {"skiplist_words": []}), ("2_Normalize", _NORMALIZE, _OF_TOKENS)]
    template = _TOKENS_CARD.replace("{more}", _POOLED)
    _write(network, texts, max_tokens, folder, modules, template, card, _TOKENS)
    path, _, own = pooling_module(pooling, network.encoder.config.hidden_size)
    write_json(folder / path / "config.json", own)
    return folder


def write_colbert(
    network: Scorer, layers: Sequence[nn.Linear], texts: ColbertTokenizer, folder: Path, card: str = ""
) -> Path:
    """`write_token_vectors` for a ColBERT checkpoint with `layers` as its projection: its settings are as they were."""
    dense = [
        dense_module(f"{i}_Dense", layer, IDENTITY, *_OF_TOKENS.values()) for i, layer in enumerate(layers, start=1)
    ]
    modules = [
        *dense,
        (f"{len(dense) + 1}_MultiVectorMask", _MASK, texts.saved["mask"]),
        (f"{len(dense) + 2}_Normalize", _NORMALIZE, _OF_TOKENS),
    ]
    template, transformer = _TOKENS_CARD.replace("{more}", _FORM), texts.saved["transformer"]
    _write(network, texts, texts.max_tokens, folder, modules, template, card, _TOKENS, transformer)
    for (path, _, _), layer in zip(dense, layers, strict=True):
        save_dense(layer, folder / path)
    return folder


def _write(
    network: Scorer,
    texts: TextTokenizer,
    max_tokens: int,
    folder: Path,
    modules: Sequence[Module],
    template: str,
    card: str,
    kind: tuple[str, str],
    transformer: Mapping[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    encoder = (merged(network) if is_adapted(network) else network).encoder
    encoder.save_pretrained(folder)
    save_tokenizer(texts.tokenizer, max_tokens, folder)
    model, similarity = kind
    settings = {
        "default_prompt_name": None,
        "model_type": model,
        "prompts": {"query": texts.query_prompt, "document": texts.document_prompt},
        "similarity_fn_name": similarity,
    }
    write_modules(folder, modules, settings, transformer_settings(max_tokens) if transformer is None else transformer)
    (folder / "README.md").write_text(template.format(body=card.strip(), max_tokens=max_tokens), encoding="utf-8")
    return folder


_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [bi-encoder, sentence-similarity, feature-extraction, sentence-transformers]
---
# Bi-encoder

Query and document (title and text on two lines) become unit vectors, whose cosine says how relevant the document is.
Trained by anmi_ray from pairwise preferences instead of human labels.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OF_THIS_FOLDER")
query, document = model.encode_query(["a query"]), model.encode_document(["Title\\nText of a document"])
scores = model.similarity(query, document)
```

A text is cut to {max_tokens} tokens.

{body}
"""

_TOKENS_CARD = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [late-interaction, multi-vector, colbert, reranker, sentence-transformers]
---
# Late-interaction reranker

Every token of a query and of a document (title and text on two lines) has a unit vector; the score is the mean over the
query's tokens of the best cosine with a token of the document. Trained by anmi_ray from pairwise preferences instead of
human labels.

```python
from sentence_transformers import MultiVectorEncoder

model = MultiVectorEncoder("PATH_OF_THIS_FOLDER")
query, document = model.encode_query(["a query"]), model.encode_document(["Title\\nText of a document"])
scores = model.similarity(query, document)
```

{more}

{body}
"""

_POOLED = """A text is cut to {max_tokens} tokens. The same weights give one vector a text:
`SentenceTransformer(modules=[Transformer("PATH_OF_THIS_FOLDER"), Pooling.load("PATH_OF_THIS_FOLDER/1_Pooling")])`,
with the prompts of `config_sentence_transformers.json` before the texts."""

_FORM = """A document is cut to {max_tokens} tokens. Queries are cut and filled up, texts marked and words
left out of the score as by the ColBERT checkpoint that training started from."""
