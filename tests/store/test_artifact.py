"""Artifacts: parts, seals, rejects and manifests, and what does not count as finished."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import DamagedError, DataError, StoreError
from anmi_ray.core.identity import doc_id, query_id
from anmi_ray.core.records import CANDIDATE, EXAMPLE, GAP, QREL, REJECT, TRUTH, rejects
from anmi_ray.store import Artifact, Flow, Store, parquet_bytes


def truth(rows: int = 5, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return TRUTH.table(
        {
            "query_id": [query_id("q")] * rows,
            "doc_id": [doc_id(str(i)) for i in numbers],
            "latent": [i / 7 for i in numbers],
        }
    )


def qrels(rows: int = 2) -> pa.Table:
    return QREL.table(
        {"query_id": [query_id("q")] * rows, "doc_id": [doc_id(str(i)) for i in range(rows)], "grade": [1] * rows}
    )


@pytest.fixture
def artifact(store: Store) -> Artifact:
    return Artifact(store, "rate", "0123456789abcdef")


FLOWS = [Flow("documents", 6, 5, 1)]
REFUSED = rejects("rate", [("d9", "alone", "no comparison")])


def test_a_committed_bucket_is_finished(artifact: Artifact) -> None:
    artifact.commit_bucket(3, {"truth": (TRUTH, truth()), "qrels": (QREL, qrels())}, FLOWS, REFUSED)
    assert artifact.seal("truth", TRUTH, 3) == FLOWS
    assert artifact.seal("qrels", QREL, 3) == FLOWS
    other = rejects("bucket 1", [("d", "alone", "")])
    artifact.commit_bucket(1, {"truth": (TRUTH, truth())}, FLOWS, other)
    assert artifact.read_part("truth", 3, TRUTH).equals(truth())
    assert artifact.read_part("qrels", 3, QREL, ["grade"]).equals(qrels().select(["grade"]))
    assert artifact.rejects().equals(pa.concat_tables([other, REFUSED]))
    assert artifact.store.names(f"{artifact.path}/truth") == ["00001.parquet", "00003.parquet"]


def test_empty_parts_are_parts(artifact: Artifact) -> None:
    artifact.commit_bucket(0, {"truth": (TRUTH, TRUTH.empty())}, [Flow("documents", 0, 0)], None)
    assert artifact.seal("truth", TRUTH, 0) == [Flow("documents", 0, 0)]
    assert artifact.read_part("truth", 0, TRUTH).equals(TRUTH.empty())
    assert artifact.rejects().equals(REJECT.empty())


def test_footer_says_what_the_part_is(artifact: Artifact) -> None:
    artifact.publish_part("truth", 0, truth(), TRUTH, FLOWS)
    assert artifact.store.footer(artifact.part_path("truth", 0)) == {
        "fingerprint": "0123456789abcdef",
        "record": "Truth",
        "version": 1,
        "rows": 5,
        "flows": [{"unit": "documents", "rows_in": 6, "rows_out": 5, "rejected": 1}],
    }


def test_what_is_not_finished(artifact: Artifact) -> None:
    assert artifact.seal("truth", TRUTH, 0) is None
    artifact.publish_part("truth", 0, truth(), TRUTH, FLOWS)
    assert artifact.seal("truth", TRUTH, 1) is None
    assert artifact.seal("truth", replace(TRUTH, version=2), 0) is None
    assert artifact.seal("truth", QREL, 0) is None
    other = replace(artifact, fingerprint="fedcba9876543210")
    other.store.publish(other.part_path("truth", 0), artifact.store.read(artifact.part_path("truth", 0)))
    assert other.seal("truth", TRUTH, 0) is None
    other.store.publish(other.part_path("truth", 0), parquet_bytes(truth(), {"no": "fingerprint"}))
    assert other.seal("truth", TRUTH, 0) is None


def test_a_cut_part_is_not_finished(artifact: Artifact) -> None:
    artifact.publish_part("truth", 0, truth(), TRUTH, FLOWS)
    path = artifact.part_path("truth", 0)
    whole = artifact.store.read(path)
    for length in (0, 1, 4, 8, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        artifact.store.publish(path, whole[:length])
        assert artifact.seal("truth", TRUTH, 0) is None, length
        with pytest.raises(StoreError) as caught:
            artifact.read_part("truth", 0, TRUTH)
        assert caught.value.place == artifact.store.where(path)
        assert caught.value.remedy == artifact.store.rebuild(path)
    artifact.store.publish(path, whole)
    assert artifact.seal("truth", TRUTH, 0) == FLOWS


@settings(max_examples=150, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_is_never_read_as_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, position: float, mask: int
) -> None:
    """Pages carry checksums: a damaged part is refused, or reads as it was written (bytes that do not matter)."""
    artifact = Artifact(Store(str(tmp_path_factory.getbasetemp() / "flipped")), "rate", "f")
    artifact.publish_part("truth", 0, truth(50), TRUTH)
    path = artifact.part_path("truth", 0)
    data = bytearray(artifact.store.read(path))
    pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[int(position * pages)] ^= mask
    artifact.store.publish(path, bytes(data))
    refusal: StoreError | DataError | None = None
    try:
        table = artifact.read_part("truth", 0, TRUTH)
    except (StoreError, DataError) as error:
        table, refusal = truth(50), error
    assert table.equals(truth(50))
    assert refusal is None or (refusal.place == artifact.store.where(path) and refusal.remedy)


def test_an_invalid_table_is_not_published(artifact: Artifact) -> None:
    twice = pa.concat_tables([truth(), truth()])
    with pytest.raises(DataError, match="5 rows repeat a key") as caught:
        artifact.publish_part("truth", 0, twice, TRUTH)
    assert caught.value.place == artifact.store.where(artifact.part_path("truth", 0))
    assert not artifact.store.exists(artifact.part_path("truth", 0))


def test_a_part_of_another_record_or_version_is_refused(artifact: Artifact) -> None:
    artifact.publish_part("truth", 0, truth(), TRUTH)
    wider = replace(TRUTH, version=2, schema=TRUTH.schema.append(pa.field("judge", pa.string(), nullable=False)))
    for record in (QREL, wider):
        with pytest.raises(DataError, match=f"not a {record.name} table") as caught:
            artifact.read_part("truth", 0, record)
        assert caught.value.place == artifact.store.where(artifact.part_path("truth", 0))
        assert caught.value.remedy == "recompute the stage that wrote it"


def test_the_seal_is_written_last(tmp_path: Path) -> None:
    """The first named part is the bucket's seal: with it, all other parts and the rejects are there."""
    order: list[str] = []

    class Watched(Store):
        def publish(self, path: str, data: bytes) -> None:
            order.append(path.split("/")[-2])
            super().publish(path, data)

    artifact = Artifact(Watched(str(tmp_path)), "rate", "f")
    parts = {"seal": (TRUTH, truth()), "second": (QREL, qrels()), "third": (QREL, qrels())}
    artifact.commit_bucket(0, parts, FLOWS, REFUSED)
    assert order[0] == "rejects"
    assert order[-1] == "seal"
    assert sorted(order) == ["rejects", "seal", "second", "third"]


