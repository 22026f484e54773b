"""Artifacts: what stages made, under a fingerprint of what can change it, with the rows that went in and came out.

That a file opens proves nothing (a writer that dies inside leaves a valid partial file), so a part counts only when its
footer names its fingerprint, schema version and row counts, and an artifact only when `manifest.json`, written last, is
there. `files.json`, written before it, lists the sizes of all files: a file that is missing later is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from anmi_ray.core.errors import DamagedError
from anmi_ray.core.records import REJECT
from anmi_ray.core.schema import Record
from anmi_ray.store.files import Store, at_once
from anmi_ray.store.parquet import parquet_bytes

MANIFEST = "manifest.json"
FILES = "files.json"


@dataclass(frozen=True)
class Flow:
    """Rows of one unit across a boundary. `rows_in = rows_out + rejected`, always."""

    unit: str
    rows_in: int
    rows_out: int
    rejected: int = 0

    def __post_init__(self) -> None:
        if self.rows_in != self.rows_out + self.rejected:
            raise AssertionError(f"{self.unit}: {self.rows_in} in, {self.rows_out} out, {self.rejected} rejected")


def add_flows(flows: Iterable[Flow]) -> list[Flow]:
    """Sum flows by unit, in order of first appearance."""
    totals: dict[str, list[int]] = {}
    for flow in flows:
        total = totals.setdefault(flow.unit, [0, 0, 0])
        for i, value in enumerate((flow.rows_in, flow.rows_out, flow.rejected)):
            total[i] += value
    return [Flow(unit, *counts) for unit, counts in totals.items()]


def fingerprint(stage: str, version: int, settings: Mapping[str, Any], inputs: Iterable[str]) -> str:
    """Identity of an artifact: stage version, the non-default settings that can change it, its inputs' fingerprints."""
    content = {"stage": stage, "version": version, "settings": settings, "inputs": list(inputs)}
    raw = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


@dataclass(frozen=True)
class Artifact:
    """What one stage made from one set of inputs and settings: Parquet parts per bucket, small JSON, a manifest."""

    store: Store
    stage: str
    fingerprint: str

    @property
    def path(self) -> str:
        """The artifact's folder in the store."""
        return f"artifacts/{self.stage}/{self.fingerprint}"

    def part_path(self, part: str, bucket: int) -> str:
        """Path of a part of a bucket."""
        return f"{self.path}/{part}/{bucket:05d}.parquet"

    def publish_part(self, part: str, bucket: int, table: pa.Table, record: Record, flows: Iterable[Flow] = ()) -> None:
        """Check `table` against `record` and publish it as `part` of `bucket`."""
        place = self.store.where(self.part_path(part, bucket))
        footer = {
            "fingerprint": self.fingerprint,
            "record": record.name,
            "version": record.version,
            "flows": [asdict(flow) for flow in flows],
        }
        # The cast changes no value: it takes the record's nullability and field names, which are part of the bytes.
        table = record.check(table, place).cast(record.schema)
        self.store.publish(self.part_path(part, bucket), parquet_bytes(table, footer))

    def commit_bucket(
        self,
        bucket: int,
        parts: Mapping[str, tuple[Record, pa.Table]],
        flows: list[Flow],
        rejects: pa.Table | None,
        explained: int = 0,
    ) -> None:
        """Publish a bucket: its rejects, then its parts, the first named part last: its footer completes the bucket.

        Rejected rows counted in `flows` are in `rejects`, except for the `explained` ones, which are in a part with
        their reason
        (a judgment with its error).
        """
        counted = sum(flow.rejected for flow in flows) - explained
        if counted and (rejects is None or not rejects.num_rows):
            raise AssertionError(f"{self.stage}: {counted} rows rejected, but no reject rows say which")
        if rejects is not None and rejects.num_rows:
            self.publish_part("rejects", bucket, rejects, REJECT)
        for name in reversed(list(parts)):
            record, table = parts[name]
            self.publish_part(name, bucket, table, record, flows)

    def seal(self, part: str, record: Record, bucket: int) -> list[Flow] | None:
        """The flows of a finished bucket, or None when it is not finished under this fingerprint and schema."""
        footer = self.store.footer(self.part_path(part, bucket))
        wanted = {"fingerprint": self.fingerprint, "record": record.name, "version": record.version}
        if footer is None or any(footer.get(key) != value for key, value in wanted.items()):
            return None
        try:
            return [Flow(**flow) for flow in footer["flows"]]
        except (AssertionError, KeyError, TypeError):  # damaged
            return None

    def seals(self, part: str, record: Record, buckets: int) -> list[list[Flow] | None]:
        """`seal` of every bucket."""
        return at_once(partial(self.seal, part, record), range(buckets))

    def read_part(self, part: str, bucket: int, record: Record, columns: list[str] | None = None) -> pa.Table:
        """A part of a bucket, or some columns, with the types of its record; all else was checked on writing."""
        path = self.part_path(part, bucket)
        schema = record.schema if columns is None else pa.schema([record.schema.field(name) for name in columns])
        table = self.store.read_table(path, columns).replace_schema_metadata(None)
        return Record(record.name, record.version, (), schema).check(table, self.store.where(path)).cast(schema)

    def rejects(self) -> pa.Table:
        """All rejects of the artifact."""
        names = self.store.names(f"{self.path}/rejects")
        tables = [self.store.read_table(f"{self.path}/rejects/{name}").replace_schema_metadata(None) for name in names]
        return pa.concat_tables([REJECT.empty(), *(table.cast(REJECT.schema) for table in tables)])

    def read_json(self, name: str) -> Any:
        """A small document of the artifact, or None."""
        return self.store.read_json(f"{self.path}/{name}")

    def publish_json(self, name: str, content: Any) -> None:
        """Publish a small document of the artifact."""
        self.store.publish_json(f"{self.path}/{name}", content)

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of a complete artifact, or None. Raises DamagedError where it is not what was written."""
        content = self.store.read_json(f"{self.path}/{MANIFEST}", cut=True)
        if content is not None and (not isinstance(content, dict) or not isinstance(content.get("flows"), list)):
            path = f"{self.path}/{MANIFEST}"
            raise DamagedError("expected a manifest", self.store.where(path), self.store.rebuild(path))
        return content

    def complete(self, flows: list[Flow], **facts: Any) -> dict[str, Any]:
        """Declare the artifact complete. `facts` are settings, inputs and whatever a reader should find here."""
        content = {
            "stage": self.stage,
            "fingerprint": self.fingerprint,
            "flows": [asdict(flow) for flow in add_flows(flows)],
            **facts,
        }
        self.publish_json(MANIFEST, content)
        return content

    def list_files(self) -> None:
        """Publish the list of all files with their bytes, before the artifact is complete."""
        sizes = self.store.sizes(self.path, recursive=True)
        self.publish_json(FILES, {name: {"bytes": sizes[name]} for name in sorted(sizes.keys() - {MANIFEST, FILES})})

    def check_files(self) -> None:
        """Raise DamagedError where a listed file is missing or of another size. Older artifacts have no list."""
        listed = self.read_json(FILES) or {}
        sizes = self.store.sizes(self.path, recursive=True) if listed else {}
        for name, file in listed.items():
            if sizes.get(name) != file["bytes"]:
                got = f"got {sizes[name]}" if name in sizes else "found no such file"
                path = f"{self.path}/{name}"
                message = f"expected {file['bytes']} bytes, {got}"
                raise DamagedError(message, self.store.where(path), self.store.rebuild(path))
