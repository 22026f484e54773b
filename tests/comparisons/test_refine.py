"""The pairs of a refinement are the worst of those that scores contradict, by brute force over all; never one asked."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.comparisons import PAIRS, ScoreLine, calibrated, moments, refined
from anmi_ray.comparisons.refine import Scored, disagreements
from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON, RATING, RUN
from tests.comparisons.made import make_candidates

seeds = st.integers(0, 10**6)


def drawn(documents: int, seed: int, positives: int, coarse: bool = False) -> Scored:
    """A query's documents; `coarse`: with so few values that many are equal."""
    random = np.random.default_rng([documents, seed, positives])
    rating, score = random.normal(0.0, 300.0, documents), random.normal(size=documents)
    if coarse:
        rating, score = np.round(rating, -2), np.round(score)
    positive = np.isin(np.arange(documents), random.choice(documents, min(positives, documents), replace=False))
    ids = np.arange(16 * documents, dtype=np.uint8).reshape(documents, 16)
    return Scored(ids, rating, random.uniform(20.0, 200.0, documents), score, positive)


def by_hand(known: Scored, asked: set[tuple[int, int]], worth: ScoreLine, most: int) -> list[tuple[int, int]]:
    """The table of the module, pair by pair."""
    n = len(known.rating)
    best = max(known.rating)
    anchors = [bool(known.positive[i]) if known.positive.any() else known.rating[i] == best for i in range(n)]
    found = []
    for i, j in itertools.combinations(range(n), 2):
        of_anchor = anchors[i] != anchors[j]
        if of_anchor:
            better, other = (i, j) if anchors[i] else (j, i)
        elif known.rating[i] != known.rating[j]:
            better, other = (i, j) if known.rating[i] > known.rating[j] else (j, i)
        else:
            continue  # nothing is known that could be contradicted
        says = worth.slope * (known.score[other] - known.score[better])
        if says <= 0.0 or (i, j) in asked:
            continue
        gap = max(known.rating[better] - known.rating[other], 0.0)
        error = math.sqrt(known.std_err[i] ** 2 + known.std_err[j] ** 2 + 2.0 * worth.error**2)
        z = (gap + says) / error
        if of_anchor or z > 1.0:
            found.append((not of_anchor, -z, (i, j)))
    return [pair for *_, pair in sorted(found)[:most]]


@given(
    documents=st.integers(1, 12),
    seed=seeds,
    positives=st.integers(0, 3),
    worth=st.builds(ScoreLine, st.sampled_from([0.0, 1.0, 150.0, 1e4]), st.sampled_from([0.0, 40.0, 1e3])),
    most=st.integers(0, 20),
    data=st.data(),
)
def test_the_worst_disagreements_that_were_not_asked_about(
    documents: int, seed: int, positives: int, worth: ScoreLine, most: int, data: st.DataObject
) -> None:
    known = drawn(documents, seed, positives)
    every = list(itertools.combinations(range(documents), 2))
    asked = data.draw(st.sets(st.sampled_from(every)) if every else st.just(set()))
    turned_round = [pair[::-1] if data.draw(st.booleans()) else pair for pair in sorted(asked)]
    edges = np.array(turned_round, dtype=np.int64).reshape(-1, 2)
    found = disagreements(known, edges, worth, most)
    assert list(map(tuple, found.tolist())) == by_hand(known, asked, worth, most)


@given(documents=st.integers(2, 9), seed=seeds, positives=st.integers(0, 2))
def test_equal_ratings_and_scores_contradict_nothing(documents: int, seed: int, positives: int) -> None:
    """And of equal disagreements the pair comes first that does by place."""
    known = drawn(documents, seed, positives, coarse=True)._replace(std_err=np.full(documents, 50.0))
    none = np.empty((0, 2), np.int64)
    worth = ScoreLine(128.0, 64.0)  # sums of these are exact
    found = disagreements(known, none, worth, 100)
    assert list(map(tuple, found.tolist())) == by_hand(known, set(), worth, 100)
    assert all(known.score[i] != known.score[j] for i, j in found.tolist())


