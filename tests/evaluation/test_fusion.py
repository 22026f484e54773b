"""Fusion: its two ends are the two rankings, whatever the scores look like."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import RUN
from anmi_ray.evaluation import fusion, measures

from .conftest import make_qrels, make_run, order

values = st.floats(-1e6, 1e6, allow_nan=False) | st.sampled_from([0.0, 1.0, 1.0 + 2**-52, -5.0])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict, dict, int]:
    """Rankings of the hybrid and, of its top `depth`, of the reranker; scores fall with rank, often equal."""
    hybrid: dict[str, list[tuple[str, float]]] = {}
    reranked: dict[str, list[tuple[str, float]]] = {}
    depth = draw(st.integers(1, 6))
    for q in range(draw(st.integers(1, 3))):
        names = [f"d{i}" for i in range(draw(st.integers(1, 8)))]
        scores = sorted(draw(st.lists(values, min_size=len(names), max_size=len(names))), reverse=True)
        hybrid[f"q{q}"] = list(zip(names, scores, strict=True))
        pool = draw(st.permutations(names[:depth]))
        scores = sorted(draw(st.lists(values, min_size=len(pool), max_size=len(pool))), reverse=True)
        reranked[f"q{q}"] = list(zip(pool, scores, strict=True))
    return reranked, hybrid, depth


@given(case=pairs(), weight=st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_ends_are_the_two_rankings(case: tuple[dict, dict, int], weight: float):
    reranked, hybrid, depth = make_run("r", case[0]), make_run("h", case[1]), case[2]
    for w in (0.0, weight, 1.0):
        fused = RUN.check(fusion.fuse(reranked, hybrid, (w, 1.0 - w), depth), "test")
        got, before, after = order(fused), order(hybrid), order(reranked)
        for query, docs in before.items():
            assert sorted(got[query]) == sorted(docs)
            assert got[query][depth:] == docs[depth:]  # what was not reranked stays where it was
            if w == 0.0:
                assert got[query] == docs
            if w == 1.0:
                assert got[query][: len(after[query])] == after[query]
        scores = fused["score"].to_numpy()
        same_query = np.diff(np.unique(np.array(fused["query_id"].to_pylist(), object), return_inverse=True)[1]) == 0
        assert (np.diff(scores)[same_query] <= 0).all()  # a tool that sorts by score sees the same order


def z(*values: float) -> np.ndarray:
    """Values less their mean, over their standard deviation."""
    return (np.array(values) - np.mean(values)) / np.std(values)


def test_other_partners_give_their_scores_and_the_hybrid_the_rest():
    hybrid = make_run("h", {"q": [("a", 4), ("b", 3), ("c", 2), ("d", 1)], "alone": [("a", 2), ("b", 1)]})
    reranked = make_run("r", {"q": [("a", 3), ("b", 2), ("c", 1)], "alone": [("b", 2), ("a", 1)]})
    partner = make_run("dense", {"q": [("c", 0.9), ("x", 0.5), ("a", 0.4)]})  # not b, so b counts like a
    fused = fusion.fuse(reranked, hybrid, (0.0, 1.0), 3, partners=[partner])
    assert order(fused)[identity.query_id("q")] == [identity.doc_id(d) for d in "cabd"]
    assert order(fused)[identity.query_id("alone")] == [identity.doc_id(d) for d in "ab"]  # nothing said: hybrid
    last = order(fusion.fuse(reranked, hybrid, (1.0, 0.0), 3, partners=[partner]))
    assert last == {q: docs + order(hybrid)[q][3:] for q, docs in order(reranked).items()}
    qrels = make_qrels({"q": {"c": 1}})
    sweep = fusion.choose_weights(reranked, hybrid, qrels, 1, 3, partners=[partner])
    assert (sweep.chosen, sweep.parts, sweep.values) == ((0.0, 1.0), ("r", "dense"), (1.0, 0.5))
    alone = fusion.fuse(reranked, hybrid, (0.3, 0.7), 3)
    assert fusion.fuse(reranked, hybrid, (0.3, 0.7), 3, partners=[hybrid]).equals(alone)


def test_three_parts_by_hand():
    hybrid = make_run("h", {"q": [("a", 0.04), ("b", 0.03), ("c", 0.02), ("d", 0.01)]})
    reranked = make_run("r", {"q": [("c", 9.0), ("a", 5.0), ("b", 1.0)]})
    bm25 = make_run("bm25", {"q": [("b", 20.0), ("d", 15.0), ("a", 10.0)]})  # not c: its lowest, 10
    dense = make_run("dense", {"q": [("a", 0.8), ("c", 0.7), ("b", 0.4)]})
    fused = fusion.fuse(reranked, hybrid, (0.5, 0.2, 0.3), 3, partners=[bm25, dense])
    a, b, c = 0.5 * z(5.0, 1.0, 9.0) + 0.2 * z(10.0, 20.0, 10.0) + 0.3 * z(0.8, 0.4, 0.7)
    assert order(fused)[identity.query_id("q")] == [identity.doc_id(d) for d in "cabd"]
    assert fused["score"].to_pylist() == pytest.approx([c, a, b, b - 1])


@given(parts=st.integers(1, 4), steps=st.integers(1, 8))
@settings(deadline=None, max_examples=30)
def test_simplex(parts: int, steps: int):
    grid = list(fusion.simplex(parts, steps))
    assert len(grid) == len(set(grid)) == math.comb(steps + parts - 1, parts - 1)
    assert all(min(weights) >= 0.0 and sum(weights) == pytest.approx(1.0) for weights in grid)


def test_documents_without_a_reranked_score_stand_below_the_pool():
    hybrid = make_run("h", {"q": [("a", 4), ("b", 3), ("c", 2)], "other": [("a", 2), ("b", 1)]})
    reranked = make_run("r", {"q": [("c", 1), ("b", 0)]})
    ranked = order(fusion.fuse(reranked, hybrid, (1.0, 0.0), 3))
    assert ranked[identity.query_id("q")] == [identity.doc_id(d) for d in "cba"]
    assert ranked[identity.query_id("other")] == [identity.doc_id(d) for d in "ab"]


def test_row_order_does_not_matter():
    hybrid = make_run("h", {f"q{i}": [(f"d{j}", 9.0 - j) for j in range(9)] for i in range(4)})
    reranked = make_run("r", {f"q{i}": [(f"d{(j * 5 + i) % 9}", 9.0 - j) for j in range(9)] for i in range(4)})
    expected = fusion.fuse(reranked, hybrid, (0.4, 0.6), 9)
    shuffle = identity.rng("fusion").permutation(hybrid.num_rows)
    assert fusion.fuse(reranked.take(shuffle), hybrid.take(shuffle[::-1]), (0.4, 0.6), 9).equals(expected)


def test_choose_weight_takes_the_best_on_dev():
    # the hybrid finds one query's document, the reranker the other's: only a mixture finds both first
    hybrid = make_run("h", {"q0": [("a", 10), ("b", 0), ("c", 0)], "q1": [("b", 10), ("a", 9), ("c", 0)]})
    reranked = make_run("r", {"q0": [("b", 10), ("a", 9), ("c", 0)], "q1": [("a", 10), ("b", 0), ("c", 0)]})
    qrels = make_qrels({"q0": {"a": 1}, "q1": {"a": 1}})
    sweep = fusion.choose_weights(reranked, hybrid, qrels, 10, 3)
    # .1 to .9 are equal: the even
    assert (sweep.chosen, sweep.control, sweep.queries) == (pytest.approx((0.5, 0.5)), (0.0, 1.0), 2)
    assert max(sweep.values) == 1.0
    assert sweep.values[0] == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert [weight for weight, _ in sweep.curve()] == pytest.approx([i / 10 for i in range(11)])
    fused = fusion.fuse(reranked, hybrid, sweep.chosen, 3)
    assert measures.mean(measures.evaluate(fused, qrels), "reranked+hybrid", "nDCG@10") == 1.0
    assert fusion.from_json(json.loads(json.dumps(asdict(sweep)))) == sweep


def test_the_control_is_the_best_without_the_reranker():
    # each retriever alone finds one query's document; the reranker finds nothing
    hybrid = make_run("h", {"q0": [("b", 3), ("a", 2), ("c", 1)], "q1": [("b", 3), ("a", 2), ("c", 1)]})
    reranked = make_run("r", {q: [("c", 3), ("b", 2), ("a", 1)] for q in ("q0", "q1")})
    bm25 = make_run("bm25", {"q0": [("a", 9), ("b", 1), ("c", 0)], "q1": [("b", 2), ("a", 1.5), ("c", 0)]})
    dense = make_run("dense", {"q0": [("b", 2), ("a", 1.5), ("c", 0)], "q1": [("a", 9), ("b", 1), ("c", 0)]})
    qrels = make_qrels({"q0": {"a": 1}, "q1": {"a": 1}})
    sweep = fusion.choose_weights(reranked, hybrid, qrels, 4, 3, partners=[bm25, dense])
    assert sweep.parts == ("r", "bm25", "dense")
    assert sweep.control == pytest.approx((0.0, 0.5, 0.5))
    assert dict(sweep.curve())[0.0] == 1.0


def test_the_choice_is_the_mean_over_resamples():
    # the reranker is right for seven queries, the hybrid for three: which share of resamples prefers which is binomial
    docs = {True: [("a", 2.0), ("b", 1.0)], False: [("b", 2.0), ("a", 1.0)]}
    hybrid = make_run("h", {f"q{i}": docs[i < 3] for i in range(10)})
    reranked = make_run("r", {f"q{i}": docs[i >= 3] for i in range(10)})
    sweep = fusion.choose_weights(reranked, hybrid, make_qrels({f"q{i}": {"a": 1} for i in range(10)}), 1, 2)
    worse = sum(math.comb(10, k) * 0.7**k * 0.3 ** (10 - k) for k in range(5))  # ties go to the first in order
    tied = math.comb(10, 5) * 0.7**5 * 0.3**5
    assert sweep.chosen[0] == pytest.approx(1 - worse - tied, abs=0.04)
    assert sweep.value == pytest.approx(max(sweep.values))
    again = fusion.choose_weights(reranked, hybrid, make_qrels({f"q{i}": {"a": 1} for i in range(10)}), 1, 2)
    assert again == sweep


@pytest.mark.parametrize("skill", [0.0, 3.0])
def test_what_a_choice_gives_on_queries_without_part_in_it(skill: float):
    """A reranker of chance may seem to help where its weight was chosen, not elsewhere; a good one helps there too."""
    names = [f"d{i}" for i in range(10)]
    queries = [f"q{i}" for i in range(40)]

    def ranking(system: str, of: float) -> dict[str, list[tuple[str, float]]]:
        found = {}
        for query in queries:
            score = identity.rng("cross", system, query).normal(size=10)
            score[0] += of
            found[query] = sorted(zip(names, score.tolist(), strict=True), key=lambda one: -one[1])
        return found

    reranked, hybrid = make_run("r", ranking("r", skill)), make_run("h", ranking("h", 1.0))
    qrels = make_qrels({query: {"d0": 1} for query in queries})
    sweep = fusion.choose_weights(reranked, hybrid, qrels, 10, 10)
    assert sweep.control_cross == pytest.approx(sweep.values[0])  # the hybrid alone: nothing is chosen
    assert sweep.cross <= sweep.value + 0.02
    assert (sweep.cross > sweep.control_cross) == bool(skill)


def test_one_query_has_its_own_choice():
    hybrid, reranked = make_run("h", {"q": [("a", 2), ("b", 1)]}), make_run("r", {"q": [("b", 2), ("a", 1)]})
    sweep = fusion.choose_weights(reranked, hybrid, make_qrels({"q": {"b": 1}}), 2, 2)
    assert sweep.cross == sweep.value == 1.0


def test_errors():
    hybrid, reranked = make_run("h", {"q": [("a", 1)]}), make_run("r", {"q": [("b", 1)]})
    with pytest.raises(DataError, match="1 reranked documents are not in the hybrid run"):
        fusion.fuse(reranked, hybrid, (0.5, 0.5), 1)
    assert fusion.fuse(RUN.empty(), RUN.empty(), (0.5, 0.5), 1).num_rows == 0


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ('{"reranked": NaN, "x": 1}', "nan"),
        ('{"reranked": 1, "x": NaN}', "nan"),
        ('{"reranked": 0, "x": Infinity}', "inf"),
        ('{"reranked": -0.5, "x": 1.5}', "-0.5"),
        ('{"reranked": 0.5, "x": "half"}', "weights.x Input should be a valid number"),
    ],
)
def test_weights_of_a_folder_that_are_none_are_refused(tmp_path: Path, weights: str, said: str):
    """A score that such a weight enters would be NaN, and its order none."""
    (tmp_path / "fusion.json").write_text(f'{{"weights": {weights}, "measure": "nDCG@10", "queries": 20}}')
    with pytest.raises(DataError, match=said) as raised:
        fusion.read_served(tmp_path)
    assert raised.value.place == str(tmp_path / "fusion.json")
    assert raised.value.remedy == "export the model anew"
