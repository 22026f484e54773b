from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import integrate, stats

from anmi_ray.config.base import result_settings
from anmi_ray.config.mine import TABLE_2, Band, MineConfig
from anmi_ray.config.rules import NAMED
from anmi_ray.core.arrays import rank_within
from anmi_ray.mining import posterior
from anmi_ray.mining.categories import CATEGORIES, TIERS
from anmi_ray.mining.compose import ALLOW, SAMPLE, WEIGH, weights_of
from anmi_ray.mining.negatives import Common, Negatives
from anmi_ray.mining.posterior import band
from tests.mining.world import pool

CONFIG = MineConfig()
gaps_and_errors = st.lists(st.tuples(st.floats(-2000, 2000), st.floats(0, 500)), min_size=1, max_size=20)


def common(config: MineConfig = CONFIG, seed: int = 0) -> Common:
    return Common(config, seed)


def weigh(negatives: Negatives, rule: Any) -> np.ndarray:
    config = MineConfig(weigh=rule)
    return WEIGH[config.weigh.rule](negatives, config.weigh, common(config)).weight


def allowed(negatives: Negatives, rule: Any) -> list[bool]:
    config = MineConfig(allow=[rule])  # type: ignore[list-item]
    said = ALLOW[config.allow[0].rule](negatives, config.allow[0], common(config)).weight
    assert set(said[~np.isnan(said)]) <= {0.0}
    return np.isnan(said).tolist()


def taken(negatives: Negatives, rule: Any, count: int, seed: int = 0) -> list[int]:
    config = MineConfig(sample=rule)
    sample = SAMPLE[config.sample.rule]
    priority = sample(negatives, np.ones(len(negatives.gap)), config.sample, common(config, seed))
    rank = rank_within(negatives.example, -priority, negatives.gap)
    return sorted(np.flatnonzero(rank < count).tolist())


# Table 2 and its posterior


def test_table_2_as_printed() -> None:
    gap = np.array([-50.0, 0.0, 99.0, 100.0, 199.0, 200.0, 399.0, 400.0, 599.0, 600.0, 2000.0])
    assert weigh(pool(gap), "table2").tolist() == [0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.7, 0.7, 0.3, 0.3]
    names = [CONFIG.bands[i].category for i in band(gap, CONFIG)]
    assert names == ["danger"] * 3 + ["soft"] * 2 + ["goldilocks"] * 2 + ["medium"] * 2 + ["easy"] * 2
    order = ("anchor", "random", "easy", "medium", "goldilocks", "soft")
    assert [TIERS[name] for name in order] == [0, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("gap", [-200.0, 80.0, 150.0, 310.0, 500.0, 900.0])
@pytest.mark.parametrize("gap_se", [20.0, 130.0, 400.0])
def test_posterior_weight_is_the_integral_of_the_table(gap: float, gap_se: float) -> None:
    def integrand(x: float) -> float:
        return float(weigh(pool([x]), "table2")[0] * stats.norm.pdf(x, gap, gap_se))

    low, high = gap - 9 * gap_se, gap + 9 * gap_se
    inner = [edge for edge in CONFIG.edges if low < edge < high]
    expected, _ = integrate.quad(integrand, low, high, points=inner or None, limit=200)
    assert weigh(pool([gap], gap_se), "posterior")[0] == pytest.approx(expected, abs=1e-7)
    danger = stats.norm.cdf((100.0 - gap) / gap_se)
    penalised = weigh(pool([gap], gap_se), {"rule": "posterior", "penalty": 0.8})[0]
    assert penalised == pytest.approx(max(0.0, expected - 0.8 * danger), abs=1e-7)


@given(gaps_and_errors)
@settings(max_examples=60, deadline=None)
def test_posterior_becomes_the_table_as_the_error_vanishes(rows: list[tuple[float, float]]) -> None:
    gap = np.array([row[0] for row in rows])
    exact, tiny = pool(gap), pool(gap, 1e-9)
    expected = weigh(exact, "table2")
    away = np.abs(gap[:, None] - np.array(CONFIG.edges)).min(axis=1) > 1e-6
    for rule in ("posterior", {"rule": "posterior", "penalty": 1.0}):
        np.testing.assert_allclose(weigh(exact, rule), expected)
        np.testing.assert_allclose(weigh(tiny, rule)[away], expected[away], atol=1e-12)
    assert allowed(exact, "gate") == (gap >= 100).tolist()
    gated = weights_of(exact, common(MineConfig(rule="posterior"))).weight
    np.testing.assert_allclose(gated, expected)


def test_the_gate_bounds_the_probability_of_a_false_negative() -> None:
    gap, gap_se = np.array([100.0, 300.0, 100.0 + 1.6449 * 130, 600.0]), np.full(4, 130.0)
    assert allowed(pool(gap, gap_se), {"rule": "gate", "largest": 0.05}) == [False, False, True, True]
    assert allowed(pool(gap, gap_se), {"rule": "gate", "largest": 0.02}) == [False, False, False, True]
    np.testing.assert_allclose(
        posterior.false_negative(gap, gap_se, CONFIG), stats.norm.cdf((100 - gap) / 130), rtol=1e-12
    )


# in units of the query


def test_percentiles_by_hand() -> None:
    """Gaps 0, 100 .. 1000: the 10th percentile is 100, the 25th 250, the 75th 750."""
    negatives = pool(np.arange(11) * 100.0)
    config = MineConfig(weigh="percentile")  # type: ignore[arg-type]
    ruled = WEIGH["percentile"](negatives, config.weigh, common(config))
    assert ruled.weight.tolist() == [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.3, 0.3, 0.3]
    assert ruled.category is not None
    names = [CATEGORIES[i] for i in ruled.category]
    assert names == ["danger", "soft", "soft", *["goldilocks"] * 5, *["easy"] * 3]


def test_percentiles_are_of_each_query_and_not_of_its_positives() -> None:
    gap = np.concatenate([np.arange(11) * 100.0, [5000.0], np.arange(11) * 10.0 + 1.0])
    example = np.repeat([0, 1], [12, 11])
    is_positive = gap == 5000.0
    weights = weigh(pool(gap, example=example, is_positive=is_positive), "percentile")
    assert weights[:11].tolist() == [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.3, 0.3, 0.3]
    assert weights[12:].tolist() == weights[:11].tolist()


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(-8, 8))
@settings(max_examples=60, deadline=None)
def test_percentiles_do_not_depend_on_the_scale(points: list[int], power: int) -> None:
    gap = np.array(points, dtype=np.float64)
    np.testing.assert_array_equal(weigh(pool(gap), "percentile"), weigh(pool(gap * 2.0**power), "percentile"))
    assert not weigh(pool(-np.abs(gap)), "percentile").any()


