"""Runs over the small collection for tests of stages: one root, settings by override, and what a run made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.records import COMPARISON, Record
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, Flow, Store, runs
from tests.judging.serving import Chat
from tests.models.tiny import write_tiny_bert
from tests.small import Remembering, write_config

Key = tuple[bytes, bytes, bytes]  # query, the smaller document, the larger


class Done:
    """A run and how to read what it made."""

    def __init__(self, settings: Experiment, record: dict[str, Any], told: Remembering) -> None:
        self.settings, self.record, self.told = settings, record, told
        self.store = Store(settings.execution.root)

    def artifact(self, stage: str) -> Artifact:
        return Artifact(self.store, stage, self.record["stages"][stage]["fingerprint"])

    def folder(self, stage: str) -> Path:
        return Path(self.store.root) / self.artifact(stage).path

    def part(self, stage: str, part: str, kind: Record) -> pa.Table:
        buckets = range(self.settings.execution.buckets)
        return pa.concat_tables([self.artifact(stage).read_part(part, bucket, kind) for bucket in buckets])

    def flow(self, stage: str, unit: str) -> Flow:
        [found] = (flow for flow in self.told.flows[stage] if flow.unit == unit)
        return found

    def pairs(self, stage: str, part: str = "comparisons") -> set[Key]:
        table = self.part(stage, part, COMPARISON)
        return set(zip(*(table[name].to_pylist() for name in ("query_id", "doc_a", "doc_b")), strict=True))

    def report(self, name: str) -> str:
        """The text of a file of the run's report."""
        return (Path(self.store.root) / "reports" / self.settings.name / name).read_text(encoding="utf-8")


class World:
    """A root for the runs of a file's tests, and their configuration."""

    def __init__(self, folder: Path, collection: Path, **settings: object) -> None:
        self.root = folder / "root"
        train = {"model": str(write_tiny_bert(folder / "tiny")), "max_steps": 2, "max_tokens": 48, "dev_points": [1.0]}
        self.config = write_config(folder / "small.yaml", collection, **{"train": train, **settings})

    def settings(self, *overrides: str) -> Experiment:
        return load(self.config, [f"execution.root={self.root}", *overrides])

    def carry_out(self, *overrides: str, last: str = "mine") -> Done:
        settings, told = self.settings(*overrides), Remembering()
        return Done(settings, run(settings, told, last=last), told)

    def recorded(self, name: str, settings: Experiment | None = None) -> Done:
        """A run that something else carried out."""
        record = runs.recorded(Store(str(self.root)), name)
        assert record is not None
        return Done(settings or self.settings(f"name={name}"), record, Remembering())


def served(chat: Chat, **more: Any) -> str:
    """The setting of a panel of one judge behind a server that says A, and yes to every other document."""
    endpoint = chat.config(input_price=1.0, output_price=1.0, max_tokens=2).model_dump(exclude_defaults=True)
    judge = {"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}
    return f"judge={json.dumps({'judges': [judge], **more})}"
