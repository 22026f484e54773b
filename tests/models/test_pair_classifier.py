"""The model that reads two documents: where its head comes from, its inputs, and the folder that judges load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from anmi_ray.config.distill import LABELS, DistillConfig, Target
from anmi_ray.core.errors import ConfigError
from anmi_ray.models import loading
from anmi_ray.models.classifier import Classifier, PairClassifier, sharpen
from anmi_ray.models.cross_encoder import CrossEncoder, tensors
from anmi_ray.models.heads import output_layer
from tests.models.tiny import write_tiny_decoder

TEXTS = ["word1", "word2 word3", "word4"]
PAIRS = ["word5 [SEP] word6 word7", "word8", "word9 word10 word11 [SEP] word12"]


def config(base: Path, **more: object) -> DistillConfig:
    return DistillConfig.model_validate({"form": "pairwise", "model": str(base), "max_tokens": 40} | more)


def base_of(model: PairClassifier | CrossEncoder) -> Any:
    """The transformer below the head."""
    return model.network.encoder.base_model


def logits(model: PairClassifier, texts: list[str], pairs: list[str] | None) -> NDArray[np.float32]:
    inputs = model.inputs(model.encode(texts, pairs))
    with torch.inference_mode():
        return model.network(**tensors(inputs.batch(np.arange(len(texts))), model.device)).numpy()


@pytest.mark.parametrize("target", list(LABELS))
def test_the_exported_folder_is_a_classifier_with_the_same_logits(base: Path, tmp_path: Path, target: Target) -> None:
    model = PairClassifier.start(config(base), target)
    model.beside["judge.json"] = "{}\n"
    folder = model.export(tmp_path / "model", "A card's text.")
    loaded = Classifier(loading.resolve(str(folder)))
    assert loaded.labels == LABELS[target]
    assert loaded.max_tokens == 40
    assert loaded.logits(TEXTS, PAIRS) == pytest.approx(logits(model, TEXTS, PAIRS).astype(np.float64), abs=1e-5)
    assert (folder / "judge.json").read_text() == "{}\n"
    assert "A card's text." in (folder / "README.md").read_text()
    assert not list(folder.glob("*.bin"))


def test_the_start_follows_from_the_seed(base: Path) -> None:
    first, again, other = (PairClassifier.start(config(base, seed=seed), "ternary") for seed in (0, 0, 1))
    weight = [output_layer(model.network).weight for model in (first, again, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])
    segments = base_of(first).embeddings.token_type_embeddings.weight
    assert torch.equal(segments[0], segments[1])


def test_a_reranker_gives_its_body_and_pooler_and_gets_a_new_last_layer(base: Path, tmp_path: Path) -> None:
    reranker = CrossEncoder.load(str(base), max_tokens=40)
    folder = reranker.export(tmp_path / "reranker")
    model = PairClassifier.start(config(folder), "ternary")
    assert torch.equal(base_of(model).pooler.dense.weight, base_of(reranker).pooler.dense.weight)
    assert output_layer(model.network).out_features == 3


def test_inputs_are_the_tokenizers_own(base: Path) -> None:
    model = PairClassifier.start(config(base), "binary")
    batch = model.inputs(model.encode(TEXTS, PAIRS)).batch(np.array([2, 0]))
    own = model.tokenizer([TEXTS[2], TEXTS[0]], [PAIRS[2], PAIRS[0]], padding=True, return_tensors="np")
    width = own["input_ids"].shape[1]
    assert batch.ids.shape[1] % 8 == 0
    assert (batch.ids[:, :width] == own["input_ids"]).all()
    assert (batch.mask[:, :width] == own["attention_mask"]).all()
    assert batch.mask[:, width:].sum() == 0
    assert batch.type_ids is not None
    assert (batch.type_ids[:, :width] == own["token_type_ids"]).all()


def test_a_temperature_is_in_the_weights(base: Path) -> None:
    model = PairClassifier.start(config(base), "two-head")
    before = logits(model, TEXTS, PAIRS)
    sharpen(model.network, 2.5, (0,))
    after = logits(model, TEXTS, PAIRS)
    assert after[:, 0] == pytest.approx(2.5 * before[:, 0], rel=1e-5)
    assert after[:, 1] == pytest.approx(before[:, 1], rel=1e-6)


def test_a_decoder_reads_one_text(tmp_path: Path) -> None:
    base = write_tiny_decoder(tmp_path / "qwen", "qwen3")
    model = PairClassifier.start(config(base), "ternary")
    folder = model.export(tmp_path / "model")
    found = logits(model, ["word1 word2", "word3"], None)
    assert Classifier(loading.resolve(str(folder))).logits(["word1 word2", "word3"], None) == pytest.approx(
        found.astype(np.float64), abs=1e-4
    )


def test_adapters_are_merged_at_export(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = PairClassifier.start(config(base, lora={"rank": 2}), "ternary")
    found = logits(model, TEXTS, PAIRS)
    folder = model.export(tmp_path / "model")
    assert Classifier(loading.resolve(str(folder))).logits(TEXTS, PAIRS) == pytest.approx(
        found.astype(np.float64), abs=1e-5
    )


def test_what_cannot_be_a_judge_is_named(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        PairClassifier.start(config(base, max_tokens=400), "ternary")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no config"):
        PairClassifier.start(config(tmp_path / "empty"), "ternary")
