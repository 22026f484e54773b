"""Losses against hand-computed values, the report's gradient (39), and finite differences in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anmi_ray.identity import rng
from anmi_ray.training.losses import hybrid, rating_target, regression, weighted_infonce

LISTS, DOCUMENTS = 3, 5


def grid(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, weights (some zero), mask (ragged lists) and ratings (some null), float64."""
    generator = rng("losses", seed)
    score = torch.from_numpy(generator.normal(0, 3, (LISTS, DOCUMENTS)))
    weight = torch.from_numpy(generator.choice([0.0, 0.3, 0.7, 1.0], (LISTS, DOCUMENTS)))
    mask = torch.arange(DOCUMENTS)[None, :] < torch.from_numpy(generator.integers(1, DOCUMENTS + 1, LISTS))[:, None]
    rating = torch.from_numpy(generator.normal(0, 150, (LISTS, DOCUMENTS)))
    rating[torch.from_numpy(generator.random((LISTS, DOCUMENTS)) < 0.3)] = torch.nan
    return score, weight, mask, rating


@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_infonce_is_equation_38_and_its_gradient_39(seed: int, temperature: float) -> None:
    score, weight, mask, _ = grid(seed)
    score.requires_grad_(True)
    loss = weighted_infonce(score, weight, mask, temperature)
    loss.sum().backward()
    assert score.grad is not None
    gradient, score = score.grad, score.detach()
    for b in range(LISTS):
        terms = [math.exp(float(score[b, 0]) / temperature)]
        terms += [
            float(weight[b, i]) * math.exp(float(score[b, i]) / temperature) if mask[b, i] else 0.0
            for i in range(1, DOCUMENTS)
        ]
        total = sum(terms)
        assert float(loss[b].detach()) == pytest.approx(-math.log(terms[0] / total), abs=1e-12)
        expected = [term / (temperature * total) for term in terms]
        expected[0] -= 1.0 / temperature
        assert gradient[b].tolist() == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 10_000))
def test_a_weight_of_zero_is_a_document_that_is_not_there(seed: int) -> None:
    score, weight, mask, _ = grid(seed)
    moved = torch.where((weight == 0) & (torch.arange(DOCUMENTS) > 0), score + 1e6, score)
    torch.testing.assert_close(weighted_infonce(moved, weight, mask), weighted_infonce(score, weight, mask))
    alone = weighted_infonce(score, torch.zeros_like(weight), mask)
    torch.testing.assert_close(alone, torch.zeros_like(alone))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", ["normalised", "absolute"])
def test_gradients_against_finite_differences(seed: int, alpha: float, kind: str) -> None:
    score, weight, mask, rating = grid(seed)
    mean, spread = torch.tensor([3.0, 0.0, -8.0]).double(), torch.tensor([150.0, 5.0, 90.0]).double()
    target = rating_target(rating, mean, spread, kind)  # type: ignore[arg-type]

    def loss(score: Tensor, log_scale: Tensor, shift: Tensor) -> Tensor:
        error = regression(log_scale.exp() * score + shift, target, mask)
        return hybrid(weighted_infonce(score, weight, mask, 0.7), error, alpha).mean()

    inputs = (score.requires_grad_(True), torch.tensor(0.3).double(), torch.tensor(-0.2).double())
    assert torch.autograd.gradcheck(loss, tuple(value.detach().requires_grad_(True) for value in inputs))


def test_targets_are_normalised_by_the_whole_lists_spread() -> None:
    rating = torch.tensor([[100.0, -50.0, torch.nan], [10.0, 0.0, -10.0]])
    target = rating_target(rating, torch.tensor([20.0, 0.0]), torch.tensor([160.0, 20.0]))
    torch.testing.assert_close(target, torch.tensor([[0.5, -0.4375, torch.nan], [0.5, 0.0, -0.5]]), equal_nan=True)
    absolute = rating_target(rating, torch.tensor([20.0, 0.0]), torch.tensor([160.0, 4.0]), "absolute")
    assert float(absolute[0, 0]) == pytest.approx(100 / 173.718)


def test_regression_leaves_out_null_ratings_and_padding() -> None:
    target = torch.tensor([[1.0, torch.nan, 3.0, 9.0], [torch.nan, torch.nan, torch.nan, torch.nan]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    predicted = torch.tensor([[0.0, 7.0, 1.0, 0.0], [5.0, 5.0, 5.0, 5.0]], requires_grad=True)
    loss = regression(predicted, target, mask)
    torch.testing.assert_close(loss.detach(), torch.tensor([(1.0 + 4.0) / 2, 0.0]))
    loss.sum().backward()
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad, torch.tensor([[-1.0, 0.0, -2.0, 0.0], [0.0] * 4]))


def test_large_scores_stay_finite() -> None:
    score = torch.tensor([[-1e4, 1e4, 3.0]], requires_grad=True)
    loss = weighted_infonce(score, torch.tensor([[1.0, 1e-30, 0.0]]), torch.ones(1, 3, dtype=torch.bool))
    loss.sum().backward()
    assert score.grad is not None
    assert math.isfinite(float(loss.detach()))
    assert score.grad.isfinite().all()
