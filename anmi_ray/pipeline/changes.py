"""What a run would redo, and why: its fingerprints against what stands in the store and what its name pointed at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.pipeline.resolve import Resolved
from anmi_ray.store import Store


def changes(experiment: Experiment, resolved: Mapping[str, Resolved]) -> Iterator[tuple[str, str, str]]:
    """(stage, state, why) for every stage: complete or to be done, against what the run's name last pointed at."""
    store = Store(experiment.execution.root)
    before = (store.read_json(f"runs/{experiment.name}.json") or {}).get("stages", {})
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
