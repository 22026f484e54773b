"""Writes a bi-encoder as a sentence-transformers folder: Transformer, Pooling, Normalize; a plain AutoModel inside.

`sentence_transformers.SentenceTransformer(folder).encode` gives the same unit vectors: the length limit stands in the
tokenizer, prompts in the configuration. Adapters are added to the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anmi_ray.models.heads import Scorer
from anmi_ray.models.lora import is_adapted, merged
from anmi_ray.models.reranker_folder import save_tokenizer
from anmi_ray.models.texts import TextTokenizer

_MODULES = (
    ("", "sentence_transformers.base.modules.transformer.Transformer"),
    ("1_Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling"),
    ("2_Normalize", "sentence_transformers.base.modules.normalize.Normalize"),
)


def write(network: Scorer, texts: TextTokenizer, pooling: str, max_tokens: int, folder: Path, card: str = "") -> Path:
    """Write an embedder to `folder` and return it. Needs the float32 weights: a bfloat16 copy would not score alike."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = (merged(network) if is_adapted(network) else network).encoder
    encoder.save_pretrained(folder)
    save_tokenizer(texts.tokenizer, max_tokens, folder)
    for path, content in _configurations(texts, pooling, int(encoder.config.hidden_size)).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_CARD.format(body=card.strip(), max_tokens=max_tokens), encoding="utf-8")
    return folder


def _configurations(texts: TextTokenizer, pooling: str, size: int) -> dict[str, Any]:
    """JSON files by path."""
    prompts = {"query": texts.query_prompt, "document": texts.document_prompt}
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(_MODULES)
        ],
        "config_sentence_transformers.json": {
            "default_prompt_name": None,
            "model_type": "SentenceTransformer",
            "prompts": prompts,
            "similarity_fn_name": "cosine",
        },
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": {"embedding_dimension": size, "pooling_mode": pooling},
        "2_Normalize/config.json": {},
    }


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
