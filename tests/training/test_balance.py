"""Balances on two terms whose losses and gradients are known: where they settle, and what scaling a term does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.train import BalanceConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.training.balance import Balance, Measured, Scalars, estimated_alpha, make_balance, numbers


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
    assert [estimated_alpha(share) for share in (0.05, 0.2, 0.5)] == pytest.approx([0.75, 0.575, 0.4])
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
