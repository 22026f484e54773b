"""Ratings of tables too small to estimate the dispersion and the prior's spread: coverage, and what is reported."""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Model
from anmi_ray.rating import Globals, fit_globals, rate_preferences
from anmi_ray.rating.bucket import approximate, averaged
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.dispersion import DEFAULT
from anmi_ray.rating.shared_parameters import globals_of
from jobs.studies.simulated_games import Played, bucket, votes
from tests.rating.tournaments import tournament

Graph = Literal["complete", "sparse", "tree"]


class Shape(NamedTuple):
    """One simulated table: documents, graph, games per pair, sd of the truth in latent units, judging, queries."""

    documents: int
    graph: Graph
    games: int
    sd: float
    model: Model = "thurstone"
    graded: bool = False
    queries: int = 1


def pairs_of(documents: int, graph: Graph, generator: np.random.Generator) -> list[tuple[int, int]]:
    """All pairs; two random cycles, four opponents a document; or a path."""
    if graph == "complete":
        return list(itertools.combinations(range(documents), 2))
    if graph == "tree":
        return list(itertools.pairwise(range(documents)))
    cycles = [generator.permutation(documents).tolist() for _ in range(2)]
    return sorted({tuple(sorted(pair)) for cycle in cycles for pair in zip(cycle, cycle[1:] + cycle[:1], strict=True)})


def drawn(shape: Shape, generator: np.random.Generator) -> Played:
    """One query's true ratings, with mean 0, and its games."""
    truth = generator.normal(0.0, shape.sd, shape.documents)
    truth -= truth.mean()
    pairs = np.array(pairs_of(shape.documents, shape.graph, generator) * shape.games)
    w = votes(truth[pairs[:, 0]] - truth[pairs[:, 1]], 1, shape.model, generator, graded=shape.graded)[0]
    return Played(pairs, w, np.ones(len(w)), truth)


def coverage(shape: Shape, tables: int) -> tuple[float, float]:
    """Share of true ratings and of true gaps to the best rated document that lie within 1.96 standard errors."""
    ratings: list[float] = []
    gaps: list[float] = []
    config = RateConfig(model=shape.model)
    for number in range(tables):
        generator = rng("small table", *map(str, shape), number)
        games, truth = bucket([drawn(shape, generator) for _ in range(shape.queries)])
        found = globals_of(games, config)
        approximation = approximate(games, found, config)[1]
        latent, _, errors = averaged(approximation, components(games).component, found, config, (1, None), 1)
        ratings.append(float(np.mean(np.abs(latent - truth) <= 1.96 * errors.std_err)))
        gap = truth[errors.gap_anchor] - truth[errors.gap_doc]
        gaps.append(float(np.mean(np.abs(errors.gap - gap) <= 1.96 * errors.gap_se)))
    return float(np.mean(ratings)), float(np.mean(gaps))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, "complete", 1, 2.0),
        Shape(4, "complete", 8, 0.5),
        Shape(8, "sparse", 2, 0.5),
        Shape(8, "sparse", 2, 2.0),
        Shape(12, "tree", 1, 2.0),
        Shape(20, "complete", 1, 2.0),
        Shape(4, "complete", 2, 1.0, model="bradley-terry"),
        Shape(6, "complete", 1, 1.0, graded=True),
        Shape(15, "tree", 1, 2.0, queries=48),
        Shape(4, "complete", 1, 2.0, queries=40),
        Shape(20, "sparse", 1, 2.0, queries=8),
    ],
    ids=str,
)
def test_intervals_of_small_tables_cover(shape: Shape) -> None:
    assert min(coverage(shape, max(10, 100 // shape.queries))) >= 0.93


@pytest.mark.long
@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
@pytest.mark.parametrize("sd", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("games", [1, 8])
@pytest.mark.parametrize("graph", ["complete", "sparse"])
@pytest.mark.parametrize("documents", [2, 4, 8, 20, 50])
def test_intervals_of_all_sizes_cover(documents: int, graph: Graph, games: int, sd: float, model: Model) -> None:
    """Two standard errors of the simulation below .93, of which a table's ratings count as one draw."""
    tables = 200 if documents < 12 else 50
    found = coverage(Shape(documents, graph, games, sd, model), tables)[0]
    assert found >= 0.93 - 2.0 * np.sqrt(0.93 * 0.07 / (tables * min(documents - 1, 10)))


ROWS = [("a", "b", 1.0), ("b", "c", 0.8), ("c", "a", 0.3), ("d", "b", 0.4)]


def table_of(rows: list[tuple[str, str, float]]) -> pa.Table:
    a, b, preference = zip(*rows, strict=True)
    return pa.table({"query_id": ["q"] * len(rows), "doc_a": a, "doc_b": b, "preference": preference})


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
def test_a_table_of_four_rows_gets_the_defaults(model: Model) -> None:
    rated = rate_preferences(table_of(ROWS), RateConfig(model=model))
    shared = rated.globals_
    assert (shared.dispersion, shared.dispersion_how, shared.sigma0_how) == (1.0, DEFAULT, DEFAULT)
    assert shared.spreads is not None
    assert sum(weight for _, weight in shared.spreads) == pytest.approx(1.0)
    assert min(rated.ratings["std_err_elo"].to_pylist()) > 50.0
    assert Globals.from_json(shared.to_json()) == shared


def test_what_is_given_is_kept() -> None:
    fixed = rate_preferences(table_of(ROWS), RateConfig(prior=0.7)).globals_
    assert (fixed.sigma0, fixed.sigma0_how, fixed.dispersion_how, fixed.spreads) == (0.7, "fixed", DEFAULT, None)
    scaled = rate_preferences(table_of(ROWS), RateConfig(dispersion=2.0)).globals_
    assert (scaled.dispersion, scaled.dispersion_how, scaled.sigma0_how) == (2.0, "fixed", DEFAULT)
    rows = [*ROWS, ("b", "a", 0.5), ("d", "c", 0.5), ("b", "d", 0.9)]
    without = rate_preferences(table_of(rows), RateConfig(prior=None)).globals_
    assert (without.sigma0, without.sigma0_how, without.dispersion_how) == (None, "none", DEFAULT)


def test_the_limit_is_degrees_of_freedom() -> None:
    """All pairs of 12 documents leave 66 - 12 + 1 = 55, of 13 they leave 66; the prior needs 200 and 60 gaps."""
    how = []
    for documents in (12, 13):
        games, _ = bucket([drawn(Shape(documents, "complete", 1, 1.0), rng("all pairs", documents))])
        shared = globals_of(games, RateConfig())
        how.append((shared.dispersion_how == DEFAULT, shared.sigma0_how == DEFAULT))
    assert how == [(True, True), (False, True)]
    t = tournament(10, 12, 6, judges=1, seed=1)
    many = fit_globals(*t.tables, RateConfig())
    assert (many.dispersion_how, many.sigma0_how, many.spreads) == ("pooled", "empirical Bayes", None)
