"""The page of a tuning campaign: what was tried, what it found, and what that is worth on test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anmi_ray.evaluation.replicates import Contrast
from anmi_ray.reports.page import a_key_a_line, decimal, plain, render, signed
from anmi_ray.reports.trials import Dimension, TrialRow

FORMAT = 1  # version of campaign.json
_SECTIONS = {
    "test": "On test",
    "space": "The space",
    "curves": "Learning curves",
    "trials": "Trials",
    "best": "Best settings",
}


@dataclass(frozen=True)
class Importance:
    """How much each parameter tells good trials from others, shares of 1; by dev at `share` of their steps."""

    shares: Mapping[str, float]
    share: float
    trials: int


@dataclass(frozen=True)
class RepeatRow:
    """A system on test: the mean of every seed's training, of the first stage one value."""

    system: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class RepeatData:
    """The best and the default, trained again: seeds, test queries, means, and differences corrected by Holm."""

    seeds: tuple[int, ...]
    queries: int
    rows: tuple[RepeatRow, ...]
    contrasts: tuple[Contrast, ...]


@dataclass(frozen=True)
class CampaignData:
    """Everything that the page says. wanted: trials that the campaign is to have; rungs: shares of early stopping."""

    name: str
    collection: str
    measure: str
    fingerprint: str
    wanted: int
    axes: tuple[Dimension, ...]
    trials: tuple[TrialRow, ...]
    best: int
    best_settings: Mapping[str, Any]
    default_settings: Mapping[str, Any]
    rungs: tuple[float, ...]
    importance: Importance | None
    repeats: RepeatData | None
    simulated: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def count(self, status: str) -> int:
        """How many trials ended so."""
        return sum(one.status == status for one in self.trials)

    @property
    def main(self) -> Contrast | None:
        """The best against the default on test."""
        return self.repeats.contrasts[0] if self.repeats is not None else None


def to_json(data: CampaignData) -> str:
    """campaign.json: every number of the page, one key of the top a line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})


def to_html(data: CampaignData) -> str:
    """campaign.html as one self-contained text."""
    from anmi_ray.reports import campaign_charts  # Altair is slow to import: only where something is drawn

    few = (
        f"{len(data.trials)} of {data.wanted} trials were begun: the hours of the campaign were over, or the space "
        "holds no more points."
    )
    return render(
        "campaign",
        data,
        finding(data),
        evidence(data),
        _SECTIONS,
        "campaign.json",
        data.simulated,
        [few] if len(data.trials) < data.wanted else [],
        filters={"interval": _narrow, "wide": _wide, "words": _words},
        trials=sorted(data.trials, key=lambda one: (one.dev is None, -(one.last if one.last is not None else -1.0))),
        best=_settings(data.best_settings),
        default=dict(_settings(data.default_settings)),
        settings=_settings,
        fig={
            "parallel": campaign_charts.parallel(data.axes, data.trials, data.best, data.measure),
            "curves": campaign_charts.dev_curves(data.trials, data.best, data.rungs, data.measure),
            "importance": campaign_charts.importance(data.importance.shares) if data.importance is not None else None,
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
    seeds = "" if row.wide_low is None else f"; over queries and seeds {_wide(row)}"
    return (
        f"(95 % CI over queries {_narrow(row)}{seeds}; {row.queries} test queries, {row.seeds} "
        f"fresh {'seed' if row.seeds == 1 else 'seeds'} each)"
    )


def _narrow(row: Contrast) -> str:
    """Over queries, for the very models that were trained."""
    return f"{signed(row.low)} to {signed(row.high)}"


def _wide(row: Contrast) -> str:
    """Over queries and seeds; a dash where there is one seed."""
    return "—" if row.wide_low is None else f"{signed(row.wide_low)} to {signed(row.wide_high)}"


def _words(values: tuple[float, ...]) -> str:
    """A value a seed."""
    return " · ".join(decimal(value) for value in values)


def _settings(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings by name, as text."""
    return [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in values.items()]