@given(seed=seeds, queries=st.integers(1, 5), slope=st.floats(1.0, 500.0), parts=st.integers(1, 3))
def test_scores_are_worth_what_least_squares_with_a_constant_a_query_says(
    seed: int, queries: int, slope: float, parts: int
) -> None:
    random = np.random.default_rng(seed)
    known = []
    for number in range(queries):
        n = int(random.integers(3, 9))
        one = drawn(n, seed + number, 0)
        noise = random.normal(0.0, 200.0, n)
        known.append((bytes([number] * 16), one._replace(rating=slope * one.score + 100.0 * number + noise)))
    found = calibrated(np.sum([moments(iter(known[at::parts])) for at in range(parts)], axis=0))
    query = np.repeat(np.arange(queries), [len(one.rating) for _, one in known])
    columns = [np.concatenate([one.score for _, one in known]), *(np.arange(queries)[:, None] == query).astype(float)]
    rating = np.concatenate([one.rating for _, one in known])
    fitted, *_ = np.linalg.lstsq(np.stack(columns, axis=1), rating, rcond=None)
    left = rating - np.stack(columns, axis=1) @ fitted
    own = sum(np.square(one.std_err).mean() * (len(one.rating) - 1) for _, one in known)
    if fitted[0] > 0.0:
        assert found.slope == pytest.approx(fitted[0])
        error = math.sqrt(max(left @ left - own, 0.0) / (len(query) - queries))
        assert found.error == pytest.approx(error, abs=1e-3)
    else:
        assert found.slope == 0.0


def tables_of(candidates: pa.Table, seed: int) -> tuple[pa.Table, pa.Table]:
    """Ratings and a model's Run of candidates, made up."""
    random = np.random.default_rng(seed)
    count = candidates.num_rows
    ids = {name: candidates[name] for name in ("query_id", "doc_id")}
    latent = random.normal(size=count)
    more = {"games": np.ones(count), "component": np.zeros(count, np.int32)}
    ratings = {"rating_elo": 400.0 * latent, "std_err_elo": np.full(count, 30.0), "latent": latent}
    ratings_of = pa.table({**ids, **ratings, **more}).cast(RATING.schema)
    order = candidates["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    rank = np.arange(count) - np.searchsorted(order, order) + 1
    run = {"system": ["reranked"] * count, "rank": rank.astype(np.int32), "score": random.normal(size=count)}
    return ratings_of, RUN.table({**ids, **run})


@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=4), seed=seeds)
def test_a_round_keeps_what_was_asked_and_adds_pairs_that_were_not(sizes: list[int], seed: int) -> None:
    """Until none is left, whatever the order of rows; a query without scores gets none."""
    candidates = make_candidates(sizes).sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    ratings, scores = tables_of(candidates, seed)
    lost = candidates["query_id"][0].as_py()
    scores = scores.filter(pc.not_equal(scores["query_id"], pa.scalar(lost, pa.binary(16))))
    worth, table = ScoreLine(300.0, 10.0), COMPARISON.empty()
    for number in range(1, 10):
        before, table = table, refined(table, ratings, scores, candidates, worth, number)
        pairs = list(zip(*(table[name].to_pylist() for name in ("query_id", "doc_a", "doc_b")), strict=True))
        assert pairs == sorted(set(pairs))
        assert table.filter(pc.less(table["round"], number)).equals(before)
        assert table["comparison_id"].to_pylist() == [identity.comparison_id(*pair) for pair in pairs]
        assert lost not in table["query_id"].to_pylist()
        added = table.filter(pc.equal(table["round"], number))
        counts = pc.value_counts(added["query_id"]).field("counts").to_pylist()
        assert all(count <= PAIRS for count in counts)
        mixed = np.random.default_rng(seed).permutation(candidates.num_rows)
        first, second, third = (
            one.take(pa.array(mixed[mixed < one.num_rows])) for one in (ratings, scores, candidates)
        )
        assert refined(before, first, second, third, worth, number).equals(table)
        if not added.num_rows:
            break
    else:
        raise AssertionError("at most 36 pairs a query")
