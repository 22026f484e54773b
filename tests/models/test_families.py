"""Encoders of every common family as rerankers: a start without a head, a trained head, export, half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as PublishedCrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.classifier import load_scorer
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import resolve
from tests.models.test_cross_encoder import columns, loaded, some_pairs
from tests.models.tiny import ENCODERS, write_tiny_encoder

# DeBERTa's module compiles two functions as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

PAIRS = some_pairs(16)


@pytest.fixture(scope="module", params=ENCODERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_start_without_a_head_exports_and_scores_alike_everywhere(
    base: Path, tmp_path: Path, pooling: Literal["cls", "mean"]
) -> None:
    model = loaded(base, pooling)
    scores = model.score(*columns(PAIRS))
    assert scores.std() > 1e-3
    folder = model.export(tmp_path / "model")
    published = PublishedCrossEncoder(str(folder), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(scores, published, atol=1e-4)
    again = CrossEncoder.load(str(folder))
    assert again.pooling == pooling
    np.testing.assert_allclose(scores, again.score(*columns(PAIRS)), atol=1e-6)
    np.testing.assert_allclose(scores, load_scorer(resolve(str(folder))).score(*columns(PAIRS)), atol=1e-6)


def test_a_classifier_with_one_label_keeps_its_head_and_equals_transformers(base: Path, tmp_path: Path) -> None:
    folder = loaded(base, "cls").export(tmp_path / "model")
    plain, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    queries, documents = columns(PAIRS)
    coded = tokenizer(queries, documents, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = plain.eval()(**coded).logits.squeeze(-1).numpy()
    np.testing.assert_allclose(CrossEncoder.load(str(folder), seed=9).score(queries, documents), logits, atol=1e-5)


@pytest.mark.parametrize("kind", [BiEncoder, LateInteraction])
def test_vectors_of_its_texts_are_cut_to_its_positions_and_the_same_after_export(
    base: Path, tmp_path: Path, kind: type[BiEncoder]
) -> None:
    with pytest.raises(ConfigError, match="the model has 64 positions"):
        kind.load(str(base), max_tokens=65)
    model = kind.load(str(base))
    queries, documents = columns([*PAIRS, ("word1", " ".join(f"word{i % 20}" for i in range(200)))])
    scores = model.score(queries, documents)
    assert np.isfinite(scores).all()
    again = kind.load(str(model.export(tmp_path / "model")))
    np.testing.assert_allclose(scores, again.score(queries, documents), atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_half_precision_is_close_with_the_head_in_float32(base: Path, pooling: Literal["cls", "mean"]) -> None:
    model = loaded(base, pooling)
    exact, copy = model.score(*columns(PAIRS)), model.scorer("bfloat16")
    np.testing.assert_allclose(copy.score(*columns(PAIRS)), exact, atol=0.1 * float(exact.std()) + 0.02)
    head = {parameter.dtype for layer in copy.network.head() for parameter in layer.parameters()}
    assert head == {torch.float32}
    assert torch.bfloat16 in {parameter.dtype for parameter in copy.network.parameters()}


def test_poolings_of_decoders_are_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match="is for decoders"):
        CrossEncoder.load(str(base), pooling="last")
