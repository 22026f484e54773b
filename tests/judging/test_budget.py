"""A budget holds whatever is under way, over actors that die and sessions that are killed."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.judging.budget import MAX_RESERVED, MIN_RESERVED, Budget, BudgetShare, share_of, total
from anmi_ray.store.spend_log import Spend, SpendRecord

COSTS = st.lists(st.tuples(st.integers(1, 500), st.floats(0, 5)), min_size=1, max_size=30)


@given(COSTS, st.floats(0.001, 1), st.integers(1, 2000), st.floats(0.01, 50), st.integers(1, 4))
def test_what_is_let_through_is_within_the_budget_whatever_is_under_way(
    costs: list[tuple[int, float]], price: float, calls: int, dollars: float, chunks: int
) -> None:
    """Actors that take turns, settle at the estimate, and die now and then."""
    budget = Budget("llm", BudgetShare(dollars=dollars, calls=calls))
    refused = False
    for number, (questions, _) in enumerate(costs):
        key, cost = str(number % chunks), (questions, questions * price)
        if number % 7 == 3:
            budget.begin(key)
        admitted, over = budget.admit(key, [cost], 0.0)
        refused = refused or over
        if number % 2 and admitted:
            budget.settle(key, cost[0], 0, Spend(requests=cost[0], dollars=cost[1]), 0.0)
        assert budget.record.calls <= calls + 1e-6
        assert budget.record.dollars <= dollars + 1e-6
    assert budget.spent_out == refused


@given(COSTS, st.data())
def test_a_prefix_of_queries_is_let_through(costs: list[tuple[int, float]], data: st.DataObject) -> None:
    calls = data.draw(st.integers(1, sum(questions for questions, _ in costs)))
    budget = Budget("llm", BudgetShare(calls=calls))
    admitted, _ = budget.admit("a", costs, 0.0, patient=False)
    counts = [questions for questions, _ in costs]
    assert sum(counts[:admitted]) <= calls
    assert admitted == len(costs) or sum(counts[: admitted + 1]) > calls


def test_the_estimate_learns_from_what_questions_took() -> None:
    budget = Budget("llm", BudgetShare(dollars=10.0, calls=1000))
    assert budget.admit("a", [(100, 1.0)], 0.0).queries == 1
    budget.settle("a", 100, 5, Spend(requests=150, dollars=2.0), 0.0)  # twice as dear, half again as many calls
    assert budget.admit("a", [(100, 1.0)], 0.0).queries == 1
    assert budget.record.calls_under_way == pytest.approx(150)
    assert budget.record.dollars_under_way == pytest.approx(2.0)
    assert budget.admit("a", [(100, 3.1)], 0.0).queries == 0


@pytest.mark.parametrize(
    ("settled", "past"),
    [
        (Spend(requests=100, unreported=100, unreported_dollars=1.0), []),  # the server counts no tokens
        (Spend(requests=100), []),  # all failed, unbilled
        (Spend(), [SpendRecord("llm", questions=200, failed=200, spend=Spend(requests=900), estimated=2.0)]),
    ],
)
def test_money_is_held_back_whatever_was_counted(settled: Spend, past: list[SpendRecord]) -> None:
    budget = Budget("llm", BudgetShare(dollars=10.0), past)
    assert budget.admit("a", [(100, 1.0)], 0.0).queries == 1
    budget.settle("a", 100, 100, settled, 0.0)
    left = 10.0 - settled.cost
    assert budget.admit("a", [(100, 1.0)] * 12, 0.0).queries == int(MAX_RESERVED * left)
    assert budget.record.dollars_under_way == int(MAX_RESERVED * left)
    assert budget.admit("b", [(100, 1.0)] * 12, 0.0, patient=False) == (int(left) - int(MAX_RESERVED * left), True)
    assert budget.record.dollars <= 10.0


def test_failures_that_cost_nothing_make_no_answer_cheaper() -> None:
    budget = Budget("llm", BudgetShare(dollars=100.0))
    for spend in (Spend(requests=100), Spend(requests=100, dollars=1.5)):
        budget.admit("a", [(100, 1.0)], 0.0)
        budget.settle("a", 100, 0, spend, 0.0)
    budget.admit("a", [(100, 1.0)], 0.0)
    assert budget.record.dollars_under_way == pytest.approx(1.5)


def test_a_judge_that_costs_nothing_is_asked_to_the_end() -> None:
    budget = Budget("llm", BudgetShare(dollars=1.0))
    for _ in range(3):
        assert budget.admit("a", [(100, 0.0)] * 50, 0.0) == (50, False)
        budget.settle("a", 5000, 0, Spend(requests=5000), 0.0)


def test_what_an_actor_that_died_had_under_way_is_lost_and_closing_gives_it_back() -> None:
    budget = Budget("llm", BudgetShare(calls=250))
    budget.begin("a")
    budget.admit("a", [(100, 0.0)], 0.0)
    budget.settle("a", 40, 0, Spend(requests=40), 0.0)
    budget.begin("a")
    assert (budget.record.calls, budget.record.calls_lost) == (100, 60)
    budget.admit("a", [(60, 0.0)], 0.0)
    budget.close("a")
    assert budget.record.calls == 100
    assert budget.admit("b", [(150, 0.0)], 0.0).queries == 1
    assert budget.admit("b", [(1, 0.0)], 0.0).queries == 0


@given(st.integers(1, 5000), st.lists(st.integers(1, 300), min_size=1, max_size=60), st.data())
def test_kills_never_overspend_and_lose_a_share_of_what_is_left(
    calls: int, sizes: list[int], data: st.DataObject
) -> None:
    """Two actors ask in turn, each what it was let through some time after; all is killed at any moment."""
    whole = BudgetShare(calls=calls)
    dead: list[SpendRecord] = []
    asked = 0
    budget = Budget("llm", whole)
    waits: dict[str, int] = {"a": 0, "b": 0}
    for size in sizes:
        key = data.draw(st.sampled_from("ab"))
        what = data.draw(st.sampled_from(("admit", "settle", "kill")))
        if what == "admit" and budget.admit(key, [(size, 0.0)], 0.0).queries:
            waits[key] += size
            asked += size
        elif what == "settle" and waits[key]:
            budget.settle(key, waits[key], 0, Spend(requests=waits[key]), 0.0)
            waits[key] = 0
        elif what == "kill":
            record = budget.record
            left = share_of(whole, [("llm", 1.0)], "llm", dead).calls
            assert left is not None
            left -= record.calls - record.calls_under_way
            assert record.calls_under_way <= max(MAX_RESERVED * left, MIN_RESERVED, max(sizes)) + 1e-6
            dead.append(record)
            budget = Budget("llm", share_of(whole, [("llm", 1.0)], "llm", dead), dead)
            waits = {"a": 0, "b": 0}
        assert asked <= calls


def test_what_may_not_be_held_now_may_be_asked_once_others_are_settled() -> None:
    budget = Budget("llm", BudgetShare(calls=1000))
    assert budget.admit("a", [(100, 0.0)] * 10, 0.0) == (2, False)
    assert budget.admit("b", [(100, 0.0)], 0.0) == (0, False)
    assert not budget.spent_out
    assert budget.admit("b", [(100, 0.0)], 0.0, patient=False) == (1, False)
    budget.settle("a", 200, 0, Spend(requests=200), 0.0)
    assert budget.admit("b", [(100, 0.0)], 0.0) == (1, False)


def test_hours_end_it() -> None:
    budget = Budget("llm", BudgetShare(hours=2.0))
    assert budget.admit("a", [(1, 0.0)], 1.99).queries == 1
    assert budget.admit("a", [(1, 0.0)], 2.0).queries == 0
    assert budget.spent_out


def test_records_are_kept_as_json() -> None:
    budget = Budget("llm", BudgetShare())
    budget.begin("a")
    budget.admit("a", [(10, 0.5)], 0.1)
    budget.settle("a", 4, 1, Spend(5, 400, 40, 8, 0.4, 1, 0.1), 0.2)
    record = SpendRecord.from_json(json.loads(json.dumps(asdict(budget.record))))
    assert record == budget.record
    assert total([record, record])["llm"] | {"hours": 0.4} == {
        "questions": 8, "failed": 2, "calls": 10, "calls_uncounted": 15.0, "prompt_tokens": 800, "cached_tokens": 80,
        "answer_tokens": 16, "dollars": 0.8, "dollars_uncounted": pytest.approx(1.7), "hours": 0.4,
    }  # fmt: skip


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=5),
    st.floats(1, 100),
    st.integers(1, 10_000),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_judges_in_turn_share_a_budget(prices: list[float], dollars: float, calls: int, used: list[float]) -> None:
    """Each spends a part of what it may; together they stay within it, and a judge that starts again gets no more."""
    weights = [(f"judge-{number}", price) for number, price in enumerate(prices)]
    whole, records = BudgetShare(dollars=dollars, calls=calls), list[SpendRecord]()
    for (name, price), part in zip(weights, used, strict=False):
        may = share_of(whole, weights, name, records)
        assert may.dollars is not None
        assert may.calls is not None
        spent = SpendRecord(
            name, spend=Spend(requests=int(may.calls * part), dollars=may.dollars * part if price else 0.0)
        )
        records.append(spent)
        again = share_of(whole, weights, name, records)
        assert again.dollars == pytest.approx(may.dollars - spent.dollars, abs=1e-9)
        assert again.calls == pytest.approx(may.calls - spent.calls)
    assert sum(one.dollars for one in records) <= dollars + 1e-6
    assert sum(one.calls for one in records) <= calls
    last = share_of(whole, weights, weights[-1][0], records)
    assert last.calls == pytest.approx(calls - sum(one.calls for one in records))


def test_without_a_limit_there_is_none() -> None:
    assert share_of(BudgetShare(), [("a", 1.0)], "a", [SpendRecord("a", spend=Spend(requests=5))]) == BudgetShare()
