"""The application: commands in the order and panels of the help."""

from __future__ import annotations

from typing import Annotated

import typer

from anmi_ray import __version__
from anmi_ray.cli.jobs import jobs
from anmi_ray.cli.judges import audit, judge
from anmi_ray.cli.label import label
from anmi_ray.cli.models import evaluate, export, rerank, serve
from anmi_ray.cli.rate import rate
from anmi_ray.cli.research import mine, queries, tune
from anmi_ray.cli.run import run
from anmi_ray.cli.show import show
from anmi_ray.cli.start import config, demo, doctor, init, plan

app = typer.Typer(
    name="anmi",
    help="Train rerankers from pairwise preferences instead of labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Start": (demo, init, config, plan, run, show, doctor),
    "Judges": (judge, audit, label, rate),
    "Models": (export, rerank, evaluate, serve),
    "Research": (queries, mine, tune),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(jobs, rich_help_panel="Cluster")


def _version(value: bool) -> None:
    if value:
        print(f"anmi_ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Accept options of the application."""
