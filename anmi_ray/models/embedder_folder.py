"""Writes a bi-encoder as a sentence-transformers folder: Transformer, Pooling, Normalize; a plain AutoModel inside.

`sentence_transformers.SentenceTransformer(folder).encode` gives the same unit vectors: the length limit stands in the
tokenizer, prompts in the configuration. Adapters are added to the weights.
"""

from __future__ import annotations

from pathlib import Path

from anmi_ray.models.heads import Scorer
from anmi_ray.models.lora import is_adapted, merged
from anmi_ray.models.reranker_folder import save_tokenizer, write_json, write_modules
from anmi_ray.models.texts import TextTokenizer


def write(network: Scorer, texts: TextTokenizer, pooling: str, max_tokens: int, folder: Path, card: str = "") -> Path:
    """Write an embedder to `folder` and return it. Needs the float32 weights: a bfloat16 copy would not score alike."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = (merged(network) if is_adapted(network) else network).encoder
    encoder.save_pretrained(folder)
    save_tokenizer(texts.tokenizer, max_tokens, folder)
    settings = {
        "default_prompt_name": None,
        "model_type": "SentenceTransformer",
        "prompts": {"query": texts.query_prompt, "document": texts.document_prompt},
        "similarity_fn_name": "cosine",
    }
    normalize = ("2_Normalize", "sentence_transformers.base.modules.normalize.Normalize")
    write_modules(folder, pooling, int(encoder.config.hidden_size), [normalize], settings)
    write_json(folder / "2_Normalize" / "config.json", {})
    (folder / "README.md").write_text(_CARD.format(body=card.strip(), max_tokens=max_tokens), encoding="utf-8")
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
