"""CampaignData becomes one HTML page that loads nothing: what was tried, what it found, what that is worth on test."""

from __future__ import annotations

from markupsafe import Markup

from anmi_ray.evaluation import campaign_figures as draw
from anmi_ray.evaluation.campaign_report import CampaignData
from anmi_ray.evaluation.page import asset, decimal, signed, template
from anmi_ray.evaluation.replicates import Contrast


def render(data: CampaignData) -> str:
    """The page. Its policy forbids every load from elsewhere and every script."""
    ordered = sorted(data.trials, key=lambda one: (one.dev is None, -(one.last if one.last is not None else -1.0)))
    return template("campaign.html.j2", interval=interval, wide=wide, words=words).render(
        data=data,
        style=Markup(asset("report.css")),
        finding=finding(data),
        evidence=evidence(data),
        trials=ordered,
        best=draw.settings(data.best_settings),
        default=dict(draw.settings(data.default_settings)),
        settings=draw.settings,
        css=draw.css,
        fig={
            "parallel": draw.parallel(data),
            "curves": draw.curves(data),
            "importance": draw.importance(data.importance) if data.importance is not None else None,
        },
    )


def finding(data: CampaignData) -> str:
    """What the repeats on test say of the best against the default; without repeats that nothing is known of it."""
    row = data.main
    if row is None:
        return f"Trial {data.best} is the best of {len(data.trials)} on dev; on test nothing was measured"
    change = f"{signed(row.difference)} {data.measure}"
    if row.verdict() == "not told apart":
        return f"The best settings and the default cannot be told apart on test: {change}"
    end = "" if row.verdict() == "real" else ", as far as these very models go"
    return f"The best settings {'beat' if row.difference > 0 else 'fall behind'} the default on test by {change}{end}"


def evidence(data: CampaignData) -> str:
    """The intervals, and what they rest on."""
    row = data.main
    if row is None:
        return "(the campaign has no repeats)"
    seeds = "" if row.wide_low is None else f"; over queries and seeds {wide(row)}"
    return (
        f"(95 % CI over queries {interval(row)}{seeds}; {row.queries} test queries, {row.seeds} fresh "
        f"{'seed' if row.seeds == 1 else 'seeds'} each)"
    )


def interval(row: Contrast) -> str:
    """Over queries, for the very models that were trained."""
    return f"{signed(row.low)} to {signed(row.high)}"


def wide(row: Contrast) -> str:
    """Over queries and seeds; a dash where there is one seed."""
    return "—" if row.wide_low is None else f"{signed(row.wide_low)} to {signed(row.wide_high)}"


def words(values: tuple[float, ...]) -> str:
    """A value a seed.

    >>> words((0.5, 0.25))
    '0.500 · 0.250'
    """
    return " · ".join(decimal(value) for value in values)
