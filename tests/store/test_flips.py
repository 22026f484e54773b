"""Single bits changed in every kind of file under a root: told with one message, or harmless to what is read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.errors import AnmiError
from anmi_ray.core.records import GAP, QREL, TRUTH
from anmi_ray.core.schema import Record
from anmi_ray.reports.page import a_key_a_line
from anmi_ray.runtime import exchange
from anmi_ray.store import Artifact, Flow, Store, runs
from anmi_ray.store.answer_log import AnswerLog
from anmi_ray.store.documents import with_checksum
from anmi_ray.store.folders import copy_sealed, local_folder, seal_folder
from anmi_ray.store.index_cache import shelf_of
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord
from tests.store.test_answers import bought
from tests.store.test_artifact import qrels, truth

FLIPS = 20_000
BOUND_S = 240  # a minute on an idle core


@dataclass(frozen=True)
class Stored:
    """A kind of file, where one stands, and what reads it: a value that tells whether anything changed."""

    kind: str
    path: Path
    read: Callable[[], Any]


def gaps(rows: int) -> pa.Table:
    """Columns in dictionaries and without, several of one type: pages that could pass for one another."""
    numbers = np.random.default_rng(5)
    return GAP.table(
        {
            "query_id": [bytes(16)] * rows,
            "anchor_id": [bytes([7] * 16)] * rows,
            "doc_id": numbers.integers(0, 256, (rows, 16), dtype=np.uint8),
            "gap_elo": numbers.normal(size=rows),
            "gap_se_elo": numbers.random(rows),
            "anchor_kind": numbers.choice(["known", "top-rated"], rows).tolist(),
        }
    )


def stored(root: Path) -> list[Stored]:
    """One file of each kind, by the store's own writers."""
    store = Store(str(root))
    store.buckets(4)
    artifact = Artifact(store, "rate", "0123456789abcdef")
    flows = [Flow("documents", 6, 5, 1), Flow("queries", 3, 3)]
    artifact.publish_part("truth", 0, truth(40), TRUTH, flows)
    artifact.publish_part("gaps", 0, gaps(300), GAP, flows)
    artifact.publish_part("qrels", 0, qrels(9), QREL, flows)
    artifact.publish_json("comparisons.json", [{"system": "bm25", "mean": 0.463}, {"system": "dense", "mean": 0.595}])
    store.publish(f"{artifact.path}/report.json", with_checksum(a_key_a_line({"rows": [0.5, None], "n": 3})).encode())
    store.publish(f"{artifact.path}/trec/bm25.trec", b"q1 Q0 d1 1 0.5 bm25\nq1 Q0 d2 2 0.25 bm25\n")
    store.publish(f"{artifact.path}/model/model.safetensors", bytes(range(256)) * 8)
    store.publish(f"{artifact.path}/model/config.json", b'{"hidden": 32}')
    seal_folder(artifact, "model")
    exchange.publish(artifact, "hits", 0, [truth(30), truth(0), truth(9)])
    artifact.list_files()
    manifest = artifact.complete(flows, settings={"degree": 4})
    store.publish_json("runs/mine.json", {"corpus": "c", "stages": {"rate": {"fingerprint": artifact.fingerprint}}})
    spent = SpendLog(store, "campaign")
    spent.write("session", SpendRecord("judge", questions=17, spend=Spend(requests=17, dollars=2.5)))
    answers = AnswerLog(store, "judge")
    segment = answers.publish(0, bought(*((q, f"0.{q}", False) for q in range(20))))

    def index(folder: Path) -> None:
        (folder / "index").write_bytes(b"made anew" * 40)

    def kept() -> bytes:
        with shelf_of(store, "0123456789abcdef") as shelf:
            return (shelf("words", 1, {}, index) / "index").read_bytes()

    kept()
    (words,) = root.glob("artifacts/words/*/*/index")
    copies = root / "copies"

    def model() -> bytes:
        local_folder.cache_clear()
        folder = local_folder(artifact, "model")
        return (folder / "model.safetensors").read_bytes() + (folder / "config.json").read_bytes()

    def copied() -> bytes:
        copy_sealed(artifact, "model", copies)
        return (copies / "config.json").read_bytes()

    def tables(part: str, record: Record, columns: list[str] | None = None) -> Callable[[], pa.Table]:
        return lambda: artifact.read_part(part, 0, record, columns)

    top = root / artifact.path
    assert artifact.manifest() == manifest
    return [
        Stored("part", top / "truth/00000.parquet", tables("truth", TRUTH)),
        Stored("part", top / "gaps/00000.parquet", tables("gaps", GAP)),
        Stored("part", top / "qrels/00000.parquet", tables("qrels", QREL)),
        Stored("columns", top / "gaps/00000.parquet", tables("gaps", GAP, ["gap_elo", "doc_id"])),
        Stored("seal", top / "truth/00000.parquet", lambda: artifact.seal("truth", TRUTH, 0)),
        Stored("exchange", top / "exchange/hits-00000.parquet", lambda: exchange.read(artifact, "hits", 0, 2)),
        Stored("groups", top / "exchange/hits-00000.parquet", lambda: exchange.groups_of(artifact, "hits", 0)),
        Stored("figures", top / "comparisons.json", lambda: artifact.read_json("comparisons.json")),
        Stored("report", top / "report.json", lambda: artifact.read_json("report.json")),
        Stored("manifest", top / "manifest.json", artifact.manifest),
        Stored("list", top / "files.json", artifact.listed),
        Stored("run file", top / "trec/bm25.trec", lambda: artifact.read_listed("trec/bm25.trec")),
        Stored("weights", top / "model/model.safetensors", model),
        Stored("model's list", top / "model.files.json", model),
        Stored("model's settings", top / "model/config.json", copied),
        Stored("index", words, kept),
        Stored("run", root / "runs/mine.json", lambda: runs.find_run("mine", str(root))[1]),
        Stored("money", root / "spend/campaign/session.json", spent.records),
        Stored("answers", root / answers.path / segment, lambda: answers.read(0).table),
        Stored("root", root / "root.json", lambda: store.buckets(4)),
    ]


