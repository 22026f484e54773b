"""The distill stage without Ray: the split by query, the texts of a backbone, and which targets go with which form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.load import load
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import digest, id_array
from anmi_ray.models.classifier import PairClassifier
from anmi_ray.stages.distill import split_of
from anmi_ray.stages.distill.worker import texts_for
from anmi_ray.stages.ingest import DEV, TEST, TRAIN
from tests.models.tiny import write_tiny_bert, write_tiny_decoder

CONFIG = DistillConfig()


def ids(numbers: list[int]) -> pa.Array:
    return id_array([digest("query", number) for number in numbers])


@given(st.lists(st.integers(0, 40), min_size=3, max_size=120), st.randoms(use_true_random=False))
def test_a_query_is_in_one_split_whatever_the_order(numbers: list[int], random: object) -> None:
    count = len(set(numbers))
    if count < 3:
        with pytest.raises(DataError, match="splitting by query needs three"):
            split_of(ids(numbers), CONFIG)
        return
    splits = dict(zip(numbers, split_of(ids(numbers), CONFIG), strict=True))
    assert [splits[number] for number in numbers] == split_of(ids(numbers), CONFIG)
    shuffled = sorted(numbers, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert splits == dict(zip(shuffled, split_of(ids(shuffled), CONFIG), strict=True))
    held = {name: sum(split == name for split in splits.values()) for name in (TRAIN, DEV, TEST)}
    assert min(held.values()) >= 1
    assert held[TEST] == min(max(round(0.2 * count), 1), count - 2)


def test_another_seed_splits_otherwise() -> None:
    numbers = list(range(60))
    other = DistillConfig.model_validate(CONFIG.model_dump() | {"sample": {"seed": 1}})
    assert split_of(ids(numbers), CONFIG) != split_of(ids(numbers), other)


def test_one_query_cannot_be_split() -> None:
    with pytest.raises(DataError, match="the pairs are of 1 query"):
        split_of(ids([5] * 20), CONFIG)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> PairClassifier:
    folder = write_tiny_decoder(tmp_path_factory.mktemp("decoder"), "qwen3")
    return PairClassifier.start(DistillConfig(model=str(folder), max_tokens=64), "ternary")


def test_an_encoder_reads_two_texts_and_a_decoder_one(decoder: PairClassifier, tmp_path: Path) -> None:
    encoder = PairClassifier.start(DistillConfig(model=str(write_tiny_bert(tmp_path)), max_tokens=40), "binary")
    assert texts_for(encoder)[1] == "{first} {sep} {second}"
    text, pair = texts_for(decoder)
    assert pair is None
    assert text.index("{query}") < text.index("{first}") < text.index("{second}")


def test_defaults_are_what_was_measured_to_work_and_are_read_back() -> None:
    """A small model learns cosines from few pairs, and never ends below its start on dev."""
    default = DistillConfig()
    assert (default.form, default.target, default.learning_rate) == ("bi-encoder", "binary", 2e-5)
    assert default.dev_points[0] == 0.0
    assert DistillConfig.model_validate(default.model_dump()) == default
    measured = load("jobs/configs/quickstart-distilled.yaml").distill  # the run of the results
    assert default == measured.model_copy(
        update={name: getattr(default, name) for name in ("freeze_layers", "sample", "judge")}
    )


def test_differences_of_scores_are_binary() -> None:
    with pytest.raises(ValueError, match="knows no ties"):
        DistillConfig(form="pointwise", target="ternary")
