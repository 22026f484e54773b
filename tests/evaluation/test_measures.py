"""Measures against numbers computed by hand and against ir_measures itself."""

from __future__ import annotations

import math
import shutil

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import METRIC
from anmi_ray.evaluation import measures

from .conftest import make_qrels, make_run

GRADES = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"a": 1}, "q3": {"d": 1}, "unjudged": {"a": 0, "b": 0}}
RUN = make_run("bm25", {"q1": [("c", 9), ("b", 8), ("a", 7)], "q2": [("b", 2), ("c", 1)], "unjudged": [("a", 1)]})


def value(metrics: pa.Table, query: str, measure: str, system: str = "bm25") -> float:
    rows = metrics.filter(pc.equal(metrics["query_id"], pa.scalar(identity.query_id(query), identity.ID)))
    rows = rows.filter(pc.and_(pc.equal(rows["measure"], measure), pc.equal(rows["system"], system)))
    assert rows.num_rows == 1
    return rows["value"][0].as_py()


def test_hand_computed_values():
    metrics = METRIC.check(measures.evaluate(RUN, make_qrels(GRADES)), "test")
    dcg, ideal = 1 / math.log2(3) + 2 / math.log2(4), 2 + 1 / math.log2(3)
    assert value(metrics, "q1", "nDCG@10") == pytest.approx(dcg / ideal, abs=1e-12)
    assert value(metrics, "q1", "MRR@10") == pytest.approx(0.5)
    assert value(metrics, "q1", "Recall@100") == pytest.approx(1.0)


def test_every_judged_query_is_there_and_no_other():
    metrics = measures.evaluate(RUN, make_qrels(GRADES))
    assert metrics.num_rows == 3 * 3  # q1, q2, q3 by three measures; `unjudged` has no relevant document
    assert value(metrics, "q2", "nDCG@10") == 0.0  # found nothing relevant
    assert value(metrics, "q3", "nDCG@10") == 0.0  # returned nothing


def test_systems_are_separate_and_named_ones_are_present():
    other = make_run("dense", {"q1": [("a", 3), ("b", 2)]})
    metrics = measures.evaluate(pa.concat_tables([RUN, other]), make_qrels(GRADES), ("nDCG@10",), ("empty",))
    assert value(metrics, "q1", "nDCG@10", "dense") == pytest.approx(1.0)
    assert value(metrics, "q1", "nDCG@10") < 1.0
    assert [value(metrics, q, "nDCG@10", "empty") for q in ("q1", "q2", "q3")] == [0.0, 0.0, 0.0]


def test_the_rank_decides_not_the_score():
    run = RUN.set_column(4, "score", pa.array(np.zeros(RUN.num_rows)))
    assert measures.evaluate(run, make_qrels(GRADES)).equals(measures.evaluate(RUN, make_qrels(GRADES)))


def test_agrees_with_ir_measures_across_blocks(monkeypatch: pytest.MonkeyPatch):
    random = identity.rng("test-measures")
    names = ("nDCG@10", "AP", "RR(rel=2)@10", "RR@10", "MRR@10", "P@5", "nDCG(judged_only=True)@3")
    ranked = {f"q{i}": [(f"d{j}", 30.0 - r) for r, j in enumerate(random.permutation(30))] for i in range(25)}
    grades = {f"q{i}": {f"d{j}": int(random.integers(0, 3)) for j in range(0, 30, 2)} | {"d1": 1} for i in range(25)}
    monkeypatch.setattr(measures, "BLOCK_QUERIES", 7)
    metrics = measures.evaluate(make_run("s", ranked), make_qrels(grades), names)
    for name in names:
        parsed = ir_measures.parse_measure(name)
        expected = ir_measures.iter_calc([parsed], grades, {q: dict(docs) for q, docs in ranked.items()})
        for metric in expected:
            assert value(metrics, metric.query_id, name, "s") == pytest.approx(metric.value, abs=1e-12), name


def test_order_of_rows_does_not_matter():
    shuffled = RUN.take(pa.array(identity.rng("shuffle").permutation(RUN.num_rows)))
    assert measures.evaluate(shuffled, make_qrels(GRADES)).equals(measures.evaluate(RUN, make_qrels(GRADES)))


@pytest.mark.skipif(shutil.which("perl") is None, reason="ir_measures computes ERR by a program in Perl")
def test_a_measure_whose_queries_must_be_numbers():
    metrics = measures.evaluate(RUN, make_qrels(GRADES), ("ERR@10",))
    assert value(metrics, "q1", "ERR@10") == pytest.approx(1 / 16 / 2 + 15 / 16 * 3 / 16 / 3, abs=1e-5)
    with pytest.raises(DataError, match="an external program failed"):
        measures.evaluate(RUN, make_qrels({"q1": {"a": 99}}), ("ERR@10",))  # it knows no grade above 4


def test_errors_say_what_to_do():
    with pytest.raises(DataError, match="no query has a relevant document"):
        measures.evaluate(RUN, make_qrels({"q1": {"a": 0}}))
    with pytest.raises(ConfigError, match="nDCG@10, MRR@10"):
        measures.evaluate(RUN, make_qrels(GRADES), ("nCDG@10",))
    for name in ("Recall", "nDCG@0", "nDCG(", "alpha_nDCG@10"):
        with pytest.raises(ConfigError, match="not a measure of ir_measures"):
            measures.evaluate(RUN, make_qrels(GRADES), (name,))
    with pytest.raises(DataError, match="no nDCG@10 of dense"):
        measures.mean(measures.evaluate(RUN, make_qrels(GRADES)), "dense", "nDCG@10")


def test_config_refuses_what_cannot_be_measured():
    assert EvaluateConfig(measures=("AP", "RR(rel=2)@10")).measures == ("AP", "RR(rel=2)@10")
    for measures_, said in ((("nCDG@10",), "not a measure of ir_measures"), (("AP", "AP"), "named twice")):
        with pytest.raises(ValueError, match=said):
            EvaluateConfig(measures=measures_)
