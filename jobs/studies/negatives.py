"""Which rule of mining takes the best negatives? Simulated queries with planted false negatives; chooses the default.

    python -m jobs.studies.negatives [--queries 400] [--rules NAME ...] [--every] [--settings] [--out DIR]

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
bring); where another wins at 2 or at 10 that is said. Intervals are 95 %, over queries; differences are paired.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anmi_ray import environment
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED
from anmi_ray.evaluation import svg
from anmi_ray.mining.false_negatives import share
from anmi_ray.mining.negatives import Reals
from anmi_ray.mining.optimum import information
from anmi_ray.mining.posterior import false_negative
from jobs.studies.negative_worlds import FALSE_GAP, Mined, Taken, World, in_order, mined

COSTS = (1, 2, 5, 10)  # bits
DECISIVE = 5
BUDGETS: dict[str, tuple[int, float]] = {  # documents, weight
    "weight 5": (99, 5.0),
    "15 negatives": (15, math.inf),
    "4 negatives": (4, math.inf),
}
WORLDS = [World(k, judges, near) for near in (None, 3, 10) for k in (4, 6, 8) for judges in (1, 3)]
SPREADS = [World(8, 3, near, sd) for near in (None, 3) for sd in (0.5, 2.0)]
AGAINST = ("table2", "posterior, gate .05")


def gated(largest: float) -> dict[str, Any]:
    """Posterior weights behind a gate."""
    return {"allow": [{"rule": "gate", "largest": largest}], "weigh": "posterior"}


def priced(cost: float, false_gap: float = FALSE_GAP) -> dict[str, Any]:
    """Theorem 12's weights."""
    return {"weigh": {"rule": "optimum", "cost": cost, "false_gap": false_gap}, "allow": []}


