"""The report's Theorems 6 and 9 in numbers: errors of sparse ratings, and how fast they are found.

For the study `theorems`. Games are simulated with Thurstone's model on k-regular graphs of n documents, true ratings
are uniform in [-1, 1] probits, so that a maximum of the likelihood exists, and every pair has VOTES votes.
Letters: S seeds, n documents of a query, k opponents of each, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, to_elo
from anmi_ray.rating.diagnostics import without_maximum
from anmi_ray.rating.games import Games, Longs
from anmi_ray.rating.likelihood import Likelihood, terms
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.rating.spectrum import lambda2
from jobs.studies.harness import Table
from jobs.studies.simulated_games import bucket, play, simulate

DEGREES = (4, 8, 16, 32)
SIZES = (50, 100, 200, 400, 800)
RING_SIZES = (25, 50, 100)  # a ring's ascent takes n² steps
VOTES = 25
NORMS: dict[str, Callable[[Floats], float]] = {
    "root mean square": lambda off: float(np.sqrt(np.mean(off**2))),
    "largest": lambda off: float(np.abs(off).max()),
    "2-norm": lambda off: float(np.linalg.norm(off)),
}
GROWN = 0.1  # an exponent above it is growth; of the largest of n normal errors it is .01 at these n, a 2-norm's is .5
LIKE = Likelihood.of("thurstone")
CLOSE = 1e-6  # relative error, and Algorithm 1's ε, at which an ascent has arrived
PATIENCE = 5_000  # steps of Algorithm 1
LOOP_SIZE = 300  # its documents
LONGEST = 200_000  # steps of an ascent with the step 1/L


@dataclass(frozen=True)
class Level:
    """A mean with its 95 % interval by Student's t."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Level:
        """Of independent values.

        >>> print(Level.of([1.0, 2.0, 3.0]))
        2.00 [-0.48, 4.48]
        """
        each = np.array(list(values), dtype=np.float64)
        half = float(special.stdtrit(len(each) - 1, 0.975) * each.std(ddof=1) / math.sqrt(len(each)))
        return cls(float(each.mean()), float(each.mean()) - half, float(each.mean()) + half)

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def within(self, low: float = -math.inf, high: float = math.inf) -> str:
        """Whether a sentence holds that says the mean lies so: no where all of the interval is outside."""
        if low <= self.low and self.high <= high:
            return "holds"
        return "fails" if self.high < low or self.low > high else "cannot tell"


@dataclass(frozen=True)
class Claim:
    """A sentence of the report, what would refute it, what was measured, and the verdict."""

    name: str
    sentence: str
    refuted: str
    measured: str
    verdict: str

    @classmethod
    def judged(
        cls, name: str, sentence: str, refuted: str, of: Level, low: float = -math.inf, high: float = math.inf
    ) -> Claim:
        """A sentence that says that a mean lies from `low` to `high`."""
        return cls(name, sentence, refuted, str(of), of.within(low, high))

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells in the table of verdicts."""
        return self.name, self.sentence, self.refuted, self.measured, self.verdict


Findings = tuple[list[Claim], list[Table]]


def ring(n: int, k: int) -> Longs:
    """Pairs of the circulant graph in which every document meets its k nearest on a ring: k-regular, no expander."""
    here = np.repeat(np.arange(n), k // 2)
    there = (here + np.tile(np.arange(1, k // 2 + 1), n)) % n
    return np.stack([np.minimum(here, there), np.maximum(here, there)], axis=1)


def world(graph: str, n: int, k: int, seed: int, votes: int = VOTES) -> tuple[Games, Floats]:
    """One query's games on a `random` k-regular graph or a `ring`, and its true ratings."""
    random = rng("study", "theorems", graph, n, k, seed)
    pairs = ring(n, k) if graph == "ring" else k_regular(n, k, random)
    return bucket([play(pairs, random.uniform(-1.0, 1.0, n), votes, "thurstone", random)])


def fitted(games: Games, precision: float = 0.0) -> tuple[Floats, int]:
    """Centred ratings by the project's solver, without a prior the maximum of the likelihood; and Newton's steps."""
    n = len(games.doc_ids)
    found = solve(Posterior(games, LIKE, games.answers, np.zeros(n), np.full(n, precision)))
    if not found.converged.all():
        raise AssertionError("a fit did not converge")
    return found.latent - found.latent.mean(), int(found.iterations[0])


