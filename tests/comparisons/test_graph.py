from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.comparisons import k_regular
from anmi_ray.comparisons.graph import regular
from anmi_ray.core import identity
from anmi_ray.rating import graph
from tests.rating.single import single


def lambda2(documents: int, edges: np.ndarray) -> float:
    return float(graph.lambda2(single(documents, edges[:, 0], edges[:, 1], np.full(len(edges), 0.5)))[0])


def degrees(documents: int, edges: np.ndarray) -> np.ndarray:
    return np.bincount(edges.ravel(), minlength=documents)


@pytest.mark.parametrize("documents", range(2, 61))
def test_every_size_and_degree_is_simple_regular_and_connected(documents: int) -> None:
    for degree in range(2, 13):
        edges = k_regular(documents, degree, identity.rng("graph", documents, degree))
        assert (edges[:, 0] < edges[:, 1]).all()
        assert len(np.unique(edges, axis=0)) == len(edges)
        counts = sorted(degrees(documents, edges).tolist())
        least = min(degree, documents - 1)
        if documents > degree + 1 and degree % 2 and documents % 2:
            assert counts == [degree - 1] + [degree] * (documents - 1)
        else:
            assert counts == [least] * documents
        assert lambda2(documents, edges) > 1e-9


@given(documents=st.integers(13, 120), degree=st.integers(2, 12), seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_any_seed_gives_a_simple_graph_of_the_degree(documents: int, degree: int, seed: int) -> None:
    edges = k_regular(documents, degree, identity.rng(seed))
    assert len({tuple(edge) for edge in edges.tolist()}) == len(edges) == documents * degree // 2
    assert degrees(documents, edges).max() == degree
    again = k_regular(documents, degree, identity.rng(seed))
    np.testing.assert_array_equal(edges, again)


@pytest.mark.parametrize(("documents", "degree"), [(50, 4), (50, 8), (100, 4), (100, 8), (100, 16), (99, 5), (20, 12)])
def test_expansion_is_near_the_best_possible(documents: int, degree: int) -> None:
    # Friedman (2008): random regular graphs have lambda2 >= k - 2 sqrt(k - 1) - o(1)
    found = [lambda2(documents, k_regular(documents, degree, identity.rng("expander", seed))) for seed in range(20)]
    assert min(found) >= degree - 2 * np.sqrt(degree - 1) - 0.45
    assert np.median(found) >= degree - 2 * np.sqrt(degree - 1) - 0.1


def documents_of(names: range) -> np.ndarray:
    """Ids of documents, uint8[N, 16]."""
    return identity.id_matrix(identity.id_array([identity.doc_id(str(name)) for name in names]))


def pairs_of(names: range, degree: int, query: int) -> set[tuple[int, int]]:
    """The pairs by the documents' names."""
    return {(names[i], names[j]) for i, j in regular(documents_of(names), degree, "query", query).tolist()}


@given(documents=st.integers(2, 60), degree=st.integers(2, 12), query=st.integers(0, 10**6), data=st.data())
@settings(max_examples=100, deadline=None)
def test_pairs_go_by_the_documents_and_not_by_their_places(
    documents: int, degree: int, query: int, data: st.DataObject
) -> None:
    ids = documents_of(range(documents))
    shuffled = np.array(data.draw(st.permutations(range(documents))))
    edges = regular(ids, degree, query)
    moved = np.sort(shuffled[regular(ids[shuffled], degree, query)], axis=1)
    if degree % 2 == 0 or documents <= degree + 1:
        assert sorted(moved.tolist()) == edges.tolist()
    assert degrees(documents, edges).max() == min(degree, documents - 1)


@pytest.mark.parametrize(("replaced", "most"), [(1, 0.05), (5, 0.19), (20, 0.55)])
def test_most_pairs_of_a_list_that_changes_have_been_asked_about(replaced: int, most: float) -> None:
    """Of 100 documents, 8 opponents each: a new one has 8 new pairs, one that goes leaves 4 new ones behind."""
    for query in range(20):
        before, after = (pairs_of(range(start, start + 100), 8, query) for start in (0, replaced))
        assert len(after) == 400
        assert len(after - before) <= most * len(after)


@given(documents=st.integers(26, 120), query=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_more_opponents_are_further_ones(documents: int, query: int) -> None:
    found = [pairs_of(range(documents), degree, query) for degree in (4, 8, 12)]
    assert found[0] < found[1] < found[2]


def test_the_first_cycle_survives_the_repair() -> None:
    for seed in range(20):
        edges = {tuple(edge) for edge in k_regular(20, 8, identity.rng(seed)).tolist()}
        cycle = identity.rng(seed).permutation(20)  # the first draw of the generator
        steps = zip(cycle.tolist(), np.roll(cycle, -1).tolist(), strict=True)
        assert all((min(step), max(step)) in edges for step in steps)


def test_pairs_are_close_to_uniform() -> None:
    """Over many seeds every pair is asked about equally often: the swaps prefer nobody."""
    documents, degree, draws = 12, 4, 3000
    count = np.zeros((documents, documents))
    for seed in range(draws):
        edges = k_regular(documents, degree, identity.rng("uniform", seed))
        count[edges[:, 0], edges[:, 1]] += 1
    share = count[np.triu_indices(documents, 1)] / draws
    expected = degree / (documents - 1)
    assert np.abs(share - expected).max() < 5 * np.sqrt(expected * (1 - expected) / draws)
