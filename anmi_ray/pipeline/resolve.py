"""Fingerprints: names of an experiment's artifacts, which follow from all their inputs.

So a run computes only what is missing, runs, trials and studies share artifacts, and a plan knows what a run would redo
and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages import ingest
from anmi_ray.store import Artifact, Store, fingerprint, runs


@dataclass(frozen=True)
class Resolved:
    """A stage of one experiment.

    settings: those that differ from the defaults.
    inputs: fingerprints of the artifacts that it reads, and its other inputs, by name.
    fingerprint: of its artifact.
    content: hash of the collection.
    """

    stage: Stage
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    fingerprint: str
    content: str

    def artifact(self, store: Store) -> Artifact:
        """Return its artifact, complete or not."""
        return Artifact(store, self.stage.name, self.fingerprint)


def resolve(experiment: Experiment, content: str | None = None) -> dict[str, Resolved]:
    """Return every stage with its fingerprint, in order.

    content: the collection's content hash; read by default, which takes seconds.
    Raises ConfigError if a setting names a model, a file or a run that does not exist.
    """
    if content is None:
        from anmi_ray import corpus

        content = corpus.read(ingest.config_of(experiment)).content_fingerprint()
    resolved: dict[str, Resolved] = {}
    for stage in stages_of(experiment):
        settings = stage.settings_of(experiment)
        inputs = {name: resolved[name].fingerprint for name in stage.reads.values()}
        inputs |= stage.also(stage.config_of(experiment), experiment, content)
        name = fingerprint(stage.name, stage.version, settings, [f"{k}={v}" for k, v in inputs.items()])
        resolved[stage.name] = Resolved(stage, settings, inputs, name, content)
    return resolved


def todo(store: Store, resolved: Mapping[str, Resolved]) -> list[Resolved]:
    """Return the stages whose artifacts are not complete."""
    return [item for item in resolved.values() if item.artifact(store).manifest() is None]


def changes(experiment: Experiment, resolved: Mapping[str, Resolved]) -> Iterator[tuple[str, str, str]]:
    """Yield (stage, state, why): whether it is complete or to do, compared with the run's record."""
    store = Store(experiment.execution.root)
    before = (runs.recorded(store, experiment.name) or {}).get("stages", {})
    for name, item in resolved.items():
        if item.artifact(store).manifest() is not None:
            yield name, "complete", ""
            continue
        known = before.get(name)
        if known is None:
            yield name, "to do", "not run yet"
        elif known["fingerprint"] == item.fingerprint:
            yield name, "to do", "started, not finished: finished buckets are kept"
        else:
            yield name, "to do", "; ".join(_differences(known, item)) or "a new version of the stage"


def _differences(known: Mapping[str, Any], item: Resolved) -> Iterator[str]:
    old = _flat(known["settings"])
    new = _flat(item.settings)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key, "default") != new.get(key, "default"):
            yield f"{item.stage.group}.{key}: {old.get(key, 'default')} -> {new.get(key, 'default')}"
    for name, value in item.inputs.items():
        if known["inputs"].get(name) != value:
            yield f"{name} changes"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
