"""What a judge's leaning towards the document shown first does to ratings, and what takes it out again.

    python jobs/studies/position_bias.py [--audits 1000] [--seeds 25] [--correlation 0.5] [--out DIR]

Claim: a judge with a known bias is measured within its confidence interval; asking both orders removes the bias's sign
but not its shrinkage of gaps; an offset fitted for the judge removes both. It is refuted where a bias lies outside the
audit's 95 % interval in more than 7 % or fewer than 3 % of audits; where the mean of both orders leaves more than 5
points in favour of the document shown first, or as wide gaps as an unbiased judge has; or where the fitted offset
leaves more than 5 points, or an estimated point that stands for less than .95 or more than 1.05 true ones.

A seed is 40 tournaments of 50 documents, 8 opponents each (the pipeline's defaults), true ratings N(0, 1) and one
simulated judge whose noise has an sd of 1 probit: both are what the model assumes, so that only the bias is wrong. All
is done by the pipeline's own functions: pairs, judge, audit, prior and dispersion from the seed's games, ratings.
`true per estimated` is the slope of true gaps on estimated ones, over all pairs of a query: 1 where estimates mean what
they say, whatever they know; more where they understate gaps. `estimated per true` is the other slope, which falls
below 1 because a prior shrinks what few games say. In one order, `by id` shows the same documents first in all their
pairs, as a list in any fixed order does; `by chance` draws it for every pair. Prints tables, verdicts and a picture.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from numpy.typing import NDArray
from scipy import stats

from anmi_ray import judging
from anmi_ray.comparisons import compare
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.evaluation import svg
from anmi_ray.identity import doc_id, id_matrix, query_id, uniforms
from anmi_ray.judging.intervals import binomial
from anmi_ray.rating import fit_globals, rate
from anmi_ray.records import CANDIDATE, find_rows
from anmi_ray.scale import Floats, normal_cdf, to_elo

JUDGE = "judge"
BIASES = (0.0, 0.25, 0.5, 1.0)
QUERIES, DOCUMENTS, DEGREE = 40, 50, 8
PILOT = 300  # pairs, spread over queries
SHARE, POINTS, SLOPE = (0.93, 0.97), 5.0, (0.95, 1.05)  # what the claim allows


class World(NamedTuple):
    """Candidates and comparisons of simulated queries; what is true of them follows from the judge's seed."""

    candidates: pa.Table
    comparisons: pa.Table


