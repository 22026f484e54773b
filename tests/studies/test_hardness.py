"""How strong a miner should be: the windows and their settings, what is counted, the claims, a small study whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.load import validate
from anmi_ray.config.rules import RankWindow
from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import ConfigError
from jobs.studies import hardness as study
from jobs.studies import harness
from jobs.studies.hardness import MinedLists, condition_of, differences, false_flags, steps_of
from tests.studies.small_study import SHIPPED, carried_out

PLAN = study.plan_of(SHIPPED)


def test_windows_partition_the_ranks_that_every_collection_has() -> None:
    ranked = [study.RANKS[window] for window in study.WINDOWS if window != study.RANDOM]
    ranks = [rank for first, last in ranked for rank in range(first, (last or 0) + 1)]
    assert ranks == list(range(1, study.DEPTH + 1))
    for first, last in ranked:
        assert len(range(first, (last or 0) + 1)) - 1 >= study.NEGATIVES, "the anchor may stand in it"
    for name in ("quickstart", "scifact", "cacm"):
        retrieve = harness.merged([PLAN.settings, PLAN.collections[name].settings])["retrieve"]
        assert retrieve["candidates"] >= study.DEPTH
        assert PLAN.depth == study.DEPTH


@pytest.mark.parametrize("student", study.STUDENTS)
@pytest.mark.parametrize("window", study.WINDOWS)
def test_a_window_and_a_student_are_all_that_conditions_differ_in(window: str, student: str) -> None:
    of = PLAN.conditions[condition_of(window, student)]
    made = validate(harness.merged([PLAN.settings, of.settings, {"corpus": {"path": "collection"}}]), window)
    assert made.mine.composition == "rank-window -> equal -> uniform"
    [rule] = made.mine.allow
    assert isinstance(rule, RankWindow)
    assert (rule.first, rule.last) == study.RANKS[window]
    drawn = made.mine.random_negatives if window == study.RANDOM else made.mine.negatives
    assert drawn == study.NEGATIVES
    assert made.mine.random_negatives in (0, drawn)
    assert made.retrieve.random_negatives == study.NEGATIVES
    assert of.positives == "one"
    train = TrainConfig.model_validate({"dev_points": (), **harness.merged([PLAN.train, of.train])})
    assert train.student == student
    assert train.loss.ranking == "infonce"
    assert train.balance.alpha == 1.0, "no rating is learned from"
    assert (train.max_steps or 0) * train.lists_per_step == study.LISTS


def test_all_windows_of_a_student_train_alike() -> None:
    for student in study.STUDENTS:
        first, *others = (PLAN.conditions[condition_of(window, student)].train for window in study.WINDOWS)
        assert all(one == first for one in others)


def test_lists_that_are_no_whole_steps_are_refused() -> None:
    for lists in (0, 16, 40):
        with pytest.raises(ConfigError, match="no whole steps"):
            study.plan_of(SHIPPED, lists)


def examples(*rows: tuple[bytes, list[bytes]]) -> pa.Table:
    return pa.table({"query_id": [query for query, _ in rows], "doc_ids": [documents for _, documents in rows]})


def test_false_negatives_are_those_of_the_list_s_own_query_and_the_anchor_is_none() -> None:
    relevant = {(b"p", b"1"), (b"p", b"2"), (b"q", b"3")}
    found = false_flags(examples((b"p", [b"1", b"2", b"3"]), (b"q", [b"3", b"1", b"2"])), relevant)
    assert found == {b"p": [True, False], b"q": [False, False]}


def test_the_share_is_of_all_negatives_with_an_interval_around_it() -> None:
    flags = {bytes([number]): [number < 5, False, False, False] for number in range(10)}
    queries, lists, each, share, some = MinedLists(12, 10, (flags,)).share_row()
    assert (queries, lists, each, some) == ("12", "10", "4.00", "50%")
    assert share.startswith("12.5% [")


def mined_by_rank(rising: bool = False) -> dict[tuple[str, str], MinedLists]:
    """Forty queries in two parts; of four negatives so many are false as windows are left, or as came before."""
    found: dict[tuple[str, str], MinedLists] = {}
    for place, window in enumerate(study.WINDOWS):
        false = place if rising else len(study.WINDOWS) - 1 - place
        flags = {bytes([number]): [at < false for at in range(4)] for number in range(20)}
        found["a", window] = MinedLists(40, 40, (flags, flags))
    return found


@pytest.mark.parametrize("rising", [False, True])
def test_shares_fall_or_rise_from_a_window_to_the_next(rising: bool) -> None:
    steps = steps_of(mined_by_rank(rising), ["a"])
    assert [row.difference for row in steps.values()] == [0.25 if rising else -0.25] * 4
    assert {row.queries for row in steps.values()} == {40}
    assert study.falls([study.sign(row, "narrow") for row in steps.values()]) == ("fails" if rising else "holds")


def levels(means: dict[str, float]) -> dict[tuple[str, str], study.Reals]:
    """Of two collections, two seeds, sixty queries that differ more than windows do."""
    base = np.random.default_rng(0).uniform(0.2, 0.8, 60)
    noise = np.random.default_rng(1).normal(0, 0.01, (2, 5, 2, 2, 60))
    return {
        (collection, condition_of(window, student)): base + means[window] + noise[c, w, s]
        for c, collection in enumerate(("a", "b"))
        for w, window in enumerate(study.WINDOWS)
        for s, student in enumerate(study.STUDENTS)
    }


@pytest.mark.parametrize(
    ("means", "first", "second"),
    [
        ((0.2, 0.1, 0.1, 0.1, 0.0), "fails", "holds"),
        ((0.0, 0.1, 0.2, 0.1, 0.0), "holds", "holds"),
        ((0.0, 0.1, 0.1, 0.1, 0.2), "holds", "fails"),
        ((0.0, 0.0, 0.0, 0.0, 0.0), "cannot tell", "cannot tell"),
    ],
)
def test_claims_follow_from_the_levels(means: tuple[float, ...], first: str, second: str) -> None:
    rows = differences(levels(dict(zip(study.WINDOWS, means, strict=True))), ["a", "b"])
    scopes = list(harness.scopes_of(["a", "b"]))
    assert len(rows) == len(study.STUDENTS) * len(scopes) * 7
    steps = steps_of({**mined_by_rank(), **{("b", w): one for (_, w), one in mined_by_rank().items()}}, ["a", "b"])
    table = study.claims_table(rows, steps, scopes)
    found = {(row[0][:3], row[1], row[2]): row[3] for row in table.rows}
    assert len(found) == 2 * 2 * 3 + 3
    assert {said for (claim, _, _), said in found.items() if claim == "(1)"} == {first}
    assert {said for (claim, _, _), said in found.items() if claim == "(2)"} == {second}
    assert {said for (claim, _, _), said in found.items() if claim == "(3)"} == {"holds"}


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    deep = {"one-label": {"settings": {"retrieve": {"depth": 40, "candidates": 40}}}}
    found = carried_out("hardness", tmp_path, "--collections", "whole", "--lists", "64", conditions=deep)
    [table] = [table for table in found["tables"] if table["title"] == "What was learned from"]
    assert [row[1] for row in table["rows"]] == list(study.WINDOWS)
    assert {row[4] for row in table["rows"]} == {"4.00"}
    trained = {condition_of(window, student) for window in study.WINDOWS for student in study.STUDENTS}
    assert {f"alone: whole {name}" for name in trained} < set(found["values"]["levels"])
    assert len(found["values"]["alone"]) == 2 * 7
    assert len(found["values"]["shares"]) == 4
