"""Late interaction: scores as sentence-transformers' MultiVectorEncoder gives them, before and after export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling

from anmi_ray.config.retrieve import LateConfig
from anmi_ray.models import late_interaction
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.encoder import Encoder, TokenEncoder
from anmi_ray.models.kinds import load_reranker
from anmi_ray.models.late_interaction import LateInteraction, mean_maxsim
from anmi_ray.models.loading import resolve
from anmi_ray.retrieval.late import maxsim
from tests.models.test_bi_encoder import published
from tests.models.test_cross_encoder import columns, some_pairs


def theirs(model: MultiVectorEncoder, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Scores of the pairs by sentence-transformers alone."""
    queries, documents = columns(pairs)
    return model.similarity_pairwise(model.encode_query(queries), model.encode_document(documents)).numpy()


def plain(folder: Path, **prompts: str) -> MultiVectorEncoder:
    """Token vectors of an encoder as sentence-transformers makes them: all tokens, of unit length, the mean maximum."""
    transformer = Transformer(str(folder))
    transformer.max_seq_length = 40
    modules = [transformer, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, prompts=prompts, similarity_fn_name="meanmaxsim", device="cpu")


@given(
    seed=st.integers(0, 1000),
    tokens=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    padding=st.integers(0, 5),
)
def test_the_score_is_maxsim_by_the_length_of_the_query(
    seed: int, tokens: int, lengths: list[int], padding: int
) -> None:
    """Whatever is padded with whatever."""
    vectors = torch.nn.functional.normalize(
        torch.randn(1 + len(lengths), 20, 6, generator=torch.Generator().manual_seed(seed)), dim=-1
    )
    width = max(lengths) + padding
    query, documents = vectors[0, : tokens + padding], vectors[1:, :width]
    kept = torch.arange(width) < torch.tensor(lengths)[:, None]
    found = mean_maxsim(query @ documents.transpose(1, 2), torch.arange(len(query)) < tokens, kept)
    for document, length, score in zip(documents, lengths, found, strict=True):
        by_hand = maxsim(query[:tokens].numpy(), document[:length].numpy()) / tokens
        assert float(score) == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize(
    ("pooling", "prompts"),
    [("mean", {}), ("cls", {"query": "word7 "}), ("mean", {"query": "word1 ", "document": "word2 word3 "})],
)
def test_scores_are_sentence_transformers_before_and_after_export(
    base: Path,
    tmp_path: Path,
    pooling: str,
    prompts: dict[str, str],
) -> None:
    start = published(base, tmp_path / "start", pooling, prompts=prompts)
    model = LateInteraction.load(str(start))
    pairs = some_pairs()
    scores = model.score(*columns(pairs))
    assert scores.dtype == np.float32
    assert scores.std() > 1e-2
    assert (np.abs(scores) <= 1 + 1e-6).all()
    np.testing.assert_allclose(scores, theirs(plain(start, **prompts), pairs), atol=1e-5)

    shorter = LateInteraction.load(str(start), max_tokens=24)
    folder = shorter.export(tmp_path / "model", "Trained on nothing.")
    assert "Trained on nothing." in (folder / "README.md").read_text(encoding="utf-8")
    scores = shorter.score(*columns(pairs))
    np.testing.assert_allclose(scores, theirs(MultiVectorEncoder(str(folder), device="cpu"), pairs), atol=1e-5)
    again = load_reranker(str(folder))
    assert isinstance(again, LateInteraction)
    assert (again.pooling, again.max_tokens) == (pooling, 24)
    np.testing.assert_allclose(again.score(*columns(pairs)), scores, atol=1e-6)


def test_the_export_serves_as_one_vector_a_text_and_as_both_retrievers(base: Path, tmp_path: Path) -> None:
    """The former as its card says, in four words of sentence-transformers."""
    start = published(base, tmp_path / "start", "cls")
    model = LateInteraction.load(str(start), max_tokens=24)
    folder = model.export(tmp_path / "model")
    queries, documents = columns(some_pairs())
    pooled = SentenceTransformer(
        modules=[Transformer(str(folder)), Pooling.load(str(folder / "1_Pooling"))], device="cpu"
    )
    cosine = pooled.similarity_pairwise(
        pooled.encode(queries, convert_to_tensor=True), pooled.encode(documents, convert_to_tensor=True)
    )
    wanted = BiEncoder.load(str(start), max_tokens=24).score(queries, documents)
    np.testing.assert_allclose(cosine.numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(BiEncoder.score_tokens(model, model.tokens(queries, documents)), wanted, atol=1e-5)

    dense = Encoder(resolve(str(folder)), max_tokens=24)  # as retrieve.dense.model
    cosines = (dense.encode(queries) * dense.encode(documents)).sum(1)
    np.testing.assert_allclose(cosines, wanted, atol=1e-5)

    tokens = TokenEncoder(resolve(str(folder)), LateConfig(model=str(folder), max_tokens=24, query_tokens=24))
    vectors = zip(tokens.encode(queries, "query"), tokens.encode(documents, "document"), strict=True)
    scores = [maxsim(query, document) / len(query) for query, document in vectors]
    np.testing.assert_allclose(scores, model.score(queries, documents), atol=1e-5)


def test_every_distinct_text_is_encoded_once_and_order_is_immaterial(
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LateInteraction.load(str(base))
    seen: list[int] = []
    model.network.register_forward_hook(lambda _module, _args, output: seen.append(len(output[0])))
    pairs = some_pairs()
    queries, documents = columns(pairs)
    scores = model.score(queries * 3, documents * 3)
    assert sum(seen) == len(set(queries)) + len(set(documents))
    np.testing.assert_array_equal(scores[: len(pairs)], scores[len(pairs) : 2 * len(pairs)])
    monkeypatch.setattr(late_interaction, "_PRODUCT_BYTES", 1)  # a pair at a time
    np.testing.assert_allclose(model.score(queries, documents), scores[: len(pairs)], atol=1e-6)


def test_texts_without_a_word_have_scores(base: Path) -> None:
    """What stands around every text has vectors too."""
    model = LateInteraction.load(str(base))
    queries, documents = columns([(query, text) for query in ("", "?!", "the of") for text in ("", " ", "word1 " * 99)])
    scores = model.score(queries, documents)
    assert np.isfinite(scores).all()
    assert (np.abs(scores) <= 1 + 1e-6).all()
    assert len(set(scores[:3].tolist())) > 1
