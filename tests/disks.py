"""A disk of its own that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(place: Path, size: str) -> Iterator[Path]:
    """A new folder on a disk of `size`, as mount writes it; where nothing may be mounted the test is skipped."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"may not mount: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        # a process that ends may still hold a file there
        subprocess.run(["umount", "--lazy", str(place)], check=True)
