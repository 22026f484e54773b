"""Conditions of training that are compared: what each learns from, trained from the same start with every seed.

The plan is label_free.yaml. Trainings stand by part, condition and seed, so studies that share some share these.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.core.errors import ConfigError, JudgeError
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Store
from jobs.studies import harness
from jobs.studies.collected import Part, exported, halves, judged_queries
from jobs.studies.student_training import READ, Material, work
from jobs.studies.students import Collection

FOLDER = "studies/label_free"
UNTRAINED, LABELS = "untrained", "labels"
LabelFreeT = TypeVar("LabelFreeT", bound="LabelFree")


class Condition(Settings):
    """Where the train queries' positives come from."""

    positives: Literal["known", "first", "judges"] = Field(
        description="known: labels; first: pseudo-labels by rank and similarity; judges: labels are hidden"
    )
    settings: dict[str, Any] = Field(default={}, description="settings of the experiment that are its own")
    train: dict[str, Any] = Field(default={}, description="settings of training that are its own")


class Plan(Settings):
    """What the file says."""

    depth: int = Field(ge=1, description="documents of the hybrid's top that are ranked")
    train: dict[str, Any] = Field(description="settings of training, of every condition")
    conditions: dict[str, Condition]
    collections: dict[str, Collection]
    settings: dict[str, Any] = Field(description="settings that all experiments share")


