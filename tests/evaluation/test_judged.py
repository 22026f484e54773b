"""Measuring by judges: gains, calibration, win rates, the share that was judged, and agreement with labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from anmi_ray.core.identity import ID, doc_id, query_id, rng
from anmi_ray.core.records import METRIC, QREL, RUN
from anmi_ray.evaluation import judged, measures

MEASURE = "nDCG@5"
SYSTEMS = ("a", "b", "c")
probabilities = st.one_of(st.none(), st.integers(0, 1000).map(lambda n: n / 1000))
answered = st.dictionaries(
    st.integers(0, 5), st.dictionaries(st.integers(0, 11), probabilities, min_size=1), min_size=1, max_size=5
)


def answers(given: Mapping[int, Mapping[int, float | None]]) -> pa.Table:
    """Rows query_id, doc_id, answer of {query: {document: answer}}."""
    rows = [(query, doc, p) for query, docs in given.items() for doc, p in docs.items()]
    return pa.table(
        {
            "query_id": pa.array([query_id(str(query)) for query, _, _ in rows], ID),
            "doc_id": pa.array([doc_id(str(doc)) for _, doc, _ in rows], ID),
            "answer": np.array([np.nan if p is None else p for *_, p in rows], dtype=np.float64),
        }
    )


def runs(queries: int = 6, documents: int = 12) -> pa.Table:
    """Three systems' rankings of every document."""
    rows: dict[str, list[object]] = {name: [] for name in RUN.schema.names}
    for query in range(queries):
        for system in SYSTEMS:
            order = rng("judged", system, query).permutation(documents)
            rows["query_id"] += [query_id(str(query))] * documents
            rows["doc_id"] += [doc_id(str(doc)) for doc in order]
            rows["system"] += [system] * documents
            rows["rank"] += list(range(1, documents + 1))
            rows["score"] += [-float(rank) for rank in range(documents)]
    return RUN.table(rows)


def ndcg(order: list[float], every: list[float]) -> float:
    """By its formula, at 5."""
    discount = 1 / np.log2(np.arange(2, 7))
    best = sorted(every, reverse=True)[:5]
    return float(np.dot(order[:5], discount) / np.dot(best, discount[: len(best)]))


@given(answered)
def test_gains_measure_ndcg_with_the_probabilities_themselves(given: dict[int, dict[int, float | None]]) -> None:
    table = answers(given)
    gains = judged.gains(table, table["answer"].to_numpy())
    known = {query: {doc: p for doc, p in docs.items() if p is not None} for query, docs in given.items()}
    kept = {query: docs for query, docs in known.items() if max(docs.values(), default=0.0) > 0.5}
    assert set(gains["query_id"].to_pylist()) == {query_id(str(query)) for query in kept}
    if not kept:
        return
    every = runs()
    found = measures.evaluate(every, gains, (MEASURE,))
    for row in found.to_pylist():
        query = next(one for one in kept if query_id(str(one)) == row["query_id"])
        ranking = rng("judged", row["system"], query).permutation(12)
        wanted = ndcg([kept[query].get(int(doc), 0.0) for doc in ranking], list(kept[query].values()))
        assert row["value"] == pytest.approx(wanted, abs=1e-9)


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=9))
def test_win_rates_of_two_systems_make_one_and_share_ties(values: list[tuple[int, int, int]]) -> None:
    rows = [(query, SYSTEMS[i], value / 4) for query, each in enumerate(values) for i, value in enumerate(each)]
    metrics = METRIC.table(
        {
            "query_id": [query_id(str(query)) for query, *_ in rows],
            "system": [system for _, system, _ in rows],
            "measure": [MEASURE] * len(rows),
            "value": [value for *_, value in rows],
        }
    )
    rates = judged.win_rates(metrics, MEASURE, SYSTEMS)
    for i, a in enumerate(SYSTEMS):
        for j, b in enumerate(SYSTEMS):
            if i != j:
                won = [1.0 if each[i] > each[j] else 0.5 if each[i] == each[j] else 0.0 for each in values]
                assert rates[a][b] == pytest.approx(np.mean(won))
                assert rates[a][b] + rates[b][a] == pytest.approx(1.0)


