"""Adapters: they begin as nothing, merge into plain weights without changing scores, and leave the base as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as PublishedCrossEncoder
from transformers import AutoModelForSequenceClassification

from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.train import Pooling
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import is_adapted, is_adapter
from tests.models.test_cross_encoder import columns, some_pairs
from tests.models.tiny import write_tiny_bert, write_tiny_decoder

PAIRS = some_pairs(12)
LORA = LoraConfig(rank=4, alpha=8)


def write(folder: Path, pooling: Pooling) -> str:
    decoder = pooling in ("last", "yes-no")
    return str(write_tiny_decoder(folder, "qwen3", chatml=True) if decoder else write_tiny_bert(folder))


@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "yes-no"])
def test_adapters_start_as_nothing_and_merge_into_a_plain_model(tmp_path: Path, pooling: Pooling) -> None:
    pytest.importorskip("peft")
    base = write(tmp_path / "base", pooling)
    before = CrossEncoder.load(base, pooling=pooling, seed=1).score(*columns(PAIRS))
    model = CrossEncoder.load(base, pooling=pooling, seed=1, lora=LORA)
    np.testing.assert_allclose(model.score(*columns(PAIRS)), before, atol=1e-6)
    trained = {name for name, parameter in model.network.named_parameters() if parameter.requires_grad}
    head = {id(parameter) for layer in model.network.head() for parameter in layer.parameters()}
    assert {name for name, p in model.network.named_parameters() if id(p) in head or is_adapter(name)} == trained
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    scores = model.score(*columns(PAIRS))
    assert np.abs(scores - before).max() > 1e-3
    np.testing.assert_allclose(model.scorer("float32").score(*columns(PAIRS)), scores, atol=2e-5)
    assert not is_adapted(model.scorer("bfloat16").network)
    folder = model.export(tmp_path / "model")
    assert is_adapted(model.network)
    np.testing.assert_allclose(model.score(*columns(PAIRS)), scores, atol=1e-6)  # still the trained one
    assert not list(folder.glob("adapter*"))
    np.testing.assert_allclose(CrossEncoder.load(str(folder)).score(*columns(PAIRS)), scores, atol=2e-5)
    published = PublishedCrossEncoder(str(folder), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(published, scores, atol=2e-4)
    if pooling in ("cls", "last"):
        found = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)[1]
        assert not found["missing_keys"]
        assert not found["unexpected_keys"]


def test_targets_are_named_and_drawn_from_the_seed(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = write(tmp_path, "cls")
    found = [
        CrossEncoder.load(base, pooling="cls", seed=seed, lora=LoraConfig(targets=("query", "value")))
        for seed in (1, 1, 2)
    ]
    adapted = [dict(one.network.named_parameters()) for one in found]
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in adapted[0] if is_adapter(name)}
    assert names == {"query", "value"}
    first, same, other = ([p for name, p in one.items() if "lora_A" in name] for one in adapted)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    with pytest.raises(ConfigError, match=r"no linear layer q_proj") as caught:
        CrossEncoder.load(base, pooling="cls", lora=LoraConfig(targets=("q_proj", "value")))
    assert "dense, key, query, value" in str(caught.value.remedy)


def test_without_peft_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigError, match="peft cannot be imported") as caught:
        CrossEncoder.load(write(tmp_path, "cls"), pooling="cls", lora=LORA)
    assert environment.install("lora") in str(caught.value.remedy)