def test_relative_by_hand() -> None:
    """Unit 200 points: .1 of it is half of the least, 2.5 lies one fade beyond the most."""
    weights = weigh(pool([-10.0, 0.0, 20.0, 40.0, 300.0, 500.0]), {"rule": "relative", "least": 0.2, "most": 1.5})
    np.testing.assert_allclose(weights, [0.0, 0.0, 0.5, 1.0, 1.0, np.exp(-1.0)])
    # anchored: the positive stands at 1500 + 500, so .05 is 100 points, .30 is 600, and .50 lies one fade beyond
    anchored = weigh(pool([-10.0, 50.0, 100.0, 600.0, 1000.0], anchor_rating=np.full(5, 500.0)), LITERAL)
    np.testing.assert_allclose(anchored, [0.0, 0.5, 1.0, 1.0, np.exp(-1.0)])


LITERAL = {"rule": "relative", "form": "anchored"}


@given(st.lists(st.floats(-800, 800), min_size=2, max_size=20), st.floats(-400, 400))
@settings(max_examples=60, deadline=None)
def test_relative_weights_do_not_depend_on_the_origin_of_ratings(ratings: list[float], shift: float) -> None:
    gap = ratings[0] - np.array(ratings[1:])
    plain = pool(gap, anchor_rating=np.full(len(gap), ratings[0]))
    moved = pool(gap, anchor_rating=np.full(len(gap), ratings[0] + shift))
    np.testing.assert_array_equal(weigh(plain, "relative"), weigh(moved, "relative"))


def test_the_literal_relative_rule_depends_on_the_origin() -> None:
    plain, moved = (pool([70.0], anchor_rating=[rating]) for rating in (0.0, 500.0))
    assert weigh(plain, LITERAL)[0] == pytest.approx(70 / 75)  # .05 of 1500
    assert weigh(moved, LITERAL)[0] == pytest.approx(0.7)  # .05 of 2000


