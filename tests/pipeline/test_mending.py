"""What is lost or damaged under a root is made again by the stage that made it, byte for byte, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.config.load import load
from anmi_ray.core.errors import DamagedError
from anmi_ray.pipeline.run import run
from anmi_ray.store import Artifact, Store
from tests.small import Remembering, start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def files(root: Path) -> dict[str, bytes]:
    """What the stages made, by path."""
    top = root / "artifacts"
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_lost_and_damaged_files_are_made_again(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    root = start_from(prepared, tmp_path / "root", "mine")
    config = load(write_config(tmp_path / "small.yaml", small_collection), [f"execution.root={root}"])
    record = run(config, Remembering(), last="mine")
    whole = files(root)
    answers = {path: path.stat().st_mtime_ns for path in (root / "answers").rglob("*")}
    folders = {name: root / "artifacts" / name / stage["fingerprint"] for name, stage in record["stages"].items()}
    lost = {
        "ingest": "queries/00001.parquet",
        "retrieve": "texts/00002.parquet",
        "judge": "judgments/00000.parquet",
        "rate": "gaps/00003.parquet",
        "mine": "manifest.json",
    }
    for name, file in lost.items():
        (folders[name] / file).unlink()
    told = Remembering()
    run(config, told, last="mine")
    assert told.computed == list(lost)
    assert files(root) == whole
    for name in ("ingest", "retrieve", "judge", "rate"):
        assert any(f"{name}: {lost[name]} lost or damaged: made again" in notice for notice in told.notices)
    assert answers.items() <= {path: path.stat().st_mtime_ns for path in (root / "answers").rglob("*")}.items()

    # changed in the middle: seen where the next stage reads it
    flip(folders["retrieve"] / "candidates" / "00001.parquet")
    flip(folders["mine"] / "summary.json")
    (folders["rate"] / "ratings" / "00002.parquet").unlink()
    (folders["compare"] / "manifest.json").unlink()
    (folders["compare"] / "comparisons" / "00001.parquet").unlink()
    with pytest.raises(DamagedError, match="its stage makes it anew"):
        Artifact(Store(str(root)), "mine", folders["mine"].name).read_json("summary.json")
    (folders["mine"] / "summary.json").unlink()
    told = Remembering()
    run(config, told, last="mine")
    assert told.computed == ["retrieve", "compare", "rate", "mine"]
    assert files(root) == whole
