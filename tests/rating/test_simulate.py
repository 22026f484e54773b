"""Simulated games: votes follow the model, noise correlates as asked, seeds are a query's own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Model, link
from anmi_ray.rating.games import Games, Longs
from jobs.studies.simulated_games import bucket, play, simulate, votes

MANY = 200_000


def ring(documents: int, generator: np.random.Generator) -> Longs:
    """A random cycle through all documents, its pairs in no order."""
    order = generator.permutation(documents)
    return np.stack([order, np.roll(order, 1)], axis=1)


three = partial(simulate, draw_pairs=ring, seed=("test", 1), judges=3)


def arrays(games: Games) -> list[np.ndarray]:
    return [value for value in vars(games).values() if isinstance(value, np.ndarray)]


def test_a_query_is_the_same_whatever_is_drawn_beside_it() -> None:
    games, truth = three(5, 8)
    alone, alone_truth = three(2, 8)
    assert alone_truth.tolist() == truth[:16].tolist()
    assert alone.w.tolist() == games.w[:16].tolist()
    again, _ = three(5, 8)
    assert all(np.array_equal(x, y) for x, y in zip(arrays(games), arrays(again), strict=True))
    other, _ = simulate(5, 8, ring, seed=("test", 2), judges=3)
    assert not np.array_equal(other.w, games.w)


def test_shapes_of_a_bucket() -> None:
    games, truth = three(5, 8, positives=True)
    assert games.queries == 5
    assert games.documents.tolist() == games.games.tolist() == [8] * 5
    assert (games.answers == 3.0).all()
    assert set((3 * games.w).round(9).tolist()) <= {0.0, 1.0, 2.0, 3.0}
    best = truth.reshape(5, 8).argmax(axis=1)
    assert np.flatnonzero(games.positive).tolist() == (best + games.doc_start[:-1]).tolist()
    assert not three(5, 8)[0].positive.any()
    for ids in (games.query_ids, games.doc_ids):
        assert [i.tobytes() for i in ids] == sorted({i.tobytes() for i in ids})


def test_games_keep_their_votes_when_they_are_sorted() -> None:
    pairs = np.array([[2, 0], [1, 2], [0, 1]])
    one = play(pairs, np.array([0.3, -1.0, 0.5]), 1, "thurstone", rng("sorted"), graded=True)
    games, truth = bucket([one])
    assert games.first.tolist() == [0, 1, 2]
    np.testing.assert_allclose(games.w, link(truth[games.first] - truth[games.second], "thurstone"), rtol=1e-15)


def test_queries_of_different_sizes() -> None:
    drawn = [play(ring(n, rng("ring", n)), np.zeros(n), 1, "thurstone", rng("size", n)) for n in (3, 7)]
    games, truth = bucket(drawn)
    assert games.documents.tolist() == [3, 7]
    assert len(truth) == 10


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
@pytest.mark.parametrize("correlation", [None, 0.0, 0.6])
def test_votes_follow_the_model(model: Model, correlation: float | None) -> None:
    for gap in (-1.5, 0.0, 0.4):
        said = votes(np.full(MANY, gap), 2, model, rng("votes", model), correlation)
        assert set(np.unique(said)) == {0.0, 1.0}
        np.testing.assert_allclose(said.mean(axis=1), link(gap, model), atol=0.005)


@pytest.mark.parametrize("correlation", [None, 0.0, 0.3, 1.0])
def test_judges_agree_as_their_noise_correlates(correlation: float | None) -> None:
    said = votes(np.zeros(MANY), 2, "thurstone", rng("agree"), correlation)
    expected = 0.5 + np.arcsin(correlation or 0.0) / np.pi  # orthant probability of a bivariate normal (Sheppard 1899)
    assert (said[0] == said[1]).mean() == pytest.approx(expected, abs=0.005)


def test_the_truth_is_spread_as_asked() -> None:
    _, truth = simulate(500, 100, ring, seed=("spread",), sd=2.0)
    assert truth.std() == pytest.approx(2.0, rel=0.01)
    assert truth.mean() == pytest.approx(0.0, abs=0.03)
