"""A JDK is found where it is, an unusable one does not hide a good one, and the error says what was seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import jdk


def install(home: Path, release: str | None = None, prints: str | None = None, library: bool = True) -> Path:
    """A folder that looks like a JDK: its `release` file, or a `java` that prints its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n" if prints is None else f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    if library:
        (home / "lib" / "server").mkdir(parents=True)
        for name in ("libjvm.so", "libjvm.dylib"):
            (home / "lib" / "server" / name).touch()
    return home.resolve()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder searched: no JAVA_HOME, no java on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(jdk, "FOLDERS", (f"{tmp_path}/jvm/*",))
    return tmp_path / "jvm"


def test_order_is_java_home_then_folders_newest_first_then_path(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, first = install(folders / "a", "21.0.2"), install(folders / "b", "25")
    home, on_path = install(tmp_path / "home", "21.0.9"), install(tmp_path / "elsewhere", "99.0.1")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(on_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert [(one.major, one.home) for one in jdk.installed()] == [(21, home), (25, first), (21, second), (99, on_path)]
    assert jdk.usable().home == home


def test_java_home_that_is_too_old_does_not_hide_a_good_one(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(folders / "old", "17.0.15")))
    good = install(folders / "good", "21")
    assert jdk.usable() == jdk.Jdk(21, good)
    assert jdk.installed()[0].fault == "too old"


def test_one_without_its_library_does_not_serve(folders: Path) -> None:
    install(folders / "broken", "25", library=False)
    with pytest.raises(ConfigError, match=r"JDK 25 in .*broken \(has no lib/server/libjvm"):
        jdk.usable()
    good = install(folders / "good", "21")
    assert jdk.usable().home == good


def test_links_to_one_installation_are_one(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = install(folders / "java-21", "21.0.2")
    (folders / "default").symlink_to(home)
    monkeypatch.setenv("JAVA_HOME", str(folders / "default"))
    assert jdk.installed() == [jdk.Jdk(21, home)]


@pytest.mark.parametrize(
    ("prints", "found"),
    [('openjdk version "22.0.1" 2024-04-16', 22), ('java version "1.8.0_391"', 8), ("what?", None), (None, None)],
)
def test_one_without_a_release_file_is_asked(folders: Path, prints: str | None, found: int | None) -> None:
    install(folders / "x", prints=prints)
    assert [one.major for one in jdk.installed()] == ([] if found is None else [found])


def test_error_names_what_was_found_and_the_remedy(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs a JDK of 21 or newer; found none\n.*JAVA_HOME"):
        jdk.usable()
    old = install(folders / "old", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(folders / "nowhere"))
    with pytest.raises(ConfigError) as caught:
        jdk.usable()
    assert f"found only JDK 17 in {old} (too old)" in str(caught.value)
    assert f"JAVA_HOME is {folders / 'nowhere'}, where there is no bin/java" in str(caught.value)


def test_looking_changes_no_environment(folders: Path) -> None:
    install(folders / "x", "25")
    before = dict(os.environ)
    jdk.usable()
    assert dict(os.environ) == before
