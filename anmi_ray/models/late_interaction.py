"""Late interaction as a reranker: each token of a query is matched with its most similar token of the document.

score(q, d) = mean over the tokens i of q of max_j q_i · d_j, in [-1, 1]: equation (3) of Khattab and Zaharia (2020,
"ColBERT") divided by the number of query tokens. All tokens count, special ones included, unless a ColBERT checkpoint
excludes some (models/colbert.py). The same forward pass gives the pooled vector, which is trained too.
Legend: N pairs, X texts, D documents of a block, T tokens of a query, U tokens of a document, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from anmi_ray.core.errors import ConfigError, first_line
from anmi_ray.models import colbert
from anmi_ray.models.bi_encoder import BiEncoder, TextEncoder
from anmi_ray.models.cross_encoder import in_order, tensors
from anmi_ray.models.decoder import is_decoder
from anmi_ray.models.export import write_colbert, write_embedder
from anmi_ray.models.loading import ModelSource, loadable
from anmi_ray.models.pairs import Batch, Ragged, TokenPairs, scoring_batches
from anmi_ray.models.pooling import VectorPooling, read_token_vectors
from anmi_ray.models.reranker import SCORE_TOKENS, torch_settings
from anmi_ray.models.texts import TextTokenizer

_PRODUCT_BYTES = 1 << 25  # vectors and products of pairs that are scored at once; more leave a processor's cache


class LateEncoder(TextEncoder):
    """Unit vectors of the tokens of texts, and of each text if `pooling` is given.

    layers: projection of a ColBERT checkpoint, lowest first; it has no vector of a text.
    """

    def __init__(
        self, encoder: transformers.PreTrainedModel, pooling: VectorPooling | None, layers: Iterable[nn.Linear] = ()
    ) -> None:
        super().__init__(encoder, pooling)
        self.projection = nn.Sequential(*layers)

    @property
    def size(self) -> int:
        """Dimensions d of a token's vector."""
        return self.layers[-1].out_features if self.layers else int(self.encoder.config.hidden_size)

    @property
    def layers(self) -> list[nn.Linear]:
        """The projection's, lowest first."""
        return [cast(nn.Linear, layer) for layer in self.projection]

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Vectors [X, T, d] of the tokens, padding's among them, and float32[X, d] of the texts; all of length 1."""
        hidden = self.encoder(**inputs).last_hidden_state
        pooled = None if self.pooling is None else self.pooled(hidden, inputs["attention_mask"])
        return nn.functional.normalize(self.projection(hidden).float(), dim=-1), pooled


