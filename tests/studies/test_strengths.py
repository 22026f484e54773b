"""The worlds of the study of strengths: what is drawn is what the study says, and its bound is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.rating.strengths import consensus
from jobs.studies.strengths import ALL, DEGREE, DOCUMENTS, World, chances, draw, errors

QUERIES = 6


@given(gap=st.floats(-4, 4), width=st.floats(0, 2))
def test_chances_are_a_judges_win_tie_and_loss(gap: float, width: float) -> None:
    p, decided = chances(np.array([gap, -gap]), width)
    assert p.sum() == pytest.approx(1.0)
    assert decided[0] == pytest.approx(decided[1])
    noise = np.random.default_rng(0).normal(size=20_000)
    perceived = gap + noise
    score = np.where(np.abs(perceived) < width, 0.5, perceived > 0)
    assert p[0] == pytest.approx(score.mean(), abs=0.02)
    assert decided[0] == pytest.approx((score != 0.5).mean(), abs=0.02)


def test_worlds_share_queries_graphs_and_truth() -> None:
    one, other = draw(World(0.0, 0.0, 1, "votes"), QUERIES), draw(World(0.5, 0.3, 3, "distilled"), QUERIES)
    assert np.array_equal(one.truth, other.truth)
    assert np.array_equal(one.games.first, other.games.first)
    assert np.array_equal(one.games.second, other.games.second)
    assert one.games.first.size == QUERIES * DOCUMENTS * DEGREE // 2


def test_votes_are_means_of_so_many_judges() -> None:
    for judges in (1, 3):
        votes = draw(World(0.5, 0.0, judges, "votes"), QUERIES).games.w
        assert np.allclose(2 * judges * votes, np.round(2 * judges * votes))
        assert len(np.unique(votes)) == 2 * judges + 1


@pytest.mark.parametrize("hard", [0.0, 0.3])
def test_a_distilled_model_is_calibrated_whether_or_not_it_knows_which_pairs_are_hard(hard: float) -> None:
    for source in ("distilled", "blind"):
        drawn = draw(World(0.5, hard, 3, source), 120)
        games = drawn.games
        start = np.repeat(games.doc_start[:-1], np.diff(games.game_start))
        p, decided = chances(drawn.truth[start + games.first] - drawn.truth[start + games.second], 0.5)
        share = np.clip((games.w * 5).astype(int), 0, 4)
        for slice_ in range(5):
            of = share == slice_
            assert games.w[of].mean() == pytest.approx(p[of].mean(), abs=0.03)
        assert games.tie is not None
        assert 1.0 - np.mean(games.tie) == pytest.approx(consensus(p, decided, 3).mean(), abs=0.02)


def test_more_judges_and_less_noise_give_smaller_errors_and_nothing_beats_the_bound() -> None:
    def rmse(world: World) -> dict[str, float]:
        return dict(zip(ALL, np.sqrt(errors(world, QUERIES).scaled.mean(axis=1)), strict=True))

    one, three = (rmse(World(0.0, 0.0, judges, "votes")) for judges in (1, 3))
    assert three["unit"] < one["unit"]
    assert np.isnan(one["optimum"])
    easy, hard = (rmse(World(0.5, share, 3, "distilled")) for share in (0.0, 0.3))
    assert easy["unit"] < hard["unit"]
    assert all(hard["optimum"] < hard[name] for name in ALL if name != "optimum")