class Ends(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """Audits of one judge, a seed each: float64[N, 3] of (value, low, high), and what they should hold.

    preference: for the first shown, less 1/2, which real judges' audits have too; probits: refitted from the truth.
    """

    bias: float
    preference: Floats
    probits: Floats

    @property
    def expected(self) -> float:
        """Mean preference for the first shown, less 1/2, at gaps N(0, 2) and noise N(0, 1)."""
        return float(normal_cdf(np.array(self.bias / math.sqrt(3.0)))) - 0.5

    def coverage(self) -> dict[str, Ends]:
        """Share of the intervals that hold the truth, with its own."""
        found = {"preference": (self.preference, self.expected), "probits": (self.probits, self.bias)}
        return {
            name: Ends(*binomial(int(_holds(rows, truth).sum()), len(rows))) for name, (rows, truth) in found.items()
        }


@dataclass(frozen=True)
class Fitted:
    """Ratings by one treatment of one judge, a seed a row.

    favour: mean error in points of the gap from the document shown first to the other one (in both orders: first in
    the order ab);
    true_per_estimated, estimated_per_true: slopes; error: root mean square of the gaps' errors in points; offset: the
    judge's fitted leaning in probits, NaN where none is fitted.
    """

    favour: Floats
    true_per_estimated: Floats
    estimated_per_true: Floats
    error: Floats
    offset: Floats


def _holds(rows: Floats, truth: float) -> NDArray[np.bool_]:
    return (rows[:, 1] <= truth) & (truth <= rows[:, 2])


def world(queries: int = QUERIES, documents: int = DOCUMENTS, degree: int = DEGREE) -> World:
    """Queries with candidates that differ in nothing known, and the pairs that a run would ask about."""
    ids = [query_id(f"q{q}") for q in range(queries)]
    count = queries * documents
    candidates = CANDIDATE.table(
        {
            "query_id": [one for one in ids for _ in range(documents)],
            "doc_id": [doc_id(f"q{q} d{d}") for q in range(queries) for d in range(documents)],
            "source": ["retrieved"] * count,
            "is_positive": [False] * count,
            "rank": list(range(1, documents + 1)) * queries,
            "fused_score": [0.0] * count,
            "retriever_ranks": pa.array([[]] * count, pa.map_(pa.string(), pa.int32())),
            "similarity": [0.0] * count,
        }
    )
    return World(candidates, compare(candidates, CompareConfig(degree=degree), 0)[0])


def pilot(of: World, pairs: int = PILOT) -> World:
    """`pairs` of its comparisons, as many of every query."""
    query = np.unique(id_matrix(of.comparisons["query_id"]), axis=0, return_inverse=True)[1]
    order = np.argsort(query, kind="stable")
    first = np.searchsorted(query[order], np.arange(query.max() + 1))
    taken = order[np.arange(len(order)) - first[query[order]] < pairs / len(first)]
    return World(of.candidates, of.comparisons.take(pa.array(np.sort(taken)[:pairs])))


def panel(bias: float, correlation: float = 0.0) -> JudgeConfig:
    """One judge of noise 1 and this bias, in probits; `correlation`: of its noise between the two orders."""
    habits = {"kind": "simulated", "name": JUDGE, "position_bias": bias, "order_correlation": correlation}
    nothing_known = {"positive_bonus": 0.0, "similarity_slope": 0.0, "relevance_sd": 1.0}
    return JudgeConfig.model_validate({"preset": "thurstone", "truth": nothing_known, "judges": [habits]})


def audits(of: World, bias: float, seeds: int, correlation: float = 0.0) -> Measured:
    """The judge's bias as its audit measures it, seed by seed."""
    config, preference, probits = panel(bias, correlation), [], []
    for seed in range(seeds):
        judgments = judging.judge(of.comparisons, of.candidates, config, seed)
        truth = judging.truth(of.candidates, config, seed)
        found: Any = judging.audit(judgments, of.comparisons, truth, config)
        measured, refitted = (found["judges"][JUDGE][name] for name in ("position_bias", "recovered"))
        preference.append([measured["probability"], *measured["interval"]])
        probits.append([refitted["position_bias"][name] for name in ("value", "low", "high")])
    return Measured(bias, np.array(preference), np.array(probits))


def _as_drawn(judgments: pa.Table) -> pa.Table:
    """The order ab of every pair."""
    return judgments.filter(pc.equal(judgments["order"], "ab"))


def _by_chance(judgments: pa.Table) -> pa.Table:
    """One order of every pair, by a hash of it."""
    coin = uniforms(id_matrix(judgments["comparison_id"]), "order") < 0.5
    return judgments.filter(pa.array(coin == pc.equal(judgments["order"], "ab").to_numpy()))


OFFSET = "both orders, fitted offset"
MEAN = "both orders, mean"
HALF = "both orders, mean, unlike at half strength"
ONE = "one order, by id"
TREATMENTS: dict[str, tuple[Callable[[pa.Table], pa.Table], RateConfig]] = {
    ONE: (_as_drawn, RateConfig()),
    "one order, by chance": (_by_chance, RateConfig()),
    MEAN: (lambda judgments: judgments, RateConfig(inconsistent_strength=1.0)),
    HALF: (lambda judgments: judgments, RateConfig()),
    OFFSET: (lambda judgments: judgments, RateConfig(judge_offsets=True)),
}


def fits(of: World, bias: float, seeds: int, correlation: float = 0.0) -> dict[str, Fitted]:
    """Ratings of every treatment of the same judgments, seed by seed."""
    config = panel(bias, correlation)
    rows: dict[str, list[list[float]]] = {name: [] for name in TREATMENTS}
    for seed in range(seeds):
        judgments = judging.judge(of.comparisons, of.candidates, config, seed)
        truth = judging.truth(of.candidates, config, seed)
        for name, (chosen, how) in TREATMENTS.items():
            shared = fit_globals(chosen(judgments), of.comparisons, of.candidates, how)
            ratings = rate(chosen(judgments), of.comparisons, of.candidates, shared, how).ratings
            rows[name].append([*_compared(of, truth, ratings, chosen(judgments)), shared.offsets.get(JUDGE, math.nan)])
    return {name: Fitted(*np.array(found).T) for name, found in rows.items()}


def _compared(of: World, truth: pa.Table, ratings: pa.Table, answers: pa.Table) -> tuple[float, float, float, float]:
    """Favour, true per estimated, estimated per true, and error, of one seed's ratings."""
    row = find_rows(truth, {name: ratings[name] for name in ("query_id", "doc_id")})
    true, found = truth["latent"].to_numpy()[row], ratings["latent"].to_numpy()
    query = np.unique(id_matrix(ratings["query_id"]), axis=0, return_inverse=True)[1]
    true = true - (np.bincount(query, true) / np.bincount(query))[query]  # as the ratings are: gaps are what counts
    a, b = (find_rows(ratings, {"query_id": of.comparisons["query_id"], "doc_id": of.comparisons[side]})
            for side in ("doc_a", "doc_b"))  # fmt: skip
    off = found - true
    in_ab = pc.is_in(of.comparisons["comparison_id"], value_set=_as_drawn(answers)["comparison_id"].combine_chunks())
    first = np.where(in_ab.to_numpy(), 1.0, -1.0)
    favour, error = float(np.mean(first * (off[a] - off[b]))), math.sqrt(np.mean(np.square(off[a] - off[b])))
    both = float(found @ true)
    to = [float(to_elo(value, "thurstone")) for value in (favour, error)]
    return to[0], both / float(found @ found), both / float(true @ true), to[1]


def mean(values: Floats) -> Ends:
    """Mean over at least two seeds with Student's 95 % interval."""
    value = float(values.mean())
    slack = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1)) / math.sqrt(len(values))
    return Ends(value, value - slack, value + slack)