def mean_maxsim(similarity: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
    """Scores [...] of cosines [..., T, U]; masks [..., T] and [..., U] are True for tokens, at least one per text."""
    best = similarity.masked_fill(~document_mask.unsqueeze(-2), -torch.inf).max(-1).values
    return (best.float() * query_mask).sum(-1) / query_mask.sum(-1)


class LateInteraction(BiEncoder):
    """A reranker that compares texts token by token; each distinct text is encoded once."""

    network: LateEncoder  # pyright: ignore[reportIncompatibleVariableOverride]
    kind = "late-interaction model"
    _network = LateEncoder

    @classmethod
    def _parts(cls, source: ModelSource, max_tokens: int | None) -> tuple[TextEncoder, TextTokenizer]:
        pooling = read_token_vectors(source)
        _check_sees_all(source)
        if pooling is None:
            encoder, layers, pairs = colbert.read(source, max_tokens)
            network = LateEncoder(encoder, None, layers)
        else:
            network, pairs = cls._encoder(source, pooling, max_tokens)
        _check_vectors(network, pairs, source.name)
        return network, pairs

    def score_tokens(self, tokens: TokenPairs, token_budget: int = SCORE_TOKENS) -> NDArray[np.float32]:
        """Scores float32[N].

        Memory holds the vectors of all queries (25 kB per 16 tokens), and of one batch of documents.
        """
        if not len(tokens.query_N):
            return np.zeros(0, dtype=np.float32)
        with torch_settings(self.threads), torch.inference_mode():
            return self._as_memory_allows(partial(self._scores, tokens), token_budget)

    def _scores(self, tokens: TokenPairs, token_budget: int) -> NDArray[np.float32]:
        products = _PRODUCT_BYTES if self.device.type == "cpu" else 16 * _PRODUCT_BYTES * token_budget // SCORE_TOKENS
        rows_of: list[NDArray[np.int64]] = []
        scores: list[Tensor] = []
        query_rows, query_of_N = np.unique(tokens.query_N, return_inverse=True)
        document_rows, document_of_N = np.unique(tokens.document_N, return_inverse=True)
        order = np.argsort(document_of_N, kind="stable")
        first = np.searchsorted(document_of_N[order], np.arange(len(document_rows) + 1))
        query_XTd, query_XT = self._queries(tokens.queries, query_rows, token_budget)
        for rows, vector_DUd, mask_DU in self._encoded(tokens.documents, document_rows, token_budget):
            pair_N = np.concatenate([order[first[row] : first[row + 1]] for row in rows])
            within = np.repeat(np.arange(len(rows)), first[rows + 1] - first[rows])
            size = vector_DUd.shape[1] * (query_XTd.shape[1] + vector_DUd.shape[2]) + query_XTd[0].numel()
            step = max(1, products // (4 * size))
            for at in range(0, len(pair_N), step):
                pairs = pair_N[at : at + step]
                query = torch.from_numpy(query_of_N[pairs]).to(self.device)
                document = torch.from_numpy(within[at : at + step]).to(self.device)
                similarity = query_XTd[query] @ vector_DUd[document].transpose(1, 2)
                scores.append(mean_maxsim(similarity, query_XT[query], mask_DU[document]))
                rows_of.append(pairs)
        return in_order(rows_of, scores)

    def _queries(self, queries: Ragged, rows: NDArray[np.int64], token_budget: int) -> tuple[Tensor, Tensor]:
        """Vectors [X, T, d] and masks [X, T] of the queries `rows`, padded to the longest."""
        longest = int(self.pairs.lengths(queries)[rows].max())
        vector_XTd = torch.zeros(len(rows), longest, self.network.size, device=self.device)
        mask_XT = torch.zeros(len(rows), longest, dtype=torch.bool, device=self.device)
        for part, vectors, mask in self._encoded(queries, rows, token_budget):
            width = min(longest, vectors.shape[1])  # batches are padded to multiples of eight
            vector_XTd[part, :width] = vectors[:, :width]
            mask_XT[part, :width] = mask[:, :width]
        return vector_XTd, mask_XT

    def _encoded(
        self, texts: Ragged, rows: NDArray[np.int64], token_budget: int
    ) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Yield (indices into `rows`, vectors float32[X, T, d], masks [X, T]) for batches of similar length."""
        for part in scoring_batches(self.pairs.lengths(texts)[rows], token_budget, self.device):
            batch = self.pairs.batch([texts[int(row)] for row in rows[part]])
            vectors = self.network(**tensors(batch, self.device))[0].float()
            yield part, vectors, torch.from_numpy(batch.counted).to(self.device).bool()

    def _pooled(self, batch: Batch) -> Tensor:
        pooled = self.network(**tensors(batch, self.device))[1]
        assert pooled is not None, "a ColBERT checkpoint has no vector of a text as a whole"
        return pooled

    def _write(self, folder: Path, card: str) -> Path:
        if isinstance(self.pairs, colbert.ColbertTokenizer):
            return write_colbert(self.network, self.network.layers, self.pairs, self.pairs.saved, folder, card)
        assert self.pooling is not None
        return write_embedder(self.network, self.pairs, self.pooling, folder, card, tokens=True)


def _check_sees_all(source: ModelSource) -> None:
    """Raise ConfigError for a causal language model, unless its attention is bidirectional."""
    with loadable(source, LateInteraction.kind):
        config: Any = transformers.AutoConfig.from_pretrained(source.path_or_id, **source.options)
    both_sides = getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True)
    if is_decoder(config) and not both_sides:
        raise ConfigError(
            f"it is a decoder ({config.model_type}): its token vectors see the text to the left only",
            f"model {source.name}",
            "set train.model to an encoder or to a ColBERT checkpoint of one, or train.student: cross-encoder with "
            "train.pooling: last or yes-no",
        )


def _check_vectors(network: TextEncoder, pairs: TextTokenizer, name: str) -> None:
    """Raise ConfigError unless the network gives a vector of every token."""
    batch = pairs.batch([pairs.of_queries(["a"])[0]])
    try:
        with torch.no_grad():
            network(**tensors(batch, torch.device("cpu")))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"its {type(network.encoder).__name__} gives no vector of every token: {first_line(error)}",
            f"model {name}",
            "set train.model to an encoder with hidden states, or to a ColBERT checkpoint whose projection fits it",
        ) from error
