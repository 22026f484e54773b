"""The Java in JAVA_HOME, and whether Lucene can run in it. Reads files alone and starts no Java."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from anmi_ray.core.errors import ConfigError

OLDEST = 21  # what Anserini's classes are compiled for
_LIBRARY = Path("lib", "server", "libjvm.dylib" if sys.platform == "darwin" else "libjvm.so")


@dataclass(frozen=True)
class Jdk:
    """An installation of Java.

    major: the version in its file `release`; 0 if there is none.
    home: its folder.
    """

    major: int
    home: Path

    @property
    def fault(self) -> str | None:
        """Why Lucene cannot run in it, or None."""
        if self.major < OLDEST:
            return "too old" if self.major else "no file release with its version"
        return None if (self.home / _LIBRARY).is_file() else f"has no {_LIBRARY}"

    def __str__(self) -> str:
        return f"JDK {self.major or 'unknown'} in {self.home}" + (f" ({self.fault})" if self.fault else "")


def installed() -> list[Jdk]:
    """Return the installation that JAVA_HOME names, if it names one."""
    if not (place := os.environ.get("JAVA_HOME")):
        return []
    home = Path(place).resolve()
    release = home / "release"
    about = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', about, re.MULTILINE)
    return [Jdk(int(version.group(1)) if version else 0, home)]


def usable() -> Jdk:
    """Return the installation in JAVA_HOME. Raises ConfigError if Lucene cannot run in it."""
    found = installed()
    if found and found[0].fault is None:
        return found[0]
    raise ConfigError(
        f"the lucene retriever: expected a JDK of {OLDEST} or newer in JAVA_HOME, got "
        f"{found[0] if found else 'no JAVA_HOME'}",
        "retrieve.retrievers",
        f"install one (Debian: apt-get install openjdk-{OLDEST}-jre-headless) and set JAVA_HOME to its folder (as "
        f"/usr/lib/jvm/java-{OLDEST}-openjdk-amd64), or leave lucene out",
    )
