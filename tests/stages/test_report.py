"""What `reports/<run>/` holds is put there again where it is damaged, and what a run ends with is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.core.errors import DamagedError
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


@pytest.mark.parametrize("name", ["made_of.json", "report.html", "bm25.trec"])
def test_a_file_that_is_cut_off_is_put_there_again(tmp_path: Path, name: str) -> None:
    page, inputs, whole = published(tmp_path)
    assert set(whole) == {"made_of.json", "report.html", "report.json", "bm25.trec"}
    path = tmp_path / "reports" / "mine" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    report.publish(page, inputs, "mine")
    assert files(tmp_path) == whole


def test_a_changed_figure_is_found_where_nothing_else_is_to_do(tmp_path: Path) -> None:
    page, inputs, _ = published(tmp_path)
    path = tmp_path / inputs["evaluate"].path / "comparisons.json"
    path.write_bytes(path.read_bytes().replace(b"0.463", b"0.963"))
    with pytest.raises(DamagedError, match=r"comparisons\.json: not the JSON document that was written"):
        report.publish(page, inputs, "mine")
