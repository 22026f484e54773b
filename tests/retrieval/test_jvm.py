"""What stands between Python and Lucene: its absence explained, and a Java that leaves this process as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import jvm, lucene
from tests.interrupts import heeding
from tests.retrieval.java import needs_lucene

ROOT = Path(__file__).resolve().parent.parent.parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`code` in a new process, whose working folder and environment are this one's but for `environment`."""
    return subprocess.run(
        heeding([sys.executable, "-c", code]),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def install(home: Path, release: str | None = None, library: bool = True) -> Path:
    """A folder that looks like a JDK."""
    home.mkdir()
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    if library:
        (home / "lib" / "server").mkdir(parents=True)
        for name in ("libjvm.so", "libjvm.dylib"):
            (home / "lib" / "server" / name).touch()
    return home.resolve()


@pytest.mark.parametrize(("release", "major"), [("21.0.2", 21), ("25", 25)])
def test_a_jdk_in_java_home_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, major: int
) -> None:
    home = install(tmp_path / "home", release)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "link"))
    assert jvm.usable() == jvm.Jdk(major, home)


@pytest.mark.parametrize(
    ("release", "library", "reason"),
    [
        ("17.0.15", True, "too old"),
        ("1.8.0_391", True, "JDK 8"),
        ("25", False, "has no lib"),
        (None, True, "no file release"),
    ],
)
def test_one_that_lucene_cannot_run_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, library: bool, reason: str
) -> None:
    home = install(tmp_path / "home", release, library)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ConfigError) as caught:
        jvm.usable()
    assert str(home) in str(caught.value)
    assert reason in str(caught.value)


def test_without_java_home_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert jvm.installed() is None
    with pytest.raises(ConfigError, match="JDK of 21 or newer in JAVA_HOME"):
        jvm.usable()


@pytest.mark.parametrize("package", ["pyserini", "jnius_config"])
def test_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: find_spec("anmi_ray") for name in ("pyserini", "jnius_config")} | {package: None}
    monkeypatch.setattr(jvm, "find_spec", found.__getitem__)
    with pytest.raises(ConfigError, match=f"needs {package}, which is not installed") as caught:
        lucene.check()
    assert environment.install("lucene") in str(caught.value.remedy)


def test_package_without_its_classes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "find_spec", lambda name: find_spec("anmi_ray"))
    with pytest.raises(ConfigError, match=r"has no anserini-\*-fatjar\.jar"):
        lucene.check()


def test_checking_imports_and_starts_nothing() -> None:
    done = run(
        "import sys\nfrom anmi_ray.core.errors import ConfigError\nfrom anmi_ray.retrieval import lucene\n"
        "try: lucene.check()\nexcept ConfigError: pass\n"
        "print([name for name in ('jnius', 'jnius_config', 'pyserini', 'torch') if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


@needs_lucene
def test_java_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from anmi_ray.config.retrieve import LuceneConfig
from anmi_ray.retrieval import lucene
before, folder, config = dict(os.environ), Path({str(tmp_path / "größe")!r}), LuceneConfig()
folder.mkdir()
handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
lucene.build(["red cars", "blue cars"], folder, config)
index = lucene.LuceneIndex(folder, config, 2)
assert index.search(["blue car"] * 200, 2, threads=3)[0].tolist() == [[1, 0]] * 200
index.close()
assert dict(os.environ) == before
assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
assert not {{"torch", "openai", "pyserini"}} & set(sys.modules)
nested = []
for _ in range(20_000):  # written by as many C calls: all of a stack of several MB
    nested = [nested]
sys.setrecursionlimit(100_000)
assert len(repr(nested)) == 40_002
while nested:  # freed from the outside in, without a call for each
    nested = nested[0]
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
    done = run(code, JVM_PATH="/nowhere/libjvm.so")
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", -signal.SIGTERM)


@needs_lucene
@pytest.mark.ray
def test_ray_leaves_java_its_fault_handlers(tmp_path: Path) -> None:
    code = f"""
import ctypes
from anmi_ray.config.load import validate
from anmi_ray.retrieval import jvm
from anmi_ray.runtime.driver import _FAULTS
from anmi_ray.runtime.tasks import ray_session
def handlers():
    actions = [ctypes.create_string_buffer(256) for _ in _FAULTS]
    for fault, action in zip(_FAULTS, actions):
        ctypes.CDLL(None).sigaction(fault, None, action)
    return [action.raw[:16] for action in actions]  # the handler, and what of its mask the kernel fills
jvm.start()
before = handlers()
with ray_session(validate({{"execution": {{"root": {str(tmp_path)!r}}}}}, "test").execution):
    assert handlers() == before
assert handlers() == before
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@needs_lucene
def test_java_that_does_not_start_is_named(tmp_path: Path) -> None:
    for path in ("bin/java", "lib/server/libjvm.so", "lib/server/libjvm.dylib"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("not a library")
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    code = "from anmi_ray.retrieval import jvm\nfrom anmi_ray.core.errors import ConfigError\n"
    done = run(f"{code}try: jvm.start()\nexcept ConfigError as error: print(error)", JAVA_HOME=str(tmp_path))
    assert f"JDK 21 in {tmp_path.resolve()} does not start" in done.stdout, done.stderr
    assert "remedy: see what" in done.stdout
