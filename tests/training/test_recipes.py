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
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.training.batching import lists_of_step, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.training_set import TrainingSet, prepare
from tests.models.tiny import write_tiny_bert
from tests.training.lists import planted

STEPS, RATE = 48, 0.05
EXECUTION = TrainExecution(micro_batch_tokens=100_000)


def of_recipe(name: str) -> TrainConfig:
    """Training as a file with this recipe and student has it, small."""
    small = {"student": "late-interaction", "engine": "ddp", "lists_per_step": 8, "max_tokens": 32, "dev_points": []}
    small |= {"max_steps": STEPS, "learning_rate": 1e-3, "precision": "float32"}
    return Experiment.model_validate({"name": "x", "recipe": name, "train": small}).train


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def student(base: Path) -> tuple[LateInteraction, TrainingSet]:
    """The start, and the planted lists tokenised for it."""
    model, problem = LateInteraction.load(str(base), max_tokens=32), planted()
    return model, prepare([problem.examples], [problem.texts], [problem.queries], model.pairs)


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


def test_debiasing_wants_the_share_of_false_negatives(base: Path) -> None:
    with pytest.raises(ConfigError, match="positive_share: the share of false negatives is unknown"):
        carried_out(base, "anmi2-extended", None)


@pytest.mark.parametrize(
    ("name", "more", "what"),
    [
        ("anmi2", {"balance": {"alpha": 0.2}}, "curriculum table3 sets alpha itself: leave balance.alpha out"),
        ("anmi2-extended", {"loss": {"bound": 3.0}}, "a late-interaction score is a cosine.*leave bound out"),
        ("anmi2-extended", {"loss": {"temperature": 2.0}}, r"a learned temperature lies between \.01 and 1"),
        ("anmi2", {"loss": {"ranking": "listnet"}}, "a curriculum chooses negatives, and listnet has none"),
        ("infonce-mined", {"lists_per_step": 1}, "in_batch needs other lists: set lists_per_step to at least 2"),
    ],
)
def test_what_does_not_go_with_a_recipe_is_refused(name: str, more: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Experiment.model_validate({"name": "x", "recipe": name, "train": {"student": "late-interaction"} | more})
