"""Files written by one task, with a row group for each reading task: a shard's by bucket, a bucket's by shard."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anmi_ray.core.errors import from_os_error
from anmi_ray.runtime.tasks import Carrier, Context, our_errors, windowed
from anmi_ray.store import Artifact
from anmi_ray.store.parquet import decoding, read_tail
from anmi_ray.store.uri import remove


def _path(artifact: Artifact, name: str, index: int) -> str:
    return f"{artifact.path}/exchange/{name}-{index:05d}.parquet"


def make(
    context: Context,
    artifact: Artifact,
    name: str,
    count: int,
    task: Callable[..., Any],
    *args: Any,
    what: str = "shard",
    does: str = "",
    cores: float = 1.0,
    by: Carrier = windowed,
) -> None:
    """Run `task(artifact, index, *args)` for each of `count` exchange files that is missing or cut off.

    what, does: noun and verb of the progress line.
    cores, by: as in `run_buckets`.
    """
    missing = [index for index in range(count) if groups_of(artifact, name, index) is None]
    done, unit = count - len(missing), f"{what}s {does}".rstrip()
    context.progress(done, count, unit)
    with our_errors(artifact.stage):
        calls = ((index, task, (artifact, index, *args)) for index in missing)
        for _ in by(context, calls, cores, what=what):
            done += 1
            context.progress(done, count, unit)


def publish(artifact: Artifact, name: str, index: int, tables: Iterable[pa.Table]) -> None:
    """Write a Parquet file with a row group per reader; its footer lists the row group of each (-1: no rows).

    tables: one of each reader, with the same columns, taken one after another. The file is built on the local disk.
    """
    groups, rest = list[int](), iter(tables)
    first = next(rest).replace_schema_metadata(None)
    with tempfile.TemporaryDirectory(prefix="anmi-exchange-") as folder:
        file = Path(folder) / "part.parquet"
        try:
            with pq.ParquetWriter(file, first.schema, compression="zstd", write_page_checksum=True) as writer:
                for table in itertools.chain([first], rest):
                    groups.append(max(groups, default=-1) + 1 if table.num_rows else -1)
                    if table.num_rows:
                        writer.write_table(table.replace_schema_metadata(None), row_group_size=table.num_rows)
                writer.add_key_value_metadata({"groups": ",".join(map(str, groups))})
        except OSError as error:
            raise from_os_error(error, tempfile.gettempdir()) from error
        artifact.store.publish_file(_path(artifact, name, index), file)


def answer(
    artifact: Artifact,
    asked: str,
    name: str,
    index: int,
    readers: int,
    compute: Callable[[pa.Table], pa.Table],
) -> None:
    """Publish the rows that `compute` returns for the rows asked for by all readers, one for each, in their order."""
    parts = [read(artifact, asked, reader, index) for reader in range(readers)]
    found = compute(pa.concat_tables(parts))
    bounds = itertools.accumulate((part.num_rows for part in parts), initial=0)
    publish(artifact, name, index, (found.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)))


def groups_of(artifact: Artifact, name: str, index: int) -> list[int] | None:
    """Return the row group of each reader in an exchange file, or None if it is absent or cut off."""
    path = _path(artifact, name, index)
    if not artifact.store.exists(path):
        return None
    with artifact.store.open_input(path) as stream:
        try:
            return _groups(pq.read_metadata(read_tail(stream)))
        except (ValueError, OSError):  # ArrowInvalid is the former
            return None


def _groups(footer: pq.FileMetaData) -> list[int]:
    return [int(group) for group in (footer.metadata or {})[b"groups"].decode().split(",")]


def read(artifact: Artifact, name: str, index: int, reader: int) -> pa.Table:
    """Return the rows of one reader. Raises DamagedError if they are damaged."""
    path = _path(artifact, name, index)
    place, remedy = artifact.store.where(path), artifact.store.rebuild(path)
    with decoding(place, remedy, artifact.store.local is not None), artifact.store.open_input(path) as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        group = _groups(file.metadata)[reader]
        table = file.read_row_group(group) if group >= 0 else file.schema_arrow.empty_table()
        if group >= 0 and table.num_rows != file.metadata.row_group(group).num_rows:
            raise ValueError("it holds other rows than its footer counts")
    return table.replace_schema_metadata(None)


def forget(artifact: Artifact) -> None:
    """Remove an artifact's exchange files, once they are no longer needed."""
    remove(artifact.store.uri(f"{artifact.path}/exchange"))
