"""The Java that runs Lucene inside this process: started once, on Anserini's classes, which pyserini brings.

Of pyserini only the file with those classes is used. Importing its searcher would load torch and a server's client,
take seconds, and want an API key; pyjnius, which it rests on as well, gives the same classes directly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.retrieval import jdk

# A bound, not what is taken (a process with a small index takes .3 GB in all). An index is mapped from its files,
# outside the heap; on it lie the buffer of one that is being written and one document at a time, of 10 MB at most.
HEAP = "1g"
_OPTIONS = (
    f"-Xmx{HEAP}",
    # else Java fences the main thread's stack off after its first MB, and whatever goes deeper later ends the process
    "-Xss8m",
    "-Xrs",  # Ctrl-C and SIGTERM stay Python's
    "-XX:+UseSerialGC",  # no threads per core: processes, not threads, share the cores
    "-XX:-UsePerfData",  # no files in /tmp
    "-Djava.util.logging.config.file=/dev/null",  # Lucene's advice to update it, on stderr
    "-Dlog4j2.level=OFF",  # Anserini's
)
_UNSAFE_WARNS = 23  # from here on a warning on stderr about a call of Lucene's is silenced by an option
_STORAGE = ("java.io.", "java.nio.file.", "org.apache.lucene.index.", "org.apache.lucene.store.")


def check() -> None:
    """Raise ConfigError unless pyserini is installed and JAVA_HOME is a JDK; imports neither, starts nothing."""
    _classes()
    jdk.usable()


@lru_cache(maxsize=1)
def start() -> Any:
    """The module `jnius`, with a running JVM behind it, for the rest of this process's life.

    Raises ConfigError as `check` does, and where the JVM does not start.
    """
    classes = _classes()
    chosen = jdk.usable()
    jnius_config = import_module("jnius_config")
    jnius_config.set_classpath(str(classes))
    options = [*_OPTIONS, "--sun-misc-unsafe-memory-access=allow"] if chosen.major >= _UNSAFE_WARNS else _OPTIONS
    jnius_config.set_options(*options)
    try:
        with _environment(JAVA_HOME=str(chosen.home), JVM_PATH=None):
            return import_module("jnius")
    except SystemError as error:
        raise ConfigError(
            f"{chosen} does not start: {error}",
            "retrieve.retrievers",
            f"see what {chosen.home}/bin/java -Xmx{HEAP} -version says, set JAVA_HOME to another, or leave lucene out",
        ) from None


@lru_cache(maxsize=64)
def java(name: str) -> Any:
    """A Java class by its name; its public members alone, which is quicker."""
    return start().autoclass(name, include_protected=False, include_private=False)


@contextmanager
def storage_errors(folder: Path, remedy: str) -> Iterator[None]:
    """What Java says about the files in `folder` becomes a StoreError with this remedy."""
    exception: type[Exception] = start().JavaException
    try:
        yield
    except exception as error:
        name = str(getattr(error, "classname", None) or "")
        if not name.startswith(_STORAGE):
            raise
        said = getattr(error, "innermessage", None) or name
        raise StoreError(f"Lucene: {name.rpartition('.')[2]}: {said}", str(folder), remedy) from None


def _classes() -> Path:
    """Anserini's classes, in the package that brings them."""
    place = "retrieve.retrievers"
    remedy = f"{environment.install('lucene')}, or leave lucene out"
    for package in ("pyserini", "jnius_config"):
        if find_spec(package) is None:
            raise ConfigError(f"the lucene retriever needs {package}, which is not installed", place, remedy)
    spec = find_spec("pyserini")
    homes = [Path(home) for home in (spec.submodule_search_locations or ())] if spec else []
    found = sorted(path for home in homes for path in (home / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not found:
        raise ConfigError(f"pyserini in {', '.join(map(str, homes))} has no anserini-*-fatjar.jar", place, remedy)
    return found[-1]


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Environment variables set, or unset by None, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