def exponent(sizes: Sequence[float], values_NS: ArrayLike) -> Level:
    """The exponent b of values ∝ size^b, by a straight line of logarithms for every seed, [sizes, S].

    >>> exponent([1, 2, 4], [[3, 5], [6, 10], [12, 20]]).mean.round(6)
    1.0
    """
    return Level.of(np.polyfit(np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(values_NS)), 1)[0])


def _errors(graph_seeds: int, prior: bool) -> Floats:
    """float64[k, n, norm, S], probits: with a prior one vote a pair and true ratings N(0, 1), which is the prior."""
    found = np.zeros((len(DEGREES), len(SIZES), len(NORMS), graph_seeds))
    for a, k in enumerate(DEGREES):
        for b, n in enumerate(SIZES):
            for s in range(graph_seeds):
                if prior:
                    seed = ("study", "theorems", "prior", k, n, s)
                    games, truth = simulate(1, n, lambda size, random, k=k: k_regular(size, k, random), seed=seed)
                else:
                    games, truth = world("random", n, k, s)
                off = fitted(games, float(prior))[0] - (truth - truth.mean())
                found[a, b, :, s] = [norm(off) for norm in NORMS.values()]
    return found


def errors_of_sparse_ratings(seeds: int) -> Findings:
    """Theorem 6: what is left of an error once it is divided by √(log n / k), by norm, n and k.

    A prior bounds the errors of few games, so its exponents speak of no maximum of the likelihood: they get no verdict.
    """
    seeds *= 4
    rate = np.sqrt(np.log(SIZES)[None, :] / np.array(DEGREES)[:, None])[:, :, None]
    claims: list[Claim] = []
    cells: list[tuple[str, ...]] = []
    rates: list[tuple[str, ...]] = []
    for design, prior in ((f"maximum of the likelihood, {VOTES} votes", False), ("N(0, 1) prior, one vote", True)):
        found = _errors(seeds, prior)
        for m, name in enumerate(NORMS):
            left = found[:, :, m] / rate
            in_n = exponent(SIZES, np.exp(np.log(left).mean(axis=0)))  # k averaged
            in_k = exponent(DEGREES, np.exp(np.log(left).mean(axis=1)))
            rates.append((design, name, str(in_n), str(in_k), f"{left.mean(axis=2).max():.2f}"))
            both = {in_n.within(high=GROWN), in_k.within(high=GROWN)}
            verdict = "fails" if "fails" in both else "holds" if both == {"holds"} else "cannot tell"
            if not prior:
                refuted = "error / rate grows as a power of n or k: exponent above .1"
                measured = f"{in_n} in n, {in_k} in k"
                claims.append(Claim(f"6, {name}", "‖ê − e*‖ = O(√(log n / k))", refuted, measured, verdict))
        for a, k in enumerate(DEGREES):
            for b, n in enumerate(SIZES):
                points = [f"{float(to_elo(value, 'thurstone')):.0f}" for value in found[a, b].mean(axis=1)]
                cells.append((design, str(k), str(n), *points))
    on_ring = _on_rings(seeds) / rate[0]
    in_n = exponent(SIZES, on_ring)
    rates.append(("as the first, ring, k = 4", "root mean square", str(in_n), "", f"{on_ring.mean(axis=1).max():.2f}"))
    refuted = "one family of graphs whose error / rate has an exponent above .1"
    claims.append(Claim("6, every k-regular graph", "the same", refuted, f"ring: {in_n} in n", in_n.within(high=GROWN)))
    title = "Theorem 6: errors divided by √(log n / k), exponents of what is left"
    made = [
        Table(title, ("estimate", "norm", "in n", "in k", "largest constant, probits"), rates),
        Table(f"Theorem 6: errors in points, means of {seeds}", ("estimate", "k", "n", *NORMS), cells),
        _without_maximum(seeds),
    ]
    return claims, made


def _on_rings(seeds: int) -> Floats:
    """Root mean square errors float64[n, S] where every document meets its four nearest on a ring."""
    found = np.zeros((len(SIZES), seeds))
    for b, n in enumerate(SIZES):
        for s in range(seeds):
            games, truth = world("ring", n, 4, s)
            found[b, s] = NORMS["root mean square"](fitted(games)[0] - (truth - truth.mean()))
    return found


