"""The JDK in JAVA_HOME is taken if Lucene can run in it; else the error says what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import jvm


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
    assert jvm.installed() == []
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        jvm.usable()
