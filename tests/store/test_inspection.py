"""The look over a whole root: what is damaged, lost and left over, and what making it again costs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anmi_ray.cli.app import app
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import TRUTH
from anmi_ray.store import Artifact, Store
from anmi_ray.store.inspection import Finding, Inspection
from tests.store.test_artifact import truth
from tests.store.test_flips import stored


def found(root: Path) -> dict[str, Finding]:
    """By path below the root."""
    return {finding.path.removeprefix(f"{root}/"): finding for finding in Inspection(Store(str(root))).findings()}


def test_a_whole_root_has_no_finding(tmp_path: Path) -> None:
    stored(tmp_path)
    inspection = Inspection(Store(str(tmp_path)))
    assert list(inspection.findings()) == []
    assert inspection.files == sum(path.is_file() for path in tmp_path.rglob("*"))
    assert (inspection.unsealed, inspection.unfinished) == (0, 0)
    assert CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)]).exit_code == 0


def test_every_damaged_file_is_named_with_what_it_costs(tmp_path: Path) -> None:
    files = {one.path for one in stored(tmp_path) if not one.path.name.endswith("files.json")}  # they tell of others
    for path in files:
        data = bytearray(path.read_bytes())
        data[40 if "answers" in path.parts else len(data) // 2] ^= 1  # of answers the footer, which counts them, stays
        path.write_bytes(data)
    findings = found(tmp_path)
    index = next(path for path in files if path.name == "index")
    damaged = {str(path.relative_to(tmp_path)) for path in files if path != index}
    assert findings.keys() == {*damaged, f"{index.parent.relative_to(tmp_path)}/"}
    assert {finding.state for finding in findings.values()} == {"damaged"}
    remedies = {path: finding.remedy for path, finding in findings.items()}
    top = "artifacts/rate/0123456789abcdef"
    assert remedies[f"{top}/gaps/00000.parquet"] == "recomputed, nothing is bought: delete it and run again"
    assert remedies[f"{top}/model/model.safetensors"].startswith("trained anew")
    assert "what it had spent is forgotten" in remedies["spend/campaign/session.json"]
    (answers,) = (remedy for path, remedy in remedies.items() if path.startswith("answers/"))
    assert answers == "bought anew, up to 20 answers: delete it and run again"
    done = CliRunner().invoke(app, ["doctor", "--json", "--root", str(tmp_path)])
    assert done.exit_code == 1
    assert {row["path"].removeprefix(f"{tmp_path}/") for row in json.loads(done.stdout)["findings"]} == findings.keys()
    done = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)])
    assert f"{len(findings)} damaged, 0 lost, 0 left over" in done.stdout


def test_what_is_lost_and_what_is_left_over(tmp_path: Path) -> None:
    stored(tmp_path)
    artifact = Artifact(Store(str(tmp_path)), "rate", "0123456789abcdef")
    top = tmp_path / artifact.path
    (top / "truth" / "00000.parquet").unlink()
    artifact.publish_part("truth", 7, truth(), TRUTH)
    (top / "gaps" / ".00000.parquet.0123.tmp").write_bytes(b"half")
    begun = Artifact(Store(str(tmp_path)), "mine", "fedcba9876543210")
    begun.publish_part("truth", 0, truth(), TRUTH)
    (tmp_path / "runs" / "old.json").write_text('{"stages": {}}')
    inspection = Inspection(Store(str(tmp_path)))
    states = {finding.path.removeprefix(f"{top}/"): finding.state for finding in inspection.findings()}
    assert states == {
        "truth/00000.parquet": "lost",
        "truth/00007.parquet": "left over",
        "gaps/.00000.parquet.0123.tmp": "left over",
    }
    assert (inspection.unsealed, inspection.unfinished) == (1, 1)


def test_copies_in_a_report_are_looked_at(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    pages = {name: {"bytes": 5, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("a.trec", "b.trec")}
    for name in pages:
        store.publish(f"reports/mine/{name}", name.encode())
    store.publish_json("reports/mine/made_of.json", {"version": 1, "files": pages})
    assert found(tmp_path) == {}
    store.publish("reports/mine/a.trec", b"A.trec")
    store.remove("reports/mine/b.trec")
    states = {path: finding.state for path, finding in found(tmp_path).items()}
    assert states == {"reports/mine/a.trec": "damaged", "reports/mine/b.trec": "lost"}


def test_there_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no root"):
        found(tmp_path / "nowhere")
