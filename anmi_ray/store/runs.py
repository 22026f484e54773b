"""The runs of a root: their records and models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.mistakes import members
from anmi_ray.config.paths import RUN_NAME, check_address
from anmi_ray.core.errors import ConfigError, DamagedError
from anmi_ray.store import Artifact, Store, public_root

TRAINED = "trained by "  # begins the role of another run's model; the name of its peer follows
_ANEW = "delete it and run again: artifacts are found, and the record is written again"


def recorded(store: Store, name: str) -> dict[str, Any] | None:
    """The record of run `name`, or None. Raises DamagedError for a file that is not a record."""
    path = f"runs/{name}.json"
    record = store.read_json(path, _ANEW)
    if record is None:
        return None
    if not _is_record(record):
        raise DamagedError("not the record of a run", store.where(path), _ANEW)
    if "environment" in record:
        record["environment"] = _Held(record["environment"], store.where(path))
    return _Held(record, store.where(path))


class _Held(dict[str, Any]):
    """A part of a record. Missing keys raise DamagedError."""

    def __init__(self, content: Mapping[str, Any], place: str) -> None:
        super().__init__(content)
        self.place = place

    def __missing__(self, name: str) -> Any:
        raise DamagedError(f"not the record of a run: it has no {name}", self.place, _ANEW)


def _is_record(record: Any) -> bool:
    """True if the record names the artifacts of a run, and settings and environment are groups."""
    if not isinstance(record, dict):
        return False
    parts: list[Any] = [record.get(name, {}) for name in ("stages", "failed", "config", "environment")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    stages, failed, config, _ = parts
    names = [
        stage.get("fingerprint") if isinstance(stage, dict) else None for stage in (*stages.values(), *failed.values())
    ]
    named = all(isinstance(name, str) and re.fullmatch(r"[\w-]+", name) for name in names)
    return isinstance(config.get("seed", 0), int) and named


def find_run(name: str, root: str) -> tuple[Store, dict[str, Any]]:
    """The store under `root` and the record of run `name`.

    Raises ConfigError if the run does not exist, or if the root's address contains a credential.
    """
    check_address(root, "root")
    store = Store(root)
    record = recorded(store, name) if re.fullmatch(RUN_NAME, name) else None  # nothing else is read for a name
    if record is None:
        names = [file.removesuffix(".json") for file in store.names("runs")]
        raise ConfigError(
            f"no run of that name; there are {members(names) or 'no runs'}",
            f"{root}/runs/{name}.json",
            f"{'give one of them' if names else 'start one with anmi run'}, or give its root with --root",
        )
    return store, record


def trained(name: str, root: str, corpus: str | None) -> Artifact:
    """The complete train artifact of run `name` under `root`, over the collection with content hash `corpus` (None:
    any).

    Raises ConfigError if the run does not exist, used another collection, or has no model.
    """
    store, record = find_run(name, root)
    place = store.where(f"runs/{name}.json")
    if corpus is not None and record["corpus"] != corpus:
        raise ConfigError(
            f"run {name} is over another collection ({record['corpus_name']})",
            place,
            "name a run over this one: its model is to score the same documents",
        )
    stage = record["stages"].get("train")
    artifact = None if stage is None else Artifact(store, "train", stage["fingerprint"])
    if artifact is None or artifact.manifest() is None:
        raise ConfigError(f"run {name} has no model: its train stage is not complete", place, "carry it out first")
    return artifact


def collection_of(record: Mapping[str, Any]) -> str:
    """Public name of a run's collection: its id in ir_datasets, else the last part of its path."""
    name = public_root(str(record["corpus_name"]))  # old versions recorded credentials in addresses
    listed = record.get("config", {}).get("corpus", {}).get("reader") == "ir_datasets"
    return name if listed else Path(name).name


def of_other_runs(store: Store, inputs: Mapping[str, str]) -> dict[str, Artifact]:
    """By role, the artifacts of other runs among a stage's inputs (name -> fingerprint)."""
    return {role: Artifact(store, "train", name) for role, name in inputs.items() if role.startswith(TRAINED)}


def known_buckets(store: Store) -> int | None:
    """Number of query buckets of an existing root, else None."""
    content = store.read_json("root.json")
    return content.get("buckets") if isinstance(content, dict) else None


def buckets_kept(store: Store, execution: ExecutionConfig) -> str | None:
    """A note if the settings name another number of buckets than the root has, which it keeps."""
    buckets = known_buckets(store)
    if buckets in (None, execution.buckets) or "buckets" not in execution.model_fields_set:
        return None
    wanted = f"execution.buckets: {execution.buckets} is for a new root (--root)"
    return f"{wanted}; this one keeps the {buckets} of its first run"
