"""An experiment from Python: its settings, what it would cost, and carrying it out."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anmi_ray.api.runs import Run
from anmi_ray.core.errors import AnmiError, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.config.experiment import Experiment
    from anmi_ray.runtime.reporter import Reporter

_PLAIN_WIDTH = 200  # characters of a plan as text: wide enough that no cell is folded


def load(path: str | Path, **settings: Any) -> Experiment:
    """The settings of an experiment: those of a YAML file, changed by `settings`.

    A group of settings is given as a mapping, of which every member changes one setting; what lies deeper is named
    with dots. The result is frozen; `change` makes another of it, by the same rules. Relative paths are relative to
    the working directory. Raises ConfigError with every mistake, one a line, and the nearest known names.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml", name="gentle", train={"learning_rate": 1e-5})
    >>> config.name, config.train.learning_rate
    ('gentle', 1e-05)
    """
    from anmi_ray.config import load as loading

    return loading.with_settings(loading.read_experiment(path), settings, str(path))


def change(experiment: Experiment, **settings: Any) -> Experiment:
    """An experiment with other settings, given as to `load`. Raises ConfigError.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml")
    >>> anmi_ray.change(config, **{"train.loss.temperature": 0.1}, mine={"negatives": 2}).mine.negatives
    2
    """
    from anmi_ray.config.load import with_settings

    _check(experiment)
    return with_settings(experiment.model_dump(exclude_unset=True), settings, f"experiment {experiment.name}")


def _check(experiment: object) -> None:
    from anmi_ray.config.experiment import Experiment

    if not isinstance(experiment, Experiment):
        remedy = 'load it: anmi_ray.load("FILE.yaml")'
        raise ConfigError(f"{type(experiment).__name__} is no experiment", "experiment", remedy)


def run(
    experiment: Experiment,
    *,
    first: str = "",
    last: str = "",
    reporter: Reporter | None = None,
    wait: bool = False,
    offline: bool = False,
) -> Run:
    """Carry out an experiment: compute what is missing, reuse the rest, write the report where the last stage is done.

    `first` and `last` name the stages to begin and to end with; those before `first` must be there. `reporter` is told
    how far it is; so does `anmi show NAME --follow`. Ray is started here unless `execution.address` names a cluster.
    `wait`: begin when no other process carries out a run under the root. What the stages need (packages, keys, servers,
    disk, queries) is checked before Ray starts; `offline` sends no request to judges' servers for that. Raises
    AnmiError for whatever can be mended; the same call then goes on where it was.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml")
    >>> finished = anmi_ray.run(config, last="mine")
    >>> finished
    Run('quickstart', root='...results')
    """
    from anmi_ray.pipeline.run import run as carry_out

    _check(experiment)
    first, last = part(experiment, first, last)
    carry_out(experiment, reporter, first, last, wait=wait, offline=offline)
    return Run(experiment.name, experiment.execution.root)


def part(experiment: Experiment, first: str, last: str) -> tuple[str, str]:
    """Return the first and the last stage of the requested part. Raises ConfigError if a stage does not exist."""
    from anmi_ray.pipeline.stages import names_of, stage_name

    names = names_of(experiment)
    first = stage_name(first, names) if first else names[0]
    last = stage_name(last, names) if last else names[-1]
    if names.index(first) > names.index(last):
        raise ConfigError(f"--from {first} comes after --until {last}", "command line", "swap them")
    return first, last


@dataclass(frozen=True)
class Plan:
    """A run's plan, as lines and a table for rich; `print` shows it as text.

    stages: name, work, state, calls, tokens, GPU hours and dollars of each stage.
    problem: the error that it would end with, as far as that is known.
    """

    blocks: list[str | Table]
    stages: list[dict[str, Any]]
    problem: AnmiError | None = None

    @property
    def lines(self) -> list[str]:
        """Its lines."""
        return [block for block in self.blocks if isinstance(block, str)]

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        console = Console(file=text, width=_PLAIN_WIDTH, soft_wrap=True, markup=False, emoji=False)
        for block in self.blocks:
            console.print(block, highlight=False)
        if self.problem is not None:
            console.print(str(self.problem), highlight=False, markup=False)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def plan(experiment: Experiment, *, offline: bool = False) -> Plan:
    """What each stage would cost, doing nothing. Reads the collection, or its size from `plan`.

    Sends one request to each judge's server, which asks nothing; none if `offline`. Raises AnmiError for whatever can
    be mended.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml", name="other", execution={"root": "elsewhere"})
    >>> print(str(anmi_ray.plan(config)).splitlines()[-1])
    to do: 0 calls, ...; nothing is sent outside this machine or cluster
    """
    from anmi_ray.planning import plan as planning

    _check(experiment)
    blocks: list[str | Table] = []
    steps = planning.plan(experiment, offline)
    while True:
        try:
            blocks.append(next(steps))
        except StopIteration as end:
            return Plan(blocks, *end.value)
