"""The page of `anmi compare-rules`: what mining rules chose on the same ratings, and what is known of their mistakes.

Gaps are in Elo points, shares and weights between 0 and 1, all intervals 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from anmi_ray.evaluation.significance import Estimate, SystemComparison
from anmi_ray.reports.data import GapBand
from anmi_ray.reports.page import (
    CATEGORIES,
    a_key_a_line,
    capital,
    category_colour,
    count,
    decimal,
    percent,
    plain,
    render,
)

FORMAT = 1  # version of rules.json


LEVEL = 0.95
_SECTIONS = {
    "chosen": "What each rule chose",
    "false": "False negatives",
    "weights": "Weights by gap",
    "overlap": "Overlap",
    "optimum": "Optimal gap",
    "left-out": "Left out",
}


@dataclass(frozen=True)
class ComparedRule:
    """One composition of rules and what it chose.

    `queries` (with examples) and `rejected` count all of the run; the rest is of the sampled queries. `categories` are
    rated negatives per query. `estimated` is ρ̂, the share of the weight that lies on false negatives, by the ratings
    and their errors, `true` the same by the truth; `_all` counts every chosen negative once. `against` compares the
    true share per query with the baseline's. `hidden` is the share of the chosen that are hidden known positives.
    `weights` and `taken` are, by gap bin, the mean weight and the share that was taken of all documents.
    """

    rule: str
    composition: str
    artifact: str
    examples: int
    queries: int
    rejected: int
    negatives_per_example: float | None
    categories: Mapping[str, float]
    weight: Estimate
    gap: Estimate
    gap_se: float | None
    estimated: Estimate
    estimated_all: Estimate
    weights: tuple[Estimate, ...]
    taken: tuple[Estimate, ...]
    true: Estimate | None = None
    true_all: Estimate | None = None
    information: Estimate | None = None
    against: SystemComparison | None = None
    hidden: Estimate | None = None
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """Mean Jaccard index of every two rules' negatives of a query, rows and columns in the order of the rules."""

    mean: tuple[tuple[float | None, ...], ...]
    low: tuple[tuple[float | None, ...], ...]
    high: tuple[tuple[float | None, ...], ...]
    queries: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OptimalGap:
    """Theorem 12: the gap with the most information less `cost` (bits) times P(false negative), per gap error.

    `errors` are the first quartile, the median and the third quartile of the run's gap errors; `gaps` has for each of
    them the optimum at every cost, None where no gap is worth its danger. `zone` are the costs between which the
    optimum at the median error lies between 150 and 300 points, None if there are none.
    """

    costs: tuple[float, ...]
    errors: tuple[float, float, float]
    gaps: tuple[tuple[float | None, ...], tuple[float | None, ...], tuple[float | None, ...]]
    zone: tuple[float, float] | None


@dataclass(frozen=True)
class RulesData:
    """Everything that the page says. What is None was not known: no simulated judges, or no positive was hidden."""

    run: str
    collection: str
    baseline: str
    rules: tuple[ComparedRule, ...]
    left_out: Mapping[str, str]
    queries: int  # rated train queries
    sampled: int
    pooled: int  # queries behind the weights by gap
    false_negative_gap: float
    bands: tuple[GapBand, ...]
    edges: tuple[float, ...]
    overlap: Overlap
    optimum: OptimalGap | None = None
    true_known: bool = False
    hidden: int | None = None  # hidden positives of the sampled queries
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def to_json(data: RulesData) -> str:
    """rules.json: every number of the page, one key of the top a line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})


def to_html(data: RulesData) -> str:
    """The page as one self-contained text."""
    from anmi_ray.reports import rule_charts  # Altair is slow to import: only where something is drawn

    bands = [(band.name, band.low, band.high) for band in data.bands]
    most = max((sum(rule.categories.values()) for rule in data.rules), default=0.0)
    names = _categories(data)
    optimum = data.optimum
    return render(
        "rules",
        data,
        finding(data),
        evidence(data),
        _SECTIONS,
        "rules.json",
        data.true_known,
        data.notes,
        filters={"fraction": share, "interval": interval},
        base=_base(data),
        categories=names,
        colours=[(category_colour(name), name) for name in names],
        bands=[(category_colour(band.name), band.name) for band in data.bands],
        kinds=lambda rule: [
            (size / most, category_colour(name), f"{name} {decimal(size, 2)} per query")
            for name in names
            if (size := rule.categories.get(name, 0.0))
        ],
        fig={
            "false": _false_negatives(data) if any(rule.estimated.n for rule in data.rules) else None,
            "panels": [
                rule_charts.panel(rule.rule, rule.weights, rule.taken, rule.thresholds, data.edges, bands)
                for rule in data.rules
            ],
            "overlap": _overlap(data) if len(data.rules) > 1 else None,
            "optimum": rule_charts.optimal_gap(optimum.costs, optimum.gaps) if optimum else None,
        },
        postulated=_postulated(optimum) if optimum else "",
        level=LEVEL,
    )


def _base(data: RulesData) -> ComparedRule:
    return next(rule for rule in data.rules if rule.rule == data.baseline)


def finding(data: RulesData) -> str:
    """What the baseline's negatives are worth, in one sentence."""
    base = _base(data)
    if base.true is not None and base.true.mean is not None:
        return f"{capital(base.rule)}: {share(base.true.mean)} of the weight lies on false negatives"
    if base.estimated.mean is None:
        return f"{capital(base.rule)} left no rated negative"
    return f"{capital(base.rule)}: an estimated {share(base.estimated.mean)} of the weight lies on false negatives"


