"""What is a distilled judge's prediction worth? Strengths from confidence where the truth is known.

    python jobs/studies/strengths.py [--queries 24]

Question: should the number of games W_ij + W_ji of a pair follow E|C|, the consensus that a judge foretells (linear,
squared, square root), the information form p(1-p)/v of `anmi_ray.rating.strengths`, or nothing?
Criterion, fixed before the result: a strength is better than `unit` where its rating error is smaller in simulation
(95 % paired interval over queries, pooled over worlds of a source) and no real data set contradicts it (paired test
over queries, Holm over strengths, p < .05). A gain under 1 % is called none, whatever its interval.

Simulated: true ratings N(0, 1) probit, judges who tie where |perceived gap| < width, a share of hard pairs whose noise
is larger. Sources of a preference: `votes` of J judges (hard pairs: an error of 2 probits that all judges share);
`distilled`, a calibrated model that sees the gap through noise of .5 probit, 2 on hard pairs, knows which are hard and
tells p and E|C| of J judges; `blind`, the same not knowing which; `sharp` and `flat`, `distilled` at temperatures 1/2
and 2; `additive`, p and E|C| of the truth with noise of .15 added, .3 on hard pairs, and cut at 0 and 1. Prior and
dispersion are estimated anew for every strength, so only its shape counts. Error: RMSE of centred ratings after one
factor per world for all queries (the unit of ratings is set by the slope of p, which no strength mends), beside it
without that factor, and Kendall τ-b with the truth. Rows beyond the settings: `derived` (equation 2 from the pair's
own p and E|C|, floor .25 probit; for votes from counts smoothed by one vote), `oracle` (v from the true gap and noise;
no bound where predictions are drawn towards 1/2) and `optimum` (the posterior mean given what the model saw and all
noises: a bound).

Real judges, the same strengths against assessors' grades: strengths_judges.py.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.rate import RateConfig
from anmi_ray.evaluation.significance import bootstrap_interval
from anmi_ray.identity import rng
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import propagate
from anmi_ray.rating.globals import posterior
from anmi_ray.rating.simulate import Played, bucket
from anmi_ray.rating.solver import solve
from anmi_ray.rating.strengths import Strength, consensus, error_variance, games_worth
from anmi_ray.rating.tables import centre
from anmi_ray.rating.weighting import shared_numbers, weighed
from anmi_ray.scale import Floats, normal_cdf

SETTINGS: tuple[Strength, ...] = ("unit", "linear", "sqrt", "squared", "information", "learned")
ALL = (*SETTINGS, "derived", "oracle", "optimum")
JUDGES = {"votes": (1, 3), "distilled": (1, 3), "blind": (3,), "sharp": (3,), "flat": (3,), "additive": (3,)}
WIDTHS, HARD = (0.0, 0.5, 1.0), (0.0, 0.3)
DOCUMENTS, DEGREE, ROUNDS = 30, 8, 2000
EASY_SD, HARD_SD, FLOOR_SD = 0.5, 2.0, 0.25  # probits
EASY_ADDED, HARD_ADDED = 0.15, 0.3
TEMPERATURE = {"sharp": 0.5, "flat": 2.0}
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class World:
    """A row: half-width of ties (probits), share of hard pairs, J, and where preferences come from."""

    width: float
    hard: float
    judges: int
    source: str


@dataclass(frozen=True)
class Drawn:
    """Games of all queries, true ratings float64[D], strengths `derived` and `oracle` float64[P], `optimum` [D]."""

    games: Games
    truth: Floats
    derived: Floats
    oracle: Floats
    optimum: Floats | None


def chances(gap: Floats, width: float) -> tuple[Floats, Floats]:
    """(p, t) of one judge at true gaps: mean preference, and the probability of no tie."""
    win, loss = normal_cdf(gap - width), normal_cdf(-gap - width)
    return 0.5 + 0.5 * (win - loss), win + loss


def draw(world: World, queries: int) -> Drawn:
    """The games of a world; queries, graphs and true ratings are the same in all."""
    played, columns, best = [], [], []
    for q in range(queries):
        generator = rng("strengths", q)
        pairs = k_regular(DOCUMENTS, DEGREE, generator)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        latent = generator.normal(size=DOCUMENTS)
        gap, hard = latent[pairs[:, 0]] - latent[pairs[:, 1]], generator.random(len(pairs)) < world.hard
        p, t = chances(gap, world.width)
        judges, answers = np.inf, np.ones(len(gap))
        latent_sd, preference_sd = np.where(hard, HARD_SD, EASY_SD), np.zeros(len(gap))
        if world.source == "votes":
            w, tie, derived = _votes(world, gap, hard, generator)
            latent_sd = np.where(hard, HARD_SD, 0.0)
            judges, answers = world.judges, answers * world.judges
        else:
            noise = generator.normal(size=(2, len(gap)))
            if world.source == "additive":
                added = np.where(hard, HARD_ADDED, EASY_ADDED)
                w = np.clip(p + added * noise[0], 0.0, 1.0)
                tie = 1.0 - np.clip(consensus(p, t, world.judges) + added * noise[1], np.abs(2 * w - 1), 1.0)
                off = np.square(np.clip(p + added * _NODES[:, None], 0.0, 1.0) - p)
                latent_sd, preference_sd = np.zeros(len(gap)), np.sqrt(_WEIGHTS @ off)
            else:
                seen = gap + latent_sd * noise[0]
                w, tie = _predicted(world, seen, hard)
                best.append(_optimum(pairs, seen, latent_sd))
            derived = games_worth(w, error_variance(w, 1.0 - tie, latent_sd=FLOOR_SD))
        oracle = games_worth(p, error_variance(p, t, judges, latent_sd, preference_sd))
        played.append(Played(pairs, w, answers, latent))
        columns.append((tie, derived, oracle))
    games, truth = bucket(played)
    tie, derived, oracle = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Drawn(replace(games, tie=tie), truth, derived, oracle, np.concatenate(best) if best else None)


def _votes(
    world: World, gap: Floats, hard: NDArray[np.bool_], generator: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """(w, tie, derived) of J judges' votes; nobody foretells a tie, so E|C| is the votes' own |C|."""
    shared, own = generator.normal(size=len(gap)), generator.normal(size=(world.judges, len(gap)))
    perceived = gap + np.where(hard, HARD_SD, 0.0) * shared + own
    score = np.where(np.abs(perceived) < world.width, 0.0, np.sign(perceived))
    w = 0.5 + 0.5 * score.mean(axis=0)
    count = world.judges + 1.0  # one vote spread evenly over win, tie and loss: p and t never from bare counts
    p, t = (world.judges * w + 0.5) / count, (np.abs(score).sum(axis=0) + 2.0 / 3.0) / count
    derived = games_worth(p, error_variance(p, t, world.judges, FLOOR_SD))
    return w, np.full(len(w), np.nan), derived


def _predicted(world: World, seen: Floats, hard: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(p, 1 - E|C|) that a calibrated model tells, at its temperature."""
    by_kind = [_told(world, seen, sd) for sd in (EASY_SD, HARD_SD)]
    if world.source == "blind":
        weight = [
            share * stats.norm.pdf(seen, 0.0, math.sqrt(2.0 + sd * sd))
            for share, sd in ((1.0 - world.hard, EASY_SD), (world.hard, HARD_SD))
        ]
        of_hard = weight[1] / (weight[0] + weight[1])
    else:
        of_hard = hard.astype(np.float64)
    p, e = ((1.0 - of_hard) * easy + of_hard * difficult for easy, difficult in zip(*by_kind, strict=True))
    logits = np.log(np.maximum([p - 0.5 * (1.0 - e), 1.0 - e, 0.5 * (1.0 + e) - p], 1e-12))
    win, tie, _ = special.softmax(logits / TEMPERATURE.get(world.source, 1.0), axis=0)
    return win + 0.5 * tie, tie


