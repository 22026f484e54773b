"""Fingerprints: what the artifacts of an experiment are called, which follows from all that went into them.

So running again computes only what is missing, and runs, trials and studies share what they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.runtime.stage import Stage
from anmi_ray.store import Artifact, Store, fingerprint


@dataclass(frozen=True)
class Resolved:
    """A stage of one experiment: its settings that differ from the defaults, and its artifact's fingerprint.

    content: the hash of the collection that all follows from.
    """

    stage: Stage
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    fingerprint: str
    content: str

    def artifact(self, store: Store) -> Artifact:
        """What it makes, complete or not."""
        return Artifact(store, self.stage.name, self.fingerprint)


def resolve(experiment: Experiment, content: str | None = None) -> dict[str, Resolved]:
    """Every stage with its fingerprint, in order. Reads the collection's content hash, computes nothing else.

    `content` is that hash where it is known already: reading it takes seconds, and for many runs it need be read once.
    Raises ConfigError where a setting names what is not there: a model, a file, a run.
    """
    if content is None:
        from anmi_ray import corpus

        content = corpus.read(experiment.corpus).content_fingerprint()
    resolved: dict[str, Resolved] = {}
    for stage in stages_of(experiment):
        settings = stage.settings_of(experiment)
        inputs = {name: resolved[name].fingerprint for name in stage.reads.values()}
        inputs |= stage.also(stage.config_of(experiment), experiment, content)
        name = fingerprint(stage.name, stage.version, settings, [f"{k}={v}" for k, v in inputs.items()])
        resolved[stage.name] = Resolved(stage, settings, inputs, name, content)
    return resolved


def todo(store: Store, resolved: Mapping[str, Resolved]) -> list[Resolved]:
    """Those whose artifacts are not complete."""
    return [item for item in resolved.values() if item.artifact(store).manifest() is None]