RULES: dict[str, dict[str, Any]] = {
    **{name: {"rule": name} for name in NAMED if name != "posterior"},
    "posterior, gate .02": gated(0.02),
    "posterior, gate .05": gated(0.05),
    "posterior, gate .10": gated(0.10),
    **{f"penalised, {cost:g}": {"allow": [], "weigh": {"rule": "posterior", "penalty": cost}} for cost in (2.0, 5.0)},
    **{f"optimum, {cost:g} at 100": priced(cost) for cost in (2.0, 5.0, 10.0)},
    "optimum, 2 at 0": priced(2.0, 0.0),
    "table2, gate .05": {**gated(0.05), "weigh": "table2"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    **{
        f"simans a {a:g} b {b:g}": {"rule": "simans", "sample": {"rule": "simans", "a": a, "b": b}}
        for a in (0.5, 1.0, 3.0)
        for b in (2.0, 3.0, 4.0, 5.0)
    },
    **{
        f"relative {least:g}-{most:g} fade {fade:g}": {
            "rule": "relative",
            "weigh": {"rule": "relative", "least": least, "most": most, "fade": fade},
        }
        for least in (0.2, 0.5, 1.0, 1.5, 2.0)
        for most, fade in ((1.5, 1.0), (2.0, 0.5), (2.5, 1.0))
        if least < most
    },
    **{
        f"percentile {'/'.join(f'{w:g}' for w in weights)}": {
            "rule": "percentile",
            "weigh": {"rule": "percentile", "weights": weights},
        }
        for weights in ((0.0, 0.5, 1.0, 0.3), (0.0, 0.3, 1.0, 0.5), (0.0, 0.0, 1.0, 0.3))
    },
    **{
        f"closed {sd:g}": {"rule": "closed-optimum", "sample": {"rule": "closed", "reference_sd": sd}}
        for sd in (110.0, 140.0, 170.0, 200.0, 277.0)
    },
    **{
        f"optimum {cost:g} at {gap:g}": priced(cost, gap)
        for cost in (1.0, 2.0, 5.0, 10.0)
        for gap in (0.0, FALSE_GAP)
    },
}  # fmt: skip


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
    example, size = world.negatives.example[taken.row], world.queries
    before = np.cumsum(taken.weight) - taken.weight
    before -= before[np.arange(len(before)) - taken.place]
    part = np.clip((weight - before) / taken.weight, 0.0, 1.0) * (taken.place < documents)
    kept = part > 0
    row, part, example, w = taken.row[kept], part[kept], example[kept], (taken.weight * part)[kept]
    gap, wrong = world.true_gap[row], world.false[row].astype(np.float64)
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


def print_worth(found: Mapping[World, Mapping[str, Measured]], title: str) -> None:
    """A rule a row, best at the decisive cost first: net worth at every cost, and paired differences there."""
    names = sorted(next(iter(found.values())), key=lambda name: -over(found, name, f"net {DECISIVE}").value)
    against = [name for name in AGAINST if name in names]
    print(f"\n{title}: net worth in bits, mean over {len(found)} worlds\n\n| rule | "
          + " | ".join(f"λ = {cost}" for cost in COSTS)
          + "".join(f" | λ = {DECISIVE}, less {name}" for name in against)
          + " |\n|---|" + "---|" * (len(COSTS) + len(against)))  # fmt: skip
    for name in names:
        row = [said(over(found, name, f"net {cost}"), places=3) for cost in COSTS]
        own = over(found, name, f"net {DECISIVE}")
        row += [said(own - over(found, other, f"net {DECISIVE}"), places=3, sign=True) for other in against]
        print(f"| {name} | " + " | ".join(row) + " |")


def print_rules(found: Mapping[World, Mapping[str, Measured]], title: str) -> None:
    """A rule a row: what it took."""
    print(f"\n{title}\n\n| rule | false negatives, % of weight | of count | planted, % of weight | less table2 "
          "| information, bits, by weight | by count | less table2 | mean true gap | documents | weight | filled, % "
          "| ρ̂ less the truth, % | its interval holds it |\n" + "|---" * 14 + "|")  # fmt: skip
    for name in next(iter(found.values())):
        figure = {key: over(found, name, key) for key in next(iter(found.values()))[name].figures}
        less = {key: "" for key in ("false", "information")}
        if "table2" in next(iter(found.values())):
            less = {key: said(figure[key] - over(found, "table2", key), 100 if key == "false" else 1,
                              1 if key == "false" else 3, True) for key in less}  # fmt: skip
        cells = [rules[name] for rules in found.values() if rules[name].share["mean"] is not None]
        off = 100 * float(np.mean([cell.share["mean"] - cell.true for cell in cells])) if cells else math.nan
        full = 100 * figure["filled"].value
        print(f"| {name}{'' if full > 99.5 else ' (not filled)'} | {said(figure['false'], 100)} "
              f"| {said(figure['false by count'], 100)} | {said(figure['planted'], 100)} | {less['false']} "
              f"| {said(figure['information'], places=3)} | {said(figure['information by count'], places=3)} "
              f"| {less['information']} | {figure['gap'].value:.0f} | {figure['documents'].value:.1f} "
              f"| {figure['weight'].value:.2f} | {full:.0f} | {off:+.2f} "
              f"| {sum(cell.inside for cell in cells)} of {len(cells)} |")  # fmt: skip


def winners(found: Mapping[World, Mapping[str, Measured]]) -> list[tuple[int, str, str, int, Figure]]:
    """At every cost the best rule, the second, in how many worlds the best is best, and their paired difference."""
    rows = []
    for cost in COSTS:
        names = sorted(next(iter(found.values())), key=lambda name: -over(found, name, f"net {cost}").value)
        best = sum(max(rules, key=lambda name: rules[name].figures[f"net {cost}"].value) == names[0]
                   for rules in found.values())  # fmt: skip
        lead = over(found, names[0], f"net {cost}") - over(found, names[1], f"net {cost}")
        rows.append((cost, names[0], names[1], best, lead))
    return rows


def print_winners(found: Mapping[World, Mapping[str, Measured]], title: str) -> None:
    """A cost a row."""
    heads = "| λ, bits | best | second | ahead by, bits | best in worlds |"
    print(f"\n{title}: the best rule\n\n{heads}\n|---|---|---|---|---|")
    for cost, first, second, count, lead in winners(found):
        print(f"| {cost} | {first} | {second} | {said(lead, places=4)} | {count} of {len(found)} |")


_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT = 70.0, 1050.0, 100.0, 640.0, 1100.0, 700.0
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # percent
_STYLE = """
svg .whisker.thin { stroke-width: 1.2; stroke: var(--base); } svg .dot.other { fill: var(--second); }
svg .head { font-size: 17px; font-weight: 600; fill: var(--ink); } svg .said { font-size: 12px; }
svg .said.main { fill: var(--main); font-weight: 600; }
"""
Box = tuple[float, float, float, float]  # left, right, top, bottom


def picture(rules: Mapping[str, Measured], chosen: str, title: str) -> str:
    """Share of false negatives (log scale) against information, a point a rule with its intervals, as SVG."""
    found = {name: (one.figures["false"], one.figures["information"]) for name, one in rules.items()
             if one.figures["false"].value > 0}  # fmt: skip
    least = 50 * min(wrong.value for wrong, _ in found.values())

    def logged(share: float) -> float:
        return math.log10(max(100 * share, least))

    x = svg.axis([logged(f.value + s * f.half) for f, _ in found.values() for s in (-1, 1)], _LEFT, _RIGHT, 0.06)
    y = svg.axis([i.value + s * i.half for _, i in found.values() for s in (-1, 1)], _BOTTOM, _TOP, 0.04)
    parts = [
        svg.text(24, 36, "What rules of mining take: informative, or false?", "head", "start"),
        svg.text(24, 60, title, "label", "start"),
        svg.text(_LEFT, _TOP - 12, "information of the true gap, bits (by weight)", "label", "start"),
        svg.text((_LEFT + _RIGHT) / 2, _BOTTOM + 42, "false negatives, % of weight (log scale)", "label"),
    ]
    for tick in (tick for tick in _TICKS if x.low <= math.log10(tick) <= x.high):
        at = x(math.log10(tick))
        parts += [svg.line(at, _TOP, at, _BOTTOM, "grid"), svg.text(at, _BOTTOM + 20, f"{tick:g}", "tick")]
    for tick in y.ticks(6):
        parts.append(svg.line(_LEFT, y(tick), _RIGHT, y(tick), "grid"))
        parts.append(svg.text(_LEFT - 8, y(tick) + 4, f"{tick:.1f}", "tick", "end"))
    points = {name: (x(logged(wrong.value)), y(bits.value)) for name, (wrong, bits) in found.items()}
    for name, (wrong, bits) in found.items():
        at, up = points[name]
        low, high = (x(logged(wrong.value + s * wrong.half)) for s in (-1, 1))
        parts += [
            svg.line(low, up, high, up, "whisker thin"),
            svg.line(at, y(bits.value - bits.half), at, y(bits.value + bits.half), "whisker thin"),
            svg.circle(at, up, 4.0, "dot main" if name == chosen else "dot other",
                       f"{name}: {said(wrong, 100)} %, {said(bits, places=3)} bits"),
        ]  # fmt: skip
    taken: list[Box] = [(at - 6, at + 6, up - 6, up + 6) for at, up in points.values()]
    for name in sorted(points, key=lambda name: points[name][1]):
        box = _free(points[name], 6.4 * len(name), taken)
        taken.append(box)
        parts.append(svg.text(box[0], box[3] - 3, name, "said main" if name == chosen else "said", "start"))
    return svg.standalone(_WIDTH, _HEIGHT, svg.join(parts), _STYLE)


def _free(point: tuple[float, float], width: float, taken: Sequence[Box]) -> Box:
    """The nearest place for a label beside a point that overlaps no other, else the first."""
    at, up = point
    places = [
        (left, left + width, top, top + 14.0)
        for off in (0.0, 9.0, 18.0, 27.0, 36.0, 45.0)
        for left in (at + 8.0, at - 8.0 - width)
        for top in (up - 15.0 - off, up + 1.0 + off)
    ]

    def overlaps(box: Box) -> bool:
        outside = box[0] < _LEFT or box[1] > _RIGHT or box[3] > _BOTTOM
        return outside or any(box[0] < o[1] and o[0] < box[1] and box[2] < o[3] and o[2] < box[3] for o in taken)

    return next((box for box in places if not overlaps(box)), places[0])


def main() -> None:
    """Print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=400, help="simulated queries a world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", metavar="NAME", nargs="+", choices=list(RULES), help="these alone")
    parser.add_argument("--every", action="store_true", help="a table for every world, too")
    parser.add_argument("--settings", action="store_true", help="settings of rules instead, on queries of their own")
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    if given.settings:
        found = study([World(k, j, near) for near in (None, 3) for k, j in ((4, 1), (8, 3))], SETTINGS, given.queries,
                      given.seed + 1000)  # fmt: skip
        for budget in ("weight 5", "15 negatives"):
            print_worth(found[budget], budget)
            print_rules(found[budget], budget)
        return
    rules = {name: RULES[name] for name in given.rules or RULES}
    found = study(WORLDS, rules, given.queries, given.seed)
    for budget, worlds in found.items():
        print_winners(worlds, budget)
        print_worth(worlds, budget)
        for near in (None, 3, 10):
            some = {world: of for world, of in worlds.items() if world.near == near}
            planted = "the positive is the best" if near is None else f"{near} more like the positive"
            print_rules(some, f"{budget}, {planted}: mean over {len(some)} worlds")
        for world, of in worlds.items() if given.every else ():
            print_rules({world: of}, f"{budget}, {world}")
    best = [name for _, name, *_ in winners(found["weight 5"])]
    chosen = best[COSTS.index(DECISIVE)]
    few = {name: rules[name] for name in dict.fromkeys([*best, *(name for name in AGAINST if name in rules)])}
    wide = study(SPREADS, few, given.queries, given.seed)["weight 5"]
    for world, of in wide.items():
        print_rules({world: of}, f"weight 5, other spreads: {world}")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "negatives.svg"
    design = f"{given.queries:,} simulated queries of 100 documents, the positive is the best, k = 8, three judges"
    drawn = picture(found["weight 5"][World()], chosen, f"{design}; a total weight of 5 a query, 95 % intervals")
    path.write_text(drawn, encoding="utf-8")
    print(f"\ndefault: {chosen}\n-> {path}")


if __name__ == "__main__":
    main()
