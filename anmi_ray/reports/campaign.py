"""The page of a tuning campaign: its trials, importances and history, and what the best is worth on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from anmi_ray.evaluation.replicates import Contrast
from anmi_ray.reports.page import a_key_a_line, decimal, plain, render, signed

if TYPE_CHECKING:
    from markupsafe import Markup

FORMAT = 2  # version of campaign.json; 2: without axes, rungs, and best settings
Status = Literal["running", "complete", "stopped", "failed"]
_SECTIONS = {
    "test": "On test",
    "history": "History",
    "importance": "Importance",
    "trials": "Trials",
}


@dataclass(frozen=True)
class Trial:
    """A trial of a campaign.

    params: by name in the space; of a choice its label.
    curve: (share of its steps, dev) at each dev point.
    dev: of the model that is kept; None unless complete.
    seconds: it ran, restarts included.
    message: why it failed.
    run, train: name of its run, and fingerprint of its stage train.
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
        """The dev measure to show: of the model that is kept, else the last measured."""
        return self.dev if self.dev is not None else self.curve[-1][1] if self.curve else None


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
    """Everything that the page says. wanted: trials that the campaign is to have."""

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

    def count(self, status: str) -> int:
        """How many trials ended so."""
        return sum(one.status == status for one in self.trials)


def to_json(data: CampaignData) -> str:
    """campaign.json: every number of the page, one key of the top a line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})


def to_html(data: CampaignData) -> str:
    """campaign.html as one self-contained text."""
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
        settings=_settings,
        history=history(data.trials, data.best, data.measure),
    )


def finding(data: CampaignData) -> str:
    """Return what the repeats on test say of the best against the default."""
    if data.repeats is None:
        return f"Trial {data.best} is the best of {len(data.trials)} on dev; on test nothing was measured"
    row = data.repeats.contrasts[0]
    change = f"{signed(row.difference)} {data.measure}"
    if row.verdict() == "not told apart":
        return f"The best settings and the default cannot be told apart on test: {change}"
    end = "" if row.verdict() == "real" else ", as far as these very models go"
    return f"The best settings {'beat' if row.difference > 0 else 'fall behind'} the default on test by {change}{end}"


def evidence(data: CampaignData) -> str:
    """Return the intervals, and what they rest on."""
    if data.repeats is None:
        return "(the campaign has no repeats)"
    row = data.repeats.contrasts[0]
    wide = "" if row.wide_low is None else f"; over queries and seeds {_wide(row)}"
    seeds = f"{row.seeds} fresh {'seed' if row.seeds == 1 else 'seeds'} each"
    return f"(95 % CI over queries {_narrow(row)}{wide}; {row.queries} test queries, {seeds})"


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


def history(trials: Sequence[Trial], best: int, measure: str) -> Markup:
    """Draw dev of each trial in order, and the best complete one so far."""
    import altair as alt  # slow to import

    from anmi_ray.reports.theme import BASE, COLOUR, MAIN, REST, Canvas

    canvas = Canvas("dev of the trials in order", 218.0)
    shown = [trial for trial in trials if trial.last is not None]
    rows = [
        {
            "x": trial.number,
            "y": trial.last,
            "colour": MAIN if trial.number == best else BASE if trial.dev is not None else REST,
            "tooltip": f"trial {trial.number}, {trial.status}: dev {trial.last:.4f}",
        }
        for trial in shown
    ]
    complete = [(trial.number, trial.dev) for trial in shown if trial.dev is not None]
    so_far = accumulate((dev for _, dev in complete), max)
    line = [{"x": number, "y": dev} for (number, _), dev in zip(complete, so_far, strict=True)]
    x = alt.X("x:Q", axis=alt.Axis(title="trial", tickMinStep=1, format="d", grid=False))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    return canvas.draw(
        canvas.rows(line).mark_line(color=MAIN, interpolate="step-after").encode(x=x, y=y),
        canvas.rows(rows)
        .mark_circle(size=42, opacity=1, aria=True)
        .encode(x=x, y=y, color=COLOUR, description="tooltip:N"),
        title=f"dev {measure}",
    )
