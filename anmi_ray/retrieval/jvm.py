"""Run Lucene in a JVM inside this process: the JDK in JAVA_HOME, with Anserini's classes, which pyserini contains.

Only pyserini's file of classes is used, through pyjnius: importing its searcher would load torch and an API client,
take seconds, and require an API key.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, StoreError

OLDEST = 21  # the Java version for which Anserini is compiled
_LIBRARY = Path("lib", "server", "libjvm.dylib" if sys.platform == "darwin" else "libjvm.so")
# An upper bound (a process with a small index uses .3 GB in all). Indexes are mapped from files, outside the heap,
# which holds the write buffer and one document at a time, of 10 MB at most.
HEAP = "1g"
_OPTIONS = (
    f"-Xmx{HEAP}",
    # else Java limits the main thread's stack to 1 MB, and deeper calls later end the process
    "-Xss8m",
    "-Xrs",  # Ctrl-C and SIGTERM stay Python's
    "-XX:+UseSerialGC",  # no threads per core: processes, not threads, share the cores
    "-XX:-UsePerfData",  # no files in /tmp
    "-Djava.util.logging.config.file=/dev/null",  # Lucene's advice to update it, on stderr
    "-Dlog4j2.level=OFF",  # Anserini's
)
_UNSAFE_WARNS = 23  # Java version that warns about a call of Lucene's, unless an option silences it
_STORAGE = ("java.io.", "java.nio.file.", "org.apache.lucene.index.", "org.apache.lucene.store.")


@dataclass(frozen=True)
class Jdk:
    """An installation of Java.

    major: the version in its file `release`; 0 without one.
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


def installed() -> Jdk | None:
    """Return the installation that JAVA_HOME names, if it names one."""
    if not (place := os.environ.get("JAVA_HOME")):
        return None
    home = Path(place).resolve()
    release = home / "release"
    about = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', about, re.MULTILINE)
    return Jdk(int(version.group(1)) if version else 0, home)


def usable() -> Jdk:
    """Return the installation in JAVA_HOME. Raises ConfigError if Lucene cannot run in it."""
    jdk = installed()
    if jdk is not None and jdk.fault is None:
        return jdk
    raise ConfigError(
        f"the lucene retriever: expected a JDK of {OLDEST} or newer in JAVA_HOME, got {jdk or 'no JAVA_HOME'}",
        "retrieve.retrievers",
        f"install one (Debian: apt-get install openjdk-{OLDEST}-jre-headless) and set JAVA_HOME to its folder (as "
        f"/usr/lib/jvm/java-{OLDEST}-openjdk-amd64), or leave lucene out",
    )


def check() -> None:
    """Raise ConfigError unless pyserini is installed and JAVA_HOME is a JDK; imports neither, starts nothing."""
    _classes()
    usable()


@lru_cache(maxsize=1)
def start() -> Any:
    """Return the module `jnius` with a JVM that runs until this process ends.

    Raises ConfigError as `check` does, and if the JVM does not start.
    """
    classes = _classes()
    chosen = usable()
    jnius_config = import_module("jnius_config")
    jnius_config.set_classpath(str(classes))
    options = [*_OPTIONS, "--sun-misc-unsafe-memory-access=allow"] if chosen.major >= _UNSAFE_WARNS else _OPTIONS
    jnius_config.set_options(*options)
    os.environ["JAVA_HOME"] = str(chosen.home)
    library = os.environ.pop("JVM_PATH", None)  # which pyjnius would prefer
    try:
        return import_module("jnius")
    except SystemError as error:
        raise ConfigError(
            f"{chosen} does not start: {error}",
            "retrieve.retrievers",
            f"see what {chosen.home}/bin/java -Xmx{HEAP} -version says, set JAVA_HOME to another, or leave lucene out",
        ) from None
    finally:
        if library is not None:
            os.environ["JVM_PATH"] = library


@lru_cache(maxsize=64)
def java(name: str) -> Any:
    """Return a Java class by name, with public members only, which is faster."""
    return start().autoclass(name, include_protected=False, include_private=False)


@contextmanager
def storage_errors(folder: Path, remedy: str) -> Iterator[None]:
    """Convert Java's errors about the files in `folder` into a StoreError with this remedy."""
    exception: type[Exception] = start().JavaException
    try:
        yield
    except exception as error:
        name = str(getattr(error, "classname", None) or "")
        if not name.startswith(_STORAGE):
            raise
        message = getattr(error, "innermessage", None) or name
        raise StoreError(f"Lucene: {name.rpartition('.')[2]}: {message}", str(folder), remedy) from None


def _classes() -> Path:
    """Return the file of Anserini's classes in pyserini. Raises ConfigError."""
    place = "retrieve.retrievers"
    remedy = f"{environment.install('lucene')}, or leave lucene out"
    for package in ("pyserini", "jnius_config"):
        if find_spec(package) is None:
            raise ConfigError(f"the lucene retriever needs {package}, which is not installed", place, remedy)
    spec = find_spec("pyserini")
    homes = [Path(home) for home in (spec.submodule_search_locations or ())] if spec else []
    jars = sorted(path for home in homes for path in (home / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise ConfigError(f"pyserini in {', '.join(map(str, homes))} has no anserini-*-fatjar.jar", place, remedy)
    return jars[-1]