def _told(world: World, seen: Floats, sd: float) -> tuple[Floats, Floats]:
    """(E[(1+C)/2], E|C|) of J judges given what was seen through noise of `sd`, for gaps that are N(0, 2)."""
    keep = 2.0 / (2.0 + sd * sd)
    p, e = np.zeros_like(seen), np.zeros_like(seen)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        one, decided = chances(keep * seen + math.sqrt(keep) * sd * node, world.width)
        p, e = p + weight * one, e + weight * consensus(one, decided, world.judges)
    return p, e


def _optimum(pairs: NDArray[np.int64], seen: Floats, sd: Floats) -> Floats:
    precision, pull = np.eye(DOCUMENTS), np.zeros(DOCUMENTS)
    for (i, j), value, weight in zip(pairs, seen, 1.0 / np.square(sd), strict=True):
        precision[[i, j], [i, j]] += weight
        precision[[i, j], [j, i]] -= weight
        pull[i], pull[j] = pull[i] + weight * value, pull[j] - weight * value
    return np.asarray(np.linalg.solve(precision, pull), np.float64)


def ratings(games: Games, strength: Strength = "unit", given: Floats | None = None) -> Floats:
    """Centred posterior means float64[D] under a setting, or with games that count for `given` float64[P]."""
    config = RateConfig(strength=strength)
    games = games if given is None else replace(games, answers=given)
    shared = shared_numbers(games, config)
    games = weighed(games, shared, config)
    target = posterior(games, shared.likelihood(), games.answers / shared.dispersion, shared.prior())
    return centre(games, components(games).component, propagate(target, solve(target, 1e-8, 100).latent).mean)


