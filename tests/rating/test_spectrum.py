"""Algebraic connectivity against dense eigenvalues, on graphs that are hard for the Lanczos method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import networkx as nx
import numpy as np
import pytest

from anmi_ray.comparisons import k_regular
from anmi_ray.core import identity
from anmi_ray.rating.games import Games
from anmi_ray.rating.spectrum import lambda2
from tests.rating.single import of_edges

Edges = list[tuple[int, int]]


def regular(n: int, k: int, seed: int = 0, start: int = 0) -> Edges:
    return [(i + start, j + start) for i, j in k_regular(n, k, identity.rng("spectrum", n, k, seed)).tolist()]


def sparse(n: int, games: int) -> Edges:
    """A random tree and so many games more, some pairs several times."""
    generator = identity.rng("sparse", n, games)
    tree = [(int(generator.integers(0, i)), i) for i in range(1, n)]
    return tree + [(i, j) for i, j in generator.integers(0, n, (games, 2)).tolist() if i != j]


def cliques(count: int, size: int) -> Edges:
    """A ring of complete graphs: every eigenvalue of one of them comes again and again."""
    inside = [pair for c in range(count) for pair in itertools.combinations(range(c * size, c * size + size), 2)]
    return inside + [(c * size + size - 1, (c + 1) % count * size) for c in range(count)]


def copies(parts: int, n: int) -> Edges:
    """The same random graph so many times, each joined to the next by one game."""
    return [edge for c in range(parts) for edge in regular(n, 6, 1, c * n)] + [
        (c * n, c * n + n) for c in range(parts - 1)
    ]


def dense(games: Games) -> float:
    """Second smallest of all eigenvalues, every game counted."""
    n = len(games.doc_ids)
    laplacian = np.zeros((n, n))
    for i, j in ((games.first, games.second), (games.second, games.first)):
        np.add.at(laplacian, (i, i), 1.0)
        np.add.at(laplacian, (i, j), -1.0)
    return float(np.linalg.eigvalsh(laplacian)[1])


def zoo() -> Iterator[tuple[str, int, Edges]]:
    for n in (2, 3, 8, 9, 17, 65, 150, 400, 700):
        yield f"chain {n}", n, [(i, i + 1) for i in range(n - 1)]
    for n in (3, 9, 16, 101, 400):
        yield f"ring {n}", n, [(i, (i + 1) % n) for i in range(n)]
    for n in (5, 100):
        yield f"complete {n}", n, list(itertools.combinations(range(n), 2))
        yield f"star {n}", n, [(0, i) for i in range(1, n)]
    graphs: dict[str, nx.Graph] = {
        "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 40)),
        "square grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(12, 12)),
        "hypercube": nx.convert_node_labels_to_integers(nx.hypercube_graph(8)),
        "complete bipartite": nx.complete_bipartite_graph(5, 95),
        "barbell": nx.barbell_graph(50, 1),
        "long barbell": nx.barbell_graph(5, 100),
        "lollipop": nx.lollipop_graph(50, 100),
        "binary tree": nx.balanced_tree(2, 7),
    }
    for name, graph in graphs.items():
        yield name, graph.number_of_nodes(), list(graph.edges)
    for n, k in ((100, 2), (100, 3), (100, 8), (500, 8), (1000, 8)):
        yield f"{k}-regular {n}", n, regular(n, k)
    yield "two clusters and a bridge", 200, [*regular(100, 8), *regular(100, 8, 1, 100), (3, 170)]
    yield "a tail", 130, [*regular(100, 8), *((i, i + 1) for i in range(99, 129))]
    yield "games of few pairs", 100, regular(100, 4) * 2 + regular(100, 4)[:50] * 20
    for n, games in ((300, 0), (300, 60), (300, 900)):
        yield f"sparse {games}", n, sparse(n, games)
    yield "ring of cliques", 120, cliques(20, 6)
    yield "copies", 200, copies(4, 50)


@pytest.mark.parametrize(("documents", "edges"), [pytest.param(n, edges, id=name) for name, n, edges in zoo()])
def test_lambda2_against_dense_eigenvalues(documents: int, edges: Edges) -> None:
    games = of_edges(documents, edges)
    found, exact = lambda2(games)[0], dense(games)
    assert found == pytest.approx(exact, abs=1e-9 * documents)
    assert found == pytest.approx(exact, rel=1e-5)  # where it is small, that is to be told from nothing


@pytest.mark.parametrize("half", [1, 2, 50, 400, 2000])
@pytest.mark.parametrize("edges_of", [nx.path_graph, nx.cycle_graph, nx.star_graph])
def test_disconnected_graphs_have_exactly_zero(half: int, edges_of: Callable[[int], nx.Graph]) -> None:
    part = edges_of(half + 1)
    both = nx.convert_node_labels_to_integers(nx.disjoint_union(part, part))
    assert lambda2(of_edges(both.number_of_nodes(), list(both.edges))).tolist() == [0.0]


def test_a_bridge_alone_keeps_it_above_zero() -> None:
    chain = of_edges(2000, [(i, i + 1) for i in range(1999)])
    assert lambda2(chain)[0] == pytest.approx(2.0 - 2.0 * np.cos(np.pi / 2000), rel=1e-5)


def test_order_and_sides_of_games_do_not_matter() -> None:
    edges = np.array(regular(60, 4))
    shuffled = identity.rng("shuffle").permutation(edges)[:, ::-1]
    one, other = (lambda2(of_edges(60, given))[0] for given in (edges, shuffled))
    assert other == pytest.approx(one, rel=1e-12)
