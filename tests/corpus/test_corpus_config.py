"""Settings of the corpus that contradict each other are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from anmi_ray.config.corpus import CorpusConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reader": "beir"}, "needs `path`"),
        ({"path": "somewhere"}, "`path` belongs to reader: beir"),
        ({"reader": "beir", "path": "x", "packages": ["numpy"]}, "`packages` belongs to reader: pydocs"),
        ({"reader": "beir", "path": "x", "test_fraction": 0.2}, "`test_fraction` belongs to reader: pydocs"),
        ({"dev_fraction": 0.5, "test_fraction": 0.5}, "must leave train queries"),
        ({"packages": ["not a name"]}, "not the import name"),
        ({"packages": ["numpy", "numpy"]}, "named twice"),
        ({"reader": "trec"}, "'pydocs' or 'beir'"),
        ({"max_train_queries": -1}, "greater than or equal to 0"),
        ({"shard_documents": 0}, "greater than or equal to 1"),
        ({"split": 1}, "Extra inputs"),
    ],
)
def test_contradictions(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CorpusConfig(**settings)


def test_dev_fraction_has_a_default_per_reader() -> None:
    assert CorpusConfig().dev_share == 0.06
    assert CorpusConfig(reader="beir", path="x").dev_share == 0.1
    assert CorpusConfig(dev_fraction=0.0).dev_share == 0.0