def said(ends: Ends, form: str) -> str:
    """A figure and its interval in one cell."""
    return f"{ends.value:{form}} [{ends.low:{form}}, {ends.high:{form}}]"


def verdict(ends: Sequence[Ends], low: float, high: float) -> str:
    """holds: every interval lies inside [low, high]; fails: one lies outside; else cannot tell."""
    if any(one.low > high or one.high < low for one in ends):
        return "fails"
    return "holds" if all(low <= one.low and one.high <= high for one in ends) else "cannot tell"


Audits = Mapping[str, Sequence[Measured]]
Fits = dict[float, dict[str, Fitted]]


def verdicts(measured: Audits, fitted: Fits) -> Iterator[tuple[str, str]]:
    """Every part of the claim with what became of it; `measured` by what was audited."""
    favours = {name: [mean(found[name].favour) for found in fitted.values()] for name in (MEAN, OFFSET)}
    biased = [found for bias, found in fitted.items() if bias]
    unbiased = fitted[0.0][MEAN].true_per_estimated
    wider = [mean(found[MEAN].true_per_estimated - unbiased) for found in biased]
    slopes = [mean(found[OFFSET].true_per_estimated) for found in fitted.values()]
    for what, audited in measured.items():
        shares = [one for found in audited for one in found.coverage().values()]
        yield f"an audit of {what}: its intervals hold the bias in 93 to 97 %", verdict(shares, *SHARE)
    yield "the mean of both orders has no side (5 points)", verdict(favours[MEAN], -POINTS, POINTS)
    yield "the mean of both orders shrinks gaps", verdict(wider, 0.0, math.inf)
    yield "the fitted offset has no side (5 points)", verdict(favours[OFFSET], -POINTS, POINTS)
    yield "the fitted offset shrinks no gaps (.95 to 1.05)", verdict(slopes, *SLOPE)


def print_audits(measured: Sequence[Measured], title: str) -> None:
    """A bias a row."""
    print(f"\n{title}\n\n| bias, probits | preference for the first | measured, mean | its interval holds it, % "
          "| refitted, probits | its interval holds it, % |\n|---|---|---|---|---|---|")  # fmt: skip
    for one in measured:
        shares = {name: said(Ends(*(100 * end for end in ends)), ".1f") for name, ends in one.coverage().items()}
        print(f"| {one.bias:g} | ½ + {one.expected:.4f} | ½ + {one.preference[:, 0].mean():.4f} "
              f"| {shares['preference']} | {one.probits[:, 0].mean():.3f} | {shares['probits']} |")  # fmt: skip


