"""Training late interaction: against encoding every pair by itself, sentence-transformers' loss, and execution."""

# ruff: noqa: F811
from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.scoring import mean_colbert_scores
from torch import Tensor

from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import with_settings
from anmi_ray.config.train import TrainConfig
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.texts import TextTokenizer
from anmi_ray.training import vectors
from anmi_ray.training.batching import step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Trained, train
from anmi_ray.training.module import Trainable
from anmi_ray.training.objective import Objective
from anmi_ray.training.training_set import TrainingSet
from anmi_ray.training.vectors import LateTrainable, trainable
from tests.training.lists import planted
from tests.training.test_loop import dev_set
from tests.training.test_vectors import (
    LARGE,
    LENT,
    PLAIN,
    SMALL,
    check_resumes,
    check_step,
    data,  # noqa: F401
    loaded,
    losses,
    naive_loss,
    of_one,
)

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def settings(**more: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        PLAIN | {"student": "late-interaction", "negatives": None, "loss": LENT, "balance": {}} | more
    )


def run(folder: Path, data: TrainingSet, config: TrainConfig, execution: Any = LARGE, **more: Any) -> Trained:
    model = loaded(folder)
    return train(model, data, dev_set(model)[0], config, execution, **more)


def both_ways(module: Trainable, data: TrainingSet, query: int, document: int) -> list[Tensor]:
    """The scores that the loss reads of a pair whose texts are encoded by themselves: the tokens', the texts', half."""
    (tokens, pooled), (of_document, whole) = (
        of_one(module, data, texts, row) for texts, row in ((data.queries, query), (data.documents, document))
    )
    score = (tokens[0] @ of_document[0].T)[: count(data, data.queries, query), : count(data, data.documents, document)]
    score, cosine = score.max(1).values.mean(), pooled[0] @ whole[0]
    return [score, cosine, (score + cosine) / 2]


def count(data: TrainingSet, texts: Any, row: int) -> int:
    """Tokens of a text, special ones included."""
    assert isinstance(data.pairs, TextTokenizer)
    return int(data.pairs.lengths(texts)[row])


