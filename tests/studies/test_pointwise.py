"""The simulated judges have the noise that they are told, and noise is found again from how right judges are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anmi_ray import comparisons
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import normal_cdf
from jobs.studies.pointwise_judges import UnlikePairs, compared, noise_of
from jobs.studies.pointwise_worlds import Readers, ReadingNoise, graded, judged, measured, ranked_by

SHARES = (0.4, 0.3, 0.2, 0.1)


def gaps_and_answers(of: Readers) -> tuple[np.ndarray, np.ndarray]:
    pairs, _ = comparisons.compare(of.candidates, CompareConfig(degree=16), 0)
    said = of.judgments(pairs)
    first, second = (of.truth[of.row(pairs, name)] for name in ("doc_a", "doc_b"))
    assert said.num_rows == pairs.num_rows
    order = {row: at for at, row in enumerate(pairs["comparison_id"].to_pylist())}
    at = np.array([order[one] for one in said["comparison_id"].to_pylist()])
    return (first - second)[at], said["p_a"].to_numpy()


@pytest.mark.parametrize(("ratio", "helps_all"), [(0.5, True), (1.0, True), (0.5, False)])
def test_an_answer_is_as_noisy_as_it_is_told(ratio: float, helps_all: bool) -> None:
    noise = ReadingNoise(1.2, 0.4, ratio, 0.0, helps_all)
    gap, answer = gaps_and_answers(judged(20, 60, noise))
    alike = 0.4 * (ratio**2 if helps_all else 1.0)
    sd = 1.2 * math.sqrt(2.0 * (alike + 0.6 * ratio**2))
    right = (answer > 0.5) == (gap > 0)
    assert right.mean() == pytest.approx(normal_cdf(np.abs(gap) / sd).mean(), abs=0.015)


def test_grades_of_two_judges_share_what_they_are_told_to_share() -> None:
    of = judged(20, 60, ReadingNoise(1.5, 0.3, 1.0, 0.0))
    first, second = of.grades(2, ()) - of.truth
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0.3, abs=0.06)
    assert first.std() == pytest.approx(1.5, rel=0.06)
    given = of.grades(1, SHARES)[0]
    np.testing.assert_allclose([np.mean(given == grade) for grade in range(4)], SHARES, atol=0.04)


def test_noise_is_found_again() -> None:
    random = rng("test", "pointwise")
    theta, error = random.normal(size=(2, 30 * 100))
    query = np.repeat(np.arange(30), 100)
    people = graded(theta, SHARES, 1.0)
    for noise in (0.7, 1.5):
        said = graded(theta + noise * error, SHARES, 1.0 + noise**2)
        of: UnlikePairs = compared(query, people, {"judge": said})
        assert noise_of(float(of.by_query("judge").mean()), SHARES, SHARES) == pytest.approx(noise, rel=0.1)


def test_ranks_are_those_of_grades_and_the_truth_is_the_best_score() -> None:
    of = judged(3, 40, ReadingNoise(1.0, 0.5, 1.0, 0.0))
    grade = of.grades(1, SHARES)[0]
    rank = ranked_by(of, grade).candidates["rank"].to_numpy()
    for q in range(3):
        at = np.flatnonzero(of.query == q)
        assert np.array_equal(np.sign(grade[at][:, None] - grade[at]), np.sign(rank[at] - rank[at][:, None]))
    np.testing.assert_allclose(measured(of, of.truth), 1.0)
    assert measured(of, -of.truth)[2].max() == 0.0
