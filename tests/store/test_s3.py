"""Object storage: one PUT publishes, a cut upload leaves nothing, refusals are retried, messages help."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from anmi_ray.core.errors import StoreError
from anmi_ray.core.records import TRUTH
from anmi_ray.runtime import exchange
from anmi_ray.store import Artifact, Flow, Store

if TYPE_CHECKING:
    from tests.s3 import S3Endpoint

pytestmark = pytest.mark.s3
MB = 1 << 20


def test_a_small_file_is_one_put(s3: S3Endpoint) -> None:
    Store(s3.uri("root")).publish("artifacts/a.parquet", b"x" * 5 * MB)
    assert s3.requests == [("PUT", "/collection/root/artifacts/a.parquet", "")]
    assert s3.objects() == ["root/artifacts/a.parquet"]  # and no object that stands for a folder


def test_the_root_may_end_with_a_slash_or_be_the_bucket(s3: S3Endpoint) -> None:
    Store(s3.uri("root/")).publish("a", b"x")
    Store(s3.uri("")).publish("b", b"y")
    assert s3.objects() == ["b", "root/a"]


def test_what_tasks_exchange_is_removed_and_nothing_else(s3: S3Endpoint) -> None:
    artifact = Artifact(Store(s3.uri("root")), "retrieve", "0123")
    table = pa.table({"doc_id": ["a", "b"]})
    exchange.publish(artifact, "hits", 0, [table, table.slice(0, 0)])
    artifact.store.publish(f"{artifact.path}/runs/00000.parquet", b"x")
    assert exchange.read(artifact, "hits", 0, 0).num_rows == 2
    assert exchange.read(artifact, "hits", 0, 1).num_rows == 0
    for _ in range(2):  # again: there is nothing
        exchange.forget(artifact)
        left = [name for name in s3.objects() if not name.endswith("/")]  # pyarrow leaves one that stands for a folder
        assert left == ["root/artifacts/retrieve/0123/runs/00000.parquet"]


def test_credentials_in_the_root(s3: S3Endpoint) -> None:
    store = Store(s3.uri("root", credentials="AKIA:s%2FcReT@"))
    store.publish("a", b"x")
    assert store.read("a") == b"x"
    assert store.where("a") == "s3://collection/root/a"
    with pytest.raises(StoreError) as caught:
        store.read("b")
    assert "cReT" not in str(caught.value)


def test_a_large_file_appears_at_once(s3: S3Endpoint) -> None:
    """Above one part (10 MB) the upload has several requests; the last one publishes."""
    data = os.urandom(1024) * 1024 * 24
    seen: list[list[str]] = []
    s3.refuse = lambda method, key, query: seen.append(s3.objects())
    Store(s3.uri("root")).publish("big", data)
    s3.refuse = None
    assert s3.writes() == [("POST", "uploads"), *[("PUT", "partNumber")] * 3, ("POST", "uploadId")]
    assert seen == [[]] * 5
    assert Store(s3.uri("root")).read("big") == data


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize(("size", "request_"), [(1, 0), (11 * MB, 0), (11 * MB, 1), (11 * MB, 2), (11 * MB, 3)])
def test_a_cut_upload_changes_nothing(s3: S3Endpoint, size: int, request_: int, old: bytes | None) -> None:
    """Whichever request of an upload fails for good, readers see what was there; the next run publishes."""
    store = Store(s3.uri("root"))
    if old is not None:
        store.publish("file", old)
    refuse_from(s3, request_)
    with pytest.raises(StoreError) as caught:
        store.publish("file", bytes(size))
    assert caught.value.place == store.where("file")
    assert caught.value.remedy
    s3.refuse = None
    assert s3.objects() == ([] if old is None else ["root/file"])
    assert old is None or store.read("file") == old
    store.publish("file", bytes(size))
    assert len(store.read("file")) == size


def refuse_from(s3: S3Endpoint, n: int) -> None:
    """Refuse all requests after the next n, in a way that is not retried."""
    start = len(s3.requests)
    s3.refuse = lambda method, key, query: "AccessDenied" if len(s3.requests) - start > n else None


def slow_down_once(s3: S3Endpoint) -> None:
    """Refuse the next request only."""
    start = len(s3.requests)
    s3.refuse = lambda method, key, query: "SlowDown" if len(s3.requests) - start == 1 else None


def test_a_refusal_is_retried(s3: S3Endpoint) -> None:
    """Slow down is what object storage answers under load: pyarrow asks again."""
    store = Store(s3.uri("root"))
    for call in (lambda: store.publish("a", b"x"), lambda: store.read("a"), lambda: store.names("")):
        slow_down_once(s3)
        call()
    s3.refuse = None
    assert store.read("a") == b"x"


def test_a_refusal_is_not_an_absence(s3: S3Endpoint) -> None:
    """A part that cannot be looked at is not counted as missing, which would compute it again."""
    artifact = Artifact(Store(s3.uri("root")), "rate", "f")
    artifact.publish_part("truth", 0, TRUTH.empty(), TRUTH, [Flow("documents", 0, 0)])
    refuse_from(s3, 0)
    for call in (
        lambda: artifact.seal("truth", TRUTH, 0),
        lambda: artifact.read_part("truth", 0, TRUTH),
        lambda: artifact.store.exists("a"),
        lambda: artifact.store.names(""),
        artifact.manifest,
        artifact.rejects,
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.place is not None
        assert caught.value.place.startswith("s3://collection/root/")
        assert caught.value.remedy == "check that the credentials may read, list and write the bucket"


def test_looking_for_a_part_is_cheap(s3: S3Endpoint) -> None:
    """A resumed run looks at every part: two requests where it is, one where it is not."""
    artifact = Artifact(Store(s3.uri("root")), "rate", "f")
    artifact.publish_part("truth", 0, TRUTH.empty(), TRUTH)
    s3.requests.clear()
    assert artifact.seal("truth", TRUTH, 0) == []
    assert [method for method, _, _ in s3.requests] == ["HEAD", "GET"]
    s3.requests.clear()
    assert artifact.seal("truth", TRUTH, 1) is None
    assert [method for method, _, _ in s3.requests] == ["HEAD"]


def test_a_bucket_that_is_not_there(s3: S3Endpoint) -> None:
    store = Store(f"s3://no-such-bucket/root?endpoint_override={s3.url}&scheme=http&region=us-east-1")
    with pytest.raises(StoreError, match="NO_SUCH_BUCKET") as caught:
        store.publish("a", b"x")
    assert caught.value.remedy == "create the bucket or give another root with --root"
    assert caught.value.place == "s3://no-such-bucket/root/a"


def test_an_endpoint_that_does_not_answer(s3: S3Endpoint) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        retry = pafs.AwsStandardS3RetryStrategy(max_attempts=1)
        filesystem = pafs.S3FileSystem(
            endpoint_override=endpoint, region="us-east-1", retry_strategy=retry, allow_delayed_open=True
        )
        store = Store("collection/root", filesystem)
        for call in (lambda: store.publish("a", b"x"), lambda: store.read("a"), lambda: store.exists("a")):
            with pytest.raises(StoreError, match="NETWORK_CONNECTION") as caught:
                call()
            assert caught.value.remedy == "check the endpoint, the region and the network; running again resumes"


@pytest.mark.faults
def test_a_writer_killed_in_an_upload_leaves_nothing_or_all(s3: S3Endpoint) -> None:
    """SIGKILL while requests are under way: every object is absent or whole."""
    import signal
    import subprocess
    import sys

    code = """
import sys, itertools
from anmi_ray.store import Store
store = Store(sys.argv[1])
for i in itertools.count():
    store.publish(f"{sys.argv[2]}-{i}", bytes([i % 256]) * (9 << 20 if i % 2 else 24 << 20))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for kill in range(4):
        s3.requests.clear()
        writer = subprocess.Popen([sys.executable, "-c", code, s3.uri("root"), str(kill)], env=environment)
        deadline = time.monotonic() + 60
        while len(s3.requests) < 2 + 2 * kill and time.monotonic() < deadline:
            time.sleep(0.001)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    time.sleep(0.2)  # the server notices the closed connections
    keys = s3.objects()
    assert keys
    for key in keys:
        data = s3.client.get_object(Bucket="collection", Key=key)["Body"].read()
        number = int(key.split("-")[1])
        assert len(data) == (9 << 20 if number % 2 else 24 << 20), key
        assert set(data) == {number % 256}
