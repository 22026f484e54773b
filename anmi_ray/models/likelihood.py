"""Query likelihood: how probable a causal language model finds a query after reading a document.

Ponte and Croft 1998; with pretrained models, Sachan et al. 2022 (UPR). A document is read once for all of its queries:
they follow it in one sequence, each at the position behind the document, and see only the document and themselves.
Letters: N pairs, T tokens, B sequences of a batch, K query tokens of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anmi_ray.config.encoder_judge import FRAME
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.classifier import Dtype, Resources, computing
from anmi_ray.models.cross_encoder import positions
from anmi_ray.models.loading import ModelSource, check_vocabulary, embedding_rows, loadable
from anmi_ray.models.pairs import length_batches
from anmi_ray.models.prompts import begins_with_own

_MAX_TOKENS = 256
_SCALE = 3.0
_SHARED = 128  # minimum number of query tokens in a sequence of several queries
_LOGITS = 1 << 26  # logits computed at once
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.02}  # of a score
_CHECK = ("A lake is a body of water.", "what is a lake", "rivers of the world")


class _Sequence(NamedTuple):
    """A document and its queries. part: 0 for the document, then 1, 2, ... for the queries `pairs`."""

    ids: NDArray[np.int64]  # [T]
    position: NDArray[np.int64]
    part: NDArray[np.int64]
    pairs: NDArray[np.int64]


class QueryLikelihood:
    """A causal language model with its tokenizer. Raises ConfigError if it cannot be loaded or read this way.

    max_tokens: documents, and queries, are cut to it; None: 256.
    """

    def __init__(self, source: ModelSource, max_tokens: int | None, dtype: Dtype, use: Resources) -> None:
        self.name = source.name
        self.use = use
        with loadable(source, "causal language model"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.path_or_id, **source.options)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                source.path_or_id,
                use_safetensors=True,
                dtype=getattr(torch, dtype),
                attn_implementation="sdpa",
                **source.options,
            )
        check_vocabulary(tokenizer, embedding_rows(model), source.name)
        self.tokenizer = tokenizer
        self.model = model.to(use.device).eval().requires_grad_(False)
        head, self.tail = tokenizer(list(FRAME), add_special_tokens=False)["input_ids"]
        self.head = [tokenizer.bos_token_id, *head] if begins_with_own(tokenizer) else head
        room = ((positions(model) or sys.maxsize) - len(self.head) - len(self.tail)) // 2
        if max_tokens and max_tokens > room:
            what = f"is {max_tokens}, and the model has positions for {room} of a document and of a query"
            raise ConfigError(what, "max_tokens", f"set it to at most {room}")
        self.max_tokens = max_tokens or min(_MAX_TOKENS, room)
        with loadable(source, "causal language model"):
            self._check(_TOLERANCE[dtype])

    def score(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float64]:
        """Return three times the mean log-probability of the tokens of queries[i] after documents[i], float64[N].

        Its differences are as large as those of a reranker's logits. Raises JudgeError if memory runs out.
        """
        sequences = self._sequences(queries, documents)
        total, tokens = np.zeros(len(queries)), np.zeros(len(queries))
        with computing(self.name, self.use):
            lengths = np.array([len(sequence.ids) for sequence in sequences], dtype=np.int64)
            for rows in length_batches(lengths, self.use.budget, self.use.device != "cpu"):
                batch = [sequences[row] for row in rows]
                pair_K = np.concatenate([one.pairs[one.part[one.part > 0] - 1] for one in batch])
                np.add.at(total, pair_K, self._log_probabilities(batch))
                np.add.at(tokens, pair_K, 1.0)
        return _SCALE * total / tokens

    def _ids(self, texts: Iterable[str]) -> list[list[int]]:
        coded: Any = self.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [ids[: self.max_tokens] for ids in coded["input_ids"]]

    def _sequences(self, queries: Sequence[str], documents: Sequence[str]) -> list[_Sequence]:
        """Return sequences for all pairs; a document has several if its queries are longer than itself."""
        pairs_of: dict[str, list[int]] = {}
        for pair, document in enumerate(documents):
            pairs_of.setdefault(document, []).append(pair)
        once = dict.fromkeys(queries)
        ids_of = dict(zip(once, self._ids(f" {query}" for query in once), strict=True))
        ids_N = [ids_of[query] for query in queries]
        sequences = []
        for ids, pairs in zip(self._ids(pairs_of), pairs_of.values(), strict=True):
            document = [*self.head, *ids, *self.tail]
            number = np.cumsum([len(ids_N[pair]) for pair in pairs]) // max(len(document), _SHARED)
            for members in np.split(np.array(pairs), np.flatnonzero(np.diff(number)) + 1):
                sequences.append(_joined(document, [ids_N[int(pair)] for pair in members], members))
        return sequences

    def _log_probabilities(self, batch: Sequence[_Sequence]) -> NDArray[np.float64]:
        """Return the log-probability of each query token, float64[K], in order."""
        ids_BT, position_BT, part_BT = (
            pad_sequence([torch.from_numpy(one[column]) for one in batch], True, fill).to(self.use.device)
            for column, fill in enumerate((0, 0, -1))
        )
        width = ids_BT.shape[1]
        same = (part_BT[:, None, :] == 0) | (part_BT[:, None, :] == part_BT[:, :, None])
        seen_BTT = same & torch.ones(width, width, dtype=torch.bool, device=ids_BT.device).tril()
        hidden_BTd = self.model.base_model(
            input_ids=ids_BT, attention_mask=seen_BTT[:, None], position_ids=position_BT, use_cache=False
        ).last_hidden_state
        row_K, at_K = torch.nonzero(part_BT > 0, as_tuple=True)
        begins = part_BT[row_K, at_K] != part_BT[row_K, at_K - 1]  # the first token of a query follows the document
        before_K = torch.where(begins, (part_BT == 0).sum(1)[row_K] - 1, at_K - 1)
        return self._read(hidden_BTd[row_K, before_K], ids_BT[row_K, at_K])

    def _read(self, hidden_Kd: Tensor, next_K: Tensor) -> NDArray[np.float64]:
        """Return the log-probability of each next token."""
        output: Any = self.model.get_output_embeddings()
        size = max(_LOGITS // output.weight.shape[0], 1)
        logits = (output(part).float() for part in hidden_Kd.split(size))
        parts = zip(logits, next_K.split(size), strict=True)
        found = [logit.gather(1, token[:, None])[:, 0] - logit.logsumexp(1) for logit, token in parts]
        return torch.cat(found).double().cpu().numpy()

    @torch.inference_mode()
    def _check(self, tolerance: float) -> None:
        """Raise ConfigError if queries that share a sequence score otherwise than the model says when asked alone."""
        document, *queries = _CHECK
        together = self.score(queries, [document] * len(queries))
        for query, score in zip(queries, together.tolist(), strict=True):
            (sequence,) = self._sequences([query], [document])
            ids = torch.from_numpy(sequence.ids).to(self.use.device)
            count = int((sequence.part > 0).sum())
            logs = self.model(input_ids=ids[None], use_cache=False).logits[0, -count - 1 : -1].float().log_softmax(1)
            alone = _SCALE * float(logs.gather(1, ids[-count:, None]).mean())
            if not abs(score - alone) <= tolerance:
                raise ConfigError(
                    f"{self.model.config.model_type} cannot read several queries after one document: log-probability "
                    f"{score:.4f}, alone {alone:.4f}",
                    f"model {self.name}",
                    "give a transformer with softmax attention and unscaled logits, such as Qwen3 or Llama",
                )


def _joined(document: list[int], queries: list[list[int]], pairs: NDArray[np.int64]) -> _Sequence:
    parts = [document, *queries]
    start = [0, *[len(document)] * len(queries)]
    return _Sequence(
        ids=np.concatenate([np.array(ids, dtype=np.int64) for ids in parts]),
        position=np.concatenate([begin + np.arange(len(ids)) for begin, ids in zip(start, parts, strict=True)]),
        part=np.repeat(np.arange(len(parts)), [len(ids) for ids in parts]),
        pairs=pairs,
    )
