"""Folders that all workers reach: paths on one machine or on a shared disk, or URIs of object storage with options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from anmi_ray.store import open_filesystem, public_root
from anmi_ray.store.parquet import read_parquet


def absolute(place: str) -> str:
    """The same folder whatever the working directory."""
    return place if "://" in place else str(Path(place).absolute())


def below(place: str, name: str) -> str:
    """A folder or file below `place`.

    >>> below("s3://bucket/runs?region=us-east-1", "ray"), below("/runs", "ray")
    ('s3://bucket/runs/ray?region=us-east-1', '/runs/ray')
    """
    base, mark, options = place.partition("?") if "://" in place else (place, "", "")
    return f"{base.rstrip('/')}/{name}{mark}{options}"


def beside(place: str, name: str) -> str:
    """A sibling of `place`.

    >>> beside("s3://bucket/runs/model?region=us-east-1", "ray"), beside("/runs/model", "ray")
    ('s3://bucket/runs/ray?region=us-east-1', '/runs/ray')
    """
    base, mark, options = place.partition("?") if "://" in place else (place, "", "")
    return f"{base.rstrip('/').rpartition('/')[0]}/{name}{mark}{options}"


def filesystem(place: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a folder or URI, and the path on it; models and checkpoints want uploads in parts.

    Raises StoreError as `open_filesystem`.
    """
    return open_filesystem(place, one_put=False)


def read_table(place: str) -> pa.Table:
    """A Parquet file of the store as a table. Raises StoreError as `parquet.read_parquet`."""
    files, path = filesystem(place)
    return read_parquet(files, path, public_root(place), f"delete {public_root(place)}, then run again")


def of_ray(place: str) -> dict[str, Any]:
    """A folder or URI as Ray Train and Ray Tune take their storage. Raises StoreError as `open_filesystem`."""
    files, path = filesystem(place)
    return {
        "storage_path": path,
        "storage_filesystem": None if isinstance(files, pafs.LocalFileSystem) else files,
    }


def remove(place: str) -> None:
    """Remove a folder with all that is in it, if there is one."""
    files, path = filesystem(place)
    if files.get_file_info(path).type is pafs.FileType.Directory:
        files.delete_dir(path)