def _without_maximum(seeds: int) -> Table:
    """How often one vote a pair has no finite maximum, true ratings N(0, 1): then the sentence speaks of nothing."""
    rows = []
    for k in DEGREES:
        shares = []
        for n in SIZES:
            seed = ("study", "theorems", "one vote", k, n)
            games, _ = simulate(5 * seeds, n, lambda size, random, k=k: k_regular(size, k, random), seed=seed)
            shares.append(f"{len(without_maximum(games)) / games.queries:.0%}")
        rows.append((str(k), *shares))
    title = "Theorem 6: share of queries whose likelihood has no finite maximum, one vote a pair"
    return Table(title, ("k", *(f"n = {n}" for n in SIZES)), rows)


class Ascent:
    """Gradient ascent on one query's log-likelihood, every pair with strength 1, as the report writes it."""

    def __init__(self, games: Games) -> None:
        self.games = games
        self.n = len(games.doc_ids)
        self.pairs = games.first.astype(np.int64), games.second.astype(np.int64)
        self.push, self.curve, self.scratch = (np.empty(len(games.w)) for _ in range(3))
        self.strength = np.ones(len(games.w))

    def gradient(self, e: Floats) -> Floats:
        """float64[n]; leaves every pair's curvature in `curve`."""
        first, second = self.pairs
        gap = e[first] - e[second]
        bits = self.scratch.view(np.int64)
        terms(LIKE, gap, self.games.w, self.strength, self.push, self.curve, self.scratch, bits)
        return np.asarray(np.bincount(first, self.push, self.n) - np.bincount(second, self.push, self.n), np.float64)

    def curvatures(self, e: Floats) -> Floats:
        """Eigenvalues float64[n] of the information at e, ascending; the first is 0."""
        self.gradient(e)
        first, second = self.pairs
        laplacian = np.zeros((self.n, self.n))
        laplacian[first, second] = laplacian[second, first] = -self.curve
        return np.linalg.eigvalsh(laplacian - np.diag(laplacian.sum(axis=1))).astype(np.float64)

    def distances(self, step: float, wanted: Floats) -> Floats:
        """Distances to the maximum, the start's first, until CLOSE of it is left."""
        e = np.zeros(self.n)
        found = [float(np.linalg.norm(wanted))]
        while found[-1] > CLOSE * found[0] and len(found) <= LONGEST:
            e += step * self.gradient(e)
            found.append(float(np.linalg.norm(e - wanted)))
        return np.array(found)

    def algorithm1(self) -> tuple[int | None, float]:
        """Steps of the report's Algorithm 1 until ‖g‖∞ < CLOSE, None without an end; the largest rating on the way."""
        e = np.zeros(self.n)
        largest = 0.0
        with np.errstate(all="ignore"):
            for t in range(1, PATIENCE + 1):
                g = self.gradient(e)
                g -= g.mean()
                e += g / (1.0 + 0.1 * t)
                e -= e.mean()
                if not np.isfinite(e).all():
                    return None, math.inf
                largest = max(largest, float(np.abs(e).max()))
                if np.abs(g).max() < CLOSE:
                    return t, largest
        return None, largest


@dataclass(frozen=True)
class Climbed:
    """An ascent with the step 1/L, L = 2k: λ₂ of the graph, κ at the maximum, steps, the bound's steps, the worst ratio
    of a step's contraction to 1 − μ/L; and Newton's steps."""

    lambda2: float
    condition: float
    steps: int
    bound: float
    worst: float
    newton: int


def climbed(graph: str, n: int, k: int, seed: int) -> Climbed:
    """Ascent of one query. No pair's curvature exceeds 1, so no eigenvalue exceeds 2k."""
    games, _ = world(graph, n, k, seed)
    wanted, newton = fitted(games)
    ascent = Ascent(games)
    at_maximum = ascent.curvatures(wanted)
    strong = min(float(ascent.curvatures(part * wanted)[1]) for part in (0.0, 0.5, 1.0))
    distance = ascent.distances(1.0 / (2 * k), wanted)
    contraction = 1.0 - strong / (2 * k)
    far = distance[:-1] > 1e-4 * distance[0]  # below it the solver's own error is seen
    return Climbed(
        float(lambda2(games)[0]),
        float(at_maximum[-1] / at_maximum[1]),
        len(distance) - 1,
        math.log(CLOSE) / math.log(contraction),
        float((distance[1:] / distance[:-1])[far].max() / contraction),
        newton,
    )


