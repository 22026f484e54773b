"""Late interaction as a reranker: every token of a text has a unit vector, and a query's tokens each find their best.

score(q, d) = mean over the tokens i of q of max_j q_i · d_j: equation (3) of Khattab and Zaharia (2020, "ColBERT") by
the number of the query's tokens, so that it lies in [-1, 1]. All tokens count, [CLS], [SEP] and punctuation as well.
Nothing is drawn: an encoder that was trained for its pooled vector ranks in this way before any training. The pooled
vector comes from the same forward pass and is trained beside it (training/late.py), so the weights serve both.
Legend: N pairs, X texts, D documents of a block, T tokens of a query, U tokens of a document, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anmi_ray.models.bi_encoder import BiEncoder, TextEncoder
from anmi_ray.models.cross_encoder import SCORE_TOKENS, tensors, torch_threads
from anmi_ray.models.embedder_folder import write_token_vectors
from anmi_ray.models.pairs import Batch, Ragged, length_batches
from anmi_ray.models.pooling import read_token_vectors

_PRODUCT_BYTES = 1 << 25  # vectors and products of pairs that are scored at once; more leave a processor's cache


class LateEncoder(TextEncoder):
    """Unit vectors of the tokens of texts, and of each text as a whole."""

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Vectors [X, T, d] of the tokens, padding's among them, and float32[X, d] of the texts; all of length 1."""
        hidden = self.encoder(**inputs).last_hidden_state
        return nn.functional.normalize(hidden.float(), dim=-1), self.pooled(hidden, inputs["attention_mask"])


def mean_maxsim(similarity: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
    """Scores [...] of cosines [..., T, U]: the best of a document's tokens, averaged over the query's tokens.

    Masks, [..., T] and [..., U], are True where there is a token; every text has one at least.
    """
    best = similarity.masked_fill(~document_mask.unsqueeze(-2), -torch.inf).max(-1).values
    return (best.float() * query_mask).sum(-1) / query_mask.sum(-1)


class LateInteraction(BiEncoder):
    """A reranker that compares texts token by token; each text is encoded once, however many pairs read it."""

    network: LateEncoder  # pyright: ignore[reportIncompatibleVariableOverride]
    kind = "late-interaction model"
    _network = LateEncoder
    _said = staticmethod(read_token_vectors)

    def score_tokens(
        self,
        queries: Ragged,
        query_N: NDArray[np.int64],
        documents: Ragged,
        document_N: NDArray[np.int64],
        token_budget: int = SCORE_TOKENS,
    ) -> NDArray[np.float32]:
        """Scores float32[N] of the pairs (query_N[i], document_N[i]).

        Of the documents the vectors of one batch are in memory at a time, of the queries all: 25 kB each of 16 tokens.
        """
        score_N = np.zeros(len(query_N), dtype=np.float32)
        if not len(score_N):
            return score_N
        query_rows, query_of_N = np.unique(query_N, return_inverse=True)
        document_rows, document_of_N = np.unique(document_N, return_inverse=True)
        order = np.argsort(document_of_N, kind="stable")
        first = np.searchsorted(document_of_N[order], np.arange(len(document_rows) + 1))
        with torch_threads(self.threads), torch.inference_mode():
            query_XTd, query_XT = self._queries(queries, query_rows, token_budget)
            for rows, vector_DUd, mask_DU in self._encoded(documents, document_rows, token_budget):
                pair_N = np.concatenate([order[first[row] : first[row + 1]] for row in rows])
                within = np.repeat(np.arange(len(rows)), first[rows + 1] - first[rows])
                size = vector_DUd.shape[1] * (query_XTd.shape[1] + vector_DUd.shape[2]) + query_XTd[0].numel()
                step = max(1, _PRODUCT_BYTES // (4 * size))
                for at in range(0, len(pair_N), step):
                    pairs = pair_N[at : at + step]
                    query = torch.from_numpy(query_of_N[pairs]).to(self.device)
                    document = torch.from_numpy(within[at : at + step]).to(self.device)
                    similarity = query_XTd[query] @ vector_DUd[document].transpose(1, 2)
                    scores = mean_maxsim(similarity, query_XT[query], mask_DU[document])
                    score_N[pairs] = scores.cpu().numpy()
        return score_N

    def _queries(self, queries: Ragged, rows: NDArray[np.int64], token_budget: int) -> tuple[Tensor, Tensor]:
        """Vectors [X, T, d] and masks [X, T] of the queries `rows`, padded to the longest."""
        longest = int(self.pairs.lengths(queries)[rows].max())
        size = int(self.network.encoder.config.hidden_size)
        vector_XTd = torch.zeros(len(rows), longest, size, device=self.device)
        mask_XT = torch.zeros(len(rows), longest, dtype=torch.bool, device=self.device)
        for part, vectors, mask in self._encoded(queries, rows, token_budget):
            width = min(longest, vectors.shape[1])  # batches are padded to multiples of eight
            vector_XTd[part, :width] = vectors[:, :width]
            mask_XT[part, :width] = mask[:, :width]
        return vector_XTd, mask_XT

    def _encoded(
        self, texts: Ragged, rows: NDArray[np.int64], token_budget: int
    ) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """(which of `rows`, their vectors float32[X, T, d], masks [X, T]) batch by batch, texts of similar length."""
        budget = token_budget if self.device.type == "cpu" else 16 * token_budget
        for part in length_batches(self.pairs.lengths(texts)[rows], budget):
            inputs = tensors(self.pairs.batch([texts[int(row)] for row in rows[part]]), self.device)
            yield part, self.network(**inputs)[0].float(), inputs["attention_mask"].bool()

    def _pooled(self, batch: Batch) -> Tensor:
        return self.network(**tensors(batch, self.device))[1]

    def export(self, folder: str | Path, card: str = "") -> Path:
        """As models/embedder_folder.py writes it."""
        self.assert_trained()
        return write_token_vectors(self.network, self.pairs, self.pooling, self.max_tokens, Path(folder), card)
