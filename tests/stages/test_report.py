"""Each run writes `reports/<run>/` again."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.stages import report
from anmi_ray.store import Artifact, Store


def published(root: Path) -> tuple[Artifact, dict[str, Artifact], dict[str, bytes]]:
    """A report and what was measured, in small, with the files that its run's folder holds."""
    store = Store(str(root))
    evaluate, page = Artifact(store, "evaluate", "f00"), Artifact(store, "report", "f01")
    evaluate.publish_json("comparisons.json", [{"system": "bm25", "mean": 0.463}])
    store.publish(f"{evaluate.path}/trec/bm25.trec", b"q1 Q0 d1 1 0.5 bm25\n")
    evaluate.list_files()
    evaluate.complete([], systems=["bm25"])
    for name in ("report.html", "report.json"):
        store.publish(f"{page.path}/{name}", b"{}")
    page.list_files()
    page.complete([], version=1, inputs={"evaluate": "f00"})
    report.publish(page, {"evaluate": evaluate}, "mine")
    return page, {"evaluate": evaluate}, files(root)


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "reports" / "mine").iterdir())}


@pytest.mark.parametrize("name", ["report.html", "bm25.trec"])
def test_a_changed_file_is_written_again(tmp_path: Path, name: str) -> None:
    page, inputs, whole = published(tmp_path)
    assert set(whole) == {"report.html", "report.json", "bm25.trec"}
    (tmp_path / "reports" / "mine" / name).write_bytes(b"")
    report.publish(page, inputs, "mine")
    assert files(tmp_path) == whole