def test_positive_relative_by_hand() -> None:
    """Unit 200 points: half of it is 100. Anchored, the positive stands at 1500 + 500, and .05 of it is 100 too."""
    gaps = [-10.0, 0.0, 99.0, 100.0, 5000.0]
    assert allowed(pool(gaps), "positive-relative") == [False, False, False, True, True]
    literal = {"rule": "positive-relative", "form": "anchored"}
    assert allowed(pool(gaps, anchor_rating=np.full(5, 500.0)), literal) == [False, False, False, True, True]
    assert allowed(pool(gaps, anchor_rating=np.full(5, 100.0)), literal) == [False, False, True, True, True]


# the retriever's ranks and scores


def test_rank_window() -> None:
    negatives = pool(np.zeros(5), rank=[1.0, 10.0, 11.0, 50.0, np.nan])
    assert allowed(negatives, "rank-window") == [False, False, True, True, False]
    assert allowed(negatives, {"rule": "rank-window", "first": 2, "last": 11}) == [False, True, True, False, False]


def test_score_margins() -> None:
    negatives = pool(np.zeros(4), score=[0.90, 0.76, 0.77, -0.2], anchor_score=np.full(4, 0.8))
    assert allowed(negatives, "score-margin") == [False, True, False, True]  # .95 of .8 is .76


def test_a_score_margin_refuses_documents_above_a_negative_positive() -> None:
    """s+ = -.5: (1 - .05) s+ = -.475, as published, lies above the positive itself; the bound is -.525."""
    negatives = pool(np.zeros(3), score=[-0.48, -0.51, -0.53], anchor_score=np.full(3, -0.5))
    assert allowed(negatives, "score-margin") == [False, False, True]


# denoising


def test_denoising_by_hand() -> None:
    """P(better) of 100 ± 100 is Φ(1) = .8413, so the weight is .6827; the pair's own vote is part of the gap."""
    gap, direct = [100.0, 100.0, 10.0, -100.0, -100.0], [np.nan, 0.0, 0.5, np.nan, 1.0]
    negatives = pool(gap, 100.0, direct=direct)
    np.testing.assert_allclose(weigh(negatives, "reliability"), [0.6827, 0.6827, 0.0797, 0.0, 0.0], atol=5e-5)
    assert allowed(negatives, "denoise") == [True, True, False, False, False]


def test_rocketqa_believes_a_pointwise_model_first() -> None:
    gap = [1.2816 * 100, 150.0, 150.0, 150.0]
    negatives = pool(gap, 100.0, direct=[np.nan, np.nan, 0.0, 1.0], relevance=[np.nan, np.nan, np.nan, 0.1])
    # P(relevant): .1000 just not below .1, .067 whatever the pair's own vote, .1
    assert allowed(negatives, {"rule": "rocketqa", "negative_below": 0.0999}) == [False, True, True, False]


@given(st.lists(st.tuples(st.floats(-500, 500), st.floats(0, 200))))
@settings(max_examples=60, deadline=None)
def test_what_reliability_weighs_above_a_bound_is_what_denoising_keeps(rows: list[tuple[float, float]]) -> None:
    gap, gap_se = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    negatives = pool(gap, gap_se)
    assert allowed(negatives, "denoise") == (weigh(negatives, "reliability") > 0.1).tolist()


# samples


