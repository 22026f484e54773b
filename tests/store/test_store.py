"""Files under a root: every method of Store on every kind of filesystem."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import DamagedError, StoreError
from anmi_ray.store import Flow, Store, add_flows, fingerprint, open_filesystem, parquet_bytes, public_root

TABLE = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "word": ["a", "b", "c"]})


def test_what_is_published_is_read_and_replaces_what_was_there(store: Store) -> None:
    for data in (b"a long first version", b"two", b""):
        store.publish("a/b/one.bin", data)
        assert store.read("a/b/one.bin") == data
        assert store.exists("a/b/one.bin")


@pytest.mark.parametrize("size", [0, 1, (9 << 20) + 7])  # the last is more than one PUT
def test_files_are_published_and_fetched(store: Store, size: int, tmp_path: Path) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    (tmp_path / "here").write_bytes(data)
    store.publish_file("a/one.gz", tmp_path / "here")  # the name alone unpacks nothing
    assert store.read("a/one.gz") == data
    store.fetch("a/one.gz", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_fetching_says_what_is_not_there_and_where_it_cannot_go(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        store.fetch("two.bin", tmp_path / "back")
    assert (caught.value.place, caught.value.message) == (store.where("two.bin"), "no such file or folder")
    store.publish("one.bin", b"one")
    with pytest.raises(StoreError) as caught:
        store.fetch("one.bin", tmp_path / "nowhere" / "back")
    assert caught.value.place == f"{store.where('one.bin')} on its way to {tmp_path / 'nowhere' / 'back'}"


def test_what_is_not_there(store: Store) -> None:
    store.publish("a/one.bin", b"one")
    assert not store.exists("a/two.bin")
    assert not store.exists("a")
    assert store.names("nowhere") == []
    assert store.read_json("two.json") is None
    assert store.footer("two.parquet") is None
    for read in (store.read, store.read_table):
        with pytest.raises(StoreError) as caught:
            read("a/two.bin")
        assert caught.value.place == store.where("a/two.bin")
        assert caught.value.message == "no such file or folder"
        assert caught.value.remedy


def test_names_are_sorted_files_of_one_folder_without_what_a_killed_writer_left(store: Store) -> None:
    for name in ("f/b", "f/a", "f/c", "f/g/deeper", "other/d", "f/.a.0123456789abcdef.tmp"):
        store.publish(name, b"x")
    assert store.names("f") == ["a", "b", "c"]
    assert store.tree("f") == ["a", "b", "c", "g/deeper"]


def test_a_folder_is_listed_while_another_makes_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def publish() -> None:
        for folder in range(500):
            store.publish(f"{folder}/one.bin", b"one")

    with ThreadPoolExecutor(1) as writer:
        published = writer.submit(publish)
        for folder in range(500):
            while store.names(str(folder)) != ["one.bin"]:
                assert not (published.done() and published.exception())
        published.result()


def test_json(store: Store) -> None:
    content = {"b": [1, 2.5, None], "a": "naïve — ünïcode", "nested": {"z": True}}
    store.publish_json("x.json", content)
    assert store.read_json("x.json") == content
    first = store.read("x.json")
    store.publish_json("x.json", dict(reversed(content.items())))
    assert store.read("x.json") == first


CONTENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(CONTENTS | st.builds(lambda inner: {"content": inner}, CONTENTS) | st.just({"checksum": "mine"}))
def test_any_content_comes_back_from_json(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    store = Store(str(tmp_path_factory.getbasetemp() / "documents"))
    store.publish_json("x.json", content)
    assert store.read_json("x.json") == content
    assert list(json.loads(store.read("x.json")))[-1] == "checksum"
    assert store.read("x.json").endswith(b"\n")


def test_json_cut_anywhere_is_refused(store: Store) -> None:
    """A writer that fails on storage without whole uploads leaves such a file: `cut` takes it for absent."""
    store.publish_json("x.json", {"a": "é", "b": [1]})
    whole = store.read("x.json")
    for length in range(len(whole) - 1):  # the last byte is a newline
        store.publish("x.json", whole[:length])
        assert store.read_json("x.json", cut=True) is None, length
        with pytest.raises(DamagedError) as caught:
            store.read_json("x.json")
        assert caught.value.place == store.where("x.json")


OLD = b'{\n "calls": 17,\n "judge": "a"\n}\n'  # of a version without checksums
DIGITS = b'{\n "model.safetensors": "%s"\n}\n' % (b"0f" * 32)


@pytest.mark.parametrize("data", [OLD, DIGITS, b"[1, 2]\n", b"null\n", b"{}\n"])
def test_documents_of_older_versions_are_read(tmp_path: Path, data: bytes) -> None:
    store = Store(str(tmp_path))
    store.publish("x.json", data)
    assert store.read_json("x.json") == json.loads(data)


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe", b"[" * 100_000, b'{"a": 1' + b"0" * 5000 + b"}", b'{"a": "\\ud800", "checksum": "0"}', b"{} {}", b""],
)
def test_what_is_no_json_is_one_message(tmp_path: Path, data: bytes) -> None:
    store = Store(str(tmp_path))
    store.publish("x.json", data)
    with pytest.raises(DamagedError) as caught:
        store.read_json("x.json")
    assert caught.value.place == store.where("x.json")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("before", "after"), [("17", "71"), ("17", "NaN"), ("calls", "cells")])
def test_an_edited_document_is_refused(tmp_path: Path, before: str, after: str) -> None:
    store = Store(str(tmp_path))
    store.publish_json("x.json", {"calls": 17})
    store.publish("x.json", store.read("x.json").replace(before.encode(), after.encode()))
    with pytest.raises(DamagedError) as caught:
        store.read_json("x.json", remedy="delete it: what it had spent is forgotten")
    assert caught.value.remedy == "delete it: what it had spent is forgotten"


def test_a_damaged_file_is_named_with_the_command_that_rebuilds_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "a root"))
    folder = f"'{tmp_path}/a root/artifacts"
    assert store.rebuild("artifacts/rate/f0/gaps/00000.parquet") == f"rm -r {folder}/rate/f0', then run again"
    assert store.rebuild("runs/mine.json") == f"rm -r '{tmp_path}/a root/runs/mine.json', then run again"
    peer = "artifacts/peer/f0"  # its bought scores stay
    runs = f"rm -r {folder}/peer/f0/manifest.json' {folder}/peer/f0/runs', then run again"
    assert store.rebuild(f"{peer}/rejects/00000.parquet") == runs
    bought = f"{peer}/bought/00000.parquet"
    assert store.rebuild(bought) == f"rm -r '{tmp_path}/a root/{bought}', then run again"


def test_table(store: Store) -> None:
    store.publish("t.parquet", parquet_bytes(TABLE, {}))
    assert store.read_table("t.parquet").replace_schema_metadata(None).equals(TABLE)
    assert store.read_table("t.parquet", ["word"]).column_names == ["word"]
    assert store.read_table("t.parquet", ["word", "n"]).column_names == ["word", "n"]
    with pytest.raises(StoreError, match="absent_column"):
        store.read_table("t.parquet", ["absent_column"])


@pytest.mark.parametrize("length", [1, 200_000])  # the footer is longer than the first read
def test_footer(store: Store, length: int) -> None:
    footer = {"fingerprint": "f" * length, "flows": []}
    store.publish("t.parquet", parquet_bytes(TABLE, footer))
    assert store.footer("t.parquet") == {**footer, "rows": 3}


def test_footer_of_a_file_that_is_not_ours(store: Store) -> None:
    """Nor is one whose footer is not an object, or was taken over from a file with other rows."""
    other = pq.read_metadata(pa.BufferReader(parquet_bytes(TABLE.slice(1), {}))).metadata[b"anmi"]
    files = [b"", b"PAR1", b"text, not Parquet", b"PAR1\xff\xff\xff\xffPAR1"]
    for raw in (None, b"[]", b"3", b"not json", b"{", b"\xff", other):
        sink = pa.BufferOutputStream()
        pq.write_table(TABLE.replace_schema_metadata(raw and {b"anmi": raw}), sink)
        files.append(sink.getvalue().to_pybytes())
    for data in files:
        store.publish("t.parquet", data)
        assert store.footer("t.parquet") is None


def test_buckets_are_fixed_by_the_first(store: Store) -> None:
    assert store.buckets(16) == 16
    assert store.buckets(64) == 16
    assert store.read_json("root.json") == {"format": 1, "buckets": 16}


@pytest.mark.parametrize("content", [{"format": 2, "buckets": 4}, {"buckets": 4}, [], "text"])
def test_buckets_of_another_format(tmp_path: Path, content: object) -> None:
    store = Store(str(tmp_path))
    store.publish_json("root.json", content)
    with pytest.raises(StoreError, match=r"expected format 1 of a root") as caught:
        store.buckets(4)
    assert caught.value.remedy == "give another root with --root"


def test_a_store_travels(store: Store) -> None:
    store.publish("a", b"x")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"x"


def test_local_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for root in (str(tmp_path), f"{tmp_path}/", tmp_path.as_uri(), "."):
        assert Store(root).local == tmp_path
    assert open_filesystem(str(tmp_path))[0] is open_filesystem(str(tmp_path))[0]  # one connection per root
    Store("~/there").publish("a", b"x")
    assert (tmp_path / "home/there/a").exists()


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("/data/root/", "/data/root"),
        ("out", "out"),
        ("/data/what?/user:a@b", "/data/what?/user:a@b"),
        ("s3://bucket/root", "s3://bucket/root"),
        ("s3://bucket/a@b/root/", "s3://bucket/a@b/root"),
        ("s3://AKIA:sEcReT@bucket/root?region=eu-west-1", "s3://bucket/root"),
        ("s3://AKIA:sE/cR@eT@bucket/root", "s3://bucket/root"),
        ("s3://bucket/root?endpoint_override=http://key:sEcReT@host:9000", "s3://bucket/root"),
        ("hdfs://host:8020/user@corp", "hdfs://host:8020/user@corp"),
        ("abfss://container@account/root", "abfss://container@account/root"),
    ],
)
def test_messages_name_no_credentials(root: str, shown: str) -> None:
    assert public_root(root) == shown
    assert Store(root).where("a/b") == f"{shown}/a/b"
    assert "sEcReT" not in repr(Store(root))


@pytest.mark.parametrize(
    "root", ["nosuch://place", "s3://AKIA:sE/cReT@bucket/root", "s3://AKIA:scReT@b/root?region=x&no_such_option=1"]
)
def test_a_root_that_cannot_be_opened(root: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(root).exists("a")
    assert caught.value.place == public_root(root)
    assert caught.value.remedy
    assert "cReT" not in str(caught.value)
    assert caught.value.__cause__ is None  # pyarrow's message quotes the URI


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9))))
def test_flows_add_up(rows: list[tuple[str, int, int]]) -> None:
    flows = [Flow(unit, out + rejected, out, rejected) for unit, out, rejected in rows]
    total = {flow.unit: flow for flow in add_flows(flows)}
    assert list(total) == list(dict.fromkeys(unit for unit, _, _ in rows))
    for unit, flow in total.items():
        assert flow.rows_out == sum(out for name, out, _ in rows if name == unit)
        assert flow.rejected == sum(rejected for name, _, rejected in rows if name == unit)


def test_a_flow_that_loses_rows_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="pairs: 3 in, 1 out, 1 rejected"):
        Flow("pairs", 3, 1, 1)


def test_fingerprint_golden() -> None:
    """A change of this value makes every artifact of every root be computed again."""
    assert fingerprint("rate", 1, {"a": 1, "b": {"c": [0.5, None]}}, ["x", "y"]) == "a076d8ac66e06d9d"


def test_fingerprint_says_what_it_depends_on() -> None:
    base = fingerprint("rate", 1, {"a": 1, "b": 2}, ["x", "y"])
    assert base == fingerprint("rate", 1, {"b": 2, "a": 1}, iter(["x", "y"]))
    others = [
        fingerprint("mine", 1, {"a": 1, "b": 2}, ["x", "y"]),
        fingerprint("rate", 2, {"a": 1, "b": 2}, ["x", "y"]),
        fingerprint("rate", 1, {"a": 1, "b": 3}, ["x", "y"]),
        fingerprint("rate", 1, {"a": 1}, ["x", "y"]),
        fingerprint("rate", 1, {"a": 1, "b": 2}, ["y", "x"]),
        fingerprint("rate", 1, {"a": 1, "b": 2}, ["xy"]),
    ]
    assert len({base, *others}) == len(others) + 1
