"""Rerankers with the labels "not relevant" and "relevant": their score is the second logit less the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from anmi_ray.core.errors import ConfigError
from anmi_ray.models import onnx_files
from anmi_ray.models.classifier import Classifier, load_scorer
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import output_layer
from anmi_ray.models.kinds import load_reranker
from anmi_ray.models.loading import resolve
from tests.models.tiny import WORDS, write_tiny_classifier, write_tiny_decoder

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