@pytest.mark.parametrize(
    ("rule", "weights", "gap", "chances"),
    [
        ("weighted", [0.1, 0.3, 0.6], [0.0, 0.0, 0.0], [0.1, 0.3, 0.6]),  # Gumbel top-1: by weight
        ("uniform", [0.01, 0.5, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        # a = 1, scale 100: gaps 200, 300, 450 have chances exp(-1), 1 and exp(-2.25)
        ({"rule": "simans", "b": 3.0}, [1.0, 1.0, 1.0], [200.0, 300.0, 450.0], np.exp([-1.0, 0.0, -2.25])),
    ],
)
def test_samples_draw_with_their_chances(rule: Any, weights: list[float], gap: list[float], chances: Any) -> None:
    draws = 4000
    negatives = pool(np.tile(gap, draws), example=np.repeat(np.arange(draws), 3))
    config = MineConfig(sample=rule)
    priority = SAMPLE[config.sample.rule](negatives, np.tile(weights, draws), config.sample, common(config, 1))
    share = np.bincount(priority.reshape(draws, 3).argmax(axis=1), minlength=3) / draws
    np.testing.assert_allclose(share, chances / np.sum(chances), atol=4 * np.sqrt(0.25 / draws))


@given(st.lists(st.integers(-20, 80), min_size=1, max_size=20, unique=True), st.integers(1, 6), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_simans_takes_the_nearest_to_its_target_as_a_grows(points: list[int], count: int, seed: int) -> None:
    gap = np.array(points) * 10.0
    rule = {"rule": "simans", "a": 1e6, "b": 3.033}  # no two gaps are equally near to 303.3
    nearest = np.argsort(np.abs(gap - 303.3))[:count]
    assert taken(pool(gap), rule, count, seed) == sorted(nearest.tolist())


def test_the_rank_form_of_simans_counts_from_the_anchor() -> None:
    """Two documents stand above the anchor, so r+ = 3 and a target of 2 r+ is rank 6: the third below the anchor."""
    gap = np.array([-50.0, 10.0, -20.0, 30.0, 60.0, 90.0])
    rule = {"rule": "simans", "form": "rank", "a": 1e6, "b": 2.0}
    assert taken(pool(gap), rule, 1) == [4]
    assert taken(pool(gap), {**rule, "b": 1 / 3 + 0.01}, 1) == [0]  # rank 1, the best of all


def test_ranked_takes_the_retrievers_best() -> None:
    assert taken(pool(np.zeros(4), rank=[4.0, np.nan, 2.0, 9.0]), "ranked", 2) == [0, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_rank_within_groups(rows: list[tuple[int, float]]) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int64)
    key = np.array([row[1] for row in rows])
    rank = rank_within(group, key)
    for g in set(group.tolist()):
        mine = np.flatnonzero(group == g)
        assert rank[mine[np.argsort(key[mine], kind="stable")]].tolist() == list(range(len(mine)))


# composition


def test_what_an_allow_rule_settled_no_later_rule_changes() -> None:
    """Borderline 90 and 140 are judged; 110 is not, so the gate refuses it; 700 passes and is weighed."""
    negatives = pool([90.0, 140.0, 110.0, 700.0, 120.0], 100.0, direct=[1.0, 0.7, np.nan, np.nan, 0.6])
    config = MineConfig(allow=["validate", "gate"], weigh="table2")  # type: ignore[arg-type, list-item]
    assert weights_of(negatives, common(config)).weight.tolist() == [1.0, 0.3, 0.0, 0.3, 0.0]


def test_every_rule_is_carried_out_and_every_name_is_a_composition() -> None:
    for name in NAMED:
        config = MineConfig(rule=name)
        assert all(rule.rule in ALLOW for rule in config.allow)
        assert config.weigh.rule in WEIGH
        assert config.sample.rule in SAMPLE
        assert MineConfig.model_validate(config.model_dump(mode="json")) == config
    dumps = [str(result_settings(MineConfig(rule=name))) for name in NAMED]
    assert len(set(dumps)) == len(NAMED)  # no two share a fingerprint
    assert result_settings(MineConfig(rule="posterior")) == {}


def test_a_name_fills_what_is_not_given() -> None:
    config = MineConfig(rule="simans", weigh="table2", negatives=3)  # type: ignore[arg-type]
    assert (config.allow, config.weigh.rule, config.sample.rule) == ((), "table2", "simans")
    assert config.composition == "table2 -> simans"


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"bands": [TABLE_2[0], TABLE_2[1]]}, "upper edge"),
        ({"bands": [TABLE_2[1], TABLE_2[0], TABLE_2[4]]}, "ascend"),
        ({"bands": [TABLE_2[0], Band(category="danger", below=None, weight=0.1)]}, "twice"),
        ({"rule": "tabel2"}, "did you mean table2"),
        ({"rule": "everything"}, "known: posterior"),
        ({"allow": [{"rule": "gate", "largest": 0.0}]}, "greater than 0"),
        ({"allow": ["gate", "validate"]}, r"validate comes after gate.*\[validate, gate\]"),
        ({"allow": ["gate", "gate"]}, "gate is listed twice"),
        ({"allow": ["table2"]}, "'table2' found using 'rule' does not match"),
        ({"weigh": {"penalty": 1.0}}, "Unable to extract tag using discriminator 'rule'"),
        ({"weigh": {"rule": "posterior", "penalti": 1.0}}, "Extra inputs"),
        ({"weigh": {"rule": "relative", "least": 3.0}}, "least must be smaller"),
        ({"allow": [{"rule": "rank-window", "first": 20, "last": 10}]}, "ends"),
        ({"allow": [{"rule": "validate", "low": 150, "high": 80}]}, "low < high"),
        ({"allow": [{"rule": "rocketqa", "negative_below": 0.95}]}, "less than or equal to 0.9"),
    ],
)
def test_settings_that_contradict_are_refused(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MineConfig.model_validate(settings_)
