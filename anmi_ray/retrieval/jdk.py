"""Finding a Java that can run Lucene: in JAVA_HOME, then in the usual folders, then on PATH.

Looks at files alone where an installation describes itself, so it is cheap, and starts no Java in this process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anmi_ray.core.errors import ConfigError

OLDEST = 21  # what Anserini's classes are compiled for
FOLDERS = (  # where distributions, vendors, macOS and SDKMAN put them
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
_LIBRARY = Path("lib", "server", "libjvm.dylib" if sys.platform == "darwin" else "libjvm.so")


@dataclass(frozen=True)
class Jdk:
    """An installation of Java: its major version and where it is."""

    major: int
    home: Path

    @property
    def fault(self) -> str | None:
        """Why Lucene cannot run in it, or None."""
        if self.major < OLDEST:
            return "too old"
        return None if (self.home / _LIBRARY).is_file() else f"has no {_LIBRARY}"

    def __str__(self) -> str:
        return f"JDK {self.major} in {self.home}" + (f" ({self.fault})" if self.fault else "")


def installed() -> list[Jdk]:
    """All that are found, as they are preferred: JAVA_HOME, the usual folders (newest first), PATH."""
    found: dict[Path, Jdk] = {}
    for homes in (_of_environment(), _of_folders(), _on_path()):
        here = [jdk for home in homes if (jdk := _inspect(home)) is not None]
        for jdk in sorted(here, key=lambda jdk: (-jdk.major, jdk.home)):
            found.setdefault(jdk.home, jdk)
    return list(found.values())


def usable() -> Jdk:
    """The first that Lucene can run in; raises ConfigError naming what was found instead."""
    found = installed()
    for jdk in found:
        if jdk.fault is None:
            return jdk
    what = f"found only {', '.join(map(str, found))}" if found else "found none"
    if (home := os.environ.get("JAVA_HOME")) and not (Path(home) / "bin" / "java").is_file():
        what += f" (JAVA_HOME is {home}, where there is no bin/java)"
    raise ConfigError(
        f"the lucene retriever needs a JDK of {OLDEST} or newer; {what}",
        "retrieve.retrievers",
        f"install one (Debian: apt-get install openjdk-{OLDEST}-jre-headless) and set JAVA_HOME to it if it is not "
        "found by itself, or leave lucene out",
    )


def _of_environment() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)


def _of_folders() -> Iterator[Path]:
    for pattern in FOLDERS:
        path = Path(pattern).expanduser()
        yield from Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def _on_path() -> Iterator[Path]:
    if (java := shutil.which("java")) is not None:
        yield Path(java).resolve().parent.parent


def _inspect(home: Path) -> Jdk | None:
    """The installation in a folder; its version from its own `release` file, or by asking it."""
    home = home.resolve()
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        about = (home / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', about, re.MULTILINE)
        if match:
            return Jdk(int(match.group(1)), home)
    except OSError:
        pass  # old and repackaged ones have no such file
    major = _asked(java)
    return None if major is None else Jdk(major, home)


def _asked(java: Path) -> int | None:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return major_version(done.stderr + done.stdout)


def major_version(text: str) -> int | None:
    """The major version in what `java -version` prints, or None.

    >>> major_version('openjdk version "17.0.15" 2025-04-15'), major_version('java version "1.8.0_391"')
    (17, 8)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None
