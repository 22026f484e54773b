"""The command about tuning campaigns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from anmi_ray.cli.app import OverrideArg, RootOption, app, overriding
from anmi_ray.cli.voice import speaking

if TYPE_CHECKING:
    from rich.console import Console

    from anmi_ray.tuning.campaign import Trial
    from anmi_ray.tuning.run import Finished


@app.command()
def tune(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="a campaign's file, see jobs/configs/tune-*.yaml")],
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
    from anmi_ray.config import tune as settings
    from anmi_ray.store import public_root
    from anmi_ray.tuning import campaign as campaigns

    campaign = campaigns.open_campaign(settings.load(config, overriding(overrides, root)))
    from anmi_ray.tuning import run as carrying

    with speaking(campaign.base.execution) as voice:
        out = voice.out
        name = campaign.config.name
        where = public_root(campaign.base.execution.root)
        out.print(f"campaign [bold]{name}[/bold] {campaign.fingerprint} under {where}", highlight=False)

        def ended(trial: Trial) -> None:
            voice.between()
            _say(out, trial)

        for trial in campaign.read():
            if trial.ended:
                _say(out, trial, before=True)
        done = carrying.run(campaign, voice.reporter, ended, retry_failed)
    voice.told("report is written", best=done.best.number, dev=done.best.dev, files=dict(done.files))
    _print_result(out, done, campaign.config.trials)


def _say(out: Console, trial: Trial, before: bool = False) -> None:
    """One line about a trial that has ended, in this call or before it."""
    marks = {"complete": "[green]✓[/green]", "stopped": "[yellow]–[/yellow]", "failed": "[red]✗[/red]"}
    last = trial.curve[-1] if trial.curve else None
    if trial.status == "complete":
        said = f"dev {trial.dev:.4f}"
    elif trial.status == "stopped":
        said = f"stopped after {last.share:.0%} of its steps at dev {last.dev:.4f}" if last else "stopped"
    else:
        said = f"failed: {trial.message}"
    point = ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                      for name, value in trial.params.items())  # fmt: skip
    took = "before" if before else f"{trial.seconds:.0f} s"
    out.print(
        f"{marks[trial.status]} trial {trial.number:3}  {took:>7}  {escape(said)}  ({escape(point)})",
        highlight=False,
        soft_wrap=True,
    )


def _print_result(out: Console, done: Finished, wanted: int) -> None:
    """How the trials ended, the best on dev, and what the repeats say of it on test."""
    from anmi_ray.evaluation.replicates import markdown

    ends = {name: sum(one.status == name for one in done.trials) for name in ("complete", "stopped", "failed")}
    out.print("\ntrials: " + ", ".join(f"{count} {name}" for name, count in ends.items()), highlight=False)
    if len(done.trials) < wanted:
        out.print(f"{wanted} were wanted: trial_hours were over, or the space holds no more points", highlight=False)
    out.print(f"best on dev: trial {done.best.number}, dev {done.best.dev:.4f}", highlight=False)
    if done.repeats is None:
        out.print("the best of many on dev proves nothing by itself; with repeats: 3 it is measured on test")
    else:
        seeds = len(done.repeats.seeds)
        out.print(f"on test, {done.repeats.queries} queries, with {seeds} fresh seeds (the best of many on dev proves "
                  "nothing by itself):\n", highlight=False)  # fmt: skip
        out.print(markdown(done.repeats.contrasts), highlight=False, markup=False, soft_wrap=True)
    for name, where in done.files.items():
        out.print(f"{name}: {where}", highlight=False, markup=False)
