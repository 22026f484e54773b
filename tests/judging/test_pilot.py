"""Pilots: which pairs are asked about, and what an audit of them decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.base import result_settings, whole
from anmi_ray.config.judge import JudgeConfig, PilotConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import COMPARISON, QREL
from anmi_ray.judging import audit, judge
from anmi_ray.judging.audit import pilot
from anmi_ray.judging.audit.pilot import COSTS, PilotGate, Verdict

World = Callable[..., tuple[pa.Table, pa.Table]]
OPEN = PilotConfig(min_agreement=None, max_position_bias=None, max_inconsistent=None, max_failures=None)


@pytest.fixture(scope="module")
def worlds() -> list[tuple[pa.Table, pa.Table]]:
    """Queries of 3, 6 and 9 documents, the first of each a known positive, every pair compared."""
    from tests.judging import conftest

    make = conftest.make_world.__wrapped__()  # type: ignore[attr-defined]
    return [make(queries, documents) for queries, documents in ((7, 3), (5, 6), (11, 9))]


def sampled(tables: list[tuple[pa.Table, pa.Table]], pairs: int) -> pa.Table:
    found = [pilot.first([pilot.numbered(n, pairs_, known)], pairs) for n, (known, pairs_) in enumerate(tables)]
    picked = pilot.pick(pilot.first(found, pairs), pairs)
    return pa.concat_tables([COMPARISON.empty(), *picked.values()])


def split(candidates: pa.Table, comparisons: pa.Table, parts: int) -> list[tuple[pa.Table, pa.Table]]:
    """The same in so many buckets of whole queries, rows turned round."""
    queries = pc.unique(comparisons["query_id"])
    of = [pc.is_in(comparisons["query_id"], value_set=queries[part::parts]) for part in range(parts)]
    return [
        (candidates, comparisons.filter(mine).take(pa.array(np.arange(pc.sum(mine).as_py() or 0)[::-1]))) for mine in of
    ]


def is_known(candidates: pa.Table, chosen: pa.Table) -> list[bool]:
    positives = set(candidates.filter(candidates["is_positive"])["doc_id"].to_pylist())
    both = zip(chosen["doc_a"].to_pylist(), chosen["doc_b"].to_pylist(), strict=True)
    return [(a in positives) != (b in positives) for a, b in both]


@given(world=st.integers(0, 2), pairs=st.integers(1, 120), parts=st.integers(1, 5))
def test_exactly_so_many_pairs_whatever_the_buckets(
    worlds: list[tuple[pa.Table, pa.Table]], world: int, pairs: int, parts: int
) -> None:
    candidates, comparisons = worlds[world]
    whole_ = sampled([(candidates, comparisons)], pairs)
    assert whole_.num_rows == min(pairs, comparisons.num_rows)
    parted = sampled(split(candidates, comparisons, parts), pairs)
    assert set(parted["comparison_id"].to_pylist()) == set(whole_["comparison_id"].to_pylist())
    assert len(set(whole_["comparison_id"].to_pylist())) == whole_.num_rows
    known, there = sum(is_known(candidates, whole_)), sum(is_known(candidates, comparisons))
    others = comparisons.num_rows - there
    assert known == min(there, max((pairs + 1) // 2, pairs - others))


def test_a_larger_pilot_holds_a_smaller_one(worlds: list[tuple[pa.Table, pa.Table]]) -> None:
    small, large = (set(sampled([worlds[2]], pairs)["comparison_id"].to_pylist()) for pairs in (40, 80))
    assert small < large


def test_no_more_is_kept_than_twice_the_pairs(worlds: list[tuple[pa.Table, pa.Table]]) -> None:
    candidates, comparisons = worlds[2]
    table = pilot.first([pilot.numbered(0, comparisons, candidates)], 10)
    assert table.num_rows == pilot.first([table, table.slice(0, 0)], 10).num_rows == 20


def test_a_pair_of_no_candidate_is_refused(worlds: list[tuple[pa.Table, pa.Table]]) -> None:
    candidates, comparisons = worlds[0]
    with pytest.raises(DataError, match="2 compared documents"):
        pilot.numbered(0, comparisons, candidates.slice(1))


@pytest.mark.parametrize(
    ("value", "low", "high", "bound", "name", "outcome"),
    [
        (0.02, 0.01, 0.05, 0.05, pilot.FAILURES, "pass"),
        (0.08, 0.051, 0.1, 0.05, pilot.FAILURES, "fail"),
        (0.8, 0.6, 0.9, 0.6, pilot.AGREEMENT, "pass"),
        (0.5, 0.4, 0.59, 0.6, pilot.AGREEMENT, "fail"),
        (-0.2, -0.3, -0.16, 0.15, pilot.BIAS, "fail"),
        (-0.02, -0.16, 0.12, 0.15, pilot.BIAS, "inconclusive"),
        (-0.02, -0.14, 0.1, 0.15, pilot.BIAS, "pass"),
    ],
)
def test_an_interval_on_one_side_of_its_bound_decides(
    value: float, low: float, high: float, bound: float, name: str, outcome: str
) -> None:
    assert pilot._gate(name, bound, value, [low, high], 100, least=name == pilot.AGREEMENT).outcome == outcome


def judged(world: tuple[pa.Table, pa.Table], *judges: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The audit of simulated judges against the known positives, and the number of pairs."""
    candidates, comparisons = world
    panel = [{"kind": "simulated", "name": f"j{k}", **one} for k, one in enumerate(judges)]
    config = JudgeConfig.model_validate({"preset": "thurstone", "judges": panel})
    grades = QREL.table(
        {
            "query_id": candidates["query_id"],
            "doc_id": candidates["doc_id"],
            "grade": pc.cast(candidates["is_positive"], pa.int32()),
        }
    )
    return audit(judge(comparisons, candidates, config, 3), comparisons, grades=grades), comparisons.num_rows