@dataclass(frozen=True)
class LabelFree:
    """What is trained and compared: a part holds the true labels, and `folder` by its name the collection's files."""

    plan: Plan
    parts: tuple[Part, ...]
    folder: Mapping[str, Path]
    conditions: tuple[str, ...]
    seeds: int
    root: str
    refused: tuple[str, ...] = ()

    def experiment(self, part: Part, condition: str) -> Experiment:
        """The experiment that makes a condition's examples."""
        of = self.plan.conditions[condition]
        one = self.plan.collections[part.collection]
        own: dict[str, Any] = {"corpus": {"path": str(self.learned_from(part, condition))}}
        if of.positives in ("judges", "first"):
            own["corpus"]["labels"] = ["dev", "test"]
        if of.positives == "first":
            own["mine"] = {"anchors": "retrieved"}
        content = harness.merged(
            [self.plan.settings, one.settings, of.settings, own, {"execution": {"root": self.root}}]
        )
        return validate({**content, "name": f"label-free-{part.name}-{condition}"}, f"the study, {condition}")

    def learned_from(self, part: Part, condition: str) -> Path:
        """The collection whose train queries a condition learns from."""
        return self.folder[part.name]

    def truth(self, part: Part, condition: str) -> Material:
        """Where it stands what is relevant for the train queries of a condition."""
        return Material(self.root, stages_of(part.experiment))

    def seeds_of(self, condition: str) -> int:
        """How often a condition is trained; the untrained has nothing drawn."""
        return 1 if condition == UNTRAINED else self.seeds

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Every training, seed after seed, so that a study that is stopped has all conditions."""
        found: dict[str, dict[str, Any]] = {}
        for seed in range(self.seeds):
            for part in self.parts:
                for condition in (UNTRAINED, *self.conditions):
                    if seed < self.seeds_of(condition):
                        found[task_name(part, condition, seed)] = self._task(part, condition, seed)
        return found

    def _task(self, part: Part, condition: str, seed: int) -> dict[str, Any]:
        """One training; what learns from another collection is tested on the part all the same."""
        untrained = condition == UNTRAINED
        own = {} if untrained else self.plan.conditions[condition].train
        mined = part.experiment if untrained else self.experiment(part, condition)
        elsewhere = not untrained and self.learned_from(part, condition) != self.folder[part.name]
        stages = {"stages": stages_of(part.experiment, mined)}
        if elsewhere:
            stages = {"stages": stages_of(mined), "tested": stages_of(part.experiment)}
        return {
            "name": task_name(part, condition, seed),
            "part": part.name,
            **stages,
            "system": {"train": harness.merged([self.plan.train, own]), "peer": None},
            "untrained": untrained,
            "max_tokens": self.plan.collections[part.collection].max_tokens,
            "depth": self.plan.depth,
            "retrieves": False,
            "seed": seed,
        }


def stages_of(experiment: Experiment, mined: Experiment | None = None) -> dict[str, str]:
    """What a training reads of an experiment; `mined`: another, whose examples are learned from."""
    stages = {name: resolve(experiment)[name].fingerprint for name in READ}
    return stages if mined is None else {**stages, "mine": resolve(mined)["mine"].fingerprint}


def task_name(part: Part, condition: str, seed: int) -> str:
    """Of one training."""
    return f"label-free-{part.name}-{condition}-s{seed}"


def prepare(plan: Plan, given: argparse.Namespace) -> LabelFree:
    """What the command line leaves of the plan, every experiment with true labels validated. Raises ConfigError."""
    folders = harness.folders(given.data, plan.collections)
    conditions = tuple(filter(None, (given.conditions or "").split(","))) or tuple(plan.conditions)
    if strangers := [name for name in conditions if name not in plan.conditions]:
        raise ConfigError(
            f"no condition is called {', '.join(strangers)}",
            "--conditions",
            f"choose from {', '.join(plan.conditions)}",
        )
    chosen = set(filter(None, (given.collections or "").split(",")))
    parts: list[Part] = []
    folder: dict[str, Path] = {}
    for name, one in plan.collections.items():
        corpus_settings = one.settings.get("corpus", {})
        if (name not in folders and corpus_settings.get("reader") is None) or (chosen and name not in chosen):
            continue
        place = Path(given.root) / FOLDER / "collections" / name
        if name in folders:
            paths = halves(str(folders[name]), place) if one.halves else [Path(folders[name])]
            paths = [judged_queries(path, place / f"judged-{number}") for number, path in enumerate(paths)]
        else:
            paths = [exported(validate({"corpus": corpus_settings}, f"the study, {name}").corpus, place)]
        settings = {key: value for key, value in one.settings.items() if key != "corpus"}
        plan.collections[name] = one.model_copy(update={"settings": settings})
        for number, path in enumerate(paths):
            own = {"corpus": {"reader": "beir", "path": str(path)}, "execution": {"root": given.root}}
            content = harness.merged([plan.settings, settings, own])
            part = Part(
                name, number, validate({**content, "name": f"label-free-{name}-{number}"}, f"the study, {name}")
            )
            parts.append(part)
            folder[part.name] = path
    if not parts:
        raise ConfigError("no collection is left", "--data", "give --data NAME=FOLDER")
    return LabelFree(plan, tuple(parts), folder, conditions, given.seeds, str(given.root))


def _judged(of: LabelFreeT) -> LabelFreeT:
    """Every condition's examples are made; a condition that a run refuses, for its judges tell nothing, is left out."""
    refused: dict[str, str] = {}
    for part in of.parts:
        for name in of.conditions:
            try:
                harness.make([of.experiment(part, name)])
            except JudgeError as error:
                refused.setdefault(name, f"{part.name}: {name} is refused, {error.message}")
    kept = tuple(name for name in of.conditions if name not in refused)
    return replace(of, conditions=kept, refused=tuple(refused.values()))


def trained(of: LabelFreeT, workers: int) -> tuple[LabelFreeT, dict[str, dict[str, Any]]]:
    """Make examples and train what is missing; the study with the conditions that are left, and what trainings cost."""
    harness.make([part.experiment for part in of.parts])
    of = _judged(of)
    out = Store(str(Path(of.root) / FOLDER / "trainings"))
    return of, harness.work_side_by_side(of.tasks(), partial(work, of.root), out, workers)


def arguments(study: harness.Study, seeds: int) -> argparse.ArgumentParser:
    """The arguments of a study that compares conditions of this plan."""
    parser = harness.parser(study, seeds=seeds, data=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("label_free.yaml"))
    parser.add_argument("--collections", help="some of the collections, by commas")
    parser.set_defaults(conditions=None)
    return parser
