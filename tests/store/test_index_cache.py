"""What is made once of a shard: kept on any storage, found again, and an error where it is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anmi_ray.config.load import load
from anmi_ray.core import identity
from anmi_ray.core.errors import DamagedError
from anmi_ray.core.records import DOCUMENT
from anmi_ray.pipeline.run import run
from anmi_ray.store import Store
from anmi_ray.store.index_cache import StoreShelf, content_of_documents, shelf_of
from tests.models.tiny import write_tiny_bert
from tests.small import write_config
from tests.store.conftest import store as store  # a fixture

CONTENT = "0123456789abcdef"


class Maker:
    """Writes two files, and counts how often it was asked to."""

    def __init__(self, text: str = "whole") -> None:
        self.text, self.asked = text, 0

    def __call__(self, folder: Path) -> None:
        self.asked += 1
        (folder / "one").write_text(self.text)
        (folder / "two").write_bytes(bytes(100))


def put(store: Store, make: Maker, content: str = CONTENT, **settings: object) -> tuple[str, StoreShelf]:
    with shelf_of(store, content) as shelf:
        folder = shelf("words", 1, settings, make)
        assert (folder / "two").stat().st_size == 100
        return (folder / "one").read_text(), shelf


def test_made_once_and_found_by_its_content_and_settings(store: Store) -> None:
    make = Maker()
    assert put(store, make)[1].made == ["words"]
    text, again = put(store, make)
    assert (text, again.made, make.asked) == ("whole", [], 1)
    put(store, make, stemmer="english")
    put(store, make, content="fedcba9876543210")
    assert make.asked == 3


@pytest.mark.parametrize("damage", ["shorter", "gone", "a bit", "manifest"])
def test_what_is_damaged_is_named(store: Store, damage: str) -> None:
    put(store, Maker())
    (manifest,) = (path for path in store.tree("artifacts/words") if path.endswith("manifest.json"))
    (file,) = (path for path in store.tree("artifacts/words") if path.endswith("one"))
    filesystem, base = store._open()
    if damage == "manifest":
        store.publish(f"artifacts/words/{manifest}", store.read(f"artifacts/words/{manifest}").replace(b"one", b"own"))
    elif damage == "gone":
        filesystem.delete_file(f"{base}/artifacts/words/{file}")
    else:
        store.publish(f"artifacts/words/{file}", b"wh" if damage == "shorter" else b"whold")
    with pytest.raises(DamagedError) as caught:
        put(store, Maker())
    assert caught.value.remedy == store.rebuild(f"artifacts/words/{manifest}")
    store.remove("artifacts/words")
    text, shelf = put(store, Maker())
    assert (text, shelf.made) == ("whole", ["words"])


def test_two_makers_whose_files_differ_do_not_mix_them(store: Store) -> None:
    class Slow(Maker):
        """Another makes the same while this one is at it."""

        def __call__(self, folder: Path) -> None:
            put(store, Maker("another"))
            super().__call__(folder)

    assert put(store, Slow())[0] == "whole"
    assert put(store, Maker("third"))[0] == "whole"  # the last manifest counts, and its files are all of one maker
    names = {path.split("/")[-2] for path in store.tree("artifacts/words") if path.endswith("/one")}
    assert len(names) == 2


def table(rows: Mapping[str, str]) -> pa.Table:
    return DOCUMENT.table(
        {
            "doc_id": identity.id_array(map(identity.doc_id, rows)),
            "external_id": list(rows),
            "title": [""] * len(rows),
            "text": list(rows.values()),
        }
    )


def test_content_is_ids_and_texts_in_any_order() -> None:
    one = {"a": "first", "b": "second"}
    known = content_of_documents(table(one))
    assert content_of_documents(table(dict(reversed(one.items())))) == known
    others = ({"a": "second", "b": "first"}, {"a": "first"}, {"c": "first", "b": "second"})
    assert len({known, *(content_of_documents(table(other)) for other in others)}) == 4


def retrieved(folder: Path, collection: Path, model: Path, *overrides: str) -> dict[str, bytes]:
    """The files of retrieve, without its manifest."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    shards = {"corpus": {"reader": "beir", "path": str(collection), "shard_documents": 100}}
    retrieve = {"depth": 30, "candidates": 14, "random_negatives": 3, "dense": {"model": str(model)}}
    config = write_config(folder / "shards.yaml", collection, **shards, retrieve=retrieve)
    record = run(load(config, [f"execution.root={root}", *overrides]), last="retrieve")
    made = root / "artifacts" / "retrieve" / record["stages"]["retrieve"]["fingerprint"]
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*.parquet")}


def kept(folder: Path) -> dict[Path, int]:
    """The files of vectors of documents and of counts, and when each was written."""
    root = folder / "root" / "artifacts"
    files = [path for kind in ("vectors", "counts") for path in (root / kind).rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.slow
@pytest.mark.ray
def test_a_new_shard_adds_its_indexes_and_a_lost_one_is_rebuilt_alone(
    ray_local: None, small_collection: Path, tmp_path: Path
) -> None:
    collection = tmp_path / "collection"
    shutil.copytree(small_collection, collection)
    model = write_tiny_bert(tmp_path / "model")
    before = retrieved(tmp_path, collection, model)
    first = kept(tmp_path)
    more = [{"_id": f"new{i}", "title": "", "text": f"a new document about number {i} of a socket"} for i in range(90)]
    with (collection / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in more)
    grown = retrieved(tmp_path, collection, model, "name=grown")
    second = kept(tmp_path)
    assert grown != before
    assert {path: second[path] for path in first} == first  # nothing that was there was made again
    shards = {path.parent for path in set(second) - set(first) if path.name == "counts.npz"}
    assert 0 < len(shards) <= 2  # the last shard has grown, another may have come
    lost = next(path for path in second if path.name == "vectors.parquet" and _rows(path) == 100)
    shutil.rmtree(lost.parent.parent)
    retrieved(tmp_path, collection, model, "name=lost", "retrieve.depth=20")
    third = kept(tmp_path)
    assert {path for path in third if third[path] != second.get(path)} == {lost, lost.parent.parent / "manifest.json"}
    fresh = retrieved(tmp_path / "elsewhere", collection, model)
    assert fresh == grown


def _rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows
