"""Stages in small, carried out without Ray: what each does when files of its own or of its inputs are lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.load import load
from anmi_ray.core.errors import DamagedError
from anmi_ray.pipeline.carrying import Carrying
from anmi_ray.pipeline.progress import Everyone
from anmi_ray.pipeline.resolve import Resolved
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact, Store
from anmi_ray.store.folders import local_folder, seal_folder
from tests.small import Remembering, write_config


def first(artifact: Artifact, *_: Any) -> dict[str, Any]:
    """Keeps a document, a run file that is not made again while the document is there, and a sealed model."""
    if artifact.read_json("fit.json") is None:
        artifact.store.publish(f"{artifact.path}/trec/bm25.trec", b"q1 Q0 d1 1 0.5 bm25\n")
        artifact.publish_json("fit.json", {"slope": 0.25})
    if not artifact.store.exists(f"{artifact.path}/model/training.json"):
        artifact.store.publish(f"{artifact.path}/model/weights", b"weights" * 9)
        artifact.store.publish(f"{artifact.path}/model/training.json", b"{}")
    seal_folder(artifact, "model")
    return {"flows": []}


def second(artifact: Artifact, inputs: Mapping[str, Artifact], _: Any, __: Context) -> dict[str, Any]:
    """Reads all that the first made."""
    local_folder.cache_clear()
    weights = (local_folder(inputs["first"], "model") / "weights").read_bytes()
    run = inputs["first"].read_listed("trec/bm25.trec")
    artifact.publish_json("sum.json", [len(weights), len(run), inputs["first"].read_json("fit.json")])
    return {"flows": []}


class Small:
    """A path of these two under a root."""

    def __init__(self, folder: Path, collection: Path) -> None:
        self.root = folder / "root"
        config = load(write_config(folder / "small.yaml", collection), [f"execution.root={self.root}"])
        stages = [
            Stage("first", 1, (), "", first, settings="mine"),
            Stage("second", 1, ("first",), "", second, settings="mine"),
        ]
        self._resolved = {one.name: Resolved(one, {}, {}, f"f00{one.name}", "c") for one in stages}
        self._config = config
        self.notices: list[str] = []

    def run(self) -> list[str]:
        """The stages that were carried out."""
        reporter, store = Remembering(), Store(str(self.root))
        with ExitStack() as session:
            told = Everyone(reporter)
            carrying = Carrying(self._config, self._resolved, self._resolved, store, told, session, ready=True)
            done = [name for name in self._resolved if carrying.completed(name)[1] is not None]
        self.notices = reporter.notices
        return done

    def files(self) -> dict[str, bytes]:
        """What stands in the artifacts."""
        top = self.root / "artifacts"
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.fixture
def small(tmp_path: Path, small_collection: Path) -> Small:
    made = Small(tmp_path, small_collection)
    assert made.run() == ["first", "second"]
    return made


DOCUMENTS = ["fit.json", "files.json", "manifest.json", "model.files.json"]
LOST = [*DOCUMENTS, "trec/bm25.trec", "model/weights", "model/training.json"]


@pytest.mark.parametrize("file", LOST)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_lost_file_is_made_again(small: Small, file: str, damage: str) -> None:
    whole = small.files()
    path = small.root / "artifacts" / "first" / "f00first" / file
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    if (file, damage) == ("files.json", "gone"):  # as of an older version: nothing tells
        assert small.run() == []
        return
    assert small.run() == ["first"]
    assert small.files() == whole
    assert small.run() == []


@pytest.mark.parametrize("file", ["fit.json", "trec/bm25.trec", "model/weights"])
def test_a_changed_file_is_made_again_where_it_is_read(small: Small, file: str) -> None:
    whole = small.files()
    path = small.root / "artifacts" / "first" / "f00first" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert small.run() == []  # nothing reads it
    (small.root / "artifacts" / "second" / "f00second" / "manifest.json").unlink()
    assert small.run() == ["second"]
    assert small.files() == whole
    assert small.notices[0] == f"first: {file} lost or damaged: made again, from the same inputs"


def test_what_cannot_be_made_alone_is_made_with_its_stage(small: Small) -> None:
    whole = small.files()
    (small.root / "artifacts" / "first" / "f00first" / "trec" / "bm25.trec").unlink()
    small.run()
    assert small.files() == whole
    assert small.notices[1] == ("first: trec/bm25.trec cannot be made alone: the whole stage is carried out again")


def test_damage_that_comes_back_is_an_error(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(artifact: Artifact, name: str) -> bytes:
        raise DamagedError("not what was written", artifact.store.where(f"{artifact.path}/{name}"), "replace the disk")

    monkeypatch.setattr(Artifact, "read_listed", broken)
    (small.root / "artifacts" / "second" / "f00second" / "manifest.json").unlink()
    with pytest.raises(DamagedError, match="replace the disk"):
        small.run()
