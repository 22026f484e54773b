"""Rating fits against evalica and choix: the same games, model, optimum and tolerance, one core, one run.

    python tests/benchmarks/bench_rating.py [QUERIES]

Prints microseconds per fit of 100 documents and 400 comparisons (median of passes taken in turns; every peer gets its
inputs in its own form and runs to a gradient below 1e-6), then a run of QUERIES such queries with all standard errors
on all cores, in buckets of 4,000, then one large query.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import choix
import evalica
import numpy as np
from evalica import _brzo

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.core import environment
from anmi_ray.core.errors import FitError
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.diagnostics import components, refuse_without_maximum
from anmi_ray.rating.games import Games, subset
from anmi_ray.rating.gaussian import laplace, propagate
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.rating.uncertainty import anchors, errors
from jobs.studies.simulated_games import Played, bucket, play
from tests.rating.reference import gradient

DOCUMENTS, DEGREE, JUDGES, FITS, PASSES, BUCKET = 100, 8, 3, 500, 7, 4_000
GRADIENT = 1e-6


def played(queries: int, documents: int, degree: int, judges: int, sd: float, model: Model) -> list[Played]:
    """Queries of simulated games of strength 1 on random regular graphs; w is the share of the judges' votes."""
    drawn = []
    for q in range(queries):
        generator = rng("bench", q % 500)  # five hundred graphs, fresh votes
        pairs = k_regular(documents, degree, generator)
        latent = generator.normal(0.0, sd, documents)
        one = play(pairs, latent, judges, model, rng("votes", q))
        drawn.append(replace(one, answers=np.ones(len(pairs))))
    return drawn


def target(games: Games, model: Model, sd: float | None) -> Posterior:
    """The posterior with a prior of this sd, or plain maximum likelihood."""
    n = len(games.doc_ids)
    return Posterior(games, Likelihood.of(model), games.answers, np.zeros(n), np.full(n, sd**-2 if sd else 0.0))


def our_tolerance(games: Games) -> float:
    """Ours is the gradient per game of a document; every document here has the same number of games."""
    return GRADIENT * len(games.doc_ids) / (2.0 * len(games.w))


def largest_gradient(games: Games, latent: Floats) -> float:
    """Largest entry of the Bradley-Terry likelihood's gradient at these ratings, over all documents."""
    first, second = games.global_ends()
    args = (first.astype(np.int32), second.astype(np.int32), games.w, games.answers, "bradley-terry")
    return float(np.abs(gradient(latent, *args)).max())


def one(games: Games, q: int) -> Games:
    """Query q alone."""
    part = subset(games, games.query_of_doc == q, games.query_of_game == q)
    ends = np.array([0, len(part.doc_ids)]), np.array([0, len(part.w)])
    return replace(part, query_ids=games.query_ids[q : q + 1], doc_start=ends[0], game_start=ends[1])


def evalica_fit(games: Games, tolerance: float) -> Callable[[], Floats]:
    """Each game as a weighted win of either side: the same likelihood."""
    xs, ys = games.first.tolist() * 2, games.second.tolist() * 2
    winners = [evalica.Winner.X] * len(games.w) + [evalica.Winner.Y] * len(games.w)
    weights = [*(games.w * games.answers).tolist(), *((1.0 - games.w) * games.answers).tolist()]

    def fit() -> Floats:
        scores, _ = _brzo.bradley_terry(xs, ys, winners, weights, DOCUMENTS, 1.0, 0.5, tolerance, 100_000)
        return np.log(scores)

    return fit


def choix_fit(games: Games, tolerance: float) -> Callable[[], Floats]:
    """Hard outcomes as (winner, loser)."""
    sides = zip(games.first.tolist(), games.second.tolist(), games.w.tolist(), strict=True)
    data = [(a, b) if w > 0.5 else (b, a) for a, b, w in sides]
    return lambda: choix.ilsr_pairwise(DOCUMENTS, data, max_iter=10_000, tol=tolerance)


def reaching(make: Callable[[Games, float], Callable[[], Floats]], games: list[Games]) -> float:
    """The peer's loosest tolerance, in powers of ten, whose results all have a gradient below the bound."""
    for power in range(2, 15):
        tolerance = 10.0**-power
        if all(largest_gradient(each, make(each, tolerance)()) < GRADIENT for each in games):
            return tolerance
    raise AssertionError("the peer does not reach the optimum at any tolerance")


