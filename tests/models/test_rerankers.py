"""Rerankers of every kind: families of encoders, labels, adapters, and batches that memory does not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as PublishedCrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.train import Pooling
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models import onnx_files
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.classifier import Classifier, load_scorer
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import is_adapted, is_adapter, output_layer
from anmi_ray.models.kinds import load_reranker
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import resolve
from anmi_ray.models.reranker import Reranker
from tests.models.test_cross_encoder import columns, loaded, some_pairs
from tests.models.tiny import (
    ENCODERS,
    WORDS,
    write_tiny_bert,
    write_tiny_classifier,
    write_tiny_decoder,
    write_tiny_encoder,
)

# DeBERTa's module compiles two functions as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

PAIRS = some_pairs(16)


@pytest.fixture(scope="module", params=ENCODERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("max_tokens", [None, 24])
def test_a_start_without_a_head_exports_and_scores_alike_everywhere(
    base: Path, tmp_path: Path, pooling: Literal["cls", "mean"], max_tokens: int | None
) -> None:
    model = loaded(base, pooling, max_tokens)
    scores = model.score(*columns(PAIRS))
    assert scores.dtype == np.float32
    assert scores.std() > 1e-3
    folder = model.export(tmp_path / "model", "Trained on nothing.")
    assert "Trained on nothing." in (folder / "README.md").read_text(encoding="utf-8")
    assert not list(folder.rglob("*.bin"))
    published = PublishedCrossEncoder(str(folder), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(scores, published, atol=1e-4)
    again = CrossEncoder.load(str(folder))
    assert (again.pooling, again.max_tokens) == (pooling, max_tokens or 64)
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
    rounded = copy.score(*columns(PAIRS))
    np.testing.assert_allclose(rounded, exact, atol=0.1 * float(exact.std()) + 0.02)
    assert len(set(rounded.tolist())) > 0.9 * len(set(exact.tolist()))  # rounding makes no ties
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.float32}
    head = {parameter.dtype for layer in copy.network.head() for parameter in layer.parameters()}
    assert head == {torch.float32}
    assert torch.bfloat16 in {parameter.dtype for parameter in copy.network.parameters()}
    assert CrossEncoder.load(str(base), pooling=pooling, dtype="bfloat16", threads=1).precision == "bfloat16"


def test_poolings_of_decoders_are_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match="is for decoders"):
        CrossEncoder.load(str(base), pooling="last")


QUERIES = [" ".join(WORDS[i : i + 3]) for i in range(8)]
DOCUMENTS = [" ".join(WORDS[5 * i : 5 * i + 5]) for i in range(8)]


@pytest.mark.parametrize(
    "labels", [("LABEL_0", "LABEL_1"), ("no", "yes"), ("irrelevant", "relevant"), ("Not_Relevant", "RELEVANT")]
)
def test_every_loader_scores_by_the_difference_of_the_logits(tmp_path: Path, labels: tuple[str, str]) -> None:
    folder = write_tiny_classifier(tmp_path / "model", labels)
    logits = Classifier(resolve(str(folder))).logits(QUERIES, DOCUMENTS)
    expected = logits[:, 1] - logits[:, 0]
    assert np.ptp(expected) > 1e-3
    for reranker in (load_reranker(str(folder)), load_scorer(resolve(str(folder)))):
        np.testing.assert_allclose(reranker.score(QUERIES, DOCUMENTS), expected, atol=1e-5)


def test_it_is_trained_and_exported_as_a_model_of_one_label(tmp_path: Path) -> None:
    start = CrossEncoder.load(str(write_tiny_classifier(tmp_path / "model", ("LABEL_0", "LABEL_1"))))
    assert not start.drawn_head
    expected = start.score(QUERIES, DOCUMENTS)
    torch.nn.functional.mse_loss(start.network(**_inputs(start)), torch.zeros(1)).backward()
    assert all(parameter.grad is not None for head in start.network.head() for parameter in head.parameters())
    folder = start.export(tmp_path / "exported")
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.num_labels == 1
    np.testing.assert_array_equal(load_reranker(str(folder)).score(QUERIES, DOCUMENTS), expected)
    onnx_files.write(start, folder, "float32")  # which compares the scores


def _inputs(model: CrossEncoder) -> dict[str, torch.Tensor]:
    return dict(model.pairs.tokenizer(QUERIES[0], DOCUMENTS[0], return_tensors="pt"))


def test_a_decoder_of_two_labels(tmp_path: Path) -> None:
    folder = write_tiny_decoder(tmp_path / "model", "qwen3", chatml=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    model.save_pretrained(folder)
    reranker = load_reranker(str(folder))
    assert isinstance(reranker, CrossEncoder)
    assert reranker.pooling == "last"
    torch.testing.assert_close(output_layer(reranker.network).weight, model.score.weight[1:] - model.score.weight[:1])


@pytest.mark.parametrize(
    "labels",
    [
        ("contradiction", "neutral", "entailment"),
        ("NEGATIVE", "POSITIVE"),
        ("entailment", "not_entailment"),
        ("first", "second"),
    ],
)
def test_other_labels_are_refused_alike_by_judges_and_rerankers(tmp_path: Path, labels: tuple[str, ...]) -> None:
    folder = write_tiny_classifier(tmp_path / "model", labels)
    messages = set[str]()
    for load in (load_reranker, load_scorer, CrossEncoder.load):
        with pytest.raises(ConfigError, match=f"has {len(labels)} labels") as refused:
            load(resolve(str(folder)))
        messages.add(str(refused.value))
    assert len(messages) == 1


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


LOADS: list[Callable[..., Reranker]] = [CrossEncoder.load, BiEncoder.load, LateInteraction.load]
GENERATOR = np.random.default_rng(0)
TEXTS = [" ".join(GENERATOR.choice(WORDS, size)) for size in GENERATOR.integers(3, 40, 60)]


class Small:
    """Holds so many tokens of a batch, in the place of a GPU's memory; counts how often it did not."""

    def __init__(self, network: torch.nn.Module, tokens: int) -> None:
        self.tokens = tokens
        self.full = 0
        network.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, network: torch.nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].numel() > self.tokens:
            self.full += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


@pytest.mark.parametrize("load", LOADS)
def test_scores_do_not_depend_on_order_or_company(tmp_path: Path, load: Callable[..., Reranker]) -> None:
    model = load(str(write_tiny_bert(tmp_path / "bert")))
    scores = model.score(*columns(PAIRS))
    np.testing.assert_allclose(model.score(*columns(PAIRS[::-1]))[::-1], scores, atol=1e-5)
    np.testing.assert_allclose([model.score([query], [document])[0] for query, document in PAIRS], scores, atol=1e-5)
    assert model.score([], []).shape == (0,)
    assert load is LOADS[0] or (np.abs(scores) <= 1 + 1e-6).all()


@pytest.mark.parametrize("load", LOADS)
def test_batches_become_as_small_as_memory_is(tmp_path: Path, load: Callable[..., Reranker]) -> None:
    folder = str(write_tiny_bert(tmp_path / "bert"))
    queries = ["word1 word2"] * len(TEXTS)
    whole = load(folder).score(queries, TEXTS)
    model = load(folder)
    memory = Small(model.network, 300)
    np.testing.assert_allclose(model.score(queries, TEXTS), whole, atol=1e-6)
    found = memory.full
    assert found >= 3
    model.score(queries, TEXTS)
    assert memory.full == found
    memory.tokens = 8  # one text takes more
    with pytest.raises(torch.OutOfMemoryError):
        model.score(queries, TEXTS)
