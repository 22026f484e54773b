"""Losses against hand-computed values, the report's gradient (39), and finite differences in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anmi_ray.core.identity import rng
from anmi_ray.training.losses import (
    ELO_UNIT,
    debiased,
    listnet,
    margin_regression,
    ranknet,
    rating_target,
    regression,
    weighted_infonce,
)

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


def test_infonce_is_marginal_over_documents_of_which_one_is_relevant() -> None:
    score = torch.tensor([[2.0, 1.0, 0.5, 5.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0, 0.25, 0.5, 1.0]], dtype=torch.float64)
    mask, positive = torch.tensor([[True, True, True, False], [False, True, False, False]]).split(1)
    loss = weighted_infonce(score, weight, mask, 0.5, positive)
    anchor, other, negative = math.exp(4.0), math.exp(2.0), 0.5 * math.exp(1.0)
    total, relevant = anchor + other + negative, anchor + 0.25 * other
    assert float(loss.detach()) == pytest.approx(-math.log(relevant / total), abs=1e-12)
    expected = [anchor / total - anchor / relevant, other / total - 0.25 * other / relevant, negative / total, 0.0]
    assert (torch.autograd.grad(loss.sum(), score)[0][0] / 2.0).tolist() == pytest.approx(expected, abs=1e-12)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "infonce": lambda score, weight, mask, rating: weighted_infonce(score, weight, mask, 0.7),
    "marginal": lambda score, weight, mask, rating: weighted_infonce(score, weight, mask, 0.7, mask & (weight == 0.7)),
    "debiased": lambda score, weight, mask, rating: debiased(score.tanh(), weight, mask, 0.7, 0.2).loss_B,
    "hard": lambda score, weight, mask, rating: debiased(score.tanh(), weight, mask, 0.7, 0.1, 1.5).loss_B,
    "ranknet": lambda score, weight, mask, rating: ranknet(score, rating, mask, 0.7),
    "listnet": lambda score, weight, mask, rating: listnet(score, rating, mask, 0.7, 80.0),
    "normalised": lambda score, weight, mask, rating: regression(score, target(rating), mask, 0.3 + weight),
    "centred": lambda score, weight, mask, rating: regression(score, target(rating, "centred"), mask, 0.3 + weight),
    "margins": lambda score, weight, mask, rating: margin_regression(score, target(rating), mask, 0.3 + weight),
}


def target(rating: Tensor, kind: Literal["normalised", "centred"] = "normalised") -> Tensor:
    mean, spread = torch.tensor([3.0, 0.0, -8.0]).double(), torch.tensor([150.0, 5.0, 90.0]).double()
    return rating_target(rating, mean, spread, kind)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_against_finite_differences(seed: int, name: str) -> None:
    score, weight, mask, rating = grid(seed)
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](s, weight, mask, rating), (score.requires_grad_(True),))


@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(LOSSES)))
def test_padding_and_what_is_not_rated_change_nothing(seed: int, name: str) -> None:
    score, weight, mask, rating = grid(seed)
    rating = torch.where(mask, rating, torch.nan)
    by_rating = name in ("ranknet", "listnet", "normalised", "centred", "margins")
    unread = ~mask | rating.isnan() if by_rating else ~mask | (weight == 0)
    if not by_rating:
        unread[:, 0] = False
    other = torch.where(unread, torch.tensor(1e3).double(), score)
    torch.testing.assert_close(LOSSES[name](other, weight, mask, rating), LOSSES[name](score, weight, mask, rating))


@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.05, 0.3]),
    hardness=st.sampled_from([0.0, 1.0]),
    temperature=st.sampled_from([0.05, 0.5, 1.0]),
)
def test_debiased_is_what_its_papers_write(seed: int, share: float, hardness: float, temperature: float) -> None:
    score, weight, mask, _ = grid(seed)
    score = score.tanh()
    found = debiased(score, weight, mask, temperature, share, hardness)
    for b in range(LISTS):
        there = [i for i in range(1, DOCUMENTS) if mask[b, i] and weight[b, i] > 0]
        if not there:
            assert (float(found.loss_B[b]), bool(found.clamped_B[b])) == (0.0, False)
            continue
        positive = math.exp(float(score[b, 0]) / temperature)
        w, negative = weight[b, there].numpy(), np.exp(score[b, there].numpy() / temperature)
        importance = negative**hardness
        total = float((w * importance * negative).sum() / ((w * importance).sum() / w.sum()))
        corrected = (total - share * w.sum() * positive) / (1 - share)
        floor = w.sum() * math.exp(-1 / temperature)
        assert float(found.loss_B[b]) == pytest.approx(
            -math.log(positive / (positive + max(corrected, floor))), rel=1e-9
        )
        assert bool(found.clamped_B[b]) == (corrected <= floor)


def test_debiased_without_a_share_is_infonce_and_cut_off_negatives_teach_nothing() -> None:
    score, weight, mask, _ = grid(1)
    score = score.tanh()
    torch.testing.assert_close(
        debiased(score, weight, mask, 0.3, 0.0).loss_B, weighted_infonce(score, weight, mask, 0.3)
    )
    # s+ - s- > τ ln(1/τ+): the correction would be negative
    score = torch.tensor([[0.9, -0.5, -0.6]], requires_grad=True)
    loss, clamped = debiased(score, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), 0.3, 0.1)
    loss.sum().backward()
    assert clamped.tolist() == [True]
    assert score.grad is not None
    assert score.grad[0, 1:].tolist() == [0.0, 0.0]
    assert score.grad[0, 0] < 0


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_debiased_stays_finite_in_float32(temperature: float, share: float) -> None:
    """Also where the correction takes all that there is: equal scores, at the edge of the cut."""
    for row in (
        [1.0, -1.0, -1.0],
        [-1.0, 1.0, 1.0],
        [0.0, 0.0, 0.0],
        [0.3, 0.3 + temperature * math.log(share or 1)] * 2,
    ):
        score = torch.tensor([row], requires_grad=True)
        grid_ = torch.ones(1, len(row))
        loss, _ = debiased(score, grid_, grid_ > 0, temperature, share, 2.0)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert score.grad is not None
        assert score.grad.isfinite().all()


def test_ranknet_and_listnet_are_least_where_scores_are_ratings() -> None:
    rating = torch.tensor([[250.0, 100.0, torch.nan, -90.0]]).double()
    mask = torch.tensor([[True, True, True, True]])
    for loss, scale in (
        (lambda s: ranknet(s, rating, mask), 1 / ELO_UNIT),
        (lambda s: listnet(s, rating, mask, 1.0, 80.0), 1 / 80.0),
    ):
        best = (torch.nan_to_num(rating) * scale).requires_grad_(True)
        loss(best).sum().backward()
        assert best.grad is not None
        torch.testing.assert_close(best.grad, torch.zeros_like(best.grad), atol=1e-12, rtol=0)
    assert float(listnet(torch.nan_to_num(rating) / 80.0, rating, mask, 1.0, 80.0)) == pytest.approx(0.0, abs=1e-12)
    pair = torch.tensor([[0.0, ELO_UNIT * math.log(3)]]).double()  # preferred with .75
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    both = torch.ones(1, 2, dtype=torch.bool)
    assert float(ranknet(torch.tensor([[0.0, math.log(3)]]).double(), pair, both)) == pytest.approx(entropy)
    assert float(ranknet(torch.tensor([[5.0]]).double(), pair[:, :1], both[:, :1])) == 0.0


def test_margins_do_not_see_a_constant() -> None:
    score, _, mask, rating = grid(2)
    rating[:, 0] = 100.0
    wanted = target(rating)
    alike = torch.ones_like(score)
    torch.testing.assert_close(
        margin_regression(score + 7.0, wanted, mask, alike), margin_regression(score, wanted, mask, alike)
    )
    error = (2.0 - 0.5) - (1.0 - 0.25)
    found = margin_regression(
        torch.tensor([[2.0, 0.5, 9.0]]),
        torch.tensor([[1.0, 0.25, torch.nan]]),
        torch.ones(1, 3) > 0,
        torch.full((1, 3), 0.5),
    )
    assert found.tolist() == pytest.approx([0.5 * error**2])


def test_targets_are_normalised_by_the_whole_lists_spread() -> None:
    rating = torch.tensor([[100.0, -50.0, torch.nan], [10.0, 0.0, -10.0]])
    target = rating_target(rating, torch.tensor([20.0, 0.0]), torch.tensor([160.0, 20.0]))
    torch.testing.assert_close(target, torch.tensor([[0.5, -0.4375, torch.nan], [0.5, 0.0, -0.5]]), equal_nan=True)
    centred = rating_target(rating, torch.tensor([20.0, 0.0]), torch.tensor([160.0, 4.0]), "centred")
    assert float(centred[0, 0]) == pytest.approx(100 / 173.718)


def test_regression_leaves_out_null_ratings_and_padding() -> None:
    target = torch.tensor([[1.0, torch.nan, 3.0, 9.0], [torch.nan, torch.nan, torch.nan, torch.nan]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    predicted = torch.tensor([[0.0, 7.0, 1.0, 0.0], [5.0, 5.0, 5.0, 5.0]], requires_grad=True)
    precision = torch.tensor([[1.5, 1.0, 0.5, 1.0]] * 2)
    loss = regression(predicted, target, mask, precision)
    torch.testing.assert_close(loss.detach(), torch.tensor([(1.5 + 2.0) / 2, 0.0]))
    loss.sum().backward()
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad, torch.tensor([[-1.5, 0.0, -1.0, 0.0], [0.0] * 4]))


def test_large_scores_stay_finite() -> None:
    score = torch.tensor([[-1e4, 1e4, 3.0]], requires_grad=True)
    loss = weighted_infonce(score, torch.tensor([[1.0, 1e-30, 0.0]]), torch.ones(1, 3, dtype=torch.bool))
    loss.sum().backward()
    assert score.grad is not None
    assert math.isfinite(float(loss.detach()))
    assert score.grad.isfinite().all()
