"""The reranker: pairs as the tokenizer would make them, scores as sentence-transformers gives them, bytes as before."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoTokenizer

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import rng
from anmi_ray.models.classifier import load_scorer
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import MeanScorer
from anmi_ray.models.loading import resolve
from anmi_ray.models.pairs import PairTokenizer, TokenPairs, length_batches
from tests.models.tiny import WORDS, write_tiny_bert


def text(words: int, *key: str | int) -> str:
    return " ".join(WORDS[i] for i in rng("text", *key).integers(len(WORDS), size=words))


def some_pairs(count: int = 40) -> list[tuple[str, str]]:
    return [(text(1 + i % 7, "q", i % 11), text(1 + 3 * i, "d", i)) for i in range(count)]


def columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [query for query, _ in pairs], [document for _, document in pairs]


def loaded(base: Path, pooling: Literal["cls", "mean"], max_tokens: int | None = None) -> CrossEncoder:
    """A model whose random head is large enough for scores to differ."""
    model = CrossEncoder.load(str(base), pooling=pooling, max_tokens=max_tokens, seed=1)
    if isinstance(model.network, MeanScorer):
        with torch.no_grad():
            model.network.out.weight.mul_(30.0)
    return model


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6),
    limit=st.integers(8, 64),
)
def test_pairs_equal_the_tokenizers_own(base: Path, lengths: list[tuple[int, int]], limit: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    pairs = PairTokenizer(tokenizer, limit)
    queries = [text(query, "q", i) for i, (query, _) in enumerate(lengths)]
    documents = [text(document, "d", i) for i, (_, document) in enumerate(lengths)]
    index = np.arange(len(lengths))
    query_tokens, document_tokens = pairs.of_queries(queries), pairs.of_documents(documents)
    tokens = TokenPairs(query_tokens, index, document_tokens, index)
    ours = pairs.batch(tokens)
    theirs: Any = tokenizer(queries, documents, truncation=True, max_length=limit, padding=True, return_tensors="np")
    width = theirs["input_ids"].shape[1]
    assert ours.ids.shape[1] % 8 == 0 or ours.ids.shape[1] == limit
    np.testing.assert_array_equal(ours.ids[:, :width], theirs["input_ids"])
    np.testing.assert_array_equal(ours.mask[:, :width], theirs["attention_mask"])
    assert ours.type_ids is not None
    np.testing.assert_array_equal(ours.type_ids[:, :width], theirs["token_type_ids"])
    assert not ours.mask[:, width:].any()
    np.testing.assert_array_equal(pairs.pair_lengths(tokens), theirs["attention_mask"].sum(1))


@given(lengths=st.lists(st.integers(1, 300), max_size=80), budget=st.integers(8, 20_000), on_gpu=st.booleans())
def test_length_batches_hold_every_pair_once_within_the_budget(lengths: list[int], budget: int, on_gpu: bool) -> None:
    batches = length_batches(np.array(lengths, dtype=np.int64), budget, on_gpu)
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[i] for i in batch)
        assert len(batch) == 1 or width * len(batch) <= budget
        assert not on_gpu or len(batch) == 1 or sum(width - lengths[i] for i in batch) <= budget // 8
    if on_gpu:  # no batch ends without need
        for batch, following in itertools.pairwise(batches):
            more = [*(lengths[i] for i in batch), lengths[following[0]]]
            width = -(-more[0] // 8) * 8
            assert len(more) * width > budget or sum(width - length for length in more) > budget // 8


def test_more_tokens_than_in_training_are_scored_up_to_the_positions(base: Path, tmp_path: Path) -> None:
    folder = str(loaded(base, "cls", 24).export(tmp_path / "model"))
    longer = CrossEncoder.load(folder, max_tokens=48)
    assert (CrossEncoder.load(folder).max_tokens, longer.max_tokens) == (24, 48)
    query, document = "how long", " ".join(["word"] * 60)
    assert longer.score([query], [document]) != CrossEncoder.load(folder).score([query], [document])
    with pytest.raises(ConfigError, match="is 65, and the model has 64 positions"):
        CrossEncoder.load(folder, max_tokens=65)


def test_a_new_head_is_drawn_from_the_seed_alone(base: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (CrossEncoder.load(str(base), pooling="mean", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = some_pairs(5)
    np.testing.assert_array_equal(first.score(*columns(pairs)), second.score(*columns(pairs)))
    assert not np.allclose(first.score(*columns(pairs)), other.score(*columns(pairs)))


def test_a_start_from_a_bi_encoder_draws_the_head_and_a_trained_head_stays(base: Path, tmp_path: Path) -> None:
    before = load_file(base / "model.safetensors")
    fresh = CrossEncoder.load(str(base), pooling="cls").network.state_dict()
    segments = fresh["encoder.bert.embeddings.token_type_embeddings.weight"]
    assert torch.equal(segments[0], segments[1])
    assert not torch.equal(fresh["encoder.bert.pooler.dense.weight"], before["pooler.dense.weight"])
    trained = CrossEncoder.load(str(base), pooling="cls")
    again = CrossEncoder.load(str(trained.export(tmp_path / "model"))).network.state_dict()
    for name, value in trained.network.state_dict().items():
        assert torch.equal(value, again[name]), name


def test_a_folder_without_weights_is_a_config_error(tmp_path: Path) -> None:
    (write_tiny_bert(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        CrossEncoder.load(str(tmp_path))


@pytest.mark.parametrize(
    ("head", "says"),
    [(b"{", "its 3_Dense/config.json is not JSON"), (b'{"module_output_name": "scores"}', "cannot be loaded")],
)
def test_a_mean_head_that_cannot_be_read_is_a_config_error(base: Path, tmp_path: Path, head: bytes, says: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(base, folder)
    (folder / "3_Dense").mkdir()
    (folder / "3_Dense" / "config.json").write_bytes(head)
    with pytest.raises(ConfigError, match=says):
        CrossEncoder.load(str(folder))
    with pytest.raises(ConfigError, match=says):
        load_scorer(resolve(str(folder)))
