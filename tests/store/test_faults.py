"""Storage that fails: at its n-th call, when it is full, when it is read-only, when the writer is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from anmi_ray.core.errors import StoreError
from anmi_ray.core.records import TRUTH, rejects
from anmi_ray.store import Artifact, Flow, Store, parquet_bytes
from anmi_ray.store.folders import publish_folder
from tests.disks import small_disk_at
from tests.store.test_artifact import truth

BUCKETS = 2


# --- a filesystem that fails at its n-th call --------------------------------------------------------------------


@dataclass
class Fuse:
    """Counts calls and raises at the `fails_at`-th; a failing write has written half."""

    fails_at: int
    error: Callable[[], OSError]
    calls: list[str] = field(default_factory=list)

    def __call__(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) == self.fails_at:
            raise self.error()


class FailingFile:
    """A file whose reads, writes and close burn the fuse."""

    def __init__(self, path: str, mode: str, fuse: Fuse) -> None:
        self._file, self._fuse, self._mode = open(path, mode), fuse, mode  # noqa: SIM115

    closed = property(lambda self: self._file.closed)

    def readable(self) -> bool:
        return "r" in self._mode

    def writable(self) -> bool:
        return "w" in self._mode

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._fuse("read")
        return self._file.read(size)

    def write(self, data: Any) -> int:
        data = bytes(data)
        try:
            self._fuse("write")
        except OSError:
            self._file.write(data[: len(data) // 2])
            raise
        return self._file.write(data)

    def seek(self, *args: int) -> int:
        return self._file.seek(*args)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            if "w" in self._mode:
                self._fuse("close")


class FailingHandler(pafs.FileSystemHandler):
    """The local filesystem, each call through the fuse."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse, self.inner = fuse, pafs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        self.fuse("info")
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self.fuse("list")
        return self.inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.fuse("create_dir")
        self.inner.create_dir(path, recursive=recursive)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.fuse("open for reading")
        return pa.PythonFile(FailingFile(path, "rb", self.fuse), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        self.fuse("open for writing")
        return pa.PythonFile(FailingFile(path, "wb", self.fuse), mode="w")

    def _unused(self, *args: Any) -> Any:
        raise AssertionError("the store renames, copies, appends and deletes nothing")

    open_input_stream = open_append_stream = copy_file = move = _unused
    delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _unused


def work(store: Store) -> dict[str, Any]:
    """A stage in small: buckets that are not finished, then the manifest; a second stage reads it all."""
    artifact = Artifact(store, "rate", "0123456789abcdef")
    flows: list[Flow] = []
    for bucket in range(store.buckets(BUCKETS)):
        made = artifact.seal("truth", TRUTH, bucket)
        if made is None:
            refused = rejects("rate", [("d", f"alone in {bucket}", "")])
            made = [Flow("documents", 21, 20, 1)]
            artifact.commit_bucket(bucket, {"truth": (TRUTH, truth(20, 20 * bucket))}, made, refused)
        flows += made
    manifest = artifact.manifest()
    if manifest is None:
        artifact.list_files()
        manifest = artifact.complete(flows)
    tables = [artifact.read_part("truth", bucket, TRUTH) for bucket in range(BUCKETS)]
    return {"manifest": manifest, "tables": tables, "rejects": artifact.rejects()}


def refusal(store: Store) -> StoreError | None:
    """The error that ends the work, or None when it is done."""
    try:
        work(store)
    except StoreError as error:
        return error
    return None


def files(root: Path) -> dict[str, bytes]:
    """Everything under a root that is not hidden."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def assert_nothing_half_finished(root: Path) -> None:
    """What counts as finished is whole and right."""
    artifact = Artifact(Store(str(root)), "rate", "0123456789abcdef")
    sealed = [artifact.seal("truth", TRUTH, bucket) for bucket in range(BUCKETS)]
    for bucket, flows in enumerate(sealed):
        if flows is not None:
            assert flows == [Flow("documents", 21, 20, 1)]
            assert artifact.read_part("truth", bucket, TRUTH).equals(truth(20, 20 * bucket))
            assert artifact.store.footer(artifact.part_path("rejects", bucket)) is not None
    if artifact.manifest() is not None:
        assert all(sealed)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Files and results of an undisturbed run."""
    root = tmp_path_factory.mktemp("undisturbed")
    results = work(Store(str(root)))
    return files(root), results


ERRORS = {
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "connection": lambda: ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "words only": lambda: OSError("AWS Error NETWORK_CONNECTION during PutObject operation"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_failure_at_any_call_is_survived(
    tmp_path: Path, kind: str, expected: tuple[dict[str, bytes], dict[str, Any]]
) -> None:
    """For every n: the n-th call fails, nothing half-made counts, and running again gives the undisturbed result."""
    failed: list[str] = []
    for n in range(1, 1000):
        fuse = Fuse(n, ERRORS[kind])
        root = tmp_path / str(n)
        broken = Store(str(root), pafs.PyFileSystem(FailingHandler(fuse)))
        error = refusal(broken)
        if error is None:
            assert len(fuse.calls) < n, f"the failure of call {n} ({fuse.calls[n - 1]}) was swallowed"
            break
        assert error.place is not None
        assert error.place.startswith(str(root))
        assert error.remedy
        assert isinstance(error.__cause__, OSError)
        failed.append(fuse.calls[n - 1])
        assert_nothing_half_finished(root)
        results = work(broken)  # the fuse is burnt: the storage is well again
        assert results["manifest"] == expected[1]["manifest"]
        assert results["tables"] == expected[1]["tables"]
        assert results["rejects"].equals(expected[1]["rejects"])
        assert files(root) == expected[0]
    kinds = {"info", "list", "create_dir", "open for reading", "open for writing", "read", "write", "close"}
    assert set(failed) == kinds
    assert len(failed) > 40


def test_two_failures_in_a_row(tmp_path: Path, expected: tuple[dict[str, bytes], dict[str, Any]]) -> None:
    """A run that fails at its n-th call, again and again, gets on as long as n lets it publish something."""
    root = tmp_path / "root"
    attempts = 1
    while refusal(Store(str(root), pafs.PyFileSystem(FailingHandler(Fuse(25, ERRORS["full"]))))):
        assert_nothing_half_finished(root)
        attempts += 1
        assert attempts < 50, "it does not get on"
    assert attempts >= 2
    assert files(root) == expected[0]


def test_messages_name_place_and_remedy(tmp_path: Path) -> None:
    def failing(kind: str) -> Store:
        return Store(str(tmp_path), pafs.PyFileSystem(FailingHandler(Fuse(1, ERRORS[kind]))))

    with pytest.raises(StoreError) as caught:
        failing("full").publish("a", b"x")
    assert str(caught.value) == (
        f"{tmp_path}/a: no space left\n  remedy: free space or give another root with --root; running again resumes"
    )
    with pytest.raises(StoreError, match="Connection reset by peer") as caught:
        failing("connection").read("a")
    assert caught.value.remedy == "check that the storage is reachable and writable; running again resumes"


# --- the local disk ----------------------------------------------------------------------------------------------


def test_a_file_where_the_root_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file/deeper"):
        store = Store(str(root))
        with pytest.raises(StoreError) as caught:
            store.publish("a/b", b"x")
        assert caught.value.message == "expected a folder, got a file"
        assert caught.value.remedy == "remove that file or give another root with --root"
        assert caught.value.place == f"{root}/a/b"
        assert not store.exists("a/b")
        with pytest.raises(StoreError):
            store.read("a/b")


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError) as caught:
        store.publish("a", b"x")
    assert caught.value.message == "expected a file, got a folder"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    assert not store.exists("a")
    for call in (store.read, store.footer, store.read_table):
        with pytest.raises(StoreError):
            call("a")


def test_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="path too long"):
        Store(str(tmp_path)).publish("x" * 300, b"x")


def run(code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Python in another process, which may limit itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, **options)


PUBLISH = """
import os, resource, sys
from anmi_ray.core.errors import StoreError
from anmi_ray.store import Store
{limit}
try:
    Store(sys.argv[1]).publish("part", bytes(1 << 20))
except StoreError as error:
    print(error)
"""


def test_a_limit_on_file_size(tmp_path: Path) -> None:
    """A write that the kernel cuts off after 64 KB leaves the old file, and nothing beside it."""
    Store(str(tmp_path)).publish("part", b"old")
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    done = run(PUBLISH.format(limit=limit), str(tmp_path))
    assert "file too large for this filesystem or user" in done.stdout, done.stderr
    assert "remedy: raise the limit or give another root with --root; running again resumes" in done.stdout
    assert files(tmp_path) == {"part": b"old"}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights; without them the folder would be its own")
def test_permission_denied(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = run(PUBLISH.format(limit="os.setuid(65534)"), str(tmp_path / "root"))
    assert "permission denied" in done.stdout, done.stderr
    assert "remedy: grant write permission or give another root with --root" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    with small_disk_at(tmp_path / "disk", "1m") as place:
        yield place


@pytest.mark.faults
def test_a_folder_that_a_full_disk_does_not_hold_leaves_the_one_before_and_nothing_beside(
    small_disk: Path, tmp_path: Path
) -> None:
    target = small_disk / "model"
    empty, new = tmp_path / "empty", tmp_path / "new"
    empty.mkdir()
    publish_folder(empty, target.as_uri())
    (new / "deep").mkdir(parents=True)
    (new / "deep" / "weights").write_bytes(os.urandom(400_000))
    publish_folder(new, str(target))
    (new / "more").write_bytes(os.urandom(400_000))
    with pytest.raises(StoreError, match="no space left"):
        publish_folder(new, str(target))
    assert [path.name for path in small_disk.iterdir()] == ["model"]
    assert files(small_disk).keys() == {"model/deep/weights"}


@pytest.mark.faults
def test_a_full_disk(small_disk: Path) -> None:
    store = Store(str(small_disk))
    data = parquet_bytes(pa.table({"noise": [os.urandom(150_000)]}), {})
    published = 5
    for i in range(published):
        store.publish(f"parts/{i}", data)
    with pytest.raises(StoreError) as caught:
        store.publish(f"parts/{published}", os.urandom(500_000))
    assert caught.value.message == "no space left"
    assert caught.value.place == f"{small_disk}/parts/{published}"
    assert caught.value.remedy == "free space or give another root with --root; running again resumes"
    assert len(list((small_disk / "parts").iterdir())) == published  # no half file, hidden or not
    assert all(store.read(f"parts/{i}") == data for i in range(published))
    (small_disk / "parts/0").unlink()
    store.publish(f"parts/{published}", data)


@pytest.mark.faults
def test_a_read_only_disk(small_disk: Path) -> None:
    store = Store(str(small_disk))
    store.publish("old", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError) as caught:
        store.publish("new", b"x")
    assert caught.value.message == "read-only filesystem"
    assert caught.value.remedy == "give a writable root with --root"
    assert store.read("old") == b"x"


WRITER = """
import itertools, sys
import numpy as np
import pyarrow as pa
from anmi_ray.store import Store, parquet_bytes
store = Store(sys.argv[1])
noise = np.random.default_rng(0).random(300_000)
data = [parquet_bytes(pa.table({"n": np.full(300_000, i), "noise": noise}), {"version": i}) for i in range(2)]
for i in itertools.count():
    store.publish(f"parts/{i % 5:05d}.parquet", data[i % 2])
    if i == 2:
        print("three are published", flush=True)
"""


@pytest.mark.faults
def test_a_killed_writer_leaves_whole_files(tmp_path: Path) -> None:
    """SIGKILL in the middle of a write, ten times: every name that is listed is a whole file."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    store, left_over = Store(str(tmp_path)), 0
    for kill in range(10):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        writer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline()
        deadline = time.monotonic() + 60
        before = len(list(tmp_path.glob("parts/.*.tmp")))
        while len(list(tmp_path.glob("parts/.*.tmp"))) == before and time.monotonic() < deadline:
            time.sleep(0.0005)  # until it is writing
        assert time.monotonic() < deadline, "the writer does not write"
        time.sleep(kill * 0.002)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        left_over = len(list(tmp_path.glob("parts/.*.tmp")))
        for name in store.names("parts"):
            footer = store.footer(f"parts/{name}")
            assert footer is not None
            table = store.read_table(f"parts/{name}")
            assert table["n"].unique().to_pylist() == [footer["version"]]
            assert table.num_rows == 300_000
    assert store.names("parts")
    assert all(not name.startswith(".") for name in store.names("parts"))
    assert left_over, "no kill hit a write: the test shows nothing"
