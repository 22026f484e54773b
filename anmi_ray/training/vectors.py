"""Bi-encoders and late interaction under training: each text of a micro-batch is encoded once.

An indivisible micro-batch that is too large keeps no activations and is computed again in the backward pass: the
gradient caching of Gao et al. (2021), by checkpointing.
Legend: N scores, L lists, D documents, X texts, T tokens of a query, U tokens of a document, d dimensions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import tensors
from anmi_ray.models.late_interaction import LateInteraction, mean_maxsim
from anmi_ray.models.pairs import Batch
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.module import Inputs, Learner, Trainable

_PRODUCTS = 1 << 24  # cosines of tokens that are computed at once: 64 MB


class VectorTrainable(Trainable):
    """Cosines of a micro-batch and g_ψ of them.

    Both terms' gradients are measured on the unit vectors, tangent to the sphere, as in Sener and Koltun (2018); each
    list counts its own vectors, so the figures do not depend on how lists share micro-batches.
    """

    def __init__(self, model: Reranker, config: TrainConfig, execution: TrainExecution | None = None) -> None:
        super().__init__(model, config, execution)
        self._seen: tuple[Tensor, Tensor, Tensor, TextPairs] | None = None

    def forward(self, batches: Inputs) -> tuple[Tensor, Tensor]:
        """Return (cosine, predicted rating in units of the target), float32[N] each."""
        pairs = cast(TextPairs, batches)
        score, query_Ld, document_Dd = cosines(self, pairs)
        self._seen = query_Ld.detach(), document_Dd.detach(), score.detach(), pairs
        return score, self.mapped(score)

    def pulled(self, pull_2N: Tensor) -> Tensor | None:
        """Inner products [2, 2] of both terms' gradients on all vectors."""
        if self._seen is None:
            return None
        query_Ld, document_Dd, score_N, pairs = self._seen
        list_N = torch.from_numpy(pairs.list_N).to(score_N.device)
        pull_2LD = pull_2N.new_zeros(2, len(query_Ld), len(document_Dd))
        for pull_LD, pull_N in zip(pull_2LD, pull_2N, strict=True):
            pull_LD[index(pairs, score_N.device)] = pull_N
        along_2L = pull_2N.new_zeros(2, len(query_Ld)).index_add(1, list_N, pull_2N * score_N)
        of_query = (pull_2LD @ document_Dd - along_2L[..., None] * query_Ld).flatten(1)
        of_document = pull_2N * (1.0 - score_N.square()).clamp_min(0.0).sqrt()
        return (of_query @ of_query.T + of_document @ of_document.T).double()

    def gradients(self, pulled: Tensor) -> Tensor:
        return square_root(pulled)


def square_root(products: Tensor) -> Tensor:
    """Two vectors [2, 2] with these inner products (a triangular square root)."""
    if not products.numel():
        return products
    (first, both), (_, second) = products.tolist()
    along = both / first**0.5 if first > 0 else 0.0
    return products.new_tensor([[max(first, 0.0) ** 0.5, 0.0], [along, max(second - along**2, 0.0) ** 0.5]])


def cosines(learner: Learner, pairs: TextPairs) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines float32[N] of the pairs, and the unit vectors [L, d] of queries and [D, d] of documents."""
    device = learner.device
    with torch.autocast(device.type, torch.bfloat16, enabled=learner.in_bfloat16):
        vector_Xd = torch.cat([encoded(learner, batch, pairs.recompute) for batch in pairs.batches]).float()
    rows = (pairs.query_L, pairs.document_D)
    query_Ld, document_Dd = (vector_Xd[torch.from_numpy(row).to(device)] for row in rows)
    with torch.autocast(device.type, enabled=False):
        cosine_LD = query_Ld @ document_Dd.T
    return cosine_LD[index(pairs, device)], query_Ld, document_Dd


def encoded(learner: Learner, batch: Batch, recompute: bool) -> Any:
    """Output of the network for a batch; `recompute`: compute it again in the backward pass."""
    inputs = tensors(batch, learner.device)
    if not recompute or not torch.is_grad_enabled():
        return learner.network(**inputs)
    return checkpoint(lambda: learner.network(**inputs), use_reentrant=False)


def index(pairs: TextPairs, device: torch.device) -> tuple[Tensor, Tensor]:
    """List and document of each pair."""
    return torch.from_numpy(pairs.list_N).to(device), torch.from_numpy(pairs.document_N).to(device)


class LateTrainable(Trainable):
    """Scores by tokens, cosines of the pooled vectors, the mean of both, and g_ψ of the first.

    Each of the three has a ranking term, so one set of weights ranks in both ways. A ColBERT checkpoint has no pooled
    vectors and its tokens' term alone. Both terms' gradients are measured on the scores.
    """

    def forward(self, batches: Inputs) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return (score, predicted rating in units of the target, cosine, mean of score and cosine), float32[N] each.

        Only the first two if the model has no pooled vectors.
        """
        pairs = cast(TextPairs, batches)
        score, cosine = self._scores(pairs)
        if cosine is None:
            return score, self.mapped(score)
        return score, self.mapped(score), cosine, (score + cosine) / 2.0

    def _scores(self, pairs: TextPairs) -> tuple[Tensor, Tensor | None]:
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
        """Token vectors [X, T, d], masks [X, T] of tokens that count, and pooled vectors float32[X, d] of all texts."""
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
        return (pull_2N @ pull_2N.T).double()

    def gradients(self, pulled: Tensor) -> Tensor:
        return square_root(pulled)


def _late(query_LTd: Tensor, query_LT: Tensor, document_DUd: Tensor, document_DU: Tensor) -> Tensor:
    """Scores float32[L, D] of every query with every document, some queries at a time."""
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
    """Return the module to train for a model of any kind."""
    if isinstance(model, LateInteraction):
        return LateTrainable(model, config, execution)
    kind = VectorTrainable if isinstance(model, BiEncoder) else Trainable
    return kind(model, config, execution)
