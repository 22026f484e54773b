"""P(relevant) of a score: it keeps the order, is right where the truth is known, and says where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, logit

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation import relevance
from anmi_ray.evaluation.relevance import PRECISIONS, RelevanceCurve, ScoredPairs
from tests.evaluation.scored_pairs import WORLDS, drawn, truth
from tests.evaluation.scored_pairs import relevance as made

QUERIES, DEPTH = 24, 6
SCORES = st.floats(-50.0, 50.0, width=32)


@given(
    score=arrays(np.float64, QUERIES * DEPTH, elements=SCORES),
    truth=arrays(np.float64, QUERIES * DEPTH, elements=st.floats(0.0, 1.0, width=32)),
)
@settings(max_examples=60, deadline=None)
def test_a_curve_gives_probabilities_and_changes_no_order(score: np.ndarray, truth: np.ndarray) -> None:
    """Judges' gains are fractions; equal scores and any outlier among them."""
    found = relevance.fit(ScoredPairs(np.repeat(np.arange(QUERIES), DEPTH), score, truth))
    assert (found.curve is None) == bool(found.why_not)
    if found.curve is None:
        return
    assert found.curve.is_sound
    probability = found.curve.of(np.sort(np.concatenate([score, [-1e6, 1e6]])))
    assert (np.diff(probability) >= 0).all()
    assert ((probability >= 0) & (probability <= 1)).all()
    assert ((found.out_of_fold >= 0) & (found.out_of_fold <= 1)).all()


@pytest.mark.parametrize("world", WORLDS)
def test_it_is_right_on_queries_that_it_did_not_see(world: str) -> None:
    known, fresh = drawn(world, 0), drawn(world, 1)
    found = relevance.fit(known)
    assert found.curve is not None
    assert found.curve.kind == ("logistic" if world == "logistic" else "isotonic")
    assert np.abs(found.curve.of(fresh.score) - truth(world, fresh.score)).mean() < 0.015
    at = relevance.thresholds(known, found.out_of_fold)
    for pairs, probability in ((known, found.out_of_fold), (fresh, found.curve.of(fresh.score))):
        seen = relevance.check(pairs, probability, at, "labels")
        assert seen.expected == pytest.approx(seen.relevant, rel=0.15)
        assert seen.likely is not None
        assert seen.likely.rms.low == 0.0
        assert seen.likely.slope.mean == pytest.approx(1.0, abs=0.2)
        for one in seen.thresholds:
            if one.probability is not None:
                assert one.precision is not None
                assert one.precision.mean is not None
                assert one.precision.mean > one.wanted - 0.06
    reached = [wanted for wanted, one in zip(PRECISIONS, at, strict=True) if one is not None]
    assert reached == [one for one in PRECISIONS if one <= (0.9 if world == "logistic" else 0.5)]


def test_scores_that_are_too_sure_are_told() -> None:
    fresh = drawn("logistic", 2)
    sure = expit(2.0 * logit(truth("logistic", fresh.score)))
    seen = relevance.check(fresh, sure, [None] * len(PRECISIONS), "labels")
    assert seen.likely is not None
    assert seen.likely.rms.low is not None
    assert seen.likely.rms.low > 0.05
    assert seen.likely.slope.high is not None
    assert seen.likely.slope.high < 1


def test_the_least_threshold_by_hand() -> None:
    """Every hundredth is tried, one by one, with what it keeps counted."""
    known = drawn("logistic", 3, queries=40)
    probability = truth("logistic", known.score)
    for wanted, found in zip(PRECISIONS, relevance.thresholds(known, probability), strict=True):
        reached = []
        for at in range(1, 100):
            kept = probability >= at / 100
            means = (known.truth[kept].mean(), probability[kept].mean()) if kept.sum() >= 20 else (0.0,)
            reached += [at / 100] if min(means) >= wanted else []
        assert found == (reached[0] if reached else None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda known: _first(known, 19), "cover 19 dev queries"),
        (lambda known: replace(known, truth=np.zeros(len(known))), "0 of the 4,000 candidates .* are relevant"),
        (lambda known: replace(known, truth=np.ones(len(known))), "4,000 of the 4,000 candidates .* are relevant"),
        (lambda known: replace(known, score=np.full(len(known), 0.3)), "do not rise with relevance"),
        (lambda known: replace(known, score=-known.score), "do not rise with relevance"),
    ],
    ids=["few queries", "none relevant", "all relevant", "constant", "falling"],
)
def test_where_there_is_none_it_says_why(change: Callable[[ScoredPairs], ScoredPairs], says: str) -> None:
    found = relevance.fit(change(drawn("logistic", 0, queries=40)))
    assert found.curve is None
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(found.why_not)


def _first(known: ScoredPairs, queries: int) -> ScoredPairs:
    kept = known.query < queries
    return ScoredPairs(known.query[kept], known.score[kept], known.truth[kept])


def test_nothing_at_all_is_too_few() -> None:
    nothing = np.zeros(0)
    assert relevance.fit(ScoredPairs(nothing.astype(np.int64), nothing, nothing)).curve is None


def test_queries_stay_in_one_fold() -> None:
    """Each query's probabilities are those of a curve that was fitted without it."""
    known = drawn("logistic", 4, queries=40)
    before = relevance.fit(known)
    mine = known.query == 7
    best = mine & (known.score == known.score[mine].max())
    turned = relevance.fit(replace(known, truth=np.where(best, 1.0 - known.truth, known.truth)))
    np.testing.assert_array_equal(before.out_of_fold[mine], turned.out_of_fold[mine])
    assert (before.out_of_fold[~mine] != turned.out_of_fold[~mine]).any()


@pytest.mark.parametrize("world", WORLDS)
def test_the_file_says_what_was_fitted(tmp_path: Path, world: str) -> None:
    found = made(world)
    assert relevance.find(tmp_path) is None
    found.write(tmp_path)
    again = relevance.find(tmp_path)
    assert again == found
    score = rng("scores").normal(0.0, 3.0, 50)
    assert again is not None
    np.testing.assert_array_equal(again.curve.of(score), found.curve.of(score))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"slope": ', '"slope": -', 1),
        lambda text: text.replace('"intercept": ', '"intercept": NaN, "was": ', 1),
        lambda text: text.replace('"logistic"', '"isotonic"', 1),
        lambda text: text.replace('"depth"', '"deep"', 1),
        lambda _: "[]",
        lambda _: "",
    ],
)
def test_a_damaged_file_is_one_message(tmp_path: Path, damage: Callable[[str], str]) -> None:
    made().write(tmp_path)
    path = tmp_path / relevance.FILE
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=r"relevance\.json: is damaged[^\n]*\n  remedy: export the model anew$"):
        relevance.find(tmp_path)


def test_curves_that_fall_or_end_outside_are_refused() -> None:
    for points in (((0.0, 0.5), (1.0, 0.4)), ((0.0, 0.5), (0.0, 0.6)), ((0.0, -0.1), (1.0, 0.4)), ((0.0, np.nan),)):
        assert not RelevanceCurve("isotonic", points=points).is_sound
    assert RelevanceCurve("isotonic", points=((0.0, 0.5),)).is_sound
