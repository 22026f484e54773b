"""A small run without Ray: what it does when files of a complete stage are missing or damaged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.load import load
from anmi_ray.core.errors import DamagedError
from anmi_ray.pipeline.progress import Reporters
from anmi_ray.pipeline.resolve import Resolved
from anmi_ray.pipeline.run import StageRunner
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact, Store
from anmi_ray.store.folders import local_folder, seal_folder
from tests.small import Remembering, write_config


def first(artifact: Artifact, *_: Any) -> dict[str, Any]:
    """Writes a document, a run file and a sealed model."""
    artifact.store.publish(f"{artifact.path}/trec/bm25.trec", b"q1 Q0 d1 1 0.5 bm25\n")
    artifact.publish_json("fit.json", {"slope": 0.25})
    artifact.store.publish(f"{artifact.path}/model/weights", b"weights" * 9)
    seal_folder(artifact, "model")
    return {"flows": []}


def second(artifact: Artifact, inputs: Mapping[str, Artifact], _: Any, __: Context) -> dict[str, Any]:
    """Reads all that the first made."""
    local_folder.cache_clear()
    weights = (local_folder(inputs["first"], "model") / "weights").read_bytes()
    artifact.publish_json("sum.json", [len(weights), inputs["first"].read_json("fit.json")])
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

    def run(self) -> list[str]:
        """The stages that were carried out."""
        store = Store(str(self.root))
        with ExitStack() as session:
            told = Reporters(Remembering())
            runner = StageRunner(self._config, self._resolved, self._resolved, store, told, session, ready=True)
            return [name for name in self._resolved if runner.completed(name)[1] is not None]

    def files(self) -> dict[str, bytes]:
        """What stands in the artifacts."""
        top = self.root / "artifacts"
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.fixture
def small(tmp_path: Path, small_collection: Path) -> Small:
    made = Small(tmp_path, small_collection)
    assert made.run() == ["first", "second"]
    return made


@pytest.mark.parametrize("file", ["fit.json", "manifest.json", "trec/bm25.trec", "model/weights", "model.files.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_missing_or_cut_file_is_named_with_the_command_that_rebuilds_it(small: Small, file: str, damage: str) -> None:
    whole = small.files()
    folder = small.root / "artifacts" / "first" / "f00first"
    data = (folder / file).read_bytes()
    (folder / file).unlink()
    if damage == "cut":
        (folder / file).write_bytes(data[: len(data) // 2])
    if file == "manifest.json":  # without it the stage is not complete
        assert small.run() == ["first"]
    else:
        with pytest.raises(DamagedError) as caught:
            small.run()
        assert caught.value.place == str(folder / file)
        assert caught.value.remedy == f"rm -r {folder}, then run again"
        shutil.rmtree(folder)
        assert small.run() == ["first"]
    assert small.files() == whole


@pytest.mark.parametrize("file", ["fit.json", "model/weights"])
def test_a_changed_file_is_named_where_it_is_read(small: Small, file: str) -> None:
    path = small.root / "artifacts" / "first" / "f00first" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert small.run() == []  # nothing reads it
    (small.root / "artifacts" / "second" / "f00second" / "manifest.json").unlink()
    with pytest.raises(DamagedError) as caught:
        small.run()
    assert caught.value.place == str(path)
