"""A late-interaction model under training: texts are encoded once, scored by their tokens and by their pooled vectors.

Three scores of every pair have a ranking term each, whose mean counts: that of the tokens, which is the reranker's and
which regression reads, the cosine of the pooled vectors, and the mean of the two. So one set of weights ranks in both
ways, at no cost: the forward pass is shared. A ColBERT checkpoint has no pooled vectors, and its tokens' term alone.
Legend: N scores, L lists, D documents, X texts, T tokens of a query, U tokens of a document, d dimensions.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.late_interaction import LateInteraction, mean_maxsim
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.module import Inputs, Trainable
from anmi_ray.training.vectors import VectorTrainable, encoded, index, square_root

_PRODUCTS = 1 << 24  # cosines of tokens that are computed at once: 64 MB


class LateTrainable(Trainable):
    """Scores by tokens, by pooled vectors and half by each, and g_ψ of the first.

    There is no last layer that both terms share; their gradients are measured on the scores themselves.
    """

    def forward(self, batches: Inputs) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(score, predicted rating in units of the target, cosine, mean of score and cosine), float32[N] each.

        The first two alone where the model has no pooled vectors.
        """
        pairs = cast(TextPairs, batches)
        score, cosine = self._scores(pairs)
        if cosine is None:
            return score, self.mapped(score)
        return score, self.mapped(score), cosine, (score + cosine) / 2.0

    def _scores(self, pairs: TextPairs) -> tuple[Tensor, Tensor | None]:
        """Scores by tokens and cosines of the pooled vectors, float32[N] each."""
        vector_XTd, mask_XT, pooled_Xd = self._vectors(pairs)
        query_L, document_D = (torch.from_numpy(rows).to(self.device) for rows in (pairs.query_L, pairs.document_D))
        longest = int(mask_XT[query_L].any(0).nonzero().max()) + 1
        with torch.autocast(self.device.type, enabled=False):
            late_LD = _late(
                vector_XTd[query_L, :longest], mask_XT[query_L, :longest], vector_XTd[document_D], mask_XT[document_D]
            )
            cosine_LD = None if pooled_Xd is None else pooled_Xd[query_L] @ pooled_Xd[document_D].T
        chosen = index(pairs, self.device)
        return late_LD[chosen], None if cosine_LD is None else cosine_LD[chosen]

    def _vectors(self, pairs: TextPairs) -> tuple[Tensor, Tensor, Tensor | None]:
        """Vectors [X, T, d] of all texts' tokens, padded to the longest, masks [X, T] of those that count, pooled
        vectors float32[X, d]."""
        width = max(batch.ids.shape[1] for batch in pairs.batches)
        tokens: list[Tensor] = []
        pooled: list[Tensor] = []
        masks: list[Tensor] = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            for batch in pairs.batches:
                of_tokens, of_texts = encoded(self, batch, pairs.recompute)
                missing = width - of_tokens.shape[1]
                if self.in_bfloat16:
                    of_tokens = of_tokens.bfloat16()
                tokens.append(nn.functional.pad(of_tokens, (0, 0, 0, missing)))
                mask = torch.from_numpy(batch.counted).to(self.device).bool()
                masks.append(nn.functional.pad(mask, (0, missing)))
                if of_texts is not None:
                    pooled.append(of_texts.float())
        return torch.cat(tokens), torch.cat(masks), torch.cat(pooled) if pooled else None

    def pulled(self, pull_2N: Tensor) -> Tensor | None:
        """Inner products [2, 2] of both terms' gradients on the scores."""
        return (pull_2N @ pull_2N.T).double()

    def gradients(self, pulled: Tensor) -> Tensor:
        """As `square_root`."""
        return square_root(pulled)


def _late(query_LTd: Tensor, query_LT: Tensor, document_DUd: Tensor, document_DU: Tensor) -> Tensor:
    """Scores by tokens float32[L, D] of every query with every document, some queries at a time."""
    documents, length, size = document_DUd.shape
    column_dC = document_DUd.reshape(-1, size).T
    step = max(1, _PRODUCTS // (query_LTd.shape[1] * documents * length))
    parts: list[Tensor] = []
    for at in range(0, len(query_LTd), step):
        rows = slice(at, at + step)
        similarity = (query_LTd[rows] @ column_dC).unflatten(-1, (documents, length)).transpose(1, 2)
        parts.append(mean_maxsim(similarity, query_LT[rows, None], document_DU[None]))
    return torch.cat(parts)


def trainable(model: Reranker, config: TrainConfig, execution: TrainExecution | None = None) -> Trainable:
    """What is trained of a model of any kind."""
    if isinstance(model, LateInteraction):
        return LateTrainable(model, config, execution)
    kind = VectorTrainable if isinstance(model, BiEncoder) else Trainable
    return kind(model, config, execution)
