"""A tuning campaign from its file to its report: what trials share, the search, the repeats on test, the page."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anmi_ray.core.errors import ConfigError, caught, refuse
from anmi_ray.core.logs import Span
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline.resolve import todo
from anmi_ray.pipeline.stages import FIRST
from anmi_ray.reports.campaign import RepeatData, Trial
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import ray_session
from anmi_ray.tuning import driver, report, study
from anmi_ray.tuning.campaign import Campaign, alone, best
from anmi_ray.tuning.repeats import repeat

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """A campaign that is done: its trials, the best on dev, the repeats on test, and files by name."""

    trials: Sequence[Trial]
    best: Trial
    repeats: RepeatData | None
    files: Mapping[str, str]


def run(campaign: Campaign, reporter: Reporter, ended: driver.Ended, retry_failed: bool = False) -> Finished:
    """Carry out what is missing of a campaign and write its report; `ended` sees each trial as it ends.

    Running again goes on, after Ctrl-C and after kill -9. Raises AnmiError for whatever a user can mend.
    """
    _check(campaign)
    study.check_space(campaign)
    with (
        Span(_LOG, "campaign", campaign=campaign.config.name),
        alone(campaign.store, f"campaign-{campaign.fingerprint}"),
        ray_session(campaign.base.execution),
    ):
        driver.share(campaign, reporter)
        kept = study.Trials(campaign)
        if retry_failed:
            kept.retry_failed()
        reporter.stage("tune", f"{campaign.config.trials} trials, {campaign.config.max_concurrent} at once")
        trials = driver.search(campaign, kept, reporter, ended)
        winner = best(trials)
        if winner is None:
            raise _no_model(campaign, trials)
        repeats = repeat(campaign, winner, reporter)
        driver.forget_checkpoints(campaign, trials)
        return Finished(trials, winner, repeats, report.write(campaign, trials, winner, repeats, kept.importances()))


def _check(campaign: Campaign) -> None:
    """Raise before Ray starts, and before anything is paid, what keeps a campaign from ending well."""
    stages = [item.stage for item in todo(campaign.store, campaign.resolved)]
    found = [*caught(study.check_installed), *requirements.of_machine(campaign.base, stages)]
    if any(stage.name == FIRST for stage in stages):
        found += requirements.of_what_is_read(campaign.base, lambda counts: driver.without_labels(campaign, counts))
    refuse(found)


def _no_model(campaign: Campaign, trials: Sequence[Trial]) -> ConfigError:
    """No trial has ended with a model."""
    failed = [trial for trial in trials if trial.status == "failed"]
    first = f"; trial {failed[0].number}: {failed[0].message}" if failed else ""
    return ConfigError(
        f"none of {len(trials)} trials has trained a model, {len(failed)} failed{first}",
        f"campaign {campaign.config.name}",
        "mend what they say, then run again with --retry-failed",
    )
