"""Which rule of mining takes the best negatives? Simulated queries with planted false negatives; chooses the default.

    python -m jobs.studies.negatives [--queries 400] [--rules NAME ...] [--settings] [--components WORLDS]

Worlds: 4, 6 or 8 comparisons a document, one or three judges; the known positive is the best of 100 documents, or
drawn as the best would be with 3 or with 10 unlabelled documents like it (`negative_worlds`). Prior, dispersion,
ratings, gaps and their errors are estimated from the games. The retriever's scores correlate by .5 with the truth;
direct judgments are the games that a document has played with the positive; what `validated` wants judged is played
once more by the same judges (and does not join the fit here).
A false negative has a true gap below 100 points, or was planted. Information is I(true gap) in bits (report, eq. 46).
Rules take, in their own order, 15 or 4 of 99 documents, or documents until their weights add up to 5 (the last counts
in part); what a rule cannot fill is marked.

Criterion, stated before anything was run: Theorem 12's net worth on the truth, Σ w (I - λ·false) / 5 at a total weight
of 5 a query (what is missing counts nothing), mean over queries and over the 18 worlds, at λ = 1, 2, 5 and 10 bits. The
rule that wins at λ = 5 becomes the default (a false negative then undoes what ten good negatives of a gap of 300 points
bring); where another wins at 2 or at 10 that is said.

To read: a cell is a mean over worlds ± half of its 95 % interval over queries; differences are paired. What the rules
train is another study, `trainings`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED, GaussianMixture
from anmi_ray.core import environment
from anmi_ray.core.scale import to_elo
from anmi_ray.mining import mixture
from anmi_ray.mining.negatives import Reals
from anmi_ray.mining.optimum import information
from anmi_ray.mining.posterior import false_negative
from anmi_ray.mining.summary import share
from jobs.studies import harness
from jobs.studies.harness import Results, Table
from jobs.studies.negative_worlds import FALSE_GAP, Mined, Taken, World, in_order, mined

STUDY = harness.study("negatives", "Mining rules, simulated", __doc__ or "")
COSTS = (1, 2, 5, 10)  # bits
DECISIVE = 5
BUDGETS: dict[str, tuple[int, float]] = {  # documents, weight
    "weight 5": (99, 5.0),
    "15 negatives": (15, math.inf),
    "4 negatives": (4, math.inf),
}
WORLDS = [World(k, judges, near) for near in (None, 3, 10) for k in (4, 6, 8) for judges in (1, 3)]
SPREADS = [World(8, 3, near, sd) for near in (None, 3) for sd in (0.5, 2.0)]
OF_SETTINGS = [World(k, judges, near) for near in (None, 3) for k, judges in ((4, 1), (8, 3))]
AGAINST = ("table2", "posterior, gate .05")
ONE = [World(8, 3), World(4, 1), World(16, 3)]  # populations of true gaps, for the number of components
TWO = [World(8, 3, apart=2.2), World(8, 3, apart=3.0), World(4, 1, apart=3.0)]
COMPONENT_QUERIES = 200
COMPONENT_DOCUMENTS = 40
_TRIED: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
RULES = {name: {"rule": name} for name in NAMED if name != "posterior"} | _TRIED["rules"]
SETTINGS = _TRIED["settings"]


class Figure(NamedTuple):
    """A mean over queries, and what every query adds to its error: the interval is ± 1.96 |off| (Euclid's norm)."""

    value: float
    off: Reals  # [Q]

    @property
    def half(self) -> float:
        """Half of the 95 % interval."""
        return 1.96 * float(np.linalg.norm(self.off))

    def __sub__(self, other: Figure) -> Figure:
        return Figure(self.value - other.value, self.off - other.off)


def ratio(part: Reals, whole: Reals) -> Figure:
    """Σ part / Σ whole over queries [Q], linearised; NaN where nothing was taken."""
    total, size = float(whole.sum()), len(whole)
    if total <= 0:
        return Figure(math.nan, np.zeros(size))
    value = float(part.sum()) / total
    return Figure(value, math.sqrt(size / (size - 1)) * (part - value * whole) / total)


def pooled(figures: Sequence[Figure]) -> Figure:
    """The mean over worlds, whose queries are others'."""
    count = len(figures)
    return Figure(sum(one.value for one in figures) / count, np.concatenate([one.off for one in figures]) / count)


@dataclass(frozen=True)
class Measured:
    """One rule in one world at one budget. `share` is the estimated ρ̂ with its interval, `true` what it estimates."""

    figures: Mapping[str, Figure]
    share: Mapping[str, Any]
    true: float

    @property
    def inside(self) -> bool:
        """The interval of ρ̂ holds the truth."""
        return self.share["low"] is not None and self.share["low"] <= self.true <= self.share["high"]


def measure(world: Mined, taken: Taken, documents: int, weight: float) -> Measured:
    """What the first of `taken` are worth, up to so many documents or so much weight a query."""
    example = world.negatives.example[taken.row]
    size = world.queries
    before = np.cumsum(taken.weight) - taken.weight
    before -= before[np.arange(len(before)) - taken.place]
    part = np.clip((weight - before) / taken.weight, 0.0, 1.0) * (taken.place < documents)
    kept = part > 0
    row = taken.row[kept]
    w = (taken.weight * part)[kept]
    part = part[kept]
    example = example[kept]
    gap = world.true_gap[row]
    wrong = world.false[row].astype(np.float64)
    bits = information(gap)

    def sums(values: Reals) -> Reals:
        return np.bincount(example, values, size).astype(np.float64)

    weights, counts = sums(w), sums(part)
    goal = weight if math.isfinite(weight) else documents
    reached = weights if math.isfinite(weight) else counts
    every = np.ones(size)
    figures = {
        "false": ratio(sums(w * wrong), weights),
        "false by count": ratio(sums(part * wrong), counts),
        "planted": ratio(sums(w * world.planted[row]), weights),
        "information": ratio(sums(w * bits), weights),
        "information by count": ratio(sums(part * bits), counts),
        "gap": ratio(sums(part * gap), counts),
        "filled": ratio((reached >= goal - 1e-9).astype(np.float64), every),
        "weight": ratio(weights, every),
        "documents": ratio(counts, every),
    }
    worth = w if math.isfinite(weight) else part
    figures |= {f"net {cost}": ratio(sums(worth * (bits - cost * wrong)) / goal, every) for cost in COSTS}
    p = false_negative(world.negatives.gap[row], world.negatives.gap_se[row], MineConfig())
    low_gap = (gap < FALSE_GAP).astype(np.float64)
    return Measured(figures, share(p, w, example), float(w @ low_gap) / max(float(w.sum()), 1e-300))


Found = dict[str, dict[World, dict[str, Measured]]]  # by budget, world, rule


def study(worlds: Iterable[World], rules: Mapping[str, Mapping[str, Any]], queries: int, seed: int) -> Found:
    """Every rule in every world at every budget."""
    found: Found = {budget: {} for budget in BUDGETS}
    for world in worlds:
        data = mined(world, queries, seed, threads=environment.cores())
        orders = {name: in_order(data, MineConfig.model_validate(given)) for name, given in rules.items()}
        for budget, limits in BUDGETS.items():
            found[budget][world] = {name: measure(data, taken, *limits) for name, taken in orders.items()}
    return found


def over(found: Mapping[World, Mapping[str, Measured]], rule: str, figure: str) -> Figure:
    """A rule's figure, mean over the worlds."""
    return pooled([rules[rule].figures[figure] for rules in found.values()])


def said(one: Figure, scale: float = 1.0, places: int = 1, sign: bool = False) -> str:
    """Value ± half of its interval."""
    plus = "+" if sign else ""
    return "-" if math.isnan(one.value) else f"{scale * one.value:{plus}.{places}f} ± {scale * one.half:.{places}f}"


def by_worth(found: Mapping[World, Mapping[str, Measured]], cost: int) -> list[str]:
    """The rules, best at this cost first."""
    return sorted(next(iter(found.values())), key=lambda name: -over(found, name, f"net {cost}").value)


def worth_table(found: Mapping[World, Mapping[str, Measured]], title: str) -> Table:
    """A rule a row, best at the decisive cost first: net worth at every cost, and paired differences there."""
    names = by_worth(found, DECISIVE)
    against = [name for name in AGAINST if name in names]
    rows = []
    for name in names:
        own = over(found, name, f"net {DECISIVE}")
        row = [said(over(found, name, f"net {cost}"), places=3) for cost in COSTS]
        row += [said(own - over(found, other, f"net {DECISIVE}"), places=3, sign=True) for other in against]
        rows.append((name, *row))
    costs = [f"λ = {cost}" for cost in COSTS]
    columns = ("rule", *costs, *(f"λ = {DECISIVE}, less {name}" for name in against))
    return Table(f"{title}, net worth in bits, mean over {len(found)} worlds", columns, rows)


def rules_table(found: Mapping[World, Mapping[str, Measured]], title: str) -> Table:
    """A rule a row: what it took."""
    columns = ("rule", "false negatives, % of weight", "of count", "planted, % of weight", "information, bits",
               "by count", "mean true gap", "documents", "weight", "filled, %", "ρ̂ less the truth, %",
               "its interval holds it")  # fmt: skip
    rows = []
    for name in next(iter(found.values())):
        figure = {key: over(found, name, key) for key in next(iter(found.values()))[name].figures}
        cells = [rules[name] for rules in found.values() if rules[name].share["mean"] is not None]
        off = 100 * float(np.mean([cell.share["mean"] - cell.true for cell in cells])) if cells else math.nan
        full = 100 * figure["filled"].value
        row = [said(figure[key], 100) for key in ("false", "false by count", "planted")]
        row += [said(figure[key], places=3) for key in ("information", "information by count")]
        row += [f"{figure['gap'].value:.0f}", f"{figure['documents'].value:.1f}", f"{figure['weight'].value:.2f}"]
        row += [f"{full:.0f}", f"{off:+.2f}", f"{sum(cell.inside for cell in cells)} of {len(cells)}"]
        rows.append((f"{name}{'' if full > 99.5 else ' (not filled)'}", *row))
    return Table(title, columns, rows)


def winners(found: Mapping[World, Mapping[str, Measured]]) -> list[tuple[int, str, str, int, Figure]]:
    """At every cost the best rule, the second, in how many worlds the best is best, and their paired difference."""
    rows = []
    for cost in COSTS:
        first, second, *_ = by_worth(found, cost)
        best = sum(max(rules, key=lambda name: rules[name].figures[f"net {cost}"].value) == first
                   for rules in found.values())  # fmt: skip
        lead = over(found, first, f"net {cost}") - over(found, second, f"net {cost}")
        rows.append((cost, first, second, best, lead))
    return rows


def winners_table(found: Mapping[World, Mapping[str, Measured]], title: str) -> Table:
    """A cost a row."""
    rows = [
        (str(cost), first, second, said(lead, places=4), f"{count} of {len(found)}")
        for cost, first, second, count, lead in winners(found)
    ]
    return Table(f"{title}, the best rule", ("λ, bits", "best", "second", "ahead by, bits", "best in worlds"), rows)


def tables_of(found: Found) -> list[Table]:
    """All tables of the worlds: what wins, what it is worth, what it took where positives are many or few."""
    tables = []
    for budget, worlds in found.items():
        tables += [winners_table(worlds, budget), worth_table(worlds, budget)]
        for near in dict.fromkeys(world.near for world in worlds):
            some = {world: of for world, of in worlds.items() if world.near == near}
            planted = "the positive is the best" if near is None else f"{near} more like the positive"
            tables.append(rules_table(some, f"{budget}, {planted}, mean over {len(some)} worlds"))
    return tables


def chosen_components(data: Mined) -> dict[str, int]:
    """The number of Gaussians of a world's gaps by criterion: with all N gaps, with N_eff, with one a query, and ICL.

    Of an effective number n, log-likelihood and entropy count n/N; N_eff = N / (1 + (m - 1) ρ), m gaps a query and ρ
    their intraclass correlation (analysis of variance).
    """
    gap = data.negatives.gap.reshape(data.queries, -1)
    size = gap.shape[1]
    between = size * float(gap.mean(axis=1).var(ddof=1))
    within = float(gap.var(axis=1, ddof=1).mean())
    correlation = max((between - within) / (between + (size - 1) * within), 0.0)
    numbers = {"BIC": gap.size, "BIC, N_eff": gap.size / (1 + (size - 1) * correlation), "BIC, queries": data.queries}
    tried = mixture.fit(gap.ravel(), GaussianMixture(rule="gaussian-mixture")).tried

    def charged(count: float, one: mixture.Tried) -> float:
        return -2.0 * one.log_likelihood * count / gap.size + (3 * one.components - 1) * math.log(count)

    found = {name: min(tried, key=partial(charged, count)).components for name, count in numbers.items()}
    return found | {"ICL": min(tried, key=lambda one: one.icl).components}


def components_table(trials: int, seed: int) -> Table:
    """How often each criterion chooses how many Gaussians where there are one or two populations of true gaps."""
    rows = []
    for planted, worlds in ((1, ONE), (2, TWO)):
        for world in worlds:
            seen = (mined(world, COMPONENT_QUERIES, seed + n, COMPONENT_DOCUMENTS) for n in range(trials))
            chosen = [chosen_components(data) for data in seen]
            apart = "" if world.apart is None else f", {to_elo(world.apart, 'thurstone'):.0f} points apart"
            counts = {name: np.bincount([one[name] for one in chosen], minlength=5)[1:] for name in chosen[0]}
            cells = [", ".join(f"{n} × {k}" for k, n in enumerate(of, 1) if n) for of in counts.values()]
            rows.append((f"{planted}{apart}", f"k = {world.degree}, judges: {world.judges}", *cells))
    names = ("BIC", "BIC, N_eff", "BIC, queries", "ICL")
    return Table(f"Worlds × Gaussians chosen, {trials} worlds a row", ("populations", "world", *names), rows)


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--queries", type=int, default=400, help="simulated queries a world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", metavar="NAME", nargs="+", choices=list(RULES), help="these alone")
    parser.add_argument("--settings", action="store_true", help="settings of rules instead, on queries of their own")
    parser.add_argument("--components", type=int, metavar="WORLDS", help="how many Gaussians criteria choose instead")
    given = parser.parse_args(words)

    def run() -> Results:
        if given.components:
            return Results([components_table(given.components, given.seed)])
        if given.settings:
            return Results(tables_of(study(OF_SETTINGS, SETTINGS, given.queries, given.seed + 1000)))
        rules = {name: RULES[name] for name in given.rules or RULES}
        found = study(WORLDS, rules, given.queries, given.seed)
        best = [name for _, name, *_ in winners(found["weight 5"])]
        few = {name: rules[name] for name in dict.fromkeys([*best, *(name for name in AGAINST if name in rules)])}
        wide = study(SPREADS, few, given.queries, given.seed)["weight 5"]
        tables = tables_of(found)
        tables += [rules_table({world: of}, f"weight 5, other spreads, {world}") for world, of in wide.items()]
        return Results(tables, [f"Default: {best[COSTS.index(DECISIVE)]}."])

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
