"""Whether Lucene can run here: its tests are skipped with the reason where it cannot."""

from __future__ import annotations

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import lucene


def _absence() -> str:
    try:
        lucene.check()
    except ConfigError as error:
        return error.message
    return ""


ABSENT = _absence()
needs_lucene = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
