"""The headline: its baseline is the best of the untrained on dev, and a system that is no better there says so."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.evaluation.headline import BY_DEFAULT, BY_SETTINGS, Headline, best, from_json
from anmi_ray.evaluation.significance import SystemComparison

SHARE = SystemComparison("reranked", "nDCG@10", 20, 0.6, 0.5, 0.7, 0.1, 0.05, 0.15, 0.01, 0.02, 9, 8, 3)
ONE = Headline(
    system="reranked+hybrid",
    baseline="dense",
    chosen="dev",
    control="bm25+dense",
    measure="nDCG@10",
    queries=40,
    dev={"dense": 0.5, "bm25+dense": 0.4, "reranked+hybrid": 0.55},
    weights={"reranked": 0.8, "bm25": 0.1, "dense": 0.1},
    shares=(SHARE,),
)
UNTRAINED = ["bm25+dense", "hybrid", "bm25", "dense"]


@given(st.fixed_dictionaries({name: st.sampled_from([0.1, 0.2, 0.3]) for name in UNTRAINED}))
def test_the_best_on_dev_and_of_equal_ones_the_first(dev: dict[str, float]) -> None:
    chosen = best(dev, UNTRAINED)
    assert dev[chosen] == max(dev.values())
    assert all(dev[name] < dev[chosen] for name in UNTRAINED[: UNTRAINED.index(chosen)])


def test_without_dev_queries_the_first() -> None:
    assert best({}, UNTRAINED) == "bm25+dense"
    assert best({"reranked": 0.9}, UNTRAINED[1:]) == "hybrid"


def test_no_better_is_said_with_its_figures() -> None:
    assert ONE.no_better() == ""
    worse = replace(ONE, dev={**ONE.dev, "reranked+hybrid": 0.5})
    said = "reranked+hybrid is no better than dense on 40 dev queries (nDCG@10 0.500 against 0.500)"
    assert worse.no_better() == said
    assert replace(worse, baseline="a peer").no_better() == ""  # peers are not scored on dev
    assert replace(worse, dev={}).no_better() == ""


@pytest.mark.parametrize(
    ("chosen", "queries", "said"),
    [
        ("dev", 1, "the best untrained system on 1 dev query"),
        ("dev", 1200, "the best untrained system on 1,200 dev queries"),
        (BY_SETTINGS, 40, "named by evaluate.baseline"),
        (BY_DEFAULT, 0, "taken without a choice: no dev query is judged"),
    ],
)
def test_how_the_baseline_came(chosen: str, queries: int, said: str) -> None:
    assert replace(ONE, chosen=chosen, queries=queries).how() == said


def test_through_json() -> None:
    assert from_json(json.loads(json.dumps(asdict(ONE)))) == ONE
