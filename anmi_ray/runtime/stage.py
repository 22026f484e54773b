"""The description of a stage, in addition to its body; `anmi_ray/pipeline/stages.py` lists the stages.

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

Body = Callable[[Artifact, Mapping[str, Artifact], Any, Context], dict[str, Any]]


@dataclass(frozen=True)
class Split:
    """The split of queries without which a stage has nothing to do, and how its user gets one."""

    name: str
    remedy: str


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    name: of its artifacts' folder, and what users call it.
    version: rises whenever the same inputs and settings would give other rows.
    inputs: the roles whose artifacts it reads, each named as the stage that plays it, but for those in `played_by`.
    does: description for the user.
    run: (artifact to make, inputs by role, settings, context) -> facts for the manifest, "flows" among them.
    cost: its calls, tokens, dollars and GPU hours, and the comparisons it passes on; zero by default.
    settings: dotted name of the group of settings that is its own; "" where that is called as the stage is.
    config: settings that it works with, where they are not that group as it stands.
    left_out: of these settings, those that change no result of its own: where things lie, what other stages are of.
    played_by: by role, the stage whose artifact is read in it.
    of: the stage as it is in an experiment, where inputs depend on settings.
    also: by name, what else its result follows from: models' revisions, templates, files; the last argument is the hash
        of the collection's content.
    asks: its settings are a panel of judges, whom it asks.
    direct: it asks them about single documents, in one order, and only those of the panel that can say.
    needs: what it asks of a cluster at once, beside room for plain tasks.
    check: what would keep it from ending well where the run is started, such as a package that is not installed; read
        before anything starts.
    split: the queries without which it cannot begin.
    publish: puts a complete artifact's files where users look, under a run's name; also where it was there already.
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
    publish: Callable[[Artifact, Mapping[str, Artifact], str], None] = lambda *_: None

    @property
    def group(self) -> str:
        """The dotted name of its group of settings."""
        return self.settings or self.name

    @property
    def reads(self) -> dict[str, str]:
        """By role, the stage whose artifact is read."""
        return {role: self.played_by.get(role, role) for role in self.inputs}

    def config_of(self, experiment: Experiment) -> Any:
        """The settings that it works with."""
        return attrgetter(self.group)(experiment) if self.config is None else self.config(experiment)

    def panel(self, experiment: Experiment) -> JudgeConfig:
        """The judges that it asks, as it asks them."""
        panel: JudgeConfig = self.config_of(experiment)
        return panel.direct if self.direct else panel

    def orders(self, experiment: Experiment) -> int:
        """Orders in which it asks about a comparison."""
        return 1 if self.direct or self.panel(experiment).orders == "one" else 2

    def settings_of(self, experiment: Experiment) -> dict[str, Any]:
        """Return the non-default settings that can change its result, including the run's seed."""
        found = result_settings(self.config_of(experiment))
        settings = {name: value for name, value in found.items() if name not in self.left_out}
        if not experiment.seed:
            return settings
        return {**settings, "experiment.seed" if "seed" in settings else "seed": experiment.seed}