MADE_AGAIN = ("seal", "groups", "manifest", "root")  # None, or what is asked for, where it does not count


@pytest.mark.faults
def test_no_changed_bit_is_read_as_another_value(tmp_path: Path) -> None:
    random = np.random.default_rng(739_949)
    files = stored(tmp_path)
    whole = [(one, one.path.read_bytes(), one.read()) for one in files]
    told: Counter[str] = Counter()
    harmless: Counter[str] = Counter()
    begun = time.monotonic()
    seldom = [one for one in whole if one[0].kind != "index"] * 9  # to make an index again is to flush it to the disk
    order = [*seldom, *whole]
    for n in range(FLIPS):
        one, data, value = order[n % len(order)]
        bit = int(random.integers(8 * len(data)))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        one.path.write_bytes(changed)
        where = f"{one.kind}: bit {bit} of {one.path.name}"
        refusal, found = None, None
        try:
            found = one.read()
        except AnmiError as error:
            refusal = error
        if refusal is None:
            assert found == value or (found is None and one.kind in MADE_AGAIN), where
            harmless[one.kind] += 1
        else:
            assert str(tmp_path) in str(refusal.place), where
            assert refusal.remedy, where
            assert len(str(refusal)) < 600, where
            told[one.kind] += 1
        one.path.write_bytes(data)
    print(f"{sum(told.values()):,} told, {sum(harmless.values()):,} harmless, {time.monotonic() - begun:.0f} s")
    assert time.monotonic() - begun < BOUND_S
    assert set(told) >= {one.kind for one in files} - {"seal", "groups", "index"}
    assert all(one.read() == value for one, _, value in whole)
