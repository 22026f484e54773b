"""Judges' habits, planted and found: tie widths and leanings towards what is shown first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from anmi_ray import rating
from anmi_ray.config.rate import RateConfig
from anmi_ray.core import records
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, link
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood, game_log_likelihood
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.prior import PriorShape, log_marginal
from anmi_ray.rating.shared_parameters import Globals, globals_of
from tests.rating.tournaments import Tournament, tournament


def replayed(t: Tournament, like: Likelihood, seed: int) -> Games:
    """The tournament's pairs, each judged once by a judge of this likelihood: wins, ties and losses."""
    games, _ = read_games(*t.tables)
    first, second = games.global_ends()
    keys = [(games.query_ids[q].tobytes(), d.tobytes()) for q, d in zip(games.query_of_doc, games.doc_ids, strict=True)]
    truth = np.array([t.truth[key] for key in keys])
    generator = rng("replayed", seed)
    w = np.empty(len(games.w))
    outcomes = [1.0, 0.5, 0.0] if like.width else [1.0, 0.0]
    for p, gap in enumerate(truth[first] - truth[second]):
        chances = np.exp([game_log_likelihood(like, gap, outcome) for outcome in outcomes])
        w[p] = generator.choice(outcomes, p=chances / chances.sum())
    return replace(games, w=w, answers=np.ones(len(w)))


def test_planted_tie_width_is_found() -> None:
    like = Likelihood.of("bradley-terry", "davidson", 0.8)
    games = replayed(tournament(120, 20, 8, 1, 1.6, "bradley-terry", positives=False, seed=1), like, 2)
    found = globals_of(games, RateConfig(model="bradley-terry", ties="davidson", dispersion=1.0))
    assert found.tie_width == pytest.approx(0.8, rel=0.12)
    assert found.sigma0 == pytest.approx(1.6, rel=0.12)


def test_dispersion_of_ties_is_one_under_their_own_model() -> None:
    like = Likelihood.of("bradley-terry", "davidson", 0.8)
    games = replayed(tournament(120, 20, 8, 1, 1.6, "bradley-terry", positives=False, seed=3), like, 4)
    by_ties = globals_of(games, RateConfig(model="bradley-terry", ties="davidson"))
    assert by_ties.dispersion == pytest.approx(1.0, abs=0.1)
    # taken as half wins, ties scatter less than coins, and the strength of a game rises in their place
    assert globals_of(games, RateConfig(model="bradley-terry")).dispersion < 0.9


def leaning_judges(leaning: Floats, seed: int) -> tuple[Tournament, Tournament]:
    """A tournament whose judges lean towards the first shown, in both orders, and the same without the leaning."""
    t = tournament(60, 20, 8, len(leaning), positives=False, seed=seed)
    rows = {name: t.judgments[name].to_pylist() for name in t.judgments.column_names}
    pairs = {c: (q, a, b) for c, q, a, b in zip(*(t.comparisons[n].to_pylist() for n in ID_COLUMNS), strict=True)}
    generator = rng("leaning", seed)
    for row, (pair, judge, order) in enumerate(zip(rows["comparison_id"], rows["judge"], rows["order"], strict=True)):
        q, a, b = pairs[pair]
        side = 1.0 if order == "ab" else -1.0
        gap = t.truth[q, a] - t.truth[q, b] + side * leaning[int(judge.removeprefix("judge"))]
        rows["p_a"][row] = float(generator.random() < link(gap, "thurstone"))
    return Tournament(records.JUDGMENT.table(rows), t.comparisons, t.candidates, t.truth), t


ID_COLUMNS = ("comparison_id", "query_id", "doc_a", "doc_b")


def test_planted_leanings_are_found() -> None:
    planted = np.array([0.6, -0.2, 0.0])
    t, _ = leaning_judges(planted, seed=7)
    games, _ = read_games(*t.tables, single_answers=True)
    assert len(games.w) == t.judgments.num_rows
    assert games.judges == ("judge0", "judge1", "judge2")
    config = RateConfig(judge_offsets=True)
    found = globals_of(games, config)
    np.testing.assert_allclose(list(found.offsets.values()), planted, atol=0.06)
    assert Globals.from_json(found.to_json()) == found
    assert found.sigma0 == pytest.approx(1.0, rel=0.1)
    # the leanings explain what would otherwise be noise
    ignored = globals_of(games, RateConfig(dispersion=found.dispersion, judge_offsets=False))
    kept = globals_of(games, RateConfig(dispersion=found.dispersion, judge_offsets=True))
    assert kept.log_marginal > ignored.log_marginal + 10.0


def test_gradient_in_the_leanings() -> None:
    t, _ = leaning_judges(np.array([0.4, -0.3]), seed=8)
    games, _ = read_games(*t.tables, single_answers=True)
    like, at, h = Likelihood.of("thurstone"), np.array([0.2, 0.1]), 1e-5
    for shape in (PriorShape(0.8, None, None), None):
        gradient = games.by_judge(log_marginal(games, like, games.answers, shape, offset=games.offset(at)).by_offset)
        for j in range(2):
            moved = [at + sign * h * np.eye(2)[j] for sign in (1, -1)]
            up, down = (
                log_marginal(games, like, games.answers, shape, offset=games.offset(leaning)).value for leaning in moved
            )
            if shape is not None:
                assert gradient[j] == pytest.approx((up - down) / (2 * h), rel=1e-5)


def test_what_stands_first_in_one_order_alone_is_no_leaning() -> None:
    """A file may name the winner first; only a pair that a judge answered in both orders tells."""
    t, _ = leaning_judges(np.array([0.5, 0.5]), seed=7)
    one_order = pc.and_(pc.equal(t.judgments["judge"], "judge0"), pc.equal(t.judgments["order"], "ba"))
    tables = t.judgments.filter(pc.invert(one_order)), t.comparisons, t.candidates
    games, _ = read_games(*tables, "both-orders")
    assert games.shown is not None
    assert games.judge is not None
    assert not games.shown[games.judge == 0].any()
    assert (np.abs(games.shown[games.judge == 1]) == 1).all()
    offsets = rating.fit_globals(*tables, RateConfig()).offsets
    assert offsets["judge0"] == 0.0
    assert offsets["judge1"] == pytest.approx(0.5, abs=0.08)
    fits = rating.rate(*tables, rating.fit_globals(*tables, RateConfig()), RateConfig()).fits
    assert sum(fits["comparisons"].to_pylist()) == t.comparisons.num_rows  # a pair is one, however many answered


def test_leanings_without_orders_are_none() -> None:
    games, _ = read_games(*tournament(3, 6, 4, seed=9).tables)
    assert games.offset(np.zeros(0)) is None
    assert globals_of(games, RateConfig(judge_offsets=True)).offsets == {}
