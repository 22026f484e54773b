"""Facts about comparison graphs: known graphs, networkx and brute force, the shapes that our own design must have."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.comparisons import k_regular
from anmi_ray.core import identity
from anmi_ray.rating import graph
from anmi_ray.rating.games import Games
from anmi_ray.rating.graph import GraphFacts, graph_facts, lambda2
from anmi_ray.rating.pairs import read_games
from tests.rating.single import of_edges, single
from tests.rating.tournaments import tournament


def facts(games: Games) -> GraphFacts:
    return graph_facts(games, games.answers)


def as_networkx(games: Games) -> nx.Graph:
    found = nx.Graph()
    found.add_nodes_from(range(len(games.doc_ids)))
    found.add_edges_from(zip(games.first.tolist(), games.second.tolist(), strict=True))
    return found


CYCLE = [(i, (i + 1) % 7) for i in range(7)]
COMPLETE = list(itertools.combinations(range(6), 2))
STAR = [(0, i) for i in range(1, 8)]
PATH = [(i, i + 1) for i in range(5)]
PETERSEN = [
    *((i, (i + 1) % 5) for i in range(5)),
    *((i, i + 5) for i in range(5)),
    *((5 + i, 5 + (i + 2) % 5) for i in range(5)),
]
BRIDGED = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]


@pytest.mark.parametrize(
    ("documents", "edges", "degrees", "diameter", "algebraic"),
    [
        pytest.param(7, CYCLE, (2, 2), 3, 2 - 2 * np.cos(2 * np.pi / 7), id="cycle"),
        pytest.param(6, COMPLETE, (5, 5), 1, 6.0, id="complete"),
        pytest.param(8, STAR, (1, 7), 2, 1.0, id="star"),
        pytest.param(6, PATH, (1, 2), 5, 2 - 2 * np.cos(np.pi / 6), id="path"),
        pytest.param(10, PETERSEN, (3, 3), 2, 2.0, id="petersen"),
        pytest.param(6, BRIDGED, (2, 3), 3, (5 - np.sqrt(17)) / 2, id="two triangles and a bridge"),
        pytest.param(4, [(0, 1), (2, 3)], (1, 1), 1, 0.0, id="disconnected"),
        pytest.param(2, [(0, 1)], (1, 1), 1, 2.0, id="one game"),
    ],
)
def test_known_graphs(
    documents: int,
    edges: list[tuple[int, int]],
    degrees: tuple[int, int],
    diameter: int,
    algebraic: float,
) -> None:
    games = of_edges(documents, edges)
    found = facts(games)
    assert (found.min_degree[0], found.max_degree[0]) == degrees
    assert found.diameter[0] == diameter
    assert found.lambda2[0] == pytest.approx(algebraic, abs=1e-7)
    doubled = of_edges(documents, [*edges, *[(j, i) for i, j in edges]])  # a pair asked again is still one edge
    again = facts(doubled)
    assert (again.min_degree[0], again.max_degree[0], again.diameter[0]) == (*degrees, diameter)


def test_diameter_is_that_of_the_largest_component() -> None:
    edges = [(0, 1), (1, 2), (2, 3), *itertools.combinations(range(4, 9), 2)]
    assert facts(of_edges(9, edges)).diameter[0] == 1  # five documents, not the longer chain of four
    tied = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)]
    assert facts(of_edges(6, tied)).diameter[0] == 2  # the wider of two that are alike


@settings(deadline=None, derandomize=True, max_examples=60)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 140), density=st.floats(0.3, 4.0))
def test_against_networkx(seed: int, n: int, density: float) -> None:
    """Any graph, connected or not, with pairs that met several times; 140 documents need three words a set."""
    generator = identity.rng("any graph", seed)
    ends = generator.integers(0, n, (max(1, int(n * density)), 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    if not len(ends):
        ends = np.array([[0, 1]])
    games = of_edges(n, ends.tolist())
    peer, found = as_networkx(games), facts(games)
    sizes = [len(part) for part in nx.connected_components(peer)]
    largest = [peer.subgraph(part) for part in nx.connected_components(peer) if len(part) == max(sizes)]
    assert found.diameter[0] == max(nx.diameter(part) for part in largest)
    degrees = [degree for _, degree in peer.degree()]
    assert (found.min_degree[0], found.max_degree[0]) == (min(degrees), max(degrees))


def test_lambda2_of_large_graphs() -> None:
    n = 1500
    generator = identity.rng("large graph", 0)
    orders = [generator.permutation(n) for _ in range(4)]
    games = of_edges(n, np.concatenate([np.stack([order, np.roll(order, 1)], axis=1) for order in orders]).tolist())
    assert lambda2(games)[0] == pytest.approx(8 - 2 * np.sqrt(7), abs=0.1)
    chain = [(i, i + 1) for i in range(n - 1)]
    assert lambda2(of_edges(n, chain))[0] == pytest.approx(2 - 2 * np.cos(np.pi / n), rel=1e-5)
    assert np.isnan(lambda2(of_edges(2001, [(i, i + 1) for i in range(2000)]))[0])


def test_a_deep_tree() -> None:
    n = 2000  # a complete binary tree: 10 steps down on the left, where the last level is begun, 10 on the right
    tree = [((i - 1) // 2, i) for i in range(1, n)]
    assert facts(of_edges(n, tree)).diameter[0] == 20
    assert facts(of_edges(n, tree[1::2])).diameter[0] == 9  # every second edge: chains
    n = 20_000  # too many to search from each document: at most one step short, since every leaf's parent is searched
    assert 26 <= facts(of_edges(n, [((i - 1) // 2, i) for i in range(1, n)])).diameter[0] <= 27


# --- outcomes ----------------------------------------------------------------------------------------------------


def outcomes(games: Games, m: object = None) -> tuple[int, int, int, float]:
    found = graph_facts(games, games.answers if m is None else np.asarray(m, np.float64))
    return (
        int(found.never_won[0]),
        int(found.never_lost[0]),
        int(found.triads[0]),
        float(found.cycle_rate[0]),
    )


def test_triads_of_either_kind() -> None:
    triangle = [(0, 1), (1, 2), (2, 0)]
    assert outcomes(of_edges(3, triangle, [1.0, 0.9, 0.6])) == (0, 0, 1, 1.0)
    assert outcomes(of_edges(3, triangle, [0.0, 0.1, 0.4])) == (0, 0, 1, 1.0)
    assert outcomes(of_edges(3, triangle, [1.0, 0.9, 0.4])) == (1, 1, 1, 0.0)


def test_ties_decide_nothing() -> None:
    won, lost, triads, rate = outcomes(of_edges(6, COMPLETE))
    assert (won, lost, triads) == (6, 6, 0)
    assert np.isnan(rate)
    assert outcomes(of_edges(3, [(0, 1), (1, 2), (2, 0)], [1.0, 1.0, 0.5]))[:3] == (1, 1, 0)


def test_games_without_strength_do_not_count() -> None:
    games = of_edges(3, [(0, 1), (1, 2), (2, 0)], [1.0, 1.0, 1.0])
    assert outcomes(games, [1.0, 1.0, 0.0])[:3] == (1, 1, 0)
    assert facts(games).min_degree[0] == 2


def test_several_games_of_a_pair_decide_together() -> None:
    edges = [(0, 1), (0, 2), (1, 2), (2, 0)]
    w = [1.0, 1.0, 1.0, 1.0]  # 2 beat 0 once, and 0 beat 2
    assert outcomes(of_edges(3, edges, w), [1, 2, 1, 1]) == (0, 0, 1, 0.0)
    assert outcomes(of_edges(3, edges, w), [1, 1, 1, 2]) == (0, 0, 1, 1.0)
    assert outcomes(of_edges(3, edges, w))[2] == 0
    # .7 one way and .3 seen from the other side are one and the same; .7 and .3 are a tie, up to rounding
    assert outcomes(of_edges(3, edges, [0.7, 0.3, 0.7, 0.7])) == (0, 0, 1, 1.0)
    assert outcomes(of_edges(3, edges, [0.7, 0.7, 0.7, 0.7]))[2] == 0


@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 10_000), n=st.integers(3, 14), p=st.integers(3, 60))
def test_outcomes_against_counting_by_hand(seed: int, n: int, p: int) -> None:
    generator = identity.rng("outcomes", seed)
    edges = sorted(tuple(generator.choice(n, 2, replace=False).tolist()) for _ in range(p))
    w, m = generator.choice([0.0, 0.3, 0.5, 1.0], p), generator.choice([0.0, 1.0, 2.5], p)
    won, lost, net = set[int](), set[int](), np.zeros((n, n))
    for (i, j), preference, strength in zip(edges, w, m, strict=True):
        push = strength * (2 * preference - 1)
        net[i, j] += push
        net[j, i] -= push
        if push:
            (won if push > 0 else lost).add(i)
            (lost if push > 0 else won).add(j)
    beats = np.sign(np.where(np.abs(net) < 1e-9, 0, net))
    kinds = [
        abs(beats[i, j] + beats[j, k] + beats[k, i])
        for i, j, k in itertools.combinations(range(n), 3)
        if beats[i, j] * beats[j, k] * beats[k, i] != 0
    ]
    rate = sum(kind == 3 for kind in kinds) / len(kinds) if kinds else np.nan
    found = outcomes(of_edges(n, edges, w), m)
    assert found[:3] == (n - len(won), n - len(lost), len(kinds))
    assert found[3] == pytest.approx(rate, nan_ok=True)


def test_coins_run_in_circles_a_quarter_of_the_time() -> None:
    pairs = list(itertools.combinations(range(60), 2))
    w = identity.rng("coins", 0).integers(0, 2, len(pairs)).astype(np.float64)
    _, _, triads, rate = outcomes(of_edges(60, pairs, w))
    assert triads == 60 * 59 * 58 // 6
    assert rate == pytest.approx(0.25, abs=0.02)


def test_queries_of_a_bucket_do_not_mix() -> None:
    games, _ = read_games(*tournament(5, 30, 4, judges=1, seed=3).tables)
    whole = facts(games)
    for q in range(games.queries):
        docs, own = slice(*games.doc_start[q : q + 2]), slice(*games.game_start[q : q + 2])
        alone = single(docs.stop - docs.start, games.first[own], games.second[own], games.w[own], games.answers[own])
        for name, values in facts(alone)._asdict().items():
            np.testing.assert_array_equal(values[0], getattr(whole, name)[q], name)


# --- our own design ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("degree", "diameter"), [(8, 4), (6, 4), (4, 6)])
def test_regular_graphs_of_100_documents(degree: int, diameter: int) -> None:
    """Methods 2: short ways between all documents, and no cheaper cut than to take one document's games away."""
    seeds = 20
    drawn = [of_edges(100, k_regular(100, degree, identity.rng("shape", seed)).tolist()) for seed in range(seeds)]
    found = [facts(games) for games in drawn]
    assert np.mean([abs(one.diameter[0] - diameter) <= 1 for one in found]) == 1.0
    assert np.median([one.diameter[0] for one in found]) == diameter
    assert {(one.min_degree[0], one.max_degree[0]) for one in found} == {(degree, degree)}
    enough = [one.lambda2[0] >= degree - 2 * np.sqrt(degree - 1) - 0.3 for one in found]
    assert np.mean(enough) >= 0.9
    assert np.mean([nx.edge_connectivity(as_networkx(games)) == degree for games in drawn]) >= 0.95


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), rows=st.integers(0, 60))
def test_triads_of_games_in_any_order(seed: int, rows: int) -> None:
    """Every three documents of a query, by brute force over what their games come to together."""
    r = identity.rng("triads", seed)
    query, first = r.integers(0, 3, rows), r.integers(0, 5, rows)
    second = (first + r.integers(1, 5, rows)) % 5
    w = r.integers(0, 3, rows) / 2
    triads, cyclic = graph.count_triads(query, first, second, w)
    margin = np.zeros((3, 5, 5))
    np.add.at(margin, (query, first, second), w - 0.5)
    np.add.at(margin, (query, second, first), 0.5 - w)
    sides = np.sign(margin)
    for q in range(len(triads)):
        three = [(sides[q, i, j], sides[q, j, k], sides[q, k, i]) for i, j, k in itertools.combinations(range(5), 3)]
        assert triads[q] == sum(0 not in one for one in three)
        assert cyclic[q] == sum(one in ((1, 1, 1), (-1, -1, -1)) for one in three)
    assert len(triads) == (query.max() + 1 if rows else 0)
