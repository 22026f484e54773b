"""The application: commands in the order and panels of the help, and what replaced former ones."""

from __future__ import annotations

import shlex
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
REPLACED = {  # former commands; {} are their arguments
    "submit": "anmi jobs submit {}",
    "cancel": "anmi jobs cancel {}",
    "distill": "anmi run {} --until distill",
    "compare-rules": "anmi mine RUN --rule A,B",
    "refine": "anmi run CONFIG compare.degree=16",
}
_RENAMED = {("evaluate", "--run"): "--ranking", ("rerank", "--run"): "--ranking", ("init", "--to"): "--out"}
_DROPPED = {  # former options; what to do instead
    ("rate", "--tie-width"): 'in Python: anmi_ray.rate(FILE, model="bradley-terry", ties="davidson", tie_width=0.5)',
    ("rate", "--plot"): "--out and --gaps write the numbers",
    ("rate", "--plot-query"): "--out and --gaps write the numbers",
    ("audit", "--plot"): "--json has the numbers; the report of a run has charts",
}
_WROTE_JSON = ("audit", "judge", "mine")  # --json FILE is --out FILE
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(jobs, rich_help_panel="Cluster")


def replacement(words: list[str]) -> str | None:
    """Return what replaced a former command line, or None."""
    command, *rest = words or [""]
    if command == "--json":
        return shlex.join(["anmi", *rest, "--json"])
    if command in REPLACED:
        return REPLACED[command].format(shlex.join(rest))
    renamed: list[str] = []
    for word, following in zip(rest, [*rest[1:], ""], strict=False):
        name, sign, value = word.partition("=")
        if (command, name) in _DROPPED:
            return _DROPPED[command, name]
        new = _RENAMED.get((command, name), name)
        if command in _WROTE_JSON and name == "--json" and (sign or following == "-" or following.endswith(".json")):
            new = "--out"
        renamed.append(f"{new}{sign}{value}")
    return None if renamed == rest else shlex.join(["anmi", command, *renamed])


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
