"""Every recipe carried out with a late-interaction student: its terms are in force, and its loss falls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.rules import RECIPES
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.training.batching import lists_of_step, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.training_set import TrainingSet
from tests.training.lists import planted

STEPS, RATE = 48, 0.05
EXECUTION = TrainExecution(micro_batch_tokens=100_000)


def of_recipe(name: str) -> TrainConfig:
    """Training as a file with this recipe and student has it, small."""
    small = {"student": "late-interaction", "engine": "ddp", "lists_per_step": 8, "max_tokens": 32, "dev_points": []}
    small |= {"max_steps": STEPS, "learning_rate": 1e-3, "precision": "float32"}
    return Experiment.model_validate({"name": "x", "recipe": name, "train": small}).train


def student(base: Path) -> tuple[LateInteraction, TrainingSet]:
    """The start, and the planted lists tokenised for it."""
    model, problem = LateInteraction.load(str(base), max_tokens=32), planted()
    return model, problem.lists(model.pairs)


def carried_out(base: Path, name: str, rate: float | None = RATE) -> Trained:
    """`STEPS` steps of a recipe."""
    model, data = student(base)
    return train(model, data, None, of_recipe(name), EXECUTION, false_negative_rate=rate)


def values(rows: list[Row], name: str) -> list[float]:
    """A column of the training log, all of it there."""
    found = [row[name] for row in rows]
    return [float(value) for value in found if value is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_its_loss_is_finite_and_its_terms_fall(base: Path, name: str) -> None:
    rows = carried_out(base, name).rows
    config = of_recipe(name)
    assert len(values(rows, "loss")) == STEPS
    for term, share in (("ranking", 1.0), ("regression", 0.0)):
        if config.balance.alpha == 1.0 - share and config.curriculum.rule == "fixed":
            continue  # has no weight
        found = values(rows, term)
        assert all(map(math.isfinite, found))
        epochs = STEPS // 3  # an epoch of 24 lists has three steps
        by_epoch = np.array(found).reshape(epochs, 3).mean(1)
        assert by_epoch[-4:].mean() < by_epoch[:4].mean(), term


@pytest.mark.parametrize("name", RECIPES)
def test_regression_reads_every_rated_document_where_it_has_weight(base: Path, name: str) -> None:
    _, data = student(base)
    config = of_recipe(name)
    alpha = config.balance.alpha if config.curriculum.rule == "fixed" else 0.5
    (batch,) = step_batches(data, config, 0, Phase(alpha), EXECUTION)
    rated = sum(
        int(np.isfinite(data.rating_P[data.start_E[e] : data.start_E[e + 1]]).sum())
        for e, _ in lists_of_step(data.order, config, 0)
    )
    read = int((np.isfinite(batch.rating_BK) & batch.mask_BK).sum())
    own = (batch.weight_BK[:, 1:] > 0).sum(1)
    if alpha == 1.0:
        assert read <= 2 * len(batch.mean_B) < rated  # the anchor and one negative
    else:
        assert read == rated
    assert (own >= 1).all() or alpha == 0.0
    # documents of the other lists are negatives of the ranking term, where there is one
    assert (batch.mask_BK.shape[1] > 7) == (alpha > 0.0)


@pytest.mark.slow
def test_their_own_terms_are_in_force(base: Path) -> None:
    logs: dict[str, list[Row]] = {name: carried_out(base, name).rows for name in RECIPES}
    alphas: dict[str, Any] = {name: values(rows, "alpha") for name, rows in logs.items()}
    assert set(alphas["infonce-mined"]) == {1.0}
    assert set(alphas["zelo"]) == {0.0}
    assert sorted(set(alphas["anmi2"])) == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert sorted(set(values(logs["anmi2"], "minimum_gap_elo"))) == [100.0, 150.0, 200.0, 300.0]
    extended = logs["anmi2-extended"]
    assert set(alphas["anmi2-extended"]) == {0.7}
    assert len(values(extended, "clamped")) == STEPS  # of the debiased loss alone
    assert len(set(values(extended, "minimum_gap_elo"))) > 1  # bands of gaps
    temperature = values(extended, "temperature")
    assert temperature[0] == pytest.approx(0.5)
    assert temperature[-1] != temperature[0]
    assert all("clamped" not in rows[0] and "temperature" not in rows[0] for n, rows in logs.items() if "ext" not in n)


CROSS, BOTH, LATE = "cross-encoder", "bi-encoder", "late-interaction"


@pytest.mark.parametrize(
    ("student", "more", "what"),
    [
        (CROSS, {"lora": {}, "freeze_layers": 1}, "leave freeze_layers out"),
        (CROSS, {"lora": {}, "freeze_embeddings": False}, "leave freeze_embeddings: false out"),
        (CROSS, {"prompt": "{query} {document}"}, "prompt is for decoders"),
        (CROSS, {"pooling": "last", "prompt": "{document} {query}"}, "after it"),
        (CROSS, {"pooling": "yes-no", "prompt": "{query}"}, "once"),
        (CROSS, {"loss": {"ranking": "debiased"}}, "needs bounded scores"),
        (CROSS, {"loss": {"learn_temperature": True}}, "needs bounded scores"),
        (CROSS, {"loss": {"hardness": 1.0}}, "belongs to ranking: debiased"),
        (CROSS, {"loss": {"bound": 3, "learn_temperature": True, "temperature": 5}}, "between .01 and 1"),
        (CROSS, {"curriculum": {"rule": "table3"}, "balance": {"alpha": 0.3}}, "sets alpha itself"),
        (CROSS, {"curriculum": {"rule": "table3", "minimum_gap_elo": 30}}, "sets the gaps itself"),
        (CROSS, {"loss": {"ranking": "listnet"}, "curriculum": {"rule": "window"}}, "a curriculum chooses negatives"),
        (CROSS, {"loss": {"in_batch": True}}, "in_batch needs student: bi-encoder"),
        (BOTH, {"loss": {"bound": 3.0}}, "a cosine, bounded as it is: leave bound out"),
        (BOTH, {"pooling": "mean"}, "pooling is of a cross-encoder's scoring head"),
        (BOTH, {"head_learning_rate": 1e-4}, "head_learning_rate is of a cross-encoder's scoring head"),
        (BOTH, {"loss": {"in_batch": True, "ranking": "listnet"}}, "listnet reads ratings alone"),
        (BOTH, {"loss": {"in_batch_lists": 4}}, "belongs to in_batch"),
        (BOTH, {"loss": {"in_batch": True, "in_batch_lists": 3}}, "choose a multiple of in_batch_lists, 3"),
        (BOTH, {"loss": {"in_batch": True}, "lists_per_step": 1}, "at least 2"),
        (BOTH, {"loss": {"learn_temperature": True, "temperature": 2}}, "between .01 and 1"),
        (LATE, {"loss": {"bound": 3.0}}, "a late-interaction score is a cosine, bounded as it is: leave bound out"),
        (LATE, {"pooling": "mean"}, "pooling is of a cross-encoder's scoring head, a late-interaction has none"),
        (LATE, {"loss": {"ranking": "listnet", "in_batch": False}, "negatives": 2}, "listnet reads all ratings"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(student: str, more: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        TrainConfig.model_validate({"student": student, "lists_per_step": 8} | more)