def print_fits(fitted: Fits, title: str) -> None:
    """A bias and treatment a row."""
    print(f"\n{title}\n\n| bias | answers | points in favour of the first | true per estimated | estimated per true "
          "| error of a gap, points | fitted leaning |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for bias, treatments in fitted.items():
        for name, found in treatments.items():
            leaning = "" if np.isnan(found.offset).any() else said(mean(found.offset), ".3f")
            print(f"| {bias:g} | {name} | {said(mean(found.favour), '+.1f')} "
                  f"| {said(mean(found.true_per_estimated), '.3f')} | {said(mean(found.estimated_per_true), '.3f')} "
                  f"| {said(mean(found.error), '.0f')} | {leaning} |")  # fmt: skip


_SHOWN = 25  # audits drawn for every bias
_TOP, _BOTTOM, _WIDTH, _HEIGHT = 136.0, 400.0, 1280.0, 496.0
_STYLE = """
svg .curve.loss, svg .whisker.loss { stroke: var(--loss); } svg .dot.loss { fill: var(--loss); }
svg .whisker.second { stroke: var(--second); } svg .whisker.third { stroke: var(--third); }
svg .whisker.thin { stroke-width: 1.4; stroke: var(--base); } svg .whisker.missed { stroke: var(--loss); }
svg .head { font-size: 17px; font-weight: 600; fill: var(--ink); } svg .title { font-size: 14.5px; fill: var(--ink); }
svg .said { font-size: 13px; } svg .said.main { fill: var(--main); } svg .said.loss { fill: var(--loss); }
svg .said.second { fill: var(--second); } svg .said.third { fill: var(--third); }
svg .known { stroke: var(--ink); stroke-width: 1.6; fill: none; }
"""
Lines = Sequence[tuple[str, str, Sequence[tuple[float, Ends]]]]  # (css class, name, (bias, figure))


def picture(measured: Sequence[Measured], fitted: Fits, pairs: int) -> str:
    """The claim at a glance, as SVG: the bias measured, its side, its shrinkage."""

    def over_bias(name: str, figure: Callable[[Fitted], Floats]) -> list[tuple[float, Ends]]:
        return [(bias, mean(figure(found[name]))) for bias, found in fitted.items()]

    favour: Lines = [
        ("loss", "one order", over_bias(ONE, lambda found: found.favour)),
        ("second", "", over_bias(MEAN, lambda found: found.favour)),
        ("main", "both orders:\nmean or offset", over_bias(OFFSET, lambda found: found.favour)),
    ]
    worth: Lines = [
        ("second", "mean of both orders", over_bias(MEAN, lambda found: 100 * found.true_per_estimated)),
        ("third", "the same, unlike answers\nat half strength (default)",
         over_bias(HALF, lambda found: 100 * found.true_per_estimated)),
        ("main", "both orders and\na fitted offset", over_bias(OFFSET, lambda found: 100 * found.true_per_estimated)),
    ]  # fmt: skip
    size = f"{QUERIES} tournaments, {DOCUMENTS} documents, {DEGREE} opponents each"
    design = f"{len(fitted[0.0][MEAN].favour)} seeds of {size}"
    parts = [
        svg.text(24, 36, "A judge that leans towards the document it is shown first", "head", "start"),
        svg.text(24, 60, f"simulated, its bias in probits; {design}; 95 % intervals", "label", "start"),
        _caterpillars(measured, 64.0, 384.0, f"An audit of {pairs} pairs measures its bias"),
        _curves(favour, 484.0, 734.0, "Asking both orders removes its side", "points in favour of the first", 0.0),
        _curves(worth, 898.0, 1098.0, "… not its shrinkage of gaps: a fitted offset does",
                "true points behind 100 estimated ones", 100.0),
    ]  # fmt: skip
    return svg.standalone(_WIDTH, _HEIGHT, svg.join(parts), _STYLE)


def _caterpillars(measured: Sequence[Measured], left: float, right: float, title: str) -> Markup:
    """The first audits' intervals of every bias, those that miss it in another colour, and how many of all hold it."""
    y = svg.axis([100 * end for one in measured for end in one.preference[:_SHOWN].ravel()], _BOTTOM, _TOP, 0.06)
    width = (right - left) / len(measured)
    parts = [_frame(y, left, right, title, "preference for the first shown, % above ½; bar: the truth")]
    for k, one in enumerate(measured):
        x0, x1 = left + width * k + 6, left + width * (k + 1) - 6
        held, rows = _holds(one.preference, one.expected), one.preference[:_SHOWN]
        for i, (_, low, high) in enumerate(100 * rows):
            x = x0 + (x1 - x0) * (i + 0.5) / len(rows)
            parts.append(svg.line(x, y(low), x, y(high), f"whisker thin{'' if held[i] else ' missed'}"))
        parts += [
            svg.line(x0 - 3, y(100 * one.expected), x1 + 3, y(100 * one.expected), "known"),
            svg.text((x0 + x1) / 2, _BOTTOM + 18, f"{one.bias:g}", "label"),
            svg.text((x0 + x1) / 2, _BOTTOM + 60, f"{100 * held.mean():.1f} %", "label"),
        ]
    below = f"of {len(measured[0].preference):,} intervals hold the truth"
    middle = (left + right) / 2
    parts += [
        svg.text(middle, _BOTTOM + 38, "bias of the judge", "label"),
        svg.text(middle, _BOTTOM + 78, below, "label"),
    ]
    return svg.join(parts)


def _frame(y: svg.Axis, left: float, right: float, title: str, label: str) -> Markup:
    step = svg.tick_step(y.low, y.high, 6)
    marks = [svg.line(left, y(t), right, y(t), "grid") for t in y.ticks(6)]
    marks += [svg.text(left - 8, y(t) + 4, svg.number(t, step), "tick", "end") for t in y.ticks(6)]
    heads = ((title, "title", 30), (label, "label", 12))
    return svg.join([*marks, *(svg.text(left - 40, _TOP - up, words, css, "start") for words, css, up in heads)])


def _curves(lines: Lines, left: float, right: float, title: str, label: str, fair: float) -> Markup:
    """Figures over the bias with their intervals; a dashed line where they should be."""
    ends = [end for _, _, points in lines for _, found in points for end in found]
    y, x = svg.axis([*ends, fair], _BOTTOM, _TOP, 0.07), svg.Axis(0.0, max(BIASES), left + 8, right - 8)
    parts = [_frame(y, left, right, title, label), svg.line(left, y(fair), right, y(fair), "reference")]
    for css, name, points in lines:
        parts.append(svg.path([(x(bias), y(found.value)) for bias, found in points], f"curve {css}"))
        for bias, found in points:
            parts.append(svg.line(x(bias), y(found.low), x(bias), y(found.high), f"whisker {css}"))
            parts.append(svg.circle(x(bias), y(found.value), 3.6, f"dot {css}", f"bias {bias:g}: {said(found, '.1f')}"))
        words, at = name.split("\n"), y(points[-1][1].value) + 4.5
        at -= 8 * (len(words) - 1)
        parts += [svg.text(right + 4, at + 16 * k, line, f"said {css}", "start") for k, line in enumerate(words)]
    parts += [svg.text(x(bias), _BOTTOM + 18, f"{bias:g}", "label") for bias, _ in lines[0][2]]
    return svg.join([*parts, svg.text((left + right) / 2, _BOTTOM + 38, "bias of the judge", "label")])


def main() -> None:
    """Print the tables and verdicts, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=1000, help="audits of every bias")
    parser.add_argument("--seeds", type=int, default=25, help=f"seeds of every bias, each {QUERIES} tournaments")
    parser.add_argument("--correlation", type=float, default=0.0, help="of the judge's noise between the two orders")
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    whole, few = world(), pilot(world(100))
    alike = f"; its noise correlates by {given.correlation:g} between the orders" if given.correlation else ""
    small = [audits(few, bias, given.audits, given.correlation) for bias in BIASES]
    print_audits(
        small, f"Audits of {few.comparisons.num_rows} pairs of 100 queries, {given.audits} of each judge{alike}"
    )
    large = [audits(whole, bias, given.audits, given.correlation) for bias in BIASES]
    print_audits(large, f"Audits of {whole.comparisons.num_rows:,} pairs of {QUERIES} queries{alike}")
    fitted = {bias: fits(whole, bias, given.seeds, given.correlation) for bias in BIASES}
    print_fits(fitted, f"Ratings, {given.seeds} seeds of {QUERIES} tournaments{alike}")
    print("\n| claim | verdict |\n|---|---|")
    for claim, found in verdicts({"a pilot's size": small, f"{QUERIES} queries": large}, fitted):
        print(f"| {claim} | {found} |")
    path = given.out / "position-bias.svg"
    path.write_text(picture(small, fitted, few.comparisons.num_rows), encoding="utf-8")
    print(f"\n-> {path}")


if __name__ == "__main__":
    main()
