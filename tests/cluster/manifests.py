"""The committed manifests, read, and validated by their kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import schema
from tests.cluster.schema import Fields

ROOT = Path(__file__).parents[2]
KINDS: dict[str, type[Fields]] = {
    model.__name__: model
    for model in (
        schema.Namespace,
        schema.PodMonitor,
        schema.RayCluster,
        schema.RayJob,
        schema.RayService,
        schema.ResourceFlavor,
        schema.ClusterQueue,
        schema.LocalQueue,
    )
}
Place = tuple[str | int, ...]  # keys and positions from a document's top


def documents(path: Path) -> list[dict[str, Any]]:
    """Documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def kubernetes_files() -> list[Path]:
    """Every manifest for Kubernetes."""
    return sorted((ROOT / "cluster" / "kuberay").glob("*.yaml"))


def of(name: str) -> dict[str, Any]:
    """The one document of cluster/kuberay/NAME.yaml."""
    (document,) = documents(ROOT / "cluster" / "kuberay" / f"{name}.yaml")
    return document


def validate(document: dict[str, Any]) -> Fields:
    """The document as its kind's fields. Raises pydantic's ValidationError."""
    return KINDS[document["kind"]].model_validate(document)


def mappings(value: Any, path: Place = ()) -> Iterator[Place]:
    """Paths of all mappings in a document."""
    if isinstance(value, dict):
        yield path
    for key, member in _members(value):
        yield from mappings(member, (*path, key))


def scalars(value: Any, path: Place = ()) -> Iterator[Place]:
    """Paths of all values that are neither mapping nor list."""
    if not isinstance(value, dict | list):
        yield path
    for key, member in _members(value):
        yield from scalars(member, (*path, key))


def at(value: Any, path: Place) -> Any:
    """What stands at a path."""
    for key in path:
        value = value[key]
    return value


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)
