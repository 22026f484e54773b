"""What a campaign leaves for its user: the page, its numbers as JSON, the best settings for `anmi run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from anmi_ray.core import environment
from anmi_ray.reports.campaign import CampaignData, RepeatData, Trial, to_html, to_json
from anmi_ray.store.documents import with_checksum
from anmi_ray.tuning.campaign import MEASURE, Campaign


def write(
    campaign: Campaign,
    trials: Sequence[Trial],
    best: Trial,
    repeats: RepeatData | None,
    importances: Mapping[str, float],
) -> dict[str, str]:
    """Publish campaign.html, campaign.json and best.yaml in the campaign's report; return their places by name."""
    base = campaign.base
    settings = campaign.settings(best.params)
    machine = environment.describe()
    data = CampaignData(
        name=campaign.config.name,
        collection=base.corpus.name,
        measure=MEASURE,
        fingerprint=campaign.fingerprint,
        wanted=campaign.config.trials,
        trials=tuple(trials),
        best=best.number,
        best_settings={name: _text(value) for name, value in settings.items()},
        default_settings={name: _value(base.model_dump(mode="json"), name) for name in settings},
        importances=importances,
        repeats=repeats,
        simulated=base.simulated is not None,
        environment={name: str(machine[name]) for name in ("git", "processor", "cores")},
    )
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
    """The experiment with the best trial's settings, without `execution`, as YAML."""
    content = campaign.written(campaign.settings(best.params), f"{campaign.config.name}-best")
    content.pop("execution", None)
    head = (
        f"# The best of campaign {campaign.config.name} on dev: trial {best.number}, dev {MEASURE} {best.dev:.4f}.\n"
        "# Under the campaign's root (--root) `anmi run` of this file finds its model trained.\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _text(value: Any) -> Any:
    """A setting's value as the page shows it: a fraction as a number, anything else in YAML on one line."""
    if isinstance(value, float):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("...\n").strip()


def _value(content: Any, name: str) -> Any:
    """The value at a dotted name as the page shows it; a dash if there is no such part."""
    for part in name.split("."):
        if isinstance(content, list) and part.isdecimal() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict) and part in content:
            content = content[part]
        else:
            return "—"
    return _text(content)
