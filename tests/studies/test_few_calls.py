"""Few calls: the head of a ranking is asked about, the others stay behind it in their order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.records import QREL
from jobs.studies import few_calls as study
from jobs.studies.both_orders import World, candidates
from jobs.studies.replayed_designs import Replayed

QUERIES, DOCUMENTS = 6, 40


def ranked() -> tuple[World, pa.Table]:
    """Queries whose one relevant document is retrieved fifth."""
    rows = sorted(
        (query_id(f"q{q}"), doc_id(f"q{q}-{d}"), False, float(d == 4), d + 1)
        for q in range(QUERIES)
        for d in range(DOCUMENTS)
    )
    table = candidates(rows)
    truth = np.array([row[3] for row in rows])
    keys = {name: table[name] for name in ("query_id", "doc_id")}
    return World(table, truth, 0), QREL.table({**keys, "grade": truth.astype(np.int64)})


def test_a_sure_judge_finds_what_is_relevant_and_a_blind_one_does_not() -> None:
    of, qrels = ranked()
    sure = study.simulated(of, qrels, 40, study.Judge("sure", 6.0, 0.0), 2)
    blind = study.simulated(of, qrels, 40, study.Judge("blind", 0.0, 1.0), 2)
    first = 1.0 / np.log2(6.0)  # the gain of rank 5
    np.testing.assert_allclose(sure[0], first)
    np.testing.assert_allclose(sure[1], 1.0)
    assert blind[1].mean() < 0.8


def test_what_is_not_in_the_head_stays_in_its_order() -> None:
    of, _ = ranked()
    inside = of.candidates["rank"].to_numpy() <= 10
    some = World(of.candidates.filter(pa.array(inside)), of.truth[inside], 0)
    query = of.candidates["query_id"][0].as_py()
    at = np.flatnonzero(np.array(some.candidates["query_id"].to_pylist()) == query)
    values = -some.candidates["rank"].to_numpy()[at].astype(float)  # the judge's order
    ((_, every, scores),) = study.completed(of, some, [(query, at, (values, -values, -values))])
    order = of.candidates["rank"].to_numpy()[every][np.argsort(-scores[2])].tolist()
    assert order == [*range(10, 0, -1), *range(11, DOCUMENTS + 1)]


def test_the_head_has_twice_the_pairs_that_are_asked() -> None:
    of, _ = ranked()
    docs: dict[bytes, list[bytes]] = {}
    for query, doc in study._keys(of.candidates):
        docs.setdefault(query, []).append(doc)
    pairs: dict[bytes, Ints] = {}
    preferred: dict[bytes, Reals] = {}
    every = np.stack(np.triu_indices(DOCUMENTS, 1), axis=1)
    for query in docs:
        pairs[query] = every[np.sort(rng("test", query).permutation(len(every))[:200])]
        preferred[query] = np.ones(200)
    of_all = Replayed(of.candidates, of.truth, 0, docs, pairs, preferred)
    some = study.head(of_all, 30)
    rank = dict(zip(study._keys(of.candidates), of.candidates["rank"].to_pylist(), strict=True))
    for query, chosen in some.pairs.items():
        ends = {tuple(some.docs[query][at] for at in pair) for pair in chosen.tolist()}
        last = max(rank[query, doc] for pair in ends for doc in pair)
        there = {tuple(docs[query][at] for at in pair) for pair in pairs[query].tolist()}
        assert ends == {pair for pair in there if max(rank[query, doc] for doc in pair) <= last}
        fewer = {pair for pair in ends if max(rank[query, doc] for doc in pair) < last}
        assert len(fewer) < 60 <= len(ends)
