"""The objective of one step: last-layer gradients against backward passes, sums over workers, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError, TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.training import objective as objectives
from anmi_ray.training.batching import MicroBatch, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.module import Trainable
from anmi_ray.training.objective import Objective
from anmi_ray.training.training_set import prepare
from tests.models.tiny import write_tiny_bert
from tests.training.lists import planted

ALL = Phase(0.7)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def settings(**more: Any) -> TrainConfig:
    plain = {"lists_per_step": 8, "max_tokens": 32, "precision": "float32", "max_steps": 4}
    return TrainConfig.model_validate(plain | more)


def step(base: Path, config: TrainConfig, pooling: str = "cls") -> tuple[Trainable, list[MicroBatch]]:
    model = CrossEncoder.load(str(base), pooling=pooling, max_tokens=32, seed=0)  # type: ignore[arg-type]
    problem = planted()
    data = prepare([problem.examples], [problem.texts], [problem.queries], model.pairs)
    return Trainable(model, config), step_batches(data, config, 0, ALL, TrainExecution(micro_batch_tokens=256))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_gradients_on_the_last_layer_are_those_of_backward_passes(base: Path, pooling: str) -> None:
    config = settings()
    module, batches = step(base, config, pooling)
    assert len(batches) > 2
    last = module.network.encoder.classifier if pooling == "cls" else module.network.out  # type: ignore[union-attr]
    objective = Objective(module, config, 1, None)
    gradients, figures = {}, {}
    for alpha in (1.0, 0.0):
        module.zero_grad()
        for batch in batches:
            objective.of(batch, Phase(alpha), *module(batch.batches)).backward()
        gradients[alpha] = last.weight.grad.clone().flatten()  # type: ignore[union-attr]
        figures = objective.finish(objective.sums(), ALL, 0)
    assert figures["gradient_ranking"] == pytest.approx(0.7 * float(gradients[1.0].norm()), rel=1e-4)
    assert figures["gradient_regression"] == pytest.approx(0.3 * float(gradients[0.0].norm()), rel=1e-4)
    cosine = torch.cosine_similarity(gradients[1.0], gradients[0.0], dim=0)
    assert figures["gradient_cosine"] == pytest.approx(float(cosine), rel=1e-3)
    share = figures["gradient_ranking"] / (figures["gradient_ranking"] + figures["gradient_regression"])  # type: ignore[operator]
    assert figures["gradient_share"] == pytest.approx(share)


def test_workers_sums_give_one_workers_step(base: Path) -> None:
    """Two workers with a share of the micro-batches each, their losses doubled as engines do, against one."""
    config = settings(balance={"rule": "uncertainty"}, loss={"bound": 3.0, "learn_temperature": True})
    module, batches = step(base, config)
    alone, *pair = (Objective(module, config, world, None) for world in (1, 2, 2))
    for _ in range(2):  # the second step moves by gradients
        for batch in batches:
            alone.of(batch, ALL, *module(batch.batches)).backward()
        totals = []
        for worker, objective in enumerate(pair):
            for batch in batches[worker::2]:
                (2 * objective.of(batch, ALL, *module(batch.batches))).backward()
            totals.append(objective.sums())
        summed = [sum(values) for values in zip(*totals, strict=True)]
        expected = alone.finish(alone.sums(), ALL, 0)
        for objective in pair:
            assert objective.finish(summed, ALL, 0) == pytest.approx(expected, rel=1e-4)
    for objective in pair:
        for ours, theirs in ((objective.weights, alone.weights), (objective.sharpness, alone.sharpness)):
            assert ours.state()["values"] == pytest.approx(theirs.state()["values"], rel=1e-4)
            assert ours.state()["values"] != Objective(module, config, 1, None).weights.state()["values"]


def test_a_step_says_how_much_of_the_negatives_weight_is_on_rated_ones(base: Path) -> None:
    module, batches = step(base, settings())
    objective = Objective(module, settings(), 1, None)
    weights = np.concatenate([batch.weight_BK[:, 1:][batch.mask_BK[:, 1:]] for batch in batches])
    rated = np.concatenate([np.isfinite(batch.rating_BK[:, 1:][batch.mask_BK[:, 1:]]) for batch in batches])
    assert 0 < rated.sum() < len(rated)
    figures = objective.finish(objective_sums(objective, module, batches), ALL, 0)
    assert figures["rated_share"] == pytest.approx(weights[rated].sum() / weights.sum())


def test_a_learned_temperature_stays_between_its_ends(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "LOSS_RATE", 1.0)
    config = settings(loss={"bound": 3.0, "learn_temperature": True})
    module, batches = step(base, config)
    objective = Objective(module, config, 1, None)
    assert float(torch.as_tensor(objective.temperature).detach()) == pytest.approx(0.07)
    sums = objective_sums(objective, module, batches)
    at, figures = len(objectives._NAMES), {}
    for gradient, end in ((-1.0, 0.01), (1.0, 1.0)):
        for _ in range(60):
            figures = objective.finish([*sums[:at], gradient, *sums[at + 1 :]], ALL, 0)
        assert figures["temperature"] == pytest.approx(end, rel=1e-3)


def objective_sums(objective: Objective, module: Trainable, batches: list[MicroBatch]) -> list[float]:
    for batch in batches:
        objective.of(batch, ALL, *module(batch.batches)).backward()
    return objective.sums()


def test_the_share_of_false_negatives_comes_from_the_run_or_the_settings(base: Path) -> None:
    config = settings(loss={"ranking": "debiased", "bound": 3.0, "temperature": 0.5})
    module, _ = step(base, config)
    assert Objective(module, config, 1, 0.04).positive_share == 0.04
    given = settings(loss={"ranking": "debiased", "bound": 3.0, "temperature": 0.5, "positive_share": 0.2})
    assert Objective(module, given, 1, 0.04).positive_share == 0.2
    with pytest.raises(ConfigError, match="share of false negatives is unknown"):
        Objective(module, config, 1, None)


def test_a_correction_that_takes_everything_is_said(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "CLAMPED_STEPS", 3)
    config = settings(loss={"ranking": "debiased", "bound": 3.0, "temperature": 0.01, "positive_share": 0.9})
    module, batches = step(base, config)
    objective = Objective(module, config, 1, None)
    sums = objective_sums(objective, module, batches)
    sums[objectives._NAMES.index("clamped")] = 5.0  # of 8 lists
    assert objective.finish(sums, ALL, 0)["clamped"] == 5 / 8
    objective.finish(sums, ALL, 1)
    with pytest.raises(TrainingError, match="clamped in more than half") as caught:
        objective.finish(sums, ALL, 2)
    assert "positive_share" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"loss": {"ranking": "debiased"}}, "needs bounded scores"),
        ({"loss": {"learn_temperature": True}}, "needs bounded scores"),
        ({"loss": {"hardness": 1.0}}, "belongs to ranking: debiased"),
        ({"loss": {"bound": 3, "learn_temperature": True, "temperature": 5}}, "between .01 and 1"),
        ({"curriculum": {"rule": "table3"}, "balance": {"alpha": 0.3}}, "sets alpha itself"),
        ({"curriculum": {"rule": "table3", "minimum_gap_elo": 30}}, "sets the gaps itself"),
        ({"loss": {"ranking": "listnet"}, "curriculum": {"rule": "window"}}, "a curriculum chooses negatives"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(more: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        settings(**more)
