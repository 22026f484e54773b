"""Do 95 % intervals of rating gaps cover 95 %? Simulated queries of 100 documents, everything estimated from the games.

    python -m jobs.studies.rating_coverage [--queries 300] [--documents 100] [--estimate mode]

Claim: for gaps of random pairs and of a known positive (whose prior is that of a maximum) the intervals cover 93-97 %,
whatever the degree, the number of judges and the spread of the truth. It is refuted by a row of the first table outside
that range. The second table is what remains where its assumptions fail: judges that share their errors, and gaps to the
top-*rated* document, which is chosen by the same games (winner's curse). The third goes through both orders of judges
that lean, as the rate stage reads them (`both_orders`), by what is made of a pair whose verdict changes with the order.

To read: a cell is the coverage ± 1.96 standard errors over queries (whose gaps are not independent), the mean error,
estimated less true, and its root mean square, in points. The slope is what a fitted point stands for, in true points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.rate import RateConfig
from anmi_ray.core import environment
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import to_elo
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.gaussian import laplace, propagate
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.solver import solve
from anmi_ray.rating.uncertainty import GapAnchors, anchors, errors
from jobs.studies import harness
from jobs.studies.both_orders import gap_error, judged
from jobs.studies.harness import Results, Table
from jobs.studies.simulated_games import simulate

TARGETS = ("random pairs", "known positive", "top-rated")
STUDY = harness.study("rating_coverage", "Coverage of rating intervals", __doc__ or "")


@dataclass(frozen=True)
class Design:
    """One row: degree k, judges, sd of the truth (probit), correlation of the judges' noise on a pair."""

    degree: int
    judges: int
    sd: float
    correlation: float = 0.0


HELD = [Design(degree, judges, sd) for degree in (4, 8, 16) for judges in (1, 3) for sd in (0.5, 1.0, 2.0)]
LEANINGS = ((0.0, 0.0, 0.0), (0.1, 0.3, -0.2), (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))  # the second: the realistic preset
READINGS = {
    "averaged": RateConfig(judge_offsets=False),
    "offsets": RateConfig(judge_offsets=True),
}
BROKEN = [Design(degree, 3, 1.0, correlation) for degree in (4, 8, 16) for correlation in (0.0, 0.3, 0.6)]


@dataclass(frozen=True)
class Cell:
    """Coverage and its half-width, mean and root mean square error (estimated less true) of gaps, in points."""

    coverage: float
    half_width: float
    bias: float
    rmse: float

    def __str__(self) -> str:
        return f"{self.coverage:.3f} ± {self.half_width:.3f}, {self.bias:+.0f}, {self.rmse:.0f}"


def measure(design: Design, queries: int, documents: int, estimate: str) -> dict[str, Cell]:
    """Coverage of gaps to a random document, to the known positive, and (no positive known) to the top-rated one."""
    games, truth = simulate(
        queries,
        documents,
        lambda n, generator: k_regular(n, design.degree, generator),
        seed=("coverage", design.degree, design.judges),
        judges=design.judges,
        sd=design.sd,
        correlation=design.correlation,
        positives=True,  # the best document of every query is its known positive
    )
    unlabelled = replace(games, positive=np.zeros_like(games.positive))
    random = np.array([rng("anchor", q).integers(documents) for q in range(queries)], np.int32)
    threads = environment.cores()
    cells = {}
    for name, data in zip(TARGETS, (unlabelled, games, unlabelled), strict=True):
        found = globals_of(data, RateConfig(), threads)
        target = found.posterior(data)
        mode = solve(target, threads=threads).latent
        approximation = propagate(target, mode, threads) if estimate == "mean" else laplace(target, mode)
        to = anchors(data, approximation.mean)
        if name == "random pairs":
            to = GapAnchors(np.arange(queries + 1), random, np.zeros(queries, np.bool_))
        result = errors(approximation, components(data).component, to, threads)
        off = (result.gap - (truth[result.gap_anchor] - truth[result.gap_doc])).reshape(queries, -1)
        inside = np.abs(off) <= 1.96 * result.gap_se.reshape(queries, -1)
        half = 1.96 * inside.mean(axis=1).std() / math.sqrt(queries)
        bias, rmse = (float(to_elo(value, "thurstone")) for value in (off.mean(), np.sqrt(np.mean(off * off))))
        cells[name] = Cell(float(inside.mean()), float(half), bias, rmse)
    return cells


def covered(designs: Iterable[Design], title: str, targets: Sequence[str], queries: int, documents: int, estimate: str):
    """A table, a design a row, and its values."""
    rows = []
    values = []
    for design in designs:
        cells = measure(design, queries, documents, estimate)
        facts = [str(value) for value in asdict(design).values()]
        rows.append((*facts, *(str(cells[name]) for name in targets)))
        values.append(asdict(design) | {name: asdict(cells[name]) for name in targets})
    return Table(title, ("k", "judges", "sd", "correlation", *targets), rows), values


def through_both_orders(queries: int, documents: int) -> tuple[Table, list[dict[str, object]]]:
    """A table, leanings and a reading a row, and its values."""
    rows = []
    values: list[dict[str, object]] = []
    for leanings in LEANINGS:
        data = judged(leanings, queries, documents)
        for name, config in READINGS.items():
            found = gap_error(data, config)
            cells = (f"{found.slope:.2f}", f"{found.bias:+.0f}", f"{found.rmse:.0f}")
            lean = ", ".join(f"{leaning:g}" for leaning in leanings)
            rows.append((lean, name, *cells, f"{found.coverage:.3f} ± {found.half_width:.3f}"))
            values.append({"leanings": leanings, "reading": name} | asdict(found))
    title = "Gaps to a known positive, through both orders of three judges that lean (probits)"
    return Table(title, ("leanings", "reading", "slope", "bias", "RMSE", "coverage"), rows), values


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, print both tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--queries", type=int, default=300, help="simulated queries a row")
    parser.add_argument("--documents", type=int, default=100, help="documents a query")
    parser.add_argument("--estimate", choices=("mean", "mode"), default="mean", help="as rate.estimate")
    given = parser.parse_args(words)

    def run() -> Results:
        size = (given.queries, given.documents, given.estimate)
        held, of_held = covered(HELD, "Where the assumptions hold", TARGETS[:2], *size)
        broken, of_broken = covered(BROKEN, "Where they fail", TARGETS, *size)
        ordered, of_ordered = through_both_orders(given.queries, given.documents)
        values = {"held": of_held, "broken": of_broken, "both orders": of_ordered}
        return Results([held, broken, ordered], values=values)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
