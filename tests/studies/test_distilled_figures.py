"""The ten figures of a distilled judge: folds, segments, circles by hand, and every figure drawn."""

from __future__ import annotations

import io
import math

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.identity import rng
from anmi_ray.evaluation.pairwise import Pairs, read
from jobs.studies import distilled_figures as study
from tests.evaluation.judged_pairs import learning, table, world


@pytest.fixture(scope="module")
def stored() -> pa.Table:
    """A ternary model at three steps, and next to it a binary one."""
    of = world(300, seed=9)
    return pa.concat_tables([learning(of, steps=(10, 20, 40)), table(of, "binary", "binary", 40, of.mean_P)])


def test_every_figure_is_drawn(stored: pa.Table) -> None:
    drawn = dict(study.figures(stored, "ternary", ["binary"]))
    assert list(drawn) == [str(number) for number in range(1, 11)]
    for figure in drawn.values():
        with io.BytesIO() as file:
            figure.savefig(file, format="svg")
            assert file.getvalue()
    assert [len(drawn[number].axes) for number in ("2", "4", "8", "10")] == [3, 2, 2, 2]
    assert list(dict(study.figures(stored, "binary"))) == [str(number) for number in range(1, 8)]


def test_tables_hold_every_step_and_predictor(stored: pa.Table) -> None:
    steps = study.steps_table(stored, "ternary")
    assert [row[0] for row in steps.rows] == ["10", "20", "40"]
    assert [row[-1] == "" for row in steps.rows] == [True, False, False]
    assert len(study.predictors_table(study.compare(stored, "ternary", ["binary"])).rows) == 4


def test_a_few_pairs_without_consensus_are_enough() -> None:
    of = world(3, queries=3)
    assert len(list(study.figures(learning(of, steps=(1,)), "ternary"))) == 10


def test_folding_turns_pairs_to_the_preferred_document() -> None:
    pairs = read(learning(world(200, seed=3)), "ternary")
    fold = study.folded(pairs)
    assert np.all(fold.second_P <= fold.first_P)
    assert np.all(fold.mean_P <= 0.5 + 1e-15)
    np.testing.assert_array_equal(study.decided(fold), study.decided(pairs))
    np.testing.assert_array_equal(study.folded(fold).score_P, fold.score_P)
    turned = pairs.second_P > pairs.first_P
    np.testing.assert_allclose(fold.score_P, np.where(turned, 1 - pairs.score_P, pairs.score_P))


def test_a_circle_by_hand() -> None:
    query = np.arange(4)
    first, second = np.array([0.9, 0.1, 0.5, 0.0]), np.array([0.1, 0.8, 0.5, 0.0])
    fold = study.folded(Pairs(first, second, np.array([0.0, 0.0, 1.0, 0.5]), query))
    distance, rank, kind = study.cumulative(fold)
    np.testing.assert_allclose(distance, [math.hypot(0.1, 0.1), math.hypot(0.2, 0.1), math.sqrt(0.5), 1.0])
    assert rank.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert kind[:, 1].tolist() == [0.5, 0, 0, 0, 0.5]  # the second is a mistake
    assert kind[:, 3].tolist() == [0.25, 0, 0.25, 0, 0.5]


def test_kinds_of_votes() -> None:
    assert study.kinds(np.array([0.0, 1e-12, 0.1, 0.4, 0.42, 0.58, 0.9, 1 - 1e-12])).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        4,
    ]
    assert study.shares(np.array([0.0, 0.0, 0.5, 1.0])).tolist() == [0.5, 0, 0.25, 0, 0.25]
    assert study.shares(np.zeros(0)).tolist() == [0] * 5


@pytest.mark.parametrize("size", [1, 7, 20, 333])
def test_segments_are_equal_and_ordered(size: int) -> None:
    share = rng("segments", size).dirichlet([1, 1, 1], size)
    fold = study.folded(Pairs(share[:, 0], share[:, 1], share[:, 2], np.arange(size)))
    segment = study.segments(fold)
    held = np.bincount(segment, minlength=study.COLUMNS * study.ROWS)
    assert held.sum() == size
    assert held.max() - held.min() <= 1
    column = segment // study.ROWS
    for c in range(study.COLUMNS - 1):
        below, above = fold.mean_P[column <= c], fold.mean_P[column > c]
        assert not len(below) or not len(above) or below.max() <= above.min()


def test_halves_of_the_strip_differ_in_ties_alone() -> None:
    fold = study.folded(read(learning(world(400, seed=5)), "ternary"))
    low, high = study.strip(fold)
    assert (low.sum(), high.sum(), (low & high).sum()) == (20, 20, 0)
    assert study.decided(fold)[low].max() <= study.decided(fold)[high].min()
    away = np.abs(fold.mean_P - study.STRIP_MEAN)
    assert away[low | high].max() <= away[~(low | high)].min()


def test_coordinates_of_the_triangle() -> None:
    for first, second in ((1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (0.6, 0.2)):
        mean, size = 0.5 + 0.5 * (second - first), first + second
        assert study.TO_TRIANGLE.transform((mean, size)) == pytest.approx((first, second))


def test_a_run_that_is_not_there_is_a_message(tmp_path: object) -> None:
    with pytest.raises(SystemExit, match="no run of that name"):
        study.main(["absent", "--root", str(tmp_path)])