def fits(name: str, games: Games, make: Callable[[Games, float], Callable[[], Floats]]) -> None:
    """Time ours and a peer on the same maximum likelihood fits, pass by pass."""
    tolerance = reaching(make, [one(games, q) for q in range(games.queries)])
    peers = [make(one(games, q), tolerance) for q in range(games.queries)]
    ours_target = target(games, "bradley-terry", None)
    seconds: dict[str, list[float]] = {"anmi_ray": [], name: []}
    latent = solve(ours_target, our_tolerance(games), 100).latent
    theirs: list[Floats] = []
    for _ in range(PASSES):
        begin = time.perf_counter()
        solve(ours_target, our_tolerance(games), 100)
        middle = time.perf_counter()
        theirs = [peer() for peer in peers]
        seconds["anmi_ray"].append(middle - begin)
        seconds[name].append(time.perf_counter() - middle)
    ours, peer = (statistics.median(times) / games.queries * 1e6 for times in seconds.values())
    worst = max(largest_gradient(one(games, q), e) for q, e in enumerate(theirs))
    print(f"maximum likelihood, Bradley-Terry: {ours:.1f} µs, {name} {peer:.0f} µs, ratio {peer / ours:.0f}")
    print(f"  largest gradient: {largest_gradient(games, latent):.1e}, {name} {worst:.1e}")


def timed(call: Callable[[], object], passes: int = PASSES) -> float:
    """Median seconds of a call, after two that warm up: the code, then the processor."""
    call()
    call()
    seconds = []
    for _ in range(passes):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def with_errors(games: Games, model: Model, threads: int = 1, means: bool = False) -> None:
    """Fit and all standard errors, gaps to the top document among them; of posterior modes, or of means."""
    posterior = target(games, model, 1.0)
    mode = solve(posterior, our_tolerance(games), 100, threads=threads).latent
    found = propagate(posterior, mode, threads) if means else laplace(posterior, mode)
    errors(found, components(games).component, anchors(games, found.mean), threads)


def with_maximum(queries: int) -> Games:
    """Queries of hard outcomes that have a finite maximum likelihood fit."""
    found: list[Played] = []
    for candidate in played(40 * queries, DOCUMENTS, DEGREE, 1, 0.3, "bradley-terry"):
        try:
            refuse_without_maximum(bucket([candidate])[0])
        except FitError:
            continue
        found.append(candidate)
        if len(found) == queries:
            break
    return bucket(found)[0]


def main() -> None:
    """Print the figures."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 112_000
    threads = environment.cores()
    games, _ = bucket(played(FITS, DOCUMENTS, DEGREE, JUDGES, 1.0, "thurstone"))
    smoothed = replace(games, w=(JUDGES * games.w + 0.5) / (JUDGES + 1.0))
    print(f"{DOCUMENTS} documents, {len(games.w) // FITS} comparisons, one core")
    for model in ("thurstone", "bradley-terry"):
        posterior = target(games, model, 1.0)
        fit = timed(lambda posterior=posterior: solve(posterior, our_tolerance(games), 100)) / FITS
        both = timed(lambda model=model: with_errors(games, model)) / FITS
        mean = timed(lambda model=model: with_errors(games, model, means=True), 3) / FITS
        print(
            f"posterior, {model}: {fit * 1e6:.1f} µs a mode, {both * 1e6:.0f} µs with all standard errors, "
            f"{mean * 1e6:.0f} µs for means with theirs"
        )
    fits("evalica", smoothed, evalica_fit)
    fits("choix", with_maximum(20), choix_fit)

    held, _ = bucket(played(BUCKET, DOCUMENTS, DEGREE, JUDGES, 1.0, "thurstone"))
    for what, means in (("modes", False), ("means", True)):
        taken = 0.0
        for _ in range(-(-many // BUCKET)):  # a run reads one bucket after another
            begin = time.perf_counter()
            with_errors(held, "thurstone", threads, means)
            taken += time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{many:,} queries, {what} with all errors, {threads} threads: {taken:.1f} s, peak {peak:.2f} GiB")
    large, _ = bucket(played(1, 10_000, 16, JUDGES, 1.0, "thurstone"))
    seconds = timed(lambda: solve(target(large, "thurstone", 1.0), 1e-8, 100))
    print(f"10,000 documents, 80,000 comparisons: {seconds:.3f} s")


if __name__ == "__main__":
    main()
