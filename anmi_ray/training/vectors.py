"""A bi-encoder under training: every text of a micro-batch is encoded once, every score is a product of two vectors.

A micro-batch that may not be divided and is larger than allowed is computed without keeping activations, batch by
batch, and again in the backward pass: the gradient caching of Gao et al. (2021), by checkpointing. No result changes.
Legend: N scores, L lists, D documents, X texts, d dimensions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.cross_encoder import tensors
from anmi_ray.models.pairs import Batch
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.module import Inputs, Learner, Trainable


class VectorTrainable(Trainable):
    """Cosines of a micro-batch and g_ψ of them.

    There is no last layer that both terms share; their gradients are measured on the unit vectors instead, tangent to
    the sphere (what moves a vector of length 1), as in Sener and Koltun (2018). Every list counts its own vectors, so
    the figures do not depend on which lists share a micro-batch.
    """

    def __init__(self, model: Reranker, config: TrainConfig, execution: TrainExecution | None = None) -> None:
        super().__init__(model, config, execution)
        self._seen: tuple[Tensor, Tensor, Tensor, TextPairs] | None = None

    def forward(self, batches: Inputs) -> tuple[Tensor, Tensor]:
        """(cosine, predicted rating in units of the target), float32[N] each, in the order of the pairs."""
        pairs = cast(TextPairs, batches)
        score, query_Ld, document_Dd = cosines(self, pairs)
        self._seen = query_Ld.detach(), document_Dd.detach(), score.detach(), pairs
        return score, self.mapped(score)

    def pulled(self, pull_2N: Tensor) -> Tensor | None:
        """Inner products [2, 2] of both terms' gradients on all vectors, from their gradients of the scores."""
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
        """As `square_root`."""
        return square_root(pulled)


def square_root(products: Tensor) -> Tensor:
    """Two vectors [2, 2] with these inner products: a triangular square root."""
    if not products.numel():
        return products
    (first, both), (_, second) = products.tolist()
    along = both / first**0.5 if first > 0 else 0.0
    return products.new_tensor([[max(first, 0.0) ** 0.5, 0.0], [along, max(second - along**2, 0.0) ** 0.5]])


def cosines(learner: Learner, pairs: TextPairs) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines float32[N] of the pairs in their order, and the unit vectors [L, d] and [D, d] that they are of."""
    device = learner.device
    with torch.autocast(device.type, torch.bfloat16, enabled=learner.in_bfloat16):
        vector_Xd = torch.cat([encoded(learner, batch, pairs.recompute) for batch in pairs.batches]).float()
    rows = (pairs.query_L, pairs.document_D)
    query_Ld, document_Dd = (vector_Xd[torch.from_numpy(row).to(device)] for row in rows)
    with torch.autocast(device.type, enabled=False):
        cosine_LD = query_Ld @ document_Dd.T
    return cosine_LD[index(pairs, device)], query_Ld, document_Dd


def encoded(learner: Learner, batch: Batch, recompute: bool) -> Any:
    """What the network gives of a batch; `recompute`: computed again in the backward pass, nothing is kept for it."""
    inputs = tensors(batch, learner.device)
    if not recompute or not torch.is_grad_enabled():
        return learner.network(**inputs)
    return checkpoint(lambda: learner.network(**inputs), use_reentrant=False)


def index(pairs: TextPairs, device: torch.device) -> tuple[Tensor, Tensor]:
    """The list and the document of every pair."""
    return torch.from_numpy(pairs.list_N).to(device), torch.from_numpy(pairs.document_N).to(device)
