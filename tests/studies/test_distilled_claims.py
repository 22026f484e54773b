"""The study of distilled judges' side claims, small: what is learned, random labels, and what is not done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.evaluation import pairwise_claims
from anmi_ray.evaluation.pairwise_measures import accuracy, calibration
from anmi_ray.store import Store
from jobs.studies import distilled_claims as study
from jobs.studies.distilled_worlds import ARMS, HARD_TOPICS, Size, draw, shuffled, trainings

SMALL = Size(train=400, dev=60, test=100, steps=120)
SOME = {name: ARMS[name] for name in ("ternary", "random")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("claims")))


@pytest.fixture(scope="module")
def found(root: Store) -> study.Study:
    return study.Study.of(trainings(SOME, 1, SMALL, root, lambda _: None), SMALL)


def test_a_world_is_split_by_query_and_hard_by_topic() -> None:
    world = draw(0, SMALL)
    queries = SMALL.train + SMALL.dev + SMALL.test
    assert np.bincount(world.query_P).tolist() == [SMALL.per_query] * queries
    for (topic, _, _), hard in zip(world.shown, world.hard_P, strict=True):
        assert (int(topic.removeprefix("topic")) < HARD_TOPICS) == hard
    agreed = np.abs(world.score_P - 0.5) == 0.5
    right = (world.gap_P > 0) == (world.score_P > 0.5)
    assert right[agreed & ~world.hard_P].mean() > 0.98 > 0.85 > right[agreed & world.hard_P].mean() > 0.6
    assert world.gap_P.std() == pytest.approx(np.sqrt(2), rel=0.05)
    assert sorted(shuffled(world, 0).score_P) == sorted(world.score_P)


def test_real_labels_are_learned_and_random_ones_teach_one_half(found: study.Study) -> None:
    said, random = found.said("ternary", "temperature"), found.said("random", "temperature")
    assert (accuracy(said).mean or 0) > 0.85
    assert calibration(said).slope.mean == pytest.approx(1.0, abs=0.25)
    assert study.off_half(said).mean == pytest.approx(0.3, abs=0.1)
    assert (study.off_half(random).mean or 1) < 0.05
    assert pairwise_claims.flat_line(said).verdict == "fails"
    assert np.isclose(said.first_P + said.second_P + said.tie_P, 1).all()


def test_half_a_temperature_flattens_the_observed_line(found: study.Study) -> None:
    half, one, two = (
        calibration(found.said("ternary", "temperature", factor=factor)).slope.mean or 0 for factor in (0.5, 1.0, 2.0)
    )
    assert half < one < two


def test_what_is_trained_stays_and_other_settings_train_anew(root: Store, found: study.Study) -> None:
    said: list[str] = []
    again = trainings(SOME, 1, SMALL, root, said.append)
    assert said == []
    assert study.Study.of(again, SMALL).said("ternary").first_P.tolist() == found.said("ternary").first_P.tolist()
    few = replace(SMALL, train=40, steps=12)
    trainings({"random": ARMS["random"]}, 1, few, Store(f"{root.root}/few"), said.append)
    trainings({"random": ARMS["random"]}, 1, replace(few, steps=6), Store(f"{root.root}/few"), said.append)
    assert len(said) == 2


def test_all_tables_have_their_numbers(found: study.Study, tmp_path: Path) -> None:
    one = found.trained
    as_others = {name: one["random" if name.startswith("random") else "ternary"] for name in ARMS}
    every = study.Study(as_others)
    text = study.report(every)
    assert "nan" not in text
    assert [f"\n{number}. " in text for number in range(1, 6)] == [True] * 5
    assert "difference of" in text
    study.page(every, tmp_path)
    assert "planted language" in (tmp_path / "distilled.html").read_text(encoding="utf-8")
