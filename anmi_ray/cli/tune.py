"""`anmi tune`: a campaign over the settings of mining and training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import OverrideArg, RootOption, overriding

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.reports.campaign import Trial
    from anmi_ray.tuning.run import Finished


def tune(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="a campaign's file; examples: anmi init")],
    overrides: OverrideArg = None,
    root: RootOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="let the trials that failed run once more, with the same settings")
    ] = False,
) -> None:
    """Search the settings of mining and training: trials on dev, then the best against the default on test.

    Running it again goes on where it was, also after kill -9: no trial that ended is run again. An override is of the
    campaign (trials=32, max_concurrent=4, space.train.learning_rate=…) or of its experiment (train.max_steps=60).
    """
    from anmi_ray.cli.output import output_of
    from anmi_ray.config.tune import load
    from anmi_ray.tuning.campaign import open_campaign

    campaign = open_campaign(load(config, overriding(overrides, root)))
    from anmi_ray.tuning import run as campaigns  # Ray: a campaign that cannot be is refused before
    from anmi_ray.tuning.study import Trials

    with output_of(campaign.base.execution) as output:
        config_ = campaign.config
        output.heading("campaign", config_.name, campaign.base.execution.root, f" {campaign.fingerprint}")

        def ended(trial: Trial) -> None:
            output.make_room()
            _print_trial(output.console, trial)

        for trial in Trials(campaign).read():
            if trial.status != "running":
                _print_trial(output.console, trial, before=True)
        done = campaigns.run(campaign, output.reporter, ended, retry_failed)
    output.told("report is written", best=done.best.number, dev=done.best.dev, files=dict(done.files))
    output.show(*_results(done, config_.trials))


def _print_trial(out: Console, trial: Trial, before: bool = False) -> None:
    """One line about a trial that has ended, in this call or before it."""
    from rich.text import Text

    marks = {"complete": ("✓", "green"), "stopped": ("–", "yellow"), "failed": ("✗", "red")}
    last = trial.curve[-1] if trial.curve else None
    if trial.status == "complete":
        outcome = f"dev {trial.dev:.4f}"
    elif trial.status == "stopped":
        outcome = f"stopped after {last[0]:.0%} of its steps at dev {last[1]:.4f}" if last else "stopped"
    else:
        outcome = f"failed: {trial.message}"
    values = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in trial.params.items()}
    point = ", ".join(f"{name} {value}" for name, value in values.items())
    took = "before" if before else f"{trial.seconds:.0f} s"
    line = f" trial {trial.number:3}  {took:>7}  {outcome}  ({point})"
    out.print(Text.assemble(marks[trial.status], line), soft_wrap=True)


def _results(done: Finished, wanted: int) -> Iterator[str]:
    """How the trials ended, the best on dev, and what the repeats say of it on test."""
    from anmi_ray.evaluation.replicates import markdown

    ends = Counter(trial.status for trial in done.trials)
    yield "\ntrials: " + ", ".join(f"{ends[status]} {status}" for status in ("complete", "stopped", "failed"))
    if len(done.trials) < wanted:
        yield f"{wanted} were wanted: the space holds no more points"
    yield f"best on dev: trial {done.best.number}, dev {done.best.dev:.4f}"
    proves_nothing = "the best of many on dev proves nothing by itself"
    if done.repeats is None:
        yield f"{proves_nothing}; with repeats: 3 it is measured on test"
    else:
        seeds = len(done.repeats.seeds)
        yield f"on test, {done.repeats.queries} queries, with {seeds} fresh seeds ({proves_nothing}):\n"
        yield markdown(done.repeats.contrasts)
    for name, where in done.files.items():
        yield f"{name}: {where}"