def evidence(data: RulesData) -> str:
    """The interval, and how the other rules compare where the truth is known."""
    base = _base(data)
    known = base.true is not None and base.true.mean is not None
    found = base.true if known and base.true is not None else base.estimated
    if found.mean is None:
        return ""
    said = f"{percent(LEVEL, 0)} CI {interval(found)}, {count(data.sampled)} train queries"
    if not known:
        return f"({said}; by the ratings and their errors alone)"
    rows = [rule.against for rule in data.rules if rule.against is not None]
    sure = [row for row in rows if row.p_holm is not None and row.p_holm < 1 - LEVEL and row.difference is not None]
    fewer = sum((row.difference or 0.0) < 0 for row in sure)
    more = len(sure) - fewer
    if not rows:
        return f"({said})"
    others = "1 other rule" if len(rows) == 1 else f"{len(rows)} other rules"
    return (
        f"({said}). Of {others} {fewer} {'admits' if fewer == 1 else 'admit'} less of it per query and {more} more; "
        f"{len(rows) - len(sure)} cannot be told apart"
    )


def share(value: float | None) -> str:
    """A share in %, with a place more where it is small.

    >>> share(0.0534), share(0.00534)
    ('5.3 %', '0.53 %')
    """
    return percent(value, 1 if value is None or not value or value >= 0.00995 else 2)


def interval(found: Estimate) -> str:
    """The ends of an interval of a share; a dash where there is none."""
    if found.low is None or found.high is None:
        return "—"
    return f"{share(found.low).removesuffix(' %')} to {share(found.high)}"


def _categories(data: RulesData) -> list[str]:
    found = {name for rule in data.rules for name in rule.categories}
    return [*(name for name in CATEGORIES if name in found), *sorted(found.difference(CATEGORIES))]


def _false_negatives(data: RulesData) -> Markup:
    """Per rule the estimated share with its interval, and below it the true one where it is known."""
    from anmi_ray.reports import charts, theme  # Altair is slow to import: only where something is drawn

    known = any(rule.true is not None for rule in data.rules)
    rows: list[charts.IntervalLine] = []
    for k, rule in enumerate(data.rules):
        said = share(rule.estimated.mean).removesuffix(" %")
        said += f" · {share(rule.true.mean if rule.true else None).removesuffix(' %')}" if known else ""
        said = f"{said} %" if rule.estimated.n else "took none"
        kinds = [("estimated", rule.estimated, theme.MAIN), *([("true", rule.true, theme.SECOND)] if known else [])]
        rows.append(charts.IntervalLine(k, None, None, None, rule.rule, said))
        for n, (kind, found, colour) in enumerate(kinds):
            if found is not None and found.mean is not None:
                tooltip = f"{rule.rule}, {kind}: {share(found.mean)}"
                tooltip += f" [{interval(found)}]" if found.low is not None else ""
                place = k + (n - 0.5) * 0.34 if known else float(k)
                low = None if found.low is None else 100 * max(found.low, 0.0)
                high = None if found.high is None else 100 * max(found.high, 0.0)
                mean = 100 * max(found.mean, 0.0)
                rows.append(charts.IntervalLine(place, mean, low, high, tooltip=tooltip, colour=colour))
    label = "% of the weight, 95 % interval (the axis is of the square root)"
    what = "estimated and true share of false negatives by rule" if known else "estimated share of false negatives"
    return charts.intervals(rows, what, label, root=True)


def _overlap(data: RulesData) -> Markup:
    """How much of what one rule takes another takes too."""
    from anmi_ray.reports import charts

    names = [rule.rule for rule in data.rules]
    found = data.overlap
    cells = []
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            mean = found.mean[i][j]
            low = found.low[i][j]
            high = found.high[i][j]
            if i != j and mean is not None and not math.isnan(mean):
                around = ""
                if low is not None and high is not None and not math.isnan(low):
                    around = f" [{100 * low:.1f}, {100 * high:.1f}]"
                said = f"{first} and {second}: {100 * mean:.1f} %{around} in common, {found.queries[i][j]:,} queries"
                cells.append({"row": i, "column": j, "value": mean, "tooltip": said})
    return charts.matrix(
        names, cells, (0.0, 1.0), "of the negatives in common", "negatives in common of every two rules"
    )


def _postulated(found: OptimalGap) -> str:
    """For which costs the optimum at the median gap error lies where Theorem 12 says."""
    if found.zone is None:
        return "at no cost"
    low, high = found.zone
    return f"for λ from {low:.2g} bits on" if math.isinf(high) else f"for λ from {low:.2g} to {high:.2g} bits"
