"""The description of a stage; `anmi_ray/pipeline/stages.py` lists the stages.

Nothing here imports Ray, and a module that declares a stage imports neither Ray nor a model's code before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from anmi_ray.config.base import Settings, result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import AnmiError
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact

Inputs = Mapping[str, Artifact]  # of a stage, by role
Body = Callable[[Artifact, Inputs, Any, Context], dict[str, Any]]


@dataclass(frozen=True)
class Split:
    """The split of queries that a stage needs, and how to get one."""

    name: str
    remedy: str


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    name: of its artifacts' folder, and for users.
    version: incremented whenever the same inputs and settings would give other rows.
    inputs: the roles whose artifacts it reads; a role is the name of a stage unless it is in `played_by`.
    does: description for the user.
    run: (artifact to make, inputs by role, settings, context) -> facts for the manifest, including "flows".
    cost: its calls, tokens, dollars and GPU hours, and the comparisons it passes on; zero by default.
    settings: dotted name of its group of settings; "" if it has the stage's name.
    config: its settings, if they are not that group unchanged.
    left_out: names of these settings that do not change its result.
    played_by: by role, the stage whose artifact is read.
    of: returns the stage for an experiment, if its inputs depend on settings.
    also: by name, other inputs of the result: models' revisions, templates, files; the last argument is the hash of the
        collection's content.
    asks: its settings are a panel of judges, which it asks.
    direct: it asks them about single documents, in one order, and only judges that can answer that.
    needs: its resources on a cluster at once, in addition to plain tasks.
    check: problems on the machine that starts the run, such as a missing package; checked before anything starts.
    split: the queries that it needs.
    publish: copies a complete artifact's files to where users look, under a run's name; also if it is reused.
    """

    name: str
    version: int
    inputs: tuple[str, ...]
    does: str
    run: Body
    cost: Callable[[Workload], StageCost] = lambda _: StageCost()
    settings: str = ""
    config: Callable[[Experiment], Settings] | None = None
    left_out: frozenset[str] = frozenset()
    played_by: Mapping[str, str] = field(default_factory=dict[str, str])
    of: Callable[[Stage, Experiment], Stage] = lambda stage, _: stage
    also: Callable[[Any, Experiment, str], Mapping[str, str]] = lambda *_: {}
    asks: bool = False
    direct: bool = False
    needs: Callable[[Stage, Experiment], Iterable[Need]] = lambda *_: ()
    check: Callable[[Stage, Experiment], Iterable[AnmiError]] = lambda *_: ()
    split: Split | None = None
    publish: Callable[[Artifact, Inputs, str], None] = lambda *_: None

    @property
    def group(self) -> str:
        """The dotted name of its group of settings."""
        return self.settings or self.name

    @property
    def reads(self) -> dict[str, str]:
        """By role, the stage whose artifact is read."""
        return {role: self.played_by.get(role, role) for role in self.inputs}

    def config_of(self, experiment: Experiment) -> Any:
        """Return its settings."""
        return attrgetter(self.group)(experiment) if self.config is None else self.config(experiment)

    def panel(self, experiment: Experiment) -> JudgeConfig:
        """Return the judges that it asks."""
        panel: JudgeConfig = self.config_of(experiment)
        return panel.direct if self.direct else panel

    def orders(self, experiment: Experiment) -> int:
        """Return the number of orders in which it asks about a comparison."""
        return 1 if self.direct or self.panel(experiment).orders == "one" else 2

    def settings_of(self, experiment: Experiment) -> dict[str, Any]:
        """Return the non-default settings that can change its result, including the run's seed."""
        effective = result_settings(self.config_of(experiment))
        settings = {name: value for name, value in effective.items() if name not in self.left_out}
        if not experiment.seed:
            return settings
        return {**settings, "experiment.seed" if "seed" in settings else "seed": experiment.seed}