def by_strength(games: Games, derived: Floats) -> dict[str, Floats]:
    """Ratings under every setting and `derived`."""
    return {name: ratings(games, name) for name in SETTINGS} | {"derived": ratings(games, given=derived)}


@dataclass(frozen=True)
class Errors:
    """Per strength and query, float64[S, Q]: squared errors after one factor and without, and τ-b; NaN not there."""

    scaled: Floats
    plain: Floats
    tau: Floats


def errors(world: World, queries: int) -> Errors:
    """Rating errors of every strength in a world."""
    drawn = draw(world, queries)
    parts = components(drawn.games).component
    found = by_strength(drawn.games, drawn.derived) | {"oracle": ratings(drawn.games, given=drawn.oracle)}
    if drawn.optimum is not None:
        found["optimum"] = centre(drawn.games, parts, drawn.optimum)
    truth = centre(drawn.games, parts, drawn.truth)
    result = Errors(*np.full((3, len(ALL), queries), np.nan))
    for row, name in enumerate(ALL):
        if name in found:
            e = found[name]
            factor = (truth @ e) / (e @ e)
            result.scaled[row] = np.square(truth - factor * e).reshape(queries, -1).mean(axis=1)
            result.plain[row] = np.square(truth - e).reshape(queries, -1).mean(axis=1)
            both = zip(truth.reshape(queries, -1), e.reshape(queries, -1), strict=True)
            result.tau[row] = np.array([stats.kendalltau(*pair)[0] for pair in both], np.float64)
    return result


def change(square_WQ: Floats, base_WQ: Floats) -> str:
    """Change of the root mean square error in %, mean over worlds, with a 95 % bootstrap interval over queries."""
    queries = square_WQ.shape[1]
    draws = rng("bootstrap").multinomial(queries, np.full(queries, 1.0 / queries), ROUNDS)
    relative = np.sqrt((draws @ square_WQ.T) / (draws @ base_WQ.T)).mean(axis=1)
    value = np.sqrt(square_WQ.sum(axis=1) / base_WQ.sum(axis=1)).mean()
    low, high = 100.0 * (np.quantile(relative, [0.025, 0.975]) - 1.0)
    return f"{100.0 * (value - 1.0):+.1f} [{low:+.1f}, {high:+.1f}]"


def simulate(queries: int) -> None:
    """Print a row per world, then every source pooled over its worlds."""
    worlds = [World(w, h, j, source) for source in JUDGES for w, h in product(WIDTHS, HARD) for j in JUDGES[source]]
    print(f"{queries} queries of {DOCUMENTS} documents, degree {DEGREE}. RMSE after a factor: change in % of unit's\n")
    print("| source | width | hard | J | " + " | ".join(ALL) + " |\n" + "|---" * (4 + len(ALL)) + "|")
    found: dict[World, Errors] = {}
    for world in worlds:
        found[world] = errors(world, queries)
        rmse = np.sqrt(found[world].scaled.mean(axis=1))
        cells = [f"{100.0 * (value / rmse[0] - 1.0):+.1f}" if value == value else "" for value in rmse[1:]]
        print(f"| {world.source} | {world.width} | {world.hard} | {world.judges} | {rmse[0]:.3f} | "
              + " | ".join(cells) + " |", flush=True)  # fmt: skip
    for title, of, hard in (
        ("RMSE after one factor, no hard pairs", "scaled", HARD[:1]),
        ("RMSE after one factor, .3 hard pairs", "scaled", HARD[1:]),
        ("RMSE without a factor, all worlds", "plain", HARD),
    ):
        print(f"\n{title}: change in % of unit's [95 %]\n\n| strength | " + " | ".join(JUDGES) + " |")
        print("|---" * (1 + len(JUDGES)) + "|")
        for row, name in list(enumerate(ALL))[1:]:
            cells = []
            for source in JUDGES:
                square = np.stack([getattr(found[w], of) for w in worlds if w.source == source and w.hard in hard])
                cells.append("" if np.isnan(square[:, row]).any() else change(square[:, row], square[:, 0]))
            print(f"| {name} | " + " | ".join(cells) + " |")
    print("\nKendall τ-b less unit's [95 %], all worlds\n\n| strength | " + " | ".join(JUDGES) + " |")
    print("|---" * (1 + len(JUDGES)) + "|")
    for row, name in list(enumerate(ALL))[1:]:
        cells = []
        for source in JUDGES:
            tau = np.stack([found[w].tau for w in worlds if w.source == source]).mean(axis=0)
            low, high = bootstrap_interval(tau[row] - tau[0]) if not np.isnan(tau[row]).any() else (0.0, 0.0)
            mean = float(np.mean(tau[row] - tau[0]))
            cells.append("" if np.isnan(mean) else f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=24, help="simulated queries a world")
    simulate(parser.parse_args().queries)


if __name__ == "__main__":
    main()
