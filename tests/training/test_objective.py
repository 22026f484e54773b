"""The objective of one step, summed over workers; balances on terms whose losses and gradients are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.train import BalanceConfig, TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError, TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.training import objective as objectives
from anmi_ray.training.balance import Balance, Measured, Scalars, make_balance, numbers
from anmi_ray.training.batching import MicroBatch, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.module import Trainable
from anmi_ray.training.objective import Objective
from tests.training.lists import planted

ALL = Phase(0.7)


def settings(**more: Any) -> TrainConfig:
    plain = {"lists_per_step": 8, "max_tokens": 32, "precision": "float32", "max_steps": 4}
    return TrainConfig.model_validate(plain | more)


def step(base: Path, config: TrainConfig) -> tuple[Trainable, list[MicroBatch]]:
    model = CrossEncoder.load(str(base), pooling="cls", max_tokens=32, seed=0)
    data = planted().lists(model.pairs)
    return Trainable(model, config), step_batches(data, config, 0, ALL, TrainExecution(micro_batch_tokens=256))


def test_workers_sums_give_one_workers_step(base: Path) -> None:
    """Two workers with a share of the micro-batches each, their losses doubled as engines do, against one."""
    config = settings(balance={"rule": "uncertainty"}, loss={"bound": 3.0, "learn_temperature": True})
    module, batches = step(base, config)
    alone, *pair = (Objective(module, config, world, None) for world in (1, 2, 2))
    for _ in range(2):  # the second step moves by gradients
        for batch in batches:
            alone.loss(batch, ALL, *module(batch.batches)).backward()
        totals = []
        for worker, objective in enumerate(pair):
            for batch in batches[worker::2]:
                (2 * objective.loss(batch, ALL, *module(batch.batches))).backward()
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
        objective.loss(batch, ALL, *module(batch.batches)).backward()
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


def settle(balance: Balance, losses: tuple[float, float], norms: tuple[float, float], steps: int) -> Scalars:
    """Steps of constant losses; the weights are moved as the objective moves them."""
    scalars = Scalars(balance.start(), 0.02, torch.device("cpu"))
    for _ in range(steps):
        first, second = balance.weights(scalars, 0.7)
        total = first * losses[0] + second * losses[1]
        if (more := balance.more(scalars)) is not None:
            total = total + more
        if isinstance(total, torch.Tensor):
            total.backward()
        balance.step(scalars, scalars.gradients(), Measured(*losses, *norms))
    return scalars


def shares(balance: Balance, scalars: Scalars, norms: tuple[float, float]) -> float:
    """The ranking term's share of the weighted gradient norms."""
    first, second = (one * norm for one, norm in zip(numbers(balance.weights(scalars, 0.7)), norms, strict=True))
    return first / (first + second)


def test_a_learned_alpha_settles_where_its_prior_holds_it() -> None:
    losses = (1.2, 0.4)
    held = make_balance(BalanceConfig(rule="learned"), None)
    alpha = numbers(held.weights(settle(held, losses, (1.0, 1.0), 800), 0.7))[0]
    # where L1 - L2 = mode/alpha - (1 - mode)/(1 - alpha)
    assert 0.7 / alpha - 0.3 / (1 - alpha) == pytest.approx(losses[0] - losses[1], abs=0.02)
    assert 0.4 < alpha < 0.7


@pytest.mark.parametrize("rule", ["uncertainty", "gradnorm"])
@given(scale=st.sampled_from([0.01, 1.0, 100.0, 1e4]), losses=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)))
def test_the_shares_do_not_see_a_terms_scale(rule: str, scale: float, losses: tuple[float, float]) -> None:
    norms = (0.7, 0.2)
    plain, scaled = (make_balance(BalanceConfig.model_validate({"rule": rule}), None) for _ in range(2))
    before = shares(plain, settle(plain, losses, norms, 60), norms)
    seen = (norms[0], norms[1] * scale)
    after = shares(scaled, settle(scaled, (losses[0], losses[1] * scale), seen, 60), seen)
    assert after == pytest.approx(before, abs=1e-3)
    if rule == "gradnorm":
        assert before == pytest.approx(0.5, abs=0.02)


