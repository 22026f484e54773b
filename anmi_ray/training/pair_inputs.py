"""Inputs of pairs of documents: read together in both orders, or each document alone, by either kind of reranker.

Input 2p is pair p with document a first (or document a alone), input 2p + 1 the other.
Legend: R = 2P inputs of P pairs, N inputs of a call, L labels.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.models.cross_encoder import SCORE_TOKENS, tensors
from anmi_ray.models.pair_classifier import PairClassifier, PairInputs
from anmi_ray.models.pairs import Ragged, length_batches, scoring_batches
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextTokenizer
from anmi_ray.training.module import Inputs

Rows = NDArray[np.int64]
Logits = NDArray[np.float32]


class Together:
    """A query and both documents in one input."""

    single = False

    def __init__(self, inputs: PairInputs) -> None:
        self._inputs = inputs

    @property
    def tokens_R(self) -> Rows:
        """Tokens of every input."""
        return self._inputs.lengths

    def inputs(self, row_N: Rows, token_budget: int, on_gpu: bool = False) -> tuple[Inputs, Rows]:
        """Batches of similar length."""
        parts = length_batches(self.tokens_R[row_N], token_budget, on_gpu)
        return [self._inputs.batch(row_N[part]) for part in parts], np.concatenate(parts)

    def infer(self, model: PairClassifier, row_N: Rows) -> Logits:
        """Logits float32[N, L]."""
        logits = np.zeros((len(row_N), len(model.labels)), dtype=np.float32)
        with torch.inference_mode():
            for part in scoring_batches(self.tokens_R[row_N], SCORE_TOKENS, model.device):
                batch = self._inputs.batch(row_N[part])
                output = model.network(**tensors(batch, model.device))
                logits[part] = output.reshape(len(part), -1).float().cpu().numpy()
        return logits


class Apart:
    """A query and one document: those of input r are query_R[r] of `queries` and document r of `documents`."""

    single = True

    def __init__(self, model: Reranker, queries: Ragged, query_R: Rows, documents: Ragged) -> None:
        self._pairs = model.pairs
        self._queries = queries
        self._query_R = query_R
        self._documents = documents

    @property
    def tokens_R(self) -> Rows:
        """Tokens of every input."""
        every = np.arange(len(self._query_R))
        return self._pairs.pair_lengths(self._queries, self._query_R, self._documents, every)

    def inputs(self, row_N: Rows, token_budget: int, on_gpu: bool = False) -> tuple[Inputs, Rows]:
        """Batches of similar length; of a bi-encoder, texts and which of them are paired."""
        pairs = self._pairs
        query_N = self._query_R[row_N]
        each = np.arange(len(row_N))
        if isinstance(pairs, TextTokenizer):
            return pairs.pairs(self._queries, query_N, self._documents, each, row_N, token_budget, on_gpu), each
        length_N = pairs.pair_lengths(self._queries, query_N, self._documents, row_N)
        parts = length_batches(length_N, token_budget, on_gpu)
        batches = [pairs.batch(self._queries, query_N[part], self._documents, row_N[part]) for part in parts]
        return batches, np.concatenate(parts)

    def infer(self, model: Reranker, row_N: Rows) -> Logits:
        """Scores float32[N, 1]."""
        return model.score_tokens(self._queries, self._query_R[row_N], self._documents, row_N)[:, None]


PairReader = Together | Apart
"""Inputs of pairs. single: whether an input is one document, and the pair's logit a difference of two scores."""
