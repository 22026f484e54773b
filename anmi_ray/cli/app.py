"""The application: the commands, in the order of the help."""

from __future__ import annotations

from typing import Annotated

import typer

from anmi_ray import __version__
from anmi_ray.cli.audit import audit
from anmi_ray.cli.config import config
from anmi_ray.cli.demo import demo
from anmi_ray.cli.distill import distill
from anmi_ray.cli.doctor import doctor
from anmi_ray.cli.evaluate import evaluate
from anmi_ray.cli.export import export
from anmi_ray.cli.flags import COMMAND_LINE
from anmi_ray.cli.init import init
from anmi_ray.cli.jobs import jobs
from anmi_ray.cli.judge import judge
from anmi_ray.cli.label import label
from anmi_ray.cli.mine import mine
from anmi_ray.cli.plan import plan
from anmi_ray.cli.queries import queries
from anmi_ray.cli.rate import rate
from anmi_ray.cli.rerank import rerank
from anmi_ray.cli.run import run
from anmi_ray.cli.serve import serve
from anmi_ray.cli.show import show
from anmi_ray.cli.tune import tune
from anmi_ray.core.errors import ConfigError

app = typer.Typer(
    name="anmi",
    help="Train rerankers from pairwise preferences instead of labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (demo, init, queries, run, plan, judge, distill, config, show, mine, export)
COMMANDS += (rate, audit, label, rerank, serve, evaluate, tune, doctor)
REPLACED = {  # former commands
    "submit": "anmi jobs submit",
    "cancel": "anmi jobs cancel",
    "compare-rules": "anmi mine RUN --rule A,B",
    "refine": "anmi run CONFIG refines=RUN name=RUN-refine-1",
}
TELLING = ("plan", "show", "audit", "evaluate", "doctor")  # commands whose answer is all that they do
for command in COMMANDS:
    app.command()(command)
app.add_typer(jobs)


def _version(value: bool) -> None:
    if value:
        print(f"anmi_ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help=f"Print JSON alone, errors too; of {', '.join(TELLING)}.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""
    if as_json and context.invoked_subcommand not in TELLING:
        raise ConfigError(f"--json is of {', '.join(TELLING)}", COMMAND_LINE, "leave it out, or read a run's own files")
    context.obj = as_json
