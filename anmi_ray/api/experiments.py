"""An experiment from Python: its settings, its plan, and running it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anmi_ray.api.runs import Run
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.config.experiment import Experiment
    from anmi_ray.planning.plan import Plan
    from anmi_ray.runtime.reporter import Reporter


def load(path: str | Path, **settings: Any) -> Experiment:
    """Load the settings of an experiment from a YAML file, changed by `settings`.

    A group is a mapping, each member of which changes one setting; use dots for deeper settings. The result is frozen;
    `change` makes another one. Relative paths are relative to the working directory. Raise ConfigError with every
    mistake, one per line, and the nearest known names.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml", name="gentle", train={"learning_rate": 1e-5})
    >>> config.name, config.train.learning_rate
    ('gentle', 1e-05)
    """
    from anmi_ray.config import load as loading

    return loading.with_settings(loading.read_experiment(path), settings, str(path))


def change(experiment: Experiment, **settings: Any) -> Experiment:
    """Return an experiment with other settings, given as to `load`. Raise ConfigError if they are invalid.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml")
    >>> anmi_ray.change(config, **{"train.loss.temperature": 0.1}, mine={"negatives": 2}).mine.negatives
    2
    """
    from anmi_ray.config.load import with_settings

    return with_settings(experiment.model_dump(exclude_unset=True), settings, f"experiment {experiment.name}")


def run(
    experiment: Experiment | None = None,
    *,
    documents: Any = None,
    queries: Any = None,
    labels: Any = None,
    judge: str | Callable[[str, str, str], float] = "none",
    root: str = "results",
    first: str = "",
    last: str = "",
    reporter: Reporter | None = None,
    wait: bool = False,
    offline: bool = False,
    **settings: Any,
) -> Run:
    """Run an experiment: compute what is missing, reuse the rest, and write the report after the last stage.

    Ray is started here unless `execution.address` names a cluster. Requirements of the stages (packages, keys, servers,
    disk space, queries) are checked first. Raise AnmiError for user errors; the same call then continues.

    documents, queries, labels: instead of an experiment, tables: data frames, Arrow tables, columns by name, or lists
        of texts. Columns are recognized by their names, as `anmi init` does
    judge: of these tables, as `anmi init --judge` takes it, or a function of a query and two documents that returns
        its preference for the first, 0 to 1; answers are kept
    root, settings: of the experiment over tables, as for `load`, such as name="shop", train={"max_steps": 100}
    first, last: the stages to start and to end with; those before `first` must be complete
    reporter: receives the progress; if None, a notebook prints it (`anmi show NAME --follow` does so elsewhere)
    wait: wait until no other run is using this root
    offline: do not check whether the judges' servers respond

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml")
    >>> finished = anmi_ray.run(config, last="mine")
    >>> finished
    Run('quickstart', root='...results')
    """
    from anmi_ray.pipeline.run import run as run_stages
    from anmi_ray.runtime.reporter import LineReporter

    if reporter is None and hasattr(builtins, "__IPYTHON__"):
        reporter = LineReporter()
    if experiment is None:
        from anmi_ray.api import frames

        experiment = frames.experiment_of(documents, queries, labels, judge, root, settings)
        if not isinstance(judge, str) and part(experiment, first, last)[1] not in ("ingest", "retrieve", "compare"):
            run_stages(experiment, reporter, last="compare", wait=wait)
            experiment = frames.answered_by(judge, experiment, Run(experiment.name, root))
    elif (
        settings
        or judge != "none"
        or root != "results"
        or any(table is not None for table in (documents, queries, labels))
    ):
        raise ConfigError("expected an experiment or tables, got both", "anmi_ray.run", "call anmi_ray.change first")
    first, last = part(experiment, first, last)
    run_stages(experiment, reporter, first, last, wait=wait, offline=offline)
    return Run(experiment.name, experiment.execution.root)


def part(experiment: Experiment, first: str, last: str) -> tuple[str, str]:
    """Return the first and the last stage of the requested part. Raise ConfigError if a stage does not exist."""
    from anmi_ray.pipeline.stages import names_of, stage_name

    names = names_of(experiment)
    first = stage_name(first, names) if first else names[0]
    last = stage_name(last, names) if last else names[-1]
    if names.index(first) > names.index(last):
        raise ConfigError(f"--from {first} comes after --until {last}", "command line", "swap them")
    return first, last


def plan(experiment: Experiment, *, offline: bool = False) -> Plan:
    """Return what each stage would cost; run nothing. Read the collection, or its size from the settings in `plan`.

    Send one request without a question to each judge's server, unless `offline`. Raise AnmiError for user errors.

    >>> config = anmi_ray.load("jobs/configs/quickstart.yaml", name="other", execution={"root": "elsewhere"})
    >>> print(str(anmi_ray.plan(config)).splitlines()[-1])
    to do: 0 calls, ...; nothing is sent outside this machine or cluster
    """
    from anmi_ray.planning.plan import plan as plan_stages

    return plan_stages(experiment, offline)
