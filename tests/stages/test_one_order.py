"""Pairs that are asked in one order: a run up to its ratings, and what fit and audit find of judges that lean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anmi_ray import judging, rating
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.records import COMPARISON, JUDGMENT, RATING
from jobs.studies import one_order
from jobs.studies.both_orders import judged
from tests.small import start_from
from tests.stages.runs import World

LEANINGS = (0.6, 0.3, -0.5)  # probits


@pytest.mark.slow
def test_a_fit_finds_leanings_and_the_audit_tells_them_of_judges_without_both_orders() -> None:
    data = judged(LEANINGS, 60, 40, orders="one")
    config = RateConfig(judge_offsets=True)
    found = rating.fit_globals(data.judgments, data.comparisons, data.candidates, config).offsets
    assert list(found.values()) == pytest.approx(LEANINGS, abs=0.1)
    audited: Any = judging.audit(data.judgments, data.comparisons, leanings=found)["judges"]
    silent: Any = judging.audit(data.judgments, data.comparisons)["judges"]
    for (name, judge), leaning in zip(audited.items(), LEANINGS, strict=True):
        bias = judge["position_bias"]
        assert bias["fitted"] == found[name]
        assert bias["probability"] * leaning > 0
        assert bias["interval"][0] <= bias["probability"] <= bias["interval"][1]
        assert bias["pairs"] == data.comparisons.num_rows
        assert (bias["first_preferred"], bias["second_preferred"]) == (0, 0)
        assert silent[name]["position_bias"]["probability"] is None  # a file may name the winner first


@pytest.mark.slow
def test_at_equal_cost_one_order_is_as_sure_as_it_says_and_better_where_answers_repeat() -> None:
    one, both = one_order.measured((0.3, 0.3, 0.3), 0.9, 30, 40)
    assert one.rmse < 0.9 * both.rmse
    assert 0.9 < one.coverage < 0.99
    assert list(one.leanings.values()) == pytest.approx([0.3] * 3, abs=0.12)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_asks_half_and_rates_everything(
    prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("one"), small_collection)
    start_from(prepared, world.root, "compare")
    done = world.carry_out("judge.orders=one", "rate.judge_offsets=true", last="rate")
    judgments = done.part("judge", "judgments", JUDGMENT)
    pairs = done.part("compare", "comparisons", COMPARISON).num_rows
    panel = done.settings.judge.simulated
    assert judgments.num_rows == pairs * len(panel)
    assert done.part("rate", "ratings", RATING).num_rows > 0
    audit: Any = done.artifact("judge").read_json("audit.json")
    for judge in panel:
        assert audit["judges"][judge.name]["position_bias"]["fitted"] == pytest.approx(judge.position_bias, abs=0.3)
