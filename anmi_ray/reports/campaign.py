"""The page of a tuning campaign: its trials, importances and history, and the best against the default on test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anmi_ray.evaluation.replicates import Contrast
from anmi_ray.reports.page import a_key_a_line, plain, render, signed

FORMAT = 2  # version of campaign.json; 2: without axes, rungs, and best settings
Status = Literal["running", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial of a campaign.

    params: by name in the space; labels of choices.
    curve: (share of its steps, dev) at each dev point.
    dev: of the kept model; None unless complete.
    seconds: run time, restarts included.
    message: why it failed.
    run, train: name of its run, fingerprint of its stage train.
    """

    number: int
    status: Status
    params: Mapping[str, Any]
    curve: tuple[tuple[float, float], ...]
    dev: float | None
    seconds: float
    message: str | None
    run: str
    train: str

    @property
    def last(self) -> float | None:
        """The dev measure to show: of the kept model, else the last measured."""
        return self.dev if self.dev is not None else self.curve[-1][1] if self.curve else None


@dataclass(frozen=True)
class RepeatRow:
    """A system on test: the mean over queries of every seed's training, one value for the first stage."""

    system: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class RepeatData:
    """The best and the default, trained again: seeds, test queries, means, and differences corrected by Holm."""

    seeds: tuple[int, ...]
    queries: int
    rows: tuple[RepeatRow, ...]
    contrasts: tuple[Contrast, ...]


@dataclass(frozen=True)
class CampaignData:
    """Contents of campaign.json. wanted: trials that the settings ask for."""

    name: str
    collection: str
    measure: str
    fingerprint: str
    wanted: int
    trials: tuple[Trial, ...]
    best: int
    importances: Mapping[str, float]
    repeats: RepeatData | None
    simulated: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def to_json(data: CampaignData) -> str:
    """campaign.json: every number of the page, one top-level key per line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})


def to_html(data: CampaignData) -> str:
    """campaign.html as one self-contained text."""
    from anmi_ray.reports.charts import history  # Altair is slow to import

    few = f"{len(data.trials)} of {data.wanted} trials started: the time was up, or the space has no more points."
    points = [
        (one.number, one.last, one.dev is not None, f"trial {one.number}, {one.status}: dev {one.last:.4f}")
        for one in data.trials
        if one.last is not None
    ]
    return render(
        "campaign",
        data,
        {"test": "On test", "history": "History", "importance": "Importance", "trials": "Trials"},
        [few] if len(data.trials) < data.wanted else [],
        finding=finding(data),
        evidence=evidence(data),
        json="campaign.json",
        simulated=data.simulated,
        trials=sorted(data.trials, key=lambda one: (one.dev is None, -(one.last if one.last is not None else -1.0))),
        history=history(points, data.best, data.measure),
    )


def finding(data: CampaignData) -> str:
    """The difference between the best and the default on test."""
    if data.repeats is None:
        return f"Trial {data.best} is the best of {len(data.trials)} on dev; nothing was measured on test"
    row = data.repeats.contrasts[0]
    change = f"{signed(row.difference)} {data.measure}"
    if row.verdict() == "not significant":
        return f"No significant difference between the best settings and the default on test: {change}"
    end = "" if row.verdict() == "real" else ", for these very models"
    return f"The best settings {'beat' if row.difference > 0 else 'fall behind'} the default on test by {change}{end}"


def evidence(data: CampaignData) -> str:
    """The intervals, and how many queries and seeds they rest on."""
    if data.repeats is None:
        return "(the campaign has no repeats)"
    row = data.repeats.contrasts[0]
    wide = "" if row.wide_low is None else f"; over queries and seeds {signed(row.wide_low)} to {signed(row.wide_high)}"
    narrow = f"{signed(row.low)} to {signed(row.high)}"
    seeds = f"{row.seeds} fresh {'seed' if row.seeds == 1 else 'seeds'} each"
    return f"(95 % CI over queries {narrow}{wide}; {row.queries} test queries, {seeds})"
