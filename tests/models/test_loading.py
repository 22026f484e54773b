"""A model is loaded only with a tokenizer that fits its embeddings, whichever loader reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, BertModel

from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.tokens import load_tokens
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.classifier import Classifier, PairClassifier, load_scorer
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.encoder import Encoder, TokenEncoder
from anmi_ray.models.kinds import load_reranker
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import PACKAGED, ModelSource, resolve
from tests.models.tiny import SPECIAL, WORDS, in_bert_form, write_tiny_bert, write_tiny_classifier

LOADERS: dict[str, Callable[[ModelSource], Any]] = {
    "a reranker": load_reranker,
    "a student": CrossEncoder.load,
    "a bi-encoder": BiEncoder.load,
    "late interaction": LateInteraction.load,
    "a judge": load_scorer,
    "a pairwise judge": Classifier,
    "dense retrieval": Encoder,
    "late retrieval": lambda source: TokenEncoder(source, LateConfig()),
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def without_files(folder: Path) -> None:
    for name in TOKENIZER:
        (folder / name).unlink()


def without_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def of_fewer_words(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: i for word, i in vocabulary.items() if i < len(vocabulary) // 2}
    in_bert_form(Tokenizer.from_str(json.dumps(content)), 64).save_pretrained(folder)


def of_more_words(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(folder)


def with_a_marker(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[DOC]"]})
    tokenizer.save_pretrained(folder)


def damaged(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def of_no_words(folder: Path) -> None:
    """The tokenizers library raises an Exception of no class of its own."""
    without_files(folder)
    (folder / "vocab.txt").write_text("")


FAULTS = (without_files, without_vocabulary, of_fewer_words, of_more_words, with_a_marker, damaged, of_no_words)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_loader_refuses_a_tokenizer_that_is_not_the_models(fault: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write_tiny_classifier(tmp_path / "model", ["score"])
    fault(folder)
    published = ModelSource("org/model", str(folder), "0", True)  # without the check of a folder's files
    for name, load in LOADERS.items():
        with pytest.raises(ConfigError) as refused:
            load(published)
        assert refused.value.place == "model org/model", name
    with pytest.raises(ConfigError):
        PairClassifier.start(DistillConfig.model_validate({"model": str(folder)}), "two-head")


@pytest.mark.parametrize("fault", [without_files, without_vocabulary])
def test_a_folder_without_a_tokenizer_is_refused_before_weights_are_read(
    fault: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    fault(folder)
    with pytest.raises(ConfigError, match="tokenizer"):
        resolve(str(folder))
    with pytest.raises(ConfigError) as refused:
        load_tokens(str(folder))
    assert refused.value.place == f"tokenizer {folder}"


def test_models_with_more_embeddings_than_tokens_are_loaded(tmp_path: Path) -> None:
    """Embeddings are padded to multiples of 64 or 128."""
    folder = write_tiny_classifier(tmp_path / "model", ["score"], vocab_size=len(SPECIAL + WORDS) + 7)
    for load in LOADERS.values():
        load(resolve(str(folder)))


def test_an_image_token_of_a_text_model_needs_no_embedding(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"image_token": "<image_soft_token>"}))
    Encoder(resolve(str(folder))).encode(["word1 word2"])


def test_a_tokenizer_of_a_vocabulary_alone_is_loaded(tmp_path: Path) -> None:
    packaged = Path(resolve(PACKAGED).path_or_id)
    shutil.copy(packaged / "vocab.txt", tmp_path)
    small = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    BertModel(small).save_pretrained(tmp_path)
    source = resolve(str(tmp_path))
    expected = AutoTokenizer.from_pretrained(packaged)("Sort a list")["input_ids"]
    for load in (BiEncoder.load, CrossEncoder.load):
        assert load(source).pairs.tokenizer("Sort a list")["input_ids"] == expected
    Encoder(source)
