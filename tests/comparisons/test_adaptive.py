"""The next pairs are those that lower tr(M Σ) most, by brute force over all; never one that was asked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from anmi_ray.comparisons.adaptive import (
    BAND,
    TOP,
    Beliefs,
    Objective,
    error,
    information,
    next_pairs,
    objective_matrix,
)
from anmi_ray.core.scale import Floats, Model, link, normal_cdf, normal_pdf, to_latent

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
MODELS: tuple[Model, ...] = get_args(Model)
seeds = st.integers(0, 10**6)


def drawn(documents: int, seed: int, spread: float = 1.0) -> Beliefs:
    """Beliefs with a random mean, covariance, anchors and strength."""
    random = np.random.default_rng([documents, seed])
    root = random.normal(size=(documents, documents + 2)) * 0.5
    covariance = root @ root.T / documents + 0.05 * np.eye(documents)
    anchors = random.choice(documents, size=int(random.integers(1, 3)), replace=False)
    return Beliefs(random.normal(0.0, spread, documents), covariance, anchors, float(random.uniform(0.3, 3.0)))


def every_pair(documents: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(documents), 2))


def edges(pairs: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def after(covariance: Floats, pair: tuple[int, int], weight: float) -> Floats:
    """The covariance when an answer of so much information about a pair is added to the precision."""
    contrast = np.zeros(len(covariance))
    contrast[list(pair)] = 1.0, -1.0
    return np.linalg.inv(np.linalg.inv(covariance) + weight * np.outer(contrast, contrast)).astype(np.float64)


def of_a_game(beliefs: Beliefs, pair: tuple[int, int], model: Model) -> float:
    i, j = pair
    sigma = beliefs.covariance
    variance = np.array([sigma[i, i] + sigma[j, j] - 2.0 * sigma[i, j]])
    return float(information(beliefs.mean[[i]] - beliefs.mean[[j]], variance, model)[0])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@given(documents=st.sampled_from([2, 3, 4, 5, 7, 9, TOP + 2]), seed=seeds, data=st.data())
def test_each_pair_is_the_best_of_all_when_those_before_are_answered(
    objective: Objective, model: Model, documents: int, seed: int, data: st.DataObject
) -> None:
    beliefs = drawn(documents, seed)
    pairs = every_pair(documents)
    asked = data.draw(st.lists(st.sampled_from(pairs), max_size=len(pairs)), label="asked")  # twice, too
    turned = [pair[::-1] if seed >> place & 1 else pair for place, pair in enumerate(asked)]
    count = data.draw(st.integers(0, 6), label="count")
    chosen = [(i, j) for i, j in next_pairs(beliefs, edges(turned), count, objective, model).tolist()]
    free = [pair for pair in pairs if pair not in asked]
    assert len(chosen) == min(count, len(free))
    m, sigma = objective_matrix(beliefs, objective, model), beliefs.covariance
    for pair in chosen:
        assert pair in free  # i < j, not asked, not chosen before
        left = {
            one: float(np.trace(m @ after(sigma, one, beliefs.strength * of_a_game(beliefs, one, model))))
            for one in free
        }
        assert left[pair] == pytest.approx(min(left.values()), rel=1e-9, abs=1e-12)
        sigma = after(sigma, pair, beliefs.strength * of_a_game(beliefs, pair, model))
        free.remove(pair)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@given(documents=st.sampled_from([2, 5, TOP + 2]), seed=seeds, share=st.floats(0.5, 1.1))
def test_no_more_is_chosen_than_a_target_needs(
    objective: Objective, model: Model, documents: int, seed: int, share: float
) -> None:
    """The error after the last pair is within the target, after the one before it was not."""
    beliefs = drawn(documents, seed)
    every = next_pairs(beliefs, edges([]), documents * 2, objective, model)
    m, sigma = objective_matrix(beliefs, objective, model), beliefs.covariance
    begun = error(beliefs, objective, model)
    target = share * begun
    found = next_pairs(beliefs, edges([]), documents * 2, objective, model, target)
    assert found.tolist() == every[: len(found)].tolist()
    errors = [begun]
    for i, j in found.tolist():
        sigma = after(sigma, (i, j), beliefs.strength * of_a_game(beliefs, (i, j), model))
        errors.append(begun * float(np.sqrt(np.sum(m * sigma) / np.sum(m * beliefs.covariance))))
    assert all(one > target * (1 - 1e-9) for one in errors[:-1])
    assert errors[-1] <= target * (1 + 1e-9) or len(found) == len(every)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_of_one_document_there_is_nothing_to_ask(objective: Objective) -> None:
    alone = Beliefs(np.zeros(1), np.ones((1, 1)), np.array([0]), 1.0)
    assert error(alone, objective, "thurstone") == 0.0
    assert len(next_pairs(alone, edges([]), 3, objective, "thurstone", 0.1)) == 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_error_is_the_mean_of_what_is_wanted(objective: Objective) -> None:
    """Documents that are known alike and apart from each other: a rating less the mean, or the gap of two."""
    documents, variance = 2 * TOP, 0.09
    beliefs = Beliefs(np.linspace(-2, 2, documents), variance * np.eye(documents), np.array([3]), 1.0)
    expected = 2 * variance if objective == "negatives" else variance * (1 - 1 / documents)
    assert error(beliefs, objective, "thurstone") == pytest.approx(expected**0.5)


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(documents=st.integers(2, TOP + 4), seed=seeds, spread=st.sampled_from([0.0, 1.0, 60.0]), data=st.data())
def test_all_that_is_left_is_chosen_once_however_far_documents_lie_apart(
    objective: Objective, documents: int, seed: int, spread: float, data: st.DataObject
) -> None:
    """An answer that is known beforehand tells nothing: such a pair comes last, and comes."""
    pairs = every_pair(documents)
    asked = data.draw(st.sets(st.sampled_from(pairs)), label="asked")
    found = next_pairs(drawn(documents, seed, spread), edges(sorted(asked)), len(pairs) + 3, objective, "thurstone")
    assert sorted(map(tuple, found.tolist())) == [pair for pair in pairs if pair not in asked]
    assert found.dtype == np.int64


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sd", [0.0, 0.3, 0.8, 1.5])
def test_information_is_the_mean_over_what_the_gap_may_be(model: Model, sd: float) -> None:
    def of_gap(x: Floats | float) -> Floats:
        p = link(x, model)
        density = normal_pdf(x) if model == "thurstone" else p * link(np.negative(x), model)
        return np.square(density) / (p * link(np.negative(x), model))

    gaps = np.array([-4.0, -1.0, 0.0, 0.4, 2.5])
    expected = of_gap(gaps)
    if sd:
        means = [
            integrate.quad(lambda z, at=at: normal_pdf(z) * of_gap(at + sd * z), -9.0, 9.0, epsabs=1e-12)[0]
            for at in gaps.tolist()
        ]
        expected = np.array(means)
    found = information(gaps, np.full(len(gaps), sd**2), model)
    np.testing.assert_allclose(found, expected, rtol=1e-9 if sd == 0.0 else 0.02, atol=0.0 if sd == 0.0 else 2e-3)
    np.testing.assert_allclose(found[0], information(-gaps[:1], np.full(1, sd**2), model)[0], rtol=1e-9)  # of its size


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@given(documents=st.integers(2, TOP + 6), seed=seeds)
def test_what_is_wanted_is_a_weighted_sum_of_variances(
    objective: Objective, model: Model, documents: int, seed: int
) -> None:
    beliefs = drawn(documents, seed)
    mean, sigma = beliefs.mean, beliefs.covariance
    every = range(documents)
    if objective == "negatives":
        expected = 0.0
        for a, i in itertools.product(beliefs.anchors.tolist(), every):
            if i != a:
                variance = sigma[a, a] + sigma[i, i] - 2.0 * sigma[a, i]
                close = normal_cdf((to_latent(BAND, model) - (mean[a] - mean[i])) / np.sqrt(variance))
                expected += float(close * variance)
    else:
        centred = [sigma[i, i] - 2.0 * sigma[i].mean() + sigma.mean() for i in every]
        chance = np.ones(documents)
        if objective == "top" and documents > TOP:
            best = sorted(mean.tolist(), reverse=True)
            edge = (best[TOP - 1] + best[TOP]) / 2.0
            chance = np.array([normal_cdf((mean[i] - edge) / np.sqrt(sigma[i, i])) for i in every])
        expected = sum(chance[i] * centred[i] for i in every)
    m = objective_matrix(beliefs, objective, model)
    assert np.trace(m @ sigma) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(m, m.T, atol=1e-12)
    assert np.linalg.eigvalsh(m).min() > -1e-9