def test_uncertainty_gives_each_term_half() -> None:
    balance = make_balance(BalanceConfig(rule="uncertainty"), None)
    losses = (3.0, 0.02)
    weights = numbers(balance.weights(settle(balance, losses, (1.0, 1.0), 50), 0.7))
    assert [w * loss for w, loss in zip(weights, losses, strict=True)] == pytest.approx([0.5, 0.5], abs=0.01)


def test_uncertainty_follows_losses_that_fall() -> None:
    balance = make_balance(BalanceConfig(rule="uncertainty"), None)
    scalars = Scalars(balance.start(), 0.02, torch.device("cpu"))
    losses = (1.0, 2.1)
    for step in range(400):
        losses = (1.0, 2.0 * 0.99**step + 0.1)
        first, second = balance.weights(scalars, 0.7)
        more = balance.more(scalars)
        assert more is not None
        (first * losses[0] + second * losses[1] + more).backward()  # type: ignore[union-attr]
        balance.step(scalars, scalars.gradients(), Measured(*losses, 1.0, 1.0))
    assert numbers(balance.weights(scalars, 0.7))[1] * losses[1] == pytest.approx(0.5, abs=0.1)


def test_gradnorm_gives_more_to_the_term_that_learns_slower() -> None:
    balance = make_balance(BalanceConfig(rule="gradnorm"), None)
    scalars = Scalars(balance.start(), 0.02, torch.device("cpu"))
    for step in range(300):
        losses = (0.5 + 0.5 * 0.98**step, 1.0)  # the first has halved, the second not moved
        balance.step(scalars, scalars.gradients(), Measured(*losses, 2.0, 4.0))
    first, second = numbers(balance.weights(scalars, 0.7))
    assert first + second == pytest.approx(1.0)
    goal = (4 / 3) ** 1.5  # of the slower term, in units of the mean norm: L_i / L_i(0) over their mean, to the 1.5
    assert second * 4.0 / (first * 2.0) == pytest.approx(goal / (2 - goal), rel=0.05)


def test_what_a_checkpoint_keeps_goes_on_alike() -> None:
    for rule in ("learned", "uncertainty", "gradnorm"):
        one, other = (make_balance(BalanceConfig.model_validate({"rule": rule}), None) for _ in range(2))
        scalars = settle(one, (1.0, 0.3), (1.0, 2.0), 7)
        copy = Scalars(other.start(), 0.02, torch.device("cpu"))
        copy.load(scalars.state())
        other.load(one.state())
        for balance, held in ((one, scalars), (other, copy)):
            balance.step(held, [0.3] * len(held.values), Measured(0.9, 0.25, 1.1, 1.9))
        assert scalars.state() == copy.state()


def test_alpha_follows_the_share_of_false_negatives() -> None:
    found = make_balance(BalanceConfig(rule="estimated"), 0.2)
    assert found.weights(Scalars({}, 0.1, torch.device("cpu")), 0.9)[0] == pytest.approx(0.575)
    with pytest.raises(ConfigError, match="share of false negatives is not known"):
        make_balance(BalanceConfig(rule="estimated"), None)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="starts between 0 and 1"):
        make_balance(BalanceConfig(rule="learned", alpha=1.0), None)
    balance = make_balance(BalanceConfig(rule="gradnorm"), None)
    with pytest.raises(ConfigError, match="no last linear layer"):
        settle(balance, (1.0, 1.0), (math.nan, math.nan), 1)


def test_adam_is_torchs() -> None:
    scalars = Scalars({"a": 0.3, "b": -2.0}, 0.05, torch.device("cpu"))
    theirs = [torch.tensor(0.3, requires_grad=True), torch.tensor(-2.0, requires_grad=True)]
    optimizer = torch.optim.Adam(theirs, lr=0.05)
    for step in range(20):
        for values in (list(scalars.values.values()), theirs):
            (values[0] ** 2 + (values[1] - step) ** 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        scalars.step(scalars.gradients())
    ours, wanted = ([float(v.detach()) for v in values] for values in (scalars.values.values(), theirs))
    assert ours == pytest.approx(wanted, rel=1e-5)
