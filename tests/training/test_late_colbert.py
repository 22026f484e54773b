"""Training a ColBERT checkpoint: against sentence-transformers' own loss and gradients, and with all that trains."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.scoring import mean_colbert_scores
from torch import Tensor

from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.pairs import Ragged
from anmi_ray.models.texts import TextPairs
from anmi_ray.training import batching
from anmi_ray.training.batching import step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Trained, train
from anmi_ray.training.module import Trainable, parameter_groups
from anmi_ray.training.objective import Objective
from anmi_ray.training.tokens import TokenCache
from anmi_ray.training.training_set import TrainingSet
from anmi_ray.training.vectors import trainable
from tests.models.test_colbert import expansion, write_multi_vector
from tests.models.test_token_vectors import write_pylate, write_stanford
from tests.training.lists import planted
from tests.training.test_late import settings
from tests.training.test_loop import dev_set
from tests.training.test_vectors import LARGE, LENT, SMALL, check_resumes, check_step, gradients, losses, naive_loss

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def start(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pylate(tmp_path_factory.mktemp("pylate") / "model", base)


@pytest.fixture(scope="module")
def data(start: Path) -> TrainingSet:
    """The planted lists, but with documents that stand in several lists."""
    found = lists_of(LateInteraction.load(str(start)))
    return replace(found, query_E=found.query_E % 12, document_P=found.document_P * 7 % 90)


def lists_of(model: LateInteraction, cache: TokenCache | None = None) -> TrainingSet:
    return planted().lists(model.pairs, cache)


def run(start: Path, data: TrainingSet, config: Any, execution: Any = LARGE, **more: Any) -> Trained:
    model = LateInteraction.load(str(start))
    return train(model, data, dev_set(model)[0], config, execution, **more)


@pytest.mark.parametrize("write_start", [write_pylate, write_stanford, write_multi_vector])
def test_loss_and_gradients_are_sentence_transformers(base: Path, tmp_path: Path, write_start: Any) -> None:
    """Of multiple negatives ranking, by its own reading of the checkpoint: weights of all layers and the projection."""
    more = {"query_expansion": expansion(9, attend=True), "prompts": {"query": "word30 ", "document": "word31 "}}
    folder = write_start(tmp_path / "start", base, **more if write_start is write_multi_vector else {})
    problem, model = planted(lists=6, negatives=2, randoms=0), LateInteraction.load(str(folder))
    data = problem.lists(model.pairs)
    data = replace(data, weight_P=np.ones_like(data.weight_P))
    config = settings(lists_per_step=6, loss={"in_batch": True}, balance={"alpha": 1.0})
    module = trainable(model, config)
    (batch,) = step_batches(data, config, 0, Phase(1.0), LARGE)
    outputs = module(batch.batches)
    assert len(outputs) == 2  # no pooled vectors
    loss = Objective(module, config, 1, None).loss(batch, Phase(1.0), *outputs)
    loss.backward()

    peer = MultiVectorEncoder(str(folder), device="cpu").eval()
    queries, *documents = problem.columns()
    features = [peer.preprocess(queries, peer.prompts["query"], task="query")]
    features += [peer.preprocess(texts, peer.prompts["document"], task="document") for texts in documents]
    theirs = MultiVectorMultipleNegativesRankingLoss(peer, scale=20.0, similarity_fct=mean_colbert_scores)
    wanted = theirs(features, torch.zeros(6))
    wanted.backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)
    first: Any = peer[0]
    of_peer = {f"encoder.{name}": p for name, p in first.auto_model.named_parameters()}
    of_peer["projection.0.weight"] = peer[1].linear.weight  # type: ignore[union-attr]
    found = {name: p for name, p in module.network.named_parameters() if p.grad is not None}
    assert "projection.0.weight" in found
    for name, parameter in found.items():
        torch.testing.assert_close(parameter.grad, of_peer[name].grad, rtol=1e-3, atol=2e-5, msg=name)


def alone(module: Trainable, data: TrainingSet, query: int, document: int) -> list[Tensor]:
    """The one score that the loss reads of a pair whose texts are encoded by themselves."""
    both = []
    for texts, row in ((data.queries, query), (data.documents, document)):
        batch = data.pairs.batch([texts[row]])  # type: ignore[call-arg, arg-type]
        ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)
        hidden = module.network.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[0]
        vectors = hidden @ module.network.projection[0].weight.T  # type: ignore[index, union-attr]
        both.append(torch.nn.functional.normalize(vectors, dim=1)[torch.from_numpy(batch.counted)[0].bool()])
    return [(both[0] @ both[1].T).max(1).values.mean()]


def test_a_step_is_that_of_encoding_every_pair_by_itself(start: Path, data: TrainingSet) -> None:
    config = settings(loss=LENT)
    module = trainable(LateInteraction.load(str(start)), config)
    check_step(module, data, config, naive_loss(module, data, config, alone))
    assert float(gradients(module)["network.projection.0.weight"].norm()) > 1e-3


def test_the_projection_learns_as_the_highest_layer(start: Path) -> None:
    config = settings(layer_decay=0.5)
    module = trainable(LateInteraction.load(str(start)), config)
    rates = {id(p): group["lr"] for group in parameter_groups(module, config) for p in group["params"]}
    encoder: Any = module.network.encoder
    highest = rates[id(encoder.encoder.layer[-1].output.dense.weight)]
    assert rates[id(module.network.projection[0].weight)] == highest == config.learning_rate  # type: ignore[index, union-attr]


@pytest.mark.slow
def test_learns_the_planted_signal_and_execution_changes_no_result(start: Path, tmp_path: Path) -> None:
    before = LateInteraction.load(str(start))
    config = settings(max_steps=30, loss={"in_batch": False})
    data = lists_of(before)
    dev, _ = dev_set(before)
    trained = run(start, data, config)
    assert trained.dev is not None
    assert trained.dev > dev.measure(before.score_tokens(dev.tokens)) + 0.3
    assert isinstance(trained.model, LateInteraction)
    first, second = (model.network.layers[0].weight.detach() for model in (before, trained.model))
    assert float((first - second).abs().max()) > 1e-3
    scores = trained.model.score_tokens(dev.tokens)
    again = LateInteraction.load(str(trained.model.export(tmp_path / "model")))
    np.testing.assert_array_equal(again.score_tokens(dev.tokens), scores)
    few = config.model_copy(update={"max_steps": 3})
    deep = few.model_copy(update={"engine": "deepspeed", "zero_stage": 2})
    wanted = losses(run(start, data, few))
    assert losses(run(start, data, few, SMALL)) == pytest.approx(wanted, rel=1e-4)
    assert losses(run(start, data, deep, SMALL)) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.slow
def test_resumes_step_for_step(start: Path, data: TrainingSet, tmp_path: Path) -> None:
    config = settings(dropout=0.1, negatives=1, balance={"rule": "gradnorm"}, curriculum={"rule": "window"})
    check_resumes(partial(run, start, data, config), tmp_path)


def test_kept_token_lists_are_those_of_one_form(start: Path, base: Path, tmp_path: Path) -> None:
    """Two checkpoints with the same tokenizer and another skip list or expansion share no file."""
    cache = TokenCache(tmp_path / "tokens")
    other = write_pylate(tmp_path / "model", base, skiplist_words=["word1"], attend_to_expansion_tokens=True)
    for folder in (start, other, start):
        model = LateInteraction.load(str(folder))
        kept, made = lists_of(model, cache), lists_of(model)
        for name in ("queries", "documents"):
            lists: list[Ragged] = [getattr(found, name) for found in (kept, made)]
            np.testing.assert_array_equal(lists[0].values, lists[1].values)
    assert len(list((tmp_path / "tokens").glob("*.tokens"))) == 4


def test_documents_longer_than_the_checkpoint_reads_are_counted(start: Path) -> None:
    problem = planted()
    words = np.array([len(text.split()) for text in problem.texts["text"].to_pylist()])
    for most in (8, 9, 32):
        pairs = LateInteraction.load(str(start), max_tokens=most).pairs
        found = problem.lists(pairs)
        assert found.cut == int((words > most - 3).sum())  # [CLS], [SEP] and the marker


def test_pinning_loses_nothing(start: Path, data: TrainingSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tokens count, most of all: without it punctuation would be trained on, on GPUs alone."""
    monkeypatch.setattr(batching, "_pin", np.copy)  # page-locked memory needs a GPU
    (batch,) = step_batches(data, settings(), 0, Phase(1.0), LARGE)
    pairs = cast(TextPairs, batch.batches)
    held = batching.pinned(batch)
    for before, after in ((batch, held), (pairs, held.batches), *zip(pairs.batches, held.batches.batches, strict=True)):
        for name in (field.name for field in fields(before) if field.name != "batches"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
    assert any((part.counted != part.mask).any() for part in pairs.batches)
