"""Whether Lucene can run here: its tests are skipped with the reason where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import jvm, lucene


def _absence() -> str:
    """The reason why Lucene cannot run; without JAVA_HOME, a usable JDK in the usual folder becomes it."""
    if not os.environ.get("JAVA_HOME"):
        for home in sorted(Path("/usr/lib/jvm").glob("*")):
            os.environ["JAVA_HOME"] = str(home)
            if (jdk := jvm.installed()) is not None and jdk.fault is None:
                break
            del os.environ["JAVA_HOME"]
    try:
        lucene.check()
    except ConfigError as error:
        return error.message
    return ""


ABSENT = _absence()
needs_lucene = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
