"""The bi-encoder as a reranker: the score is the cosine of the unit vectors of query and document.

It reads and exports sentence-transformers folders (Transformer, Pooling, Normalize), which also serve dense retrieval.
Legend: N pairs, X texts, d dimensions, T tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from anmi_ray.config.learning import LoraConfig
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.cross_encoder import seeded, tensors, token_limit
from anmi_ray.models.export import write_embedder
from anmi_ray.models.heads import Scorer, add_adapters
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable, resolve
from anmi_ray.models.pairs import Batch, Ragged, TokenPairs, scoring_batches
from anmi_ray.models.pooling import TextPooling, VectorPooling, read_pooling
from anmi_ray.models.reranker import SCORE_TOKENS, FloatName, Precision, Reranker, torch_settings
from anmi_ray.models.texts import TextTokenizer

_PRODUCTS = 65_536  # pairs multiplied at once: bounds the gathered vectors


class TextEncoder(Scorer):
    """Unit vectors of texts from the last hidden states [X, T, d]: of the first, the last, or the mean token."""

    def __init__(self, encoder: transformers.PreTrainedModel, pooling: VectorPooling | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling: VectorPooling | None = pooling
        if (unused := getattr(encoder, "pooler", None)) is not None:
            unused.requires_grad_(False)  # exported as it was; no vector reads it

    def forward(self, **inputs: Tensor) -> Tensor:
        """Vectors float32[X, d] of length 1."""
        return self.pooled(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"])

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Vectors float32[X, d] of length 1 from hidden states [X, T, d] and where there is a token, [X, T]."""
        if self.pooling == "cls":
            vector = hidden[:, 0].float()
        elif self.pooling == "lasttoken":
            last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
            vector = hidden.gather(1, last).squeeze(1).float()  # an index of rows would be traced as a constant
        else:
            vector = (hidden.float() * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(vector, dim=-1)

    def head(self) -> list[nn.Module]:
        return []

    def cast(self, precision: FloatName) -> None:
        self.to(getattr(torch, precision))


class BiEncoder(Reranker):
    """A reranker whose score is the cosine of two texts, each of which is encoded once."""

    network: TextEncoder  # pyright: ignore[reportIncompatibleVariableOverride]
    pairs: TextTokenizer  # pyright: ignore[reportIncompatibleVariableOverride]
    kind: ClassVar[str] = "bi-encoder"
    _network: ClassVar[type[TextEncoder]] = TextEncoder

    @classmethod
    def load(
        cls,
        model: str | ModelSource,
        *,
        max_tokens: int | None = None,
        device: str = "cpu",
        trust_remote_code: bool = False,
        dtype: Precision = "float32",
        threads: int | None = None,
        seed: int = 0,
        lora: LoraConfig | None = None,
    ) -> Self:
        """Load a model with its folder's pooling, prompts and length limit; default: mean token, no prompt.

        Arguments as `CrossEncoder.load`. Raises ConfigError if the model cannot be loaded, has modules that are not
        supported, tokenizer and weights do not match, or `max_tokens` exceeds the positions.
        """
        source = resolve(model, trust_remote_code) if isinstance(model, str) else model
        network, pairs = cls._parts(source, max_tokens)
        if lora is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed("head", seed))
                add_adapters(network, lora)
        loaded = cls(network.to(device).eval(), pairs, source.name, threads)
        loaded._cast(dtype)
        return loaded

    @classmethod
    def _parts(cls, source: ModelSource, max_tokens: int | None) -> tuple[TextEncoder, TextTokenizer]:
        """Load the network and its tokenizer."""
        return cls._encoder(source, read_pooling(source), max_tokens)

    @classmethod
    def _encoder(
        cls, source: ModelSource, folder: TextPooling, max_tokens: int | None
    ) -> tuple[TextEncoder, TextTokenizer]:
        with loadable(source, cls.kind):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.path_or_id, use_fast=True, **source.options)
            with seeded(0):  # a pooler that the weights lack is drawn, though nothing reads it
                encoder = transformers.AutoModel.from_pretrained(
                    source.path_or_id, use_safetensors=True, dtype=torch.float32, **source.options
                )
        check_vocabulary(tokenizer, embedding_rows(encoder), source.name)
        limit = min(folder.max_tokens or int(tokenizer.model_max_length), int(tokenizer.model_max_length))
        cut = token_limit(encoder, limit, max_tokens)
        pairs = TextTokenizer(tokenizer, cut, folder.query_prompt, folder.document_prompt)
        return cls._network(encoder, folder.pooling), pairs

    @property
    def pooling(self) -> VectorPooling | None:
        """Pooling of token states into a vector; None for ColBERT checkpoints, which have no vector of a text."""
        return self.network.pooling

    def score_tokens(self, tokens: TokenPairs, token_budget: int = SCORE_TOKENS) -> NDArray[np.float32]:
        """Cosines float32[N]; each distinct text is encoded once."""
        query_rows, query_of_N = np.unique(tokens.query_N, return_inverse=True)
        document_rows, document_of_N = np.unique(tokens.document_N, return_inverse=True)
        query_Qd = self.vectors(tokens.queries, query_rows, token_budget)
        document_Dd = self.vectors(tokens.documents, document_rows, token_budget)
        scores = np.zeros(len(query_of_N), dtype=np.float32)
        for start in range(0, len(scores), _PRODUCTS):
            part = slice(start, start + _PRODUCTS)
            np.einsum("nd,nd->n", query_Qd[query_of_N[part]], document_Dd[document_of_N[part]], out=scores[part])
        return scores

    def vectors(self, texts: Ragged, rows: NDArray[np.int64], token_budget: int = SCORE_TOKENS) -> NDArray[np.float32]:
        """Unit vectors float32[X, d] of the texts `rows`."""
        size = int(cast("transformers.PreTrainedModel", self.network.encoder).config.hidden_size)
        vectors = np.zeros((len(rows), size), dtype=np.float32)

        def encode(budget: int) -> NDArray[np.float32]:
            for part in scoring_batches(self.pairs.lengths(texts)[rows], budget, self.device):
                batch = self.pairs.batch([texts[int(row)] for row in rows[part]])
                vectors[part] = self._pooled(batch).cpu().numpy()
            return vectors

        with torch_settings(self.threads), torch.inference_mode():
            return self._as_memory_allows(encode, token_budget)

    def _pooled(self, batch: Batch) -> Tensor:
        return self.network(**tensors(batch, self.device))

    def _write(self, folder: Path, card: str) -> Path:
        assert self.pooling is not None
        return write_embedder(self.network, self.pairs, self.pooling, folder, card)
