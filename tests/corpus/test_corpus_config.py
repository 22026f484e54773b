"""Settings of the corpus that contradict each other are refused with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from anmi_ray.config.corpus import CorpusConfig

TREC: dict[str, Any] = {"reader": "trec", "documents": "d", "queries": "t", "qrels": {"test": "q"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reader": "beir"}, "needs `path`"),
        ({"path": "somewhere"}, "`path` belongs to reader: beir;"),
        ({"reader": "beir", "path": "x", "packages": ["numpy"]}, "`packages` belongs to reader: pydocs"),
        ({"reader": "beir", "path": "x", "test_fraction": 0.2}, "`test_fraction` belongs to reader: pydocs"),
        ({"dev_fraction": 0.5, "test_fraction": 0.5}, "must leave train queries"),
        ({"packages": ["not a name"]}, "not the import name"),
        ({"packages": ["numpy", "numpy"]}, "named twice"),
        ({"reader": "parquet"}, "'pydocs', 'beir', 'trec', 'table' or 'ir_datasets'"),
        ({"reader": "trec"}, "reader: trec needs `documents`, files or folders"),
        ({"labels": ["validation"]}, "'train', 'dev' or 'test'"),
        ({"labels": ["test", "test"]}, "named twice"),
        ({"unlabelled": "reject"}, "'train' or 'leave-out'"),
        ({"reader": "table", "documents": "x"}, "needs `queries`, a table"),
        ({"reader": "ir_datasets"}, "needs `datasets`, such as"),
        ({"reader": "trec", "path": "x"}, "`path` belongs to reader: beir;"),
        ({"documents": "x"}, "`documents` belongs to reader: trec or table;"),
        ({**TREC, "columns": {"text": "x"}}, "`columns` belongs to reader: table;"),
        ({**TREC, "reader": "table", "topic_fields": ["desc"]}, "`topic_fields` belongs to reader: trec;"),
        ({**TREC, "datasets": {"test": "x"}}, "`datasets` belongs to reader: ir_datasets;"),
        ({**TREC, "topic_fields": ["title", "title"]}, "named twice"),
        ({**TREC, "topic_fields": []}, "at least 1 item"),
        ({**TREC, "qrels": {}}, "name at least one of train, dev, test"),
        ({**TREC, "qrels": {"test": "q", "train": ["p", "q"]}}, "q is named twice; give every split its own"),
        ({**TREC, "qrels": "q"}, "name its split, such as {test: NAME}"),
        ({**TREC, "qrels": {"validation": "q"}}, "Extra inputs"),
        ({**TREC, "encoding": "utf-17"}, "no text encoding 'utf-17'"),
        ({**TREC, "encoding": "base64"}, "no text encoding 'base64'"),
        ({"encoding": "latin-1"}, "`encoding` belongs to reader: beir or trec or table"),
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
    assert CorpusConfig(**TREC).dev_share == 0.1
    assert CorpusConfig(dev_fraction=0.0).dev_share == 0.0


def test_one_name_or_several_may_be_given() -> None:
    one = CorpusConfig(**TREC)
    assert one == CorpusConfig(**{**TREC, "documents": ["d"], "qrels": {"test": ["q"]}})
    assert one.qrels is not None
    assert one.qrels.named == {"test": (str(Path("q").absolute()),)}


def test_splits_whose_labels_are_read_have_no_order() -> None:
    assert CorpusConfig(labels=("test", "train")) == CorpusConfig(labels=("train", "test"))
    assert CorpusConfig.model_validate({"labels": "test"}).labels == ("test",)


def test_a_collection_is_called_by_where_it_is() -> None:
    assert CorpusConfig().name == "pydocs"
    assert CorpusConfig(reader="beir", path="x").name == "x"
    assert CorpusConfig(**{**TREC, "documents": ["a", "b"]}).name == "a, b"
    ids: dict[str, Any] = {"train": "beir/scifact/train", "test": "beir/scifact/test"}
    assert CorpusConfig(reader="ir_datasets", datasets=ids).name == "beir/scifact/train, beir/scifact/test"  # pyright: ignore[reportArgumentType]