@given(answered, st.integers(1, 12))
def test_the_judged_share_counts_the_top_of_every_query(given: dict[int, dict[int, float | None]], depth: int) -> None:
    known = answers(given)
    queries = pa.array(sorted(set(known["query_id"].to_pylist())), ID)
    shares = judged.judged_share(runs(), known, queries, depth)
    for system in SYSTEMS:
        tops = {query: rng("judged", system, query).permutation(12)[:depth] for query in given}
        wanted = np.mean([int(doc) in given[query] for query, top in tops.items() for doc in top])
        assert shares[system] == pytest.approx(wanted)


def world(queries: int, telling: float, labelled: int) -> tuple[pa.Table, pa.Table]:
    """Answers whose logit is `telling` times a label's side plus noise, and the labels of the first queries."""
    random = rng("judged world", queries)
    label = random.random((queries, 12)) < 0.25
    logit = telling * np.where(label, 1.0, -1.0) + random.normal(0.0, 1.0, label.shape)
    p = 1 / (1 + np.exp(-3 * logit))  # three times too sure
    pairs = {query: {doc: float(p[query, doc]) for doc in range(12)} for query in range(queries)}
    rows = [(query, doc) for query in range(labelled) for doc in range(12) if label[query, doc]]
    return answers(pairs), QREL.table(
        {
            "query_id": [query_id(str(query)) for query, _ in rows],
            "doc_id": [doc_id(str(doc)) for _, doc in rows],
            "grade": [1] * len(rows),
        }
    )


def test_answers_that_are_too_sure_are_calibrated_on_labels_of_other_queries() -> None:
    table, qrels = world(200, 1.0, 100)
    found, said = judged.calibrated(table, qrels)
    assert "out of fold" in said
    answer = table["answer"].to_numpy()
    truth = world(200, 1.0, 200)[1]
    label = np.isin(
        [a + b for a, b in zip(table["query_id"].to_pylist(), table["doc_id"].to_pylist(), strict=True)],
        [a + b for a, b in zip(truth["query_id"].to_pylist(), truth["doc_id"].to_pylist(), strict=True)],
    )
    unlabelled = np.arange(len(answer)) >= 100 * 12
    assert np.mean((found - label)[unlabelled] ** 2) < np.mean((answer - label)[unlabelled] ** 2)
    assert abs(found[unlabelled].mean() - label[unlabelled].mean()) < 0.03


@pytest.mark.parametrize(("telling", "labelled", "why"), [(1.0, 10, "too few"), (-1.0, 200, "do not rise")])
def test_answers_stay_as_they_are_where_labels_cannot_tell(telling: float, labelled: int, why: str) -> None:
    table, qrels = world(200, telling, labelled)
    found, said = judged.calibrated(table, qrels)
    assert why in said
    assert found.tolist() == table["answer"].to_pylist()


@pytest.mark.parametrize(
    ("labelled", "rated", "labels"),
    [(0, 40, False), (1, 40, False), (19, 40, False), (20, 40, True), (12, 12, True), (3, 0, True)],
)
def test_few_labelled_queries_do_not_choose_beside_many_that_judges_rated(
    labelled: int, rated: int, labels: bool
) -> None:
    def of(queries: int, grade: int) -> pa.Table:
        ids = [query_id(str(number)) for number in range(queries)]
        return QREL.table({"query_id": ids, "doc_id": ids, "grade": [grade] * queries})

    without = of(50, 0)
    assert judged.labels_choose(pa.concat_tables([of(labelled, 1), without]), of(rated, 700)) == labels


def test_kappa_is_the_published_one_and_statsmodels() -> None:
    yes = np.repeat([True, True, False, False], [20, 5, 10, 15]), np.repeat([True, False, True, False], [20, 5, 10, 15])
    assert judged.kappa(*yes) == pytest.approx(0.4)  # a textbook's example
    random = np.random.default_rng(0)
    for _ in range(20):
        cells = random.integers(1, 40, 4)
        theirs: Any = cohens_kappa(cells.reshape(2, 2))
        answers = (np.repeat(rater, cells) for rater in ([True, True, False, False], [True, False, True, False]))
        assert judged.kappa(*answers) == pytest.approx(theirs.kappa)