FREE = COSTS.empty_table()


def costs(judge: str, query: Any, least: Any, most: Any) -> pa.Table:
    return pa.table([[judge] * len(query), query, least, most], schema=COSTS)


def outcomes(verdict: Verdict) -> dict[str, str]:
    return {gate.name: gate.outcome for gate in verdict.gates}


def test_verdicts_on_judges_with_known_habits(make_world: World) -> None:
    good, biased, failing = {"noise_sd": 0.5}, {"position_bias": 1.0}, {"noise_sd": 0.5, "failure_rate": 0.2}
    figures, pairs = judged(make_world(60, 8), good, biased, failing)
    found = pilot.verdicts(figures, FREE, PilotConfig(), 20 * pairs)
    assert [one.decision for one in found] == ["go", "no-go", "no-go"]
    assert {name for name, what in outcomes(found[1]).items() if what == "fail"} == {pilot.BIAS, pilot.INCONSISTENT}
    assert {name for name, what in outcomes(found[2]).items() if what == "fail"} == {pilot.FAILURES}
    assert pilot.decision(found) == "no-go"
    assert pilot.decision(found[:1]) == "go"
    assert json.loads(json.dumps([one.to_json() for one in found], allow_nan=False))[0]["decision"] == "go"
    assert str(found[0]).split() == ["go", "j0"]


def test_few_pairs_are_inconclusive(make_world: World) -> None:
    figures, pairs = judged(make_world(20, 3), {"position_bias": 0.5, "noise_sd": 0.8})
    [found] = pilot.verdicts(figures, FREE, PilotConfig(), 2 * pairs)
    assert found.decision == outcomes(found)[pilot.BIAS] == "inconclusive"


def test_without_known_positives_agreement_stands_in_nobodys_way(make_world: World) -> None:
    candidates, comparisons = make_world(60, 8)
    at = candidates.schema.get_field_index("is_positive")
    unknown = candidates.set_column(at, "is_positive", pa.array(np.zeros(candidates.num_rows, np.bool_)))
    figures, pairs = judged((unknown, comparisons), {"noise_sd": 0.5})
    [found] = pilot.verdicts(figures, FREE, PilotConfig(), 2 * pairs)
    assert outcomes(found)[pilot.AGREEMENT] == "not measured"
    assert found.decision == "go"


def test_a_judge_that_always_fails_is_no_go(make_world: World) -> None:
    figures, pairs = judged(make_world(20, 4), {"failure_rate": 1.0})
    [found] = pilot.verdicts(figures, FREE, PilotConfig(), 2 * pairs)
    assert found.decision == "no-go"
    assert outcomes(found)[pilot.BIAS] == "inconclusive"


def test_costs_are_projected_to_the_whole_run(make_world: World) -> None:
    figures, pairs = judged(make_world(20, 4), {}, {})
    dollars = np.where(np.arange(2 * pairs) % 2, 0.002, 0.004)
    query = np.arange(2 * pairs) // 12
    unknown = np.full(2 * pairs, np.nan)
    bought = pa.concat_tables([costs("j0", query, dollars, dollars), costs("j1", query, unknown, unknown)])
    config = OPEN.model_copy(update={"max_dollars": 50.0})
    priced, unpriced = pilot.verdicts(figures, bought, config, 20_000)
    [gate] = priced.gates
    assert gate.value == pytest.approx(0.003 * 20_000)
    assert gate.outcome == "fail"
    assert unpriced.decision == "inconclusive"
    assert [one.decision for one in pilot.verdicts(figures, FREE, config, 20_000)] == ["go", "go"]


def test_what_was_not_counted_is_no_saving(make_world: World) -> None:
    figures, pairs = judged(make_world(20, 4), {})
    query = np.arange(2 * pairs) // 12
    dollars = np.full(2 * pairs, 0.003)
    most = dollars.copy()
    dollars[:12] = 0.0
    most[:12] = 0.006
    nothing = np.zeros(2 * pairs)

    def gate(bound: float, least: Any, most: Any) -> PilotGate:
        config = OPEN.model_copy(update={"max_dollars": bound})
        [found] = pilot.verdicts(figures, costs("j0", query, least, most), config, 20_000)[0].gates
        return found

    assert [gate(bound, dollars, most).outcome for bound in (40, 62, 100)] == ["fail", "inconclusive", "pass"]
    assert gate(62, dollars, most).value == pytest.approx(20_000 * most.mean())
    assert (gate(1e6, nothing, most).value, gate(1e6, nothing, most).outcome) == (None, "inconclusive")
    assert gate(1.0, nothing, nothing).outcome == "pass", "a judge that costs nothing"


def test_a_gate_that_is_null_is_open(make_world: World) -> None:
    figures, pairs = judged(make_world(20, 4), {"position_bias": 3.0, "failure_rate": 0.5})
    [found] = pilot.verdicts(figures, FREE, OPEN, 2 * pairs)
    assert found == replace(found, gates=())
    assert found.decision == "go"


def test_gates_change_no_judgment_and_no_fingerprint() -> None:
    plain, strict = JudgeConfig(), JudgeConfig.model_validate({"pilot": {"pairs": 7, "min_agreement": 0.9}})
    assert result_settings(plain) == result_settings(strict) == {}
    assert whole(plain) == whole(strict)
    assert strict.judges == plain.judges
