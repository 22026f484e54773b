"""Judges' agreement with people: kappa as others compute it, who is counted where, whom the bound names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from anmi_ray.evaluation.judged import kappa_of
from anmi_ray.labelling.agreement import KINDS, PeopleAnswers, agreement, kind_of, named_below

NAN = np.nan


def answers_of(judged: list[list[float]], said: list[list[float]], **more: Any) -> PeopleAnswers:
    count = len(judged)
    told: dict[str, Any] = {
        "query": np.arange(count),
        "kind": np.zeros(count, np.int64),
        "random": np.ones(count, np.bool_),
        "gap": np.full(count, NAN),
    } | more
    judges = tuple(f"j{i}" for i in range(len(judged[0])))
    people = tuple(f"p{i}" for i in range(len(said[0])))
    return PeopleAnswers(judges, people, judged=np.array(judged), said=np.array(said), **told)


def test_kappa_is_the_published_one_and_statsmodels() -> None:
    assert float(kappa_of(np.array([20.0, 5.0, 10.0, 15.0]))) == pytest.approx(0.4)  # a textbook's grant proposals
    random = np.random.default_rng(0)
    for _ in range(20):
        cells = random.integers(1, 40, 4).astype(float)
        theirs: Any = cohens_kappa(cells.reshape(2, 2))
        assert float(kappa_of(cells)) == pytest.approx(theirs.kappa)


def test_kappas_of_judges_and_people_are_of_their_answers() -> None:
    random = np.random.default_rng(1)
    judged = random.choice([1.0, -1.0], 300)
    first = np.where(random.random(300) < 0.8, judged, -judged)
    second = np.where(random.random(300) < 0.7, judged, -judged)
    found = agreement(answers_of(judged[:, None].tolist(), np.stack([first, second], axis=1).tolist()), 0.6)
    table = np.array([[np.sum((first == x) & (second == y)) for y in (1, -1)] for x in (1, -1)])
    theirs: Any = cohens_kappa(table)
    kappa = found["people"]["together"]["kappa"]
    assert kappa["mean"] == pytest.approx(theirs.kappa)
    # the bootstrap's interval is about that of the asymptotic variance
    assert (kappa["low"], kappa["high"]) == pytest.approx((theirs.kappa_low, theirs.kappa_upp), abs=0.03)
    share = found["judges"]["j0"]["random"]
    assert share["mean"] == pytest.approx(((first == judged).mean() + (second == judged).mean()) / 2)
    assert found["judges"]["j0"]["kappa"]["n"] == 600


def test_unsure_ties_and_silence_take_no_side() -> None:
    judged = [[1.0], [1.0], [0.0], [NAN], [-1.0]]
    said = [[1.0, NAN], [0.0, NAN], [1.0, NAN], [1.0, NAN], [1.0, -1.0]]
    found = agreement(answers_of(judged, said), 0.6)["judges"]["j0"]
    assert found["all"]["n"] == 2
    assert found["all"]["mean"] == pytest.approx(0.75)  # the last pair counts once, as half
    assert (found["ties"], found["silent"]) == (1, 1)


def test_only_the_random_share_tells_of_all_pairs_and_names_a_judge() -> None:
    judged = [[1.0, 1.0]] * 40
    said = [[-1.0]] * 20 + [[1.0]] * 20
    random = np.arange(40) < 20
    found = agreement(answers_of(judged, said, random=random), 0.6)
    assert found["judges"]["j0"]["random"]["mean"] == 0
    assert found["judges"]["j0"]["all"]["mean"] == pytest.approx(0.5)
    assert named_below(found) == ["j0", "j1"]
    assert named_below(agreement(answers_of(judged, said), 0.6)) == []  # at most 65 % of all: it may be above


def test_agreement_by_the_size_of_the_gap() -> None:
    gap = np.array([*np.linspace(0, 10, 10), *np.linspace(100, 110, 10), *np.linspace(300, 310, 10), NAN])
    judged = [[1.0]] * 31
    said = [[-1.0]] * 10 + [[1.0]] * 21
    found = agreement(answers_of(judged, said, gap=gap), 0.6)
    shares = {name: part["mean"] for name, part in found["judges"]["j0"]["by_gap"].items()}
    assert shares == {"small": 0.0, "middle": 1.0, "large": 1.0}
    assert sum(part["n"] for part in found["judges"]["j0"]["by_gap"].values()) == 30


def test_agreement_by_kind_of_query() -> None:
    kind = np.array([0] * 10 + [2] * 20)
    found = agreement(answers_of([[1.0]] * 30, [[-1.0]] * 10 + [[1.0]] * 20, kind=kind), 0.6)["judges"]["j0"]["by_kind"]
    assert {name: (part["mean"], part["n"]) for name, part in found.items()} == {
        "question": (0.0, 10), "keywords": (None, 0), "sentence": (1.0, 20),
    }  # fmt: skip


@given(st.text(max_size=60))
def test_every_text_is_of_a_kind(text: str) -> None:
    assert KINDS[kind_of(text)] in KINDS
    assert KINDS[kind_of(f"{text}? ")] == "question"


def test_nothing_is_told_of_nothing() -> None:
    nothing = PeopleAnswers(
        (), (), *(np.zeros(0, kind) for kind in (np.int64, np.int64, np.bool_, float)), *[np.zeros((0, 0))] * 2
    )
    assert agreement(nothing, 0.6)["people"]["together"] is None
    one = agreement(answers_of([[1.0]], [[1.0]]), 0.6)["judges"]["j0"]
    assert one["kappa"]["mean"] is None
    assert one["below"] is False
