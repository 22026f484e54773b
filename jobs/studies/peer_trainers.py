"""What a user would train instead: sentence-transformers' trainers, with the losses that its documentation names.

All start from the same weights and learn from known positives and mined negatives (relative_margin .05, the nearest
that are left: NV-Retriever's rule, which `mine_hard_negatives` recommends). Judgments are not read.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.models.reranker import distinct

Pairs = Sequence[tuple[str, str]]
Score = Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]
"""Scores float32[N] of N queries and documents, text by text."""

_SCALE = 20.0  # a temperature of .05, which the losses of cosines take by default
_NEGATIVES = {"bi-encoder": 1, "late-interaction": 1, "cross-encoder": 5}


def lacking() -> list[str]:
    """What the trainers need that is not installed (the part `bench`)."""
    return [name for name in ("datasets", "accelerate") if importlib.util.find_spec(name) is None]


def mined(kind: str, start: str, pairs: Pairs, corpus: Sequence[str], cache: str, max_tokens: int) -> Any:
    """The dataset of a kind of model: (query, positive) `pairs` with hard negatives out of `corpus`.

    cache: folder in which the corpus' vectors are kept.
    """
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    model = SentenceTransformer(start, device="cpu")
    model.max_seq_length = max_tokens
    queries, positives = (list(column) for column in zip(*pairs, strict=True))
    with redirect_stderr(io.StringIO()):  # progress bars
        return mine_hard_negatives(
            Dataset.from_dict({"query": queries, "positive": positives}),
            model,
            corpus=list(corpus),
            relative_margin=0.05,
            range_max=100,
            num_negatives=_NEGATIVES[kind],
            output_format="labeled-pair" if kind == "cross-encoder" else "triplet",
            use_faiss=True,
            cache_folder=cache,
            verbose=False,
        )


def trained(kind: str, start: str, data: Any, settings: Mapping[str, Any], max_tokens: int, seed: int) -> Score:
    """Train a model of a kind on what `mined` has made.

    settings: epochs, batch and rate; all else is the trainer's default, in bfloat16.
    """
    with redirect_stdout(io.StringIO()):  # figures of its own
        return _TRAINERS[kind](start, data, settings, max_tokens, seed)


def _arguments(kind: type, folder: str, settings: Mapping[str, Any], seed: int, **further: Any) -> Any:
    return kind(
        output_dir=folder,
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch"],
        learning_rate=settings["rate"],
        warmup_steps=0.1,
        seed=seed,
        use_cpu=True,
        bf16=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **further,
    )


def _bi_encoder(start: str, data: Any, settings: Mapping[str, Any], max_tokens: int, seed: int) -> Score:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(start, device="cpu")
    model.max_seq_length = max_tokens
    with tempfile.TemporaryDirectory() as folder:
        kind = SentenceTransformerTrainingArguments
        arguments = _arguments(kind, folder, settings, seed, batch_sampler="no_duplicates")
        loss = MultipleNegativesRankingLoss(model, scale=_SCALE)
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()

    def score(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        (query_Xd, query_N), (document_Xd, document_N) = (
            _encoded(model.encode, texts) for texts in (queries, documents)
        )
        return np.einsum("nd,nd->n", np.stack(query_Xd)[query_N], np.stack(document_Xd)[document_N])

    return score


def _late_interaction(start: str, data: Any, settings: Mapping[str, Any], max_tokens: int, seed: int) -> Score:
    """All tokens of the encoder as it is, mean MaxSim: a projection drawn at random costs it its start."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder import (
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.multi_vector_encoder.scoring import mean_colbert_scores

    transformer = Transformer(start, max_seq_length=max_tokens)
    modules = [transformer, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=modules, device="cpu", similarity_fn_name="meanmaxsim")
    with tempfile.TemporaryDirectory() as folder:
        kind = MultiVectorEncoderTrainingArguments
        arguments = _arguments(kind, folder, settings, seed, batch_sampler="no_duplicates")
        loss = MultiVectorMultipleNegativesRankingLoss(model, scale=_SCALE, similarity_fct=mean_colbert_scores)
        MultiVectorEncoderTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()

    def score(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        query_X, query_N = _encoded(model.encode_query, queries)
        document_X, document_N = _encoded(model.encode_document, documents)
        of = zip(query_N.tolist(), document_N.tolist(), strict=True)
        return np.array([(query_X[q] @ document_X[d].T).max(1).mean() for q, d in of], dtype=np.float32)

    return score


def _encoded(encode: Callable[..., Any], texts: Sequence[str]) -> tuple[list[Any], NDArray[np.int64]]:
    """Vectors of every distinct text, and which of them each text has."""
    once, which = distinct(texts)
    return list(encode(once, convert_to_numpy=True, show_progress_bar=False)), which


def _cross_encoder(start: str, data: Any, settings: Mapping[str, Any], max_tokens: int, seed: int) -> Score:
    import torch
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    torch.manual_seed(seed)  # the head is drawn
    model = CrossEncoder(start, num_labels=1, max_length=max_tokens, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        arguments = _arguments(CrossEncoderTrainingArguments, folder, settings, seed)
        loss = BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(float(_NEGATIVES["cross-encoder"])))
        CrossEncoderTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()

    def score(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        pairs = list(zip(queries, documents, strict=True))
        with torch.autocast("cpu", torch.bfloat16):
            return np.asarray(model.predict(pairs, show_progress_bar=False, batch_size=32), dtype=np.float32)

    return score


_TRAINERS: Mapping[str, Callable[..., Score]] = {
    "bi-encoder": _bi_encoder,
    "late-interaction": _late_interaction,
    "cross-encoder": _cross_encoder,
}