def speed_of_ascent(seeds: int) -> Findings:
    """Theorem 9: ascents on random graphs and on rings."""
    rows: list[tuple[str, ...]] = []
    grown: dict[str, list[Level]] = {"λ₂": [], "steps": [], "ring": []}
    worst = 0.0
    for graph, k in [*(("random", k) for k in DEGREES), ("ring", 4)]:
        sizes = RING_SIZES if graph == "ring" else SIZES
        found = [[climbed(graph, n, k, s) for s in range(seeds)] for n in sizes]
        for n, each in zip(sizes, found, strict=True):
            worst = max(worst, *(one.worst for one in each))
            mean = np.mean([(one.lambda2, one.condition, one.steps, one.bound, one.newton) for one in each], axis=0)
            shown = (f"{mean[0]:.3g}", f"{mean[1]:.1f}", *(f"{value:.0f}" for value in mean[2:4]), f"{mean[4]:.1f}")
            rows.append((graph, str(k), str(n), *shown))
        gap = exponent(sizes, [[one.lambda2 for one in each] for each in found])
        steps = exponent(sizes, [[one.steps for one in each] for each in found])
        if graph == "ring":
            grown["ring"] = [gap, steps]
        else:
            grown["λ₂"].append(gap)
            grown["steps"].append(steps)
    title = f"Theorem 9: ascent with the step 1/L until 10⁻⁶ of the distance is left, means of {seeds}"
    columns = ("graph", "k", "n", "λ₂", "κ", "steps", "the bound's steps", "Newton's steps")
    return _claims_of_ascent(grown, worst), [Table(title, columns, rows)]


def _claims_of_ascent(grown: dict[str, list[Level]], worst: float) -> list[Claim]:
    ring_gap, ring_steps = grown["ring"]
    least = min(grown["λ₂"], key=lambda one: one.low)
    most = max(grown["steps"], key=lambda one: one.high)
    verdicts = {one.within(0.9, 1.1) for one in grown["steps"]}
    return [
        Claim(
            "9, contraction", "a step leaves at most 1 − μ/L of the distance", "more is left",
            f"at most {worst:.6f} of that", "holds" if worst <= 1.0 else "fails",
        ),
        Claim(
            "9, random graphs", "μ = Ω(k/n)", "λ₂ falls faster than 1/n: exponent below −1",
            f"λ₂ ∝ n to the {least}, the lowest of four k", least.within(low=-1.0),
        ),
        Claim(
            "9, every k-regular graph", "μ = Ω(k/n)", "one family of graphs with an exponent below −1",
            f"ring, k = 4: λ₂ ∝ n to the {ring_gap}, steps to the {ring_steps}", ring_gap.within(low=-1.0),
        ),
        Claim(
            "9, as a description", "κ grows as n/k", "steps on random graphs do not grow as n: exponent not .9 to 1.1",
            f"steps ∝ n to the {most}, the highest of four k", verdicts.pop() if len(verdicts) == 1 else "cannot tell",
        ),
    ]  # fmt: skip


def algorithm1(seeds: int) -> Findings:
    """Algorithm 1 as it is written, with games that have a maximum and with one vote a pair, which has none."""
    seeds = min(seeds, 3)
    rows: list[tuple[str, ...]] = []
    arrived: dict[str, list[bool]] = {}
    for votes, degrees in ((VOTES, (*DEGREES, 64, 256)), (1, DEGREES)):
        for k in degrees:
            found = [Ascent(world("random", LOOP_SIZE, k, s, votes)[0]).algorithm1() for s in range(seeds)]
            steps = [one for one, _ in found if one is not None]
            where = f"k ≤ {DEGREES[-1]}" if k in DEGREES else f"k = {k}"
            arrived.setdefault(f"{where}, {votes} votes" if votes > 1 else "one vote", []).extend(
                one is not None for one, _ in found
            )
            largest = max(peak for _, peak in found)
            shown = f"{np.median(steps):.0f}" if steps else "none"
            rows.append((str(votes), str(k), f"{len(steps)} of {seeds}", shown, f"{largest:.2g}"))
    title = f"Algorithm 1, n = {LOOP_SIZE}: ends with a gradient below 10⁻⁶ within {PATIENCE:,} steps"
    made = Table(title, ("votes a pair", "k", "ends", "steps", "largest rating on the way, probits"), rows)
    claims = [
        Claim(
            f"Algorithm 1, {where}", "the loop ends, at the maximum", "it does not end",
            f"{sum(each)} of {len(each)} end", "holds" if all(each) else "fails",
        )
        for where, each in arrived.items()
    ]  # fmt: skip
    return claims, [made]
