"""Do 95 % intervals of rating gaps cover 95 %? Simulated queries of 100 documents, everything estimated from the games.

    python jobs/studies/rating_coverage.py [--queries 300] [--documents 100] [--estimate mode]

Claim: for gaps of random pairs and of a known positive (whose prior is that of a maximum) the intervals cover 93-97 %,
whatever the degree, the number of judges and the spread of the truth. It is refuted by a row of the first table outside
that range. The second table is what remains where its assumptions fail: judges that share their errors, and gaps to the
top-*rated* document, which is chosen by the same games (winner's curse).
Prints two tables; a cell's ± is 1.96 standard errors over queries, whose gaps are not independent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anmi_ray import environment
from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.rate import RateConfig
from anmi_ray.identity import rng
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import laplace, propagate
from anmi_ray.rating.globals import globals_of, posterior
from anmi_ray.rating.simulate import simulate
from anmi_ray.rating.solver import solve
from anmi_ray.rating.uncertainty import Anchors, anchors, errors
from anmi_ray.scale import Floats, to_elo

TARGETS = ("random pairs", "known positive", "top-rated")


@dataclass(frozen=True)
class Design:
    """One row: degree k, judges, sd of the truth (probit), correlation of the judges' noise on a pair."""

    degree: int
    judges: int
    sd: float
    correlation: float = 0.0


@dataclass(frozen=True)
class Cell:
    """Coverage and its half-width, mean and root mean square error (estimated less true) of gaps, in points."""

    coverage: float
    half_width: float
    bias: float
    rmse: float


def simulated(design: Design, queries: int, documents: int) -> tuple[Games, Floats]:
    """Games and true latent ratings; the best document of every query is its known positive."""
    return simulate(
        queries,
        documents,
        lambda n, generator: k_regular(n, design.degree, generator),
        seed=("coverage", design.degree, design.judges),
        judges=design.judges,
        sd=design.sd,
        correlation=design.correlation,
        positives=True,
    )


def measure(design: Design, queries: int, documents: int, estimate: str) -> dict[str, Cell]:
    """Coverage of gaps to a random document, to the known positive, and (no positive known) to the top-rated one."""
    games, truth = simulated(design, queries, documents)
    unlabelled = replace(games, positive=np.zeros_like(games.positive))
    random = np.array([rng("anchor", q).integers(documents) for q in range(queries)], np.int32)
    cells = {}
    for name, data in zip(TARGETS, (unlabelled, games, unlabelled), strict=True):
        threads = environment.cores()
        found = globals_of(data, RateConfig(), threads)
        like, m = found.likelihood(), data.answers / found.dispersion
        target = posterior(data, like, m, found.prior())
        mode = solve(target, 1e-8, 100, threads=threads).latent
        approximation = propagate(target, mode, threads) if estimate == "mean" else laplace(target, mode)
        to = anchors(data, approximation.mean)
        if name == "random pairs":
            to = Anchors(np.arange(queries + 1), random, np.zeros(queries, np.bool_))
        result = errors(approximation, components(data).component, to, threads)
        off = (result.gap - (truth[result.gap_anchor] - truth[result.gap_doc])).reshape(queries, -1)
        inside = np.abs(off) <= 1.96 * result.gap_se.reshape(queries, -1)
        half = 1.96 * inside.mean(axis=1).std() / math.sqrt(queries)
        bias, rmse = (float(to_elo(value, "thurstone")) for value in (off.mean(), np.sqrt(np.mean(off * off))))
        cells[name] = Cell(float(inside.mean()), float(half), bias, rmse)
    return cells


def table(designs: Iterator[Design], queries: int, documents: int, names: tuple[str, ...], estimate: str) -> None:
    """Print one row per design."""
    print("| k | judges | sd | correlation | " + " | ".join(f"{n}: coverage | bias | RMSE" for n in names) + " |")
    print("|---|---|---|---|" + "---|---|---|" * len(names))
    for design in designs:
        cells = measure(design, queries, documents, estimate)
        row = f"| {design.degree} | {design.judges} | {design.sd} | {design.correlation} |"
        for name in names:
            cell = cells[name]
            row += f" {cell.coverage:.3f} ± {cell.half_width:.3f} | {cell.bias:+.0f} | {cell.rmse:.0f} |"
        print(row, flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=300, help="simulated queries a row")
    parser.add_argument("--documents", type=int, default=100, help="documents a query")
    parser.add_argument("--estimate", choices=("mean", "mode"), default="mean", help="as rate.estimate")
    given = parser.parse_args()
    degrees, sds = (4, 8, 16), (0.5, 1.0, 2.0)
    print(
        f"posterior {given.estimate}s; {given.queries} queries of {given.documents} documents; errors in Elo points\n"
    )
    held = (Design(k, j, sd) for k in degrees for j in (1, 3) for sd in sds)
    table(held, given.queries, given.documents, TARGETS[:2], given.estimate)
    print()
    broken = (Design(k, 3, 1.0, correlation) for k in degrees for correlation in (0.0, 0.3, 0.6))
    table(broken, given.queries, given.documents, TARGETS, given.estimate)


if __name__ == "__main__":
    main()
