"""A session's budget while other sessions of its campaign are at work, and where its log cannot be written."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.judge import BudgetConfig, JudgeConfig
from anmi_ray.core.errors import StoreError, rebuild
from anmi_ray.judging import budget, kinds
from anmi_ray.judging.budget import MIN_RESERVED, BudgetSession
from anmi_ray.store import Store
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord
from tests.store.test_faults import FailingHandler, Fuse

PANEL = kinds.reading(JudgeConfig.model_validate({"judges": [{"kind": "null", "name": "llm"}]}))


def session(store: Store, **budget: float) -> BudgetSession:
    return BudgetSession(SpendLog(store, "campaign"), BudgetConfig(**budget), PANEL[0], PANEL, "remedy")  # type: ignore[arg-type]


@given(st.integers(1, 600), st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.booleans()), max_size=40))
@settings(max_examples=30, deadline=None)
def test_sessions_at_once_share_a_budget(
    tmp_path_factory: pytest.TempPathFactory, calls: int, turns: list[tuple[bool, int, bool]]
) -> None:
    """Each looks what the other has let through before it lets anything through itself."""
    store = Store(str(tmp_path_factory.mktemp("root")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_READ_S", 0.0)
        both = session(store, calls=calls), session(store, calls=calls)
        for one in both:
            one.begin("chunk")
        let = 0
        for first, size, settled in turns:
            asked = size * both[first].admit("chunk", [(size, 0.0)]).queries
            let += asked
            if settled and asked:
                both[first].settle("chunk", asked, {}, Spend(requests=asked))
        assert let <= calls


def test_what_another_lets_through_counts_after_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then both spend what is left: the overrun that the page about budgets speaks of."""
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    store = Store(str(tmp_path))
    both = [session(store, calls=MIN_RESERVED) for _ in range(2)]
    assert [one.admit("chunk", [(MIN_RESERVED // 2, 0.0)]) for one in both] == [(1, False), (1, False)]
    assert both[0].admit("chunk", [(MIN_RESERVED // 2, 0.0)]) == (1, False)
    now += 2.0
    assert both[1].admit("chunk", [(1, 0.0)]) == (0, True)


@pytest.mark.parametrize("limit", [None, 40_000.0])
def test_a_slow_store_covers_many_admissions_with_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    """At any moment the log covers what was admitted, within the budget, by a write a second, not an admission."""
    now, writes = 100.0, 0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    real = SpendLog.write

    def write(log: SpendLog, session: str, record: SpendRecord) -> None:
        nonlocal now, writes
        now += 0.035  # object storage
        writes += 1
        real(log, session, record)

    monkeypatch.setattr(SpendLog, "write", write)
    one = session(Store(str(tmp_path)), **({} if limit is None else {"calls": limit}))
    one.begin("chunk")
    admitted = 0
    for _ in range(3000):
        now += 0.001
        admitted += 320 * one.admit("chunk", [(320, 0.0)]).queries
        (record,) = SpendLog(Store(str(tmp_path)), "campaign").records()
        assert admitted <= record.calls <= (limit or float("inf"))
        one.settle("chunk", 320, {}, Spend(requests=320))
    assert admitted == min(3000 * 320, limit or float("inf")) // 320 * 320
    if limit is None:
        assert writes < 30


def test_a_chunk_hears_whether_the_judge_has_ever_answered(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first = session(store)
    assert not first.begin("chunk")
    first.settle("chunk", 3, {"http 403": 3}, Spend(requests=3))
    assert not first.begin("chunk")
    first.settle("chunk", 2, {"http 403": 1}, Spend(requests=2))
    assert first.begin("chunk")
    first.report(final=True)
    assert session(store).begin("chunk")


def test_hours_without_an_answer_outlive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    store = Store(str(tmp_path))
    killed = session(store, hours=1.0)
    killed.begin("chunk")
    assert killed.admit("chunk", [(1, 0.0)]).queries == 1
    now += 3000.0
    killed.report()  # asked every second while a run waits for answers
    again = session(store, hours=1.0)
    again.begin("chunk")
    now += 700.0
    assert again.admit("chunk", [(1, 0.0)]) == (0, True)


class _Full(Fuse):
    """A disk that is full."""

    def __call__(self, call: str) -> None:
        if call == "write":
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_problem_and_lets_nothing_through(tmp_path: Path) -> None:
    handler = FailingHandler(Fuse(0, OSError))
    budget = session(Store(str(tmp_path), pafs.PyFileSystem(handler)), calls=1000)
    budget.begin("chunk")
    assert budget.admit("chunk", [(10, 0.0)]).queries == 1
    budget.settle("chunk", 10, {}, Spend(requests=10))
    handler.fuse = _Full(0, OSError)
    assert budget.admit("chunk", [(10, 0.0)]) == (0, True)
    assert budget.admit("chunk", [(10, 0.0)]) == (0, True)
    budget.close("chunk")
    found = rebuild(budget.report(final=True).problem)
    assert type(found) is StoreError
    assert "no space left" in str(found)
    assert str(tmp_path) in str(found)
    handler.fuse = Fuse(0, OSError)
    assert budget.report(final=True).spent.calls == 10
    (written,) = (json.loads(path.read_text()) for path in (tmp_path / "spend" / "campaign").iterdir())
    assert written["spend"]["requests"] == 10, "what was spent is not lost once there is space"
