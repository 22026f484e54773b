"""What all tests share: an environment without network, deterministic Hypothesis, and one local Ray per session."""

from __future__ import annotations

import collections
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings

from tests import s3 as endpoints

if TYPE_CHECKING:
    from tests.judging.serving import Chat

# Read when the libraries are imported, so set before any test module is.
os.environ.pop("RAY_ADDRESS", None)  # never join somebody's cluster
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",  # test processes share the cores: threads that wait for one another spin
    RAY_DATA_DISABLE_PROGRESS_BARS="1",
    RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S="60",  # a hang becomes a failure
    # Ray's own look at logs and processes many times a second: twenty Rays do beside one another here
    RAY_LOG_MONITOR_MANY_FILES_THRESHOLD="1",
    REPORTER_UPDATE_INTERVAL_MS="30000",
    RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
    RAY_USAGE_STATS_ENABLED="0",
    TOKENIZERS_PARALLELISM="false",
)

FAULTS = ("tests/faults/", "tests/store/")  # where `make test-faults` looks for them

settings.register_profile("anmi", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("anmi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the shared Ray, keep it in one xdist worker, and skip GPU tests where there is no GPU.

    Files with slow tests come first, the longest of all before them: for one that is begun last every process waits.
    """
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.name != "test_commands.py", -slow[item.path]))
    no_gpu = pytest.mark.skip(reason="needs a GPU: nvidia-smi was not found")
    for item in items:
        if "ray_local" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
        if item.get_closest_marker("faults") and not item.nodeid.startswith(FAULTS):
            raise pytest.UsageError(f"{item.nodeid}: a test of faults belongs below {' or '.join(FAULTS)}")
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        if item.get_closest_marker("gpu") and shutil.which("nvidia-smi") is None:
            item.add_marker(no_gpu)


@pytest.fixture(scope="session")
def short_temp() -> Iterator[Path]:
    """A temporary folder with a short path: Ray puts Unix sockets below it, whose paths end at about 100 characters."""
    folder = Path(tempfile.mkdtemp(prefix="anmi-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_local(short_temp: Path) -> Iterator[None]:
    """A Ray of this session's own with four logical CPUs, shut down at the end; no other Ray is touched."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=300_000_000,
        _temp_dir=str(short_temp / "ray"),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True, scope="module")
def gives_back() -> Iterator[None]:
    """What a file's tests took of the shared Ray they give back: the next file would wait for it, perhaps for ever."""
    yield
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    begun = time.monotonic()
    while (left := ray.available_resources().get("CPU", 0.0)) < ray.cluster_resources()["CPU"]:
        assert time.monotonic() - begun < 30, f"logical CPUs that are free when the tests of a file have ended: {left}"
        time.sleep(0.1)


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` writes, by the first test process that needs it; the others wait for it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            making = folder.with_name(f"{name}-making")
            shutil.rmtree(making, ignore_errors=True)  # of a process that failed at it
            make(making)
            making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def small_collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real collection in BEIR layout (see tests/small.py), for all test processes; read only."""
    from tests.small import write_collection

    return _made_once(tmp_path_factory, "small", write_collection)


@pytest.fixture(scope="session")
def prepared(ray_local: None, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the small run as far as mine, made once for all test processes; read only: see `start_from`."""
    from tests.small import write_prepared

    return _made_once(tmp_path_factory, "prepared", lambda folder: write_prepared(folder, small_collection))


@pytest.fixture(scope="module")
def trained_in_one_task(ray_local: None) -> Iterator[None]:
    """A module's runs train without Ray Train (tests/training/one_task.py): for tests that say nothing of it."""
    from tests.training.one_task import in_one_task

    with in_one_task():
        yield


@pytest.fixture(scope="session")
def chat_port() -> Iterator[int]:
    """Port of a chat-completions server in a separate process."""
    from tests.judging.serving import serving

    with serving() as port:
        yield port


@pytest.fixture
def chat(chat_port: int, request: pytest.FixtureRequest) -> Chat:
    """A server for one test, without faults until it is told otherwise (see chat_server.py)."""
    from tests.judging.serving import Chat

    server = Chat(chat_port, "".join(c if c.isalnum() else "-" for c in request.node.name))
    server.setup()
    return server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[endpoints.S3Endpoint]:
    """An S3 endpoint for all tests."""
    with endpoints.running() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: endpoints.S3Endpoint) -> Iterator[endpoints.S3Endpoint]:
    """The endpoint with an empty bucket and an empty record."""
    for key in s3_server.objects():
        s3_server.client.delete_object(Bucket=endpoints.BUCKET, Key=key)
    s3_server.requests.clear()
    s3_server.refuse = None
    yield s3_server
    s3_server.refuse = None