@pytest.mark.parametrize("missing", [None, REJECT.empty()])
def test_rejected_rows_need_reject_rows(artifact: Artifact, missing: pa.Table | None) -> None:
    with pytest.raises(AssertionError, match="1 rows rejected, but no reject rows say which"):
        artifact.commit_bucket(0, {"truth": (TRUTH, truth())}, FLOWS, missing)
    assert artifact.seal("truth", TRUTH, 0) is None


def test_manifest_completes(artifact: Artifact) -> None:
    assert artifact.manifest() is None
    content = artifact.complete([*FLOWS, *FLOWS], settings={"k": 8}, inputs=["a"])
    assert artifact.manifest() == content
    assert content["flows"] == [{"unit": "documents", "rows_in": 12, "rows_out": 10, "rejected": 2}]
    assert content["settings"] == {"k": 8}
    data = artifact.store.read(f"{artifact.path}/manifest.json")
    artifact.store.publish(f"{artifact.path}/manifest.json", data[:-3])
    assert artifact.manifest() is None


@pytest.mark.parametrize("size", [None, 3])
def test_a_listed_file_that_is_missing_or_cut_is_named(artifact: Artifact, size: int | None) -> None:
    artifact.check_files()  # an artifact of an older version has no list
    artifact.publish_part("truth", 0, truth(), TRUTH, FLOWS)
    artifact.list_files()
    artifact.complete(FLOWS)
    artifact.check_files()
    path = artifact.part_path("truth", 0)
    data = artifact.store.read(path)
    artifact.store.remove(path)
    if size is not None:
        artifact.store.publish(path, data[:size])
    with pytest.raises(DamagedError) as caught:
        artifact.check_files()
    assert caught.value.place == artifact.store.where(path)


# --- equal bytes -------------------------------------------------------------------------------------------------