@pytest.mark.slow
@pytest.mark.parametrize("loss", [{"in_batch": False}, LENT, {"in_batch": True, "temperature": 0.5}])
def test_a_step_is_that_of_encoding_every_pair_by_itself(
    base: Path,
    data: TrainingSet,
    loss: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(loss=loss)
    module = trainable(loaded(base), config)
    assert isinstance(module, LateTrainable)
    one_group = loss["in_batch"] and "in_batch_lists" not in loss
    check_step(module, data, config, naive_loss(module, data, config, both_ways), ((LARGE, 1), (SMALL, 1)))
    monkeypatch.setattr(vectors, "_PRODUCTS", 1)  # a query at a time
    module.zero_grad()
    naive = naive_loss(module, data, config, both_ways)
    check_step(module, data, config, naive, ((SMALL, 1 if one_group else 2),))


def test_the_term_of_the_tokens_is_multiple_negatives_ranking_of_sentence_transformers(
    base: Path,
    tmp_path: Path,
) -> None:
    model = loaded(base)
    problem = planted(lists=6, negatives=2, randoms=0)
    data = problem.lists(model.pairs)
    data = replace(data, weight_P=np.ones_like(data.weight_P))
    config = settings(lists_per_step=6, loss={"in_batch": True}, balance={"alpha": 1.0})
    module = trainable(model, config)
    (batch,) = step_batches(data, config, 0, Phase(1.0), LARGE)
    score, predicted, *_ = module(batch.batches)
    loss = Objective(module, config, 1, None).loss(batch, Phase(1.0), score, predicted)

    published = MultiVectorEncoder(str(model.export(tmp_path / "export")), device="cpu")
    queries, *documents = problem.columns()
    features = [published.preprocess(queries, task="query")]
    features += [published.preprocess(texts, task="document") for texts in documents]
    theirs = MultiVectorMultipleNegativesRankingLoss(published, scale=20.0, similarity_fct=mean_colbert_scores)
    assert float(loss.detach()) == pytest.approx(float(theirs(features, torch.zeros(6)).detach()), rel=1e-4)


@pytest.mark.slow
def test_execution_changes_no_result(base: Path, data: TrainingSet) -> None:
    config = settings(loss=LENT | {"learn_temperature": True})
    one, many = (run(base, data, config, execution) for execution in (LARGE, SMALL))
    deep = run(base, data, config.model_copy(update={"engine": "deepspeed", "zero_stage": 2}), SMALL)
    names = ("gradient_ranking", "gradient_regression", "gradient_cosine", "gradient_norm")
    for other, precision in ((many, 1e-4), (deep, 2e-3)):
        assert losses(one) == pytest.approx(losses(other), rel=precision)
        assert one.dev == pytest.approx(other.dev, abs=1e-3)
        for ours, theirs in zip(one.rows, other.rows, strict=True):
            wanted = [theirs[name] for name in names]
            assert [ours[name] for name in names] == pytest.approx(wanted, rel=20 * precision, abs=1e-4)


@pytest.mark.slow
def test_resumes_step_for_step(base: Path, data: TrainingSet, tmp_path: Path) -> None:
    config = settings(dropout=0.1, negatives=1, balance={"rule": "gradnorm"}, curriculum={"rule": "window"})
    check_resumes(partial(run, base, data, config), tmp_path)


def test_learns_the_planted_signal_in_both_ways(base: Path) -> None:
    model = loaded(base)
    data = planted().lists(model.pairs)
    dev, _ = dev_set(model)
    before = dev.measure(model.score_tokens(dev.tokens)), dev.measure(BiEncoder.score_tokens(model, dev.tokens))
    trained = run(base, data, settings(max_steps=60, loss={"in_batch": False}))
    scores = trained.model.score_tokens(dev.tokens), BiEncoder.score_tokens(trained.model, dev.tokens)
    after = dev.measure(scores[0]), dev.measure(scores[1])
    assert isinstance(trained.model, LateInteraction)
    assert after[0] == pytest.approx(trained.dev, abs=1e-6)
    assert after[0] > before[0] + 0.3
    assert after[1] > before[1] + 0.3


def test_the_student_s_usual_settings_stand_unless_others_are_given() -> None:
    usual = TrainConfig.model_validate({"student": "late-interaction"})
    assert (usual.lists_per_step, usual.learning_rate, usual.negatives, usual.loss.in_batch) == (32, 1e-4, 1, True)
    assert (usual.start_temperature, usual.freeze_embeddings) == (0.05, False)
    given = {"student": "late-interaction", "lists_per_step": 8, "loss": {"temperature": 0.1}}
    found = TrainConfig.model_validate(given)
    assert (found.lists_per_step, found.start_temperature, found.loss.in_batch) == (8, 0.1, True)
    assert not TrainConfig.model_validate(given | {"loss": {"in_batch": False}}).loss.in_batch
    assert usual.balance.alpha == 1.0
    scheduled = TrainConfig.model_validate({"student": "late-interaction", "curriculum": {"rule": "table3"}})
    assert scheduled.balance.alpha == TrainConfig().balance.alpha
    by_rating = TrainConfig.model_validate({"student": "late-interaction", "loss": {"ranking": "listnet"}})
    assert (by_rating.negatives, by_rating.loss.in_batch) == (None, False)


def test_another_student_has_its_own_usual_settings() -> None:
    """What was filled in was not given, so it does not stay."""
    late = Experiment.model_validate({"name": "x", "train": {"student": "late-interaction", "epochs": 2.0}})
    back = with_settings(late.model_dump(exclude_unset=True), {"train.student": "cross-encoder"}, "here")
    assert back.train == TrainConfig(epochs=2.0)
    assert result_settings(late.train)["loss"] == {"in_batch": True}  # it decides the result, and the fingerprint


def test_documents_longer_than_the_model_are_counted(base: Path) -> None:
    problem = planted()
    for most, cut in ((32, False), (8, True)):
        pairs = LateInteraction.load(str(base), max_tokens=most).pairs
        found = problem.lists(pairs)
        words = np.array([len(text.split()) for text in problem.texts["text"].to_pylist()])
        assert found.cut == int((words > most - 2).sum())  # [CLS] and [SEP]
        assert bool(found.cut) == cut
