"""What a campaign leaves for its user: the page, its numbers as JSON, the best settings for `anmi run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from anmi_ray.config.tune import Choice, Domain, Integer, LogUniform
from anmi_ray.core import environment
from anmi_ray.reports.campaign import CampaignData, Importance, RepeatData, to_html, to_json
from anmi_ray.reports.trials import Dimension, TrialRow
from anmi_ray.store.documents import with_checksum
from anmi_ray.tuning import search
from anmi_ray.tuning.campaign import MEASURE, Campaign, Trial


def write(campaign: Campaign, trials: Sequence[Trial], best: Trial, repeats: RepeatData | None) -> dict[str, str]:
    """Publish campaign.html, campaign.json and best.yaml in the campaign's report; where each stands, by name."""
    data = gather(campaign, trials, best, repeats)
    content = {
        "campaign.html": to_html(data),
        "campaign.json": with_checksum(to_json(data)),
        "best.yaml": _settings(campaign, best),
    }
    folder = f"reports/{campaign.config.name}"
    for name, text in content.items():
        campaign.store.publish(f"{folder}/{name}", text.encode())
    return {name: campaign.store.where(f"{folder}/{name}") for name in content}


def _settings(campaign: Campaign, best: Trial) -> str:
    """The experiment with the best trial's settings, but for how it is carried out, as YAML."""
    content = campaign.written(campaign.settings(best.params), f"{campaign.config.name}-best")
    content.pop("execution", None)
    head = (
        f"# The best of campaign {campaign.config.name} on dev: trial {best.number}, dev {MEASURE} {best.dev:.4f}.\n"
        "# Under the campaign's root (--root) `anmi run` of this file finds its model trained.\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def gather(campaign: Campaign, trials: Sequence[Trial], best: Trial, repeats: RepeatData | None) -> CampaignData:
    """All numbers of the page."""
    config = campaign.config
    base = campaign.base
    settings = campaign.settings(best.params)
    machine = environment.describe()
    return CampaignData(
        name=config.name,
        collection=base.corpus.name,
        measure=MEASURE,
        fingerprint=campaign.fingerprint,
        wanted=config.trials,
        axes=tuple(_axis(name, domain) for name, domain in config.dimensions().items()),
        trials=tuple(_row(trial) for trial in trials),
        best=best.number,
        best_settings={name: _text(value) for name, value in settings.items()},
        default_settings={name: _value(base.model_dump(mode="json"), name) for name in settings},
        rungs=_rungs(campaign),
        importance=_importance(campaign, trials),
        repeats=repeats,
        simulated=base.simulated is not None,
        environment={name: str(machine[name]) for name in ("git", "processor", "cores")},
    )


def _axis(name: str, domain: Domain) -> Dimension:
    if isinstance(domain, Choice):
        return Dimension(name, tuple(domain.labels))
    log = isinstance(domain, LogUniform) or (isinstance(domain, Integer) and domain.log)
    return Dimension(name, (), domain.low, domain.high, log)


def _row(trial: Trial) -> TrialRow:
    curve = tuple((point.share, point.dev) for point in trial.curve)
    return TrialRow(trial.number, trial.status, trial.params, curve, trial.dev, trial.seconds, trial.message, trial.run)


def _text(value: Any) -> Any:
    """A setting's value as the page shows it: a fraction as a number, anything else in YAML on one line."""
    if isinstance(value, float):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("...\n").strip()


def _value(content: Any, name: str) -> Any:
    """What settings have at a dotted name, as the page shows it; a dash where theirs have no such part."""
    for part in name.split("."):
        if isinstance(content, list) and part.isdecimal() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict) and part in content:
            content = content[part]
        else:
            return "—"
    return _text(content)


def _rungs(campaign: Campaign) -> tuple[float, ...]:
    """Shares at which early stopping decides."""
    asha = campaign.config.asha
    if asha is None:
        return ()
    shares = [asha.grace]
    while shares[-1] * asha.reduction < 1.0:
        shares.append(shares[-1] * asha.reduction)
    return tuple(shares)


def _importance(campaign: Campaign, trials: Sequence[Trial]) -> Importance | None:
    """By dev at the last share of the steps that every trial with a curve has reached."""
    curves = [trial for trial in trials if trial.curve]
    if not curves:
        return None
    share = min(trial.curve[-1].share for trial in curves)
    # the point there, or the first after it: what mining leaves decides how a trial's steps divide
    values = [next(point.dev for point in trial.curve if point.share >= share - 1e-9) for trial in curves]
    shares = search.importance(campaign.config, [trial.params for trial in curves], values)
    return Importance(shares, share, len(curves)) if shares else None