def nested(rows: int = 3) -> pa.Table:
    """Examples: lists, strings, nulls inside."""
    return EXAMPLE.table(
        {
            "query_id": [query_id("q")] * rows,
            "example_id": [doc_id(str(i)) for i in range(rows)],
            "doc_ids": [[doc_id("a"), doc_id("b")]] * rows,
            "ratings": [[10.0, None]] * rows,
            "weights": [[1.0, 0.25]] * rows,
            "categories": [["anchor", "random"]] * rows,
            "tiers": [[0, 3]] * rows,
            "gaps": [[0.0, None]] * rows,
            "rating_errors": [[40.0, None]] * rows,
            "gap_errors": [[0.0, None]] * rows,
            "rating_mean": [0.5] * rows,
            "rating_sd": [1.5] * rows,
        }
    )


def test_nested_records_come_back_whole(store: Store) -> None:
    artifact = Artifact(store, "mine", "f")
    artifact.publish_part("examples", 0, nested(), EXAMPLE)
    assert artifact.read_part("examples", 0, EXAMPLE).equals(nested())
    ranks = pa.table(
        {
            "query_id": pa.array([query_id("q")], pa.binary(16)),
            "doc_id": pa.array([doc_id("d")], pa.binary(16)),
            "source": ["retrieved"],
            "is_positive": [False],
            "rank": pa.array([1], pa.int32()),
            "fused_score": [0.5],
            "retriever_ranks": pa.array([[("bm25", 3), ("dense", 1)]], CANDIDATE.schema.field("retriever_ranks").type),
            "similarity": [0.25],
        }
    )
    artifact.publish_part("candidates", 0, ranks, CANDIDATE)
    assert artifact.read_part("candidates", 0, CANDIDATE).equals(ranks.cast(CANDIDATE.schema))


def test_the_same_table_is_the_same_bytes(store: Store) -> None:
    artifact = Artifact(store, "mine", "f")
    path = artifact.part_path("examples", 0)
    chunked = pa.concat_tables([nested().slice(0, 1), nested().slice(1, 2)])
    loose = pa.Table.from_arrays(nested().columns, names=EXAMPLE.schema.names)  # all columns nullable
    element = pa.list_(pa.field("element", pa.float64()))  # the name of list items that Parquet readers give
    at = EXAMPLE.schema.get_field_index("weights")
    renamed = nested().set_column(at, pa.field("weights", element), nested()["weights"].cast(element))
    labelled = nested().replace_schema_metadata({"pandas": "x"})
    tables = [nested(), nested(), chunked, nested(7).slice(0, 3), loose, renamed, labelled]
    published = set()
    for table in tables:
        artifact.publish_part("examples", 0, table, EXAMPLE, [Flow("pairs", 3, 3)])
        published.add(artifact.store.read(path))
    artifact.publish_part("examples", 0, artifact.read_part("examples", 0, EXAMPLE), EXAMPLE, [Flow("pairs", 3, 3)])
    published.add(artifact.store.read(path))
    assert len(published) == 1


def test_the_same_table_is_the_same_bytes_in_another_process() -> None:
    code = f"""
import hashlib, sys, importlib.util
spec = importlib.util.spec_from_file_location("other", {__file__!r})
module = importlib.util.module_from_spec(spec)
sys.modules["other"] = module
spec.loader.exec_module(module)
print(module.digest_of_many())
"""
    digests = {digest_of_many()}
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def digest_of_many() -> str:
    """Hash of the bytes of some tables, one large enough for several pages and a full dictionary."""
    numbers = np.random.default_rng(7)
    rows = 100_000
    large = GAP.table(
        {
            "query_id": [query_id("q")] * rows,
            "anchor_id": [doc_id("a")] * rows,
            "doc_id": numbers.integers(0, 256, (rows, 16), dtype=np.uint8),
            "gap_elo": numbers.normal(size=rows),
            "gap_se_elo": numbers.random(rows),
            "anchor_kind": numbers.choice(["known", "top-rated"], rows).tolist(),
        }
    )
    footer = {"fingerprint": "f", "b": {"y": 1, "x": 2}}
    data = b"".join(parquet_bytes(table, footer) for table in (nested(), truth(), large))
    return hashlib.blake2b(data).hexdigest()


def test_row_groups(tmp_path: Path) -> None:
    """One row group unless said otherwise: the exchange reads a bucket as a row group."""
    import pyarrow.parquet as pq

    rows = 1_200_000  # beyond the writer's own default of 1 Mi rows
    table = pa.table({"n": np.arange(rows, dtype=np.int32)})
    assert pq.read_metadata(pa.BufferReader(parquet_bytes(table, {}))).num_row_groups == 1
    assert pq.read_metadata(pa.BufferReader(parquet_bytes(table.slice(0, 10), {}, 4))).num_row_groups == 3
