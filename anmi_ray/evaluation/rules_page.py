"""RulesData becomes one HTML page that loads nothing: what every rule chose, and what is known of its mistakes."""

from __future__ import annotations

import math

from markupsafe import Markup

from anmi_ray.evaluation import figures, rules_figures
from anmi_ray.evaluation.page import asset, count, percent, template
from anmi_ray.evaluation.rules_report import Estimate, OptimalGap, RulesData

LEVEL = 0.95
_CATEGORIES = ("danger", "soft", "goldilocks", "medium", "easy")


def render(data: RulesData) -> str:
    """The page. Its policy forbids every load from elsewhere and every script."""
    names = [rule.rule for rule in data.rules]
    taken = [rule for rule in data.rules if rule.estimated.n]
    return template("rules.html.j2", share=share, interval=interval).render(
        data=data,
        style=Markup(asset("report.css")),
        shades=[f"{0.06 + 0.94 * k / (rules_figures.SHADES - 1):.2f}" for k in range(rules_figures.SHADES)],
        finding=finding(data),
        evidence=evidence(data),
        base=next(rule for rule in data.rules if rule.rule == data.baseline),
        categories=_categories(data),
        most=max((sum(rule.categories.values()) for rule in data.rules), default=0.0),
        css=figures.category_css,
        fig={
            "false": rules_figures.false_negatives(data.rules) if taken else None,
            "panels": [rules_figures.panel(rule, data.edges, data.bands) for rule in data.rules],
            "overlap": rules_figures.overlap(names, data.overlap) if len(names) > 1 else None,
            "optimum": rules_figures.optimal_gap(data.optimum) if data.optimum else None,
        },
        postulated=postulated(data.optimum) if data.optimum else "",
        level=LEVEL,
    )


def finding(data: RulesData) -> str:
    """What the baseline's negatives are worth, in one sentence."""
    base = next(rule for rule in data.rules if rule.rule == data.baseline)
    if base.true is not None and base.true.mean is not None:
        return f"{_capital(base.rule)}: {share(base.true.mean)} of the weight lies on false negatives"
    if base.estimated.mean is None:
        return f"{_capital(base.rule)} left no rated negative"
    return f"{_capital(base.rule)}: an estimated {share(base.estimated.mean)} of the weight lies on false negatives"


def evidence(data: RulesData) -> str:
    """The interval, and how the other rules compare where the truth is known."""
    base = next(rule for rule in data.rules if rule.rule == data.baseline)
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


def postulated(found: OptimalGap) -> str:
    """For which costs the optimum at the median gap error lies where Theorem 12 says."""
    if found.zone is None:
        return "at no cost"
    low, high = found.zone
    return f"for λ from {low:.2g} bits on" if math.isinf(high) else f"for λ from {low:.2g} to {high:.2g} bits"


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
    return [*(n for n in _CATEGORIES if n in found), *sorted(found.difference(_CATEGORIES))]


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
