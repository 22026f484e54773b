"""Token vectors: whose they are, which tokens count, and that their bytes depend on nothing but their text."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import AutoModel, AutoTokenizer

from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.models.encoder import Task, TokenEncoder, check
from anmi_ray.models.loading import PACKAGED, resolve
from anmi_ray.models.pooling import is_colbert
from tests.models.tiny import write_tiny_decoder

TEXTS = ["word1 word2 word3", "word4", "word5 " * 30, "word6 word7", "", "word8 strange word9"]
QUERY_LENGTH, DOCUMENT_LENGTH, SIZE = 12, 20, 16


def encoder(folder: Path, **settings: Any) -> TokenEncoder:
    return TokenEncoder(resolve(str(folder)), LateConfig(model=str(folder), **settings))


def write_pylate(folder: Path, base: Path, **changed: Any) -> Path:
    """Write a checkpoint as PyLate 1.6 does: the transformer, a projection, markers and lengths in the settings."""
    shutil.copytree(base, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken("[Q] "), AddedToken("[D] ")])
    tokenizer.save_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(folder)
        weight = torch.randn(SIZE, 32)
    dense = folder / "1_Dense"
    dense.mkdir()
    save_file({"linear.weight": weight}, dense / "model.safetensors")
    identity = "torch.nn.modules.linear.Identity"
    write(dense / "config.json", in_features=32, out_features=SIZE, bias=False, activation_function=identity)
    write(folder / "sentence_bert_config.json", max_seq_length=DOCUMENT_LENGTH - 1, do_lower_case=False)
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": kinds[path]} for i, path in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = {
        "model_type": "ColBERT", "prompts": {"query": "", "document": ""}, "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": QUERY_LENGTH,
        "document_length": DOCUMENT_LENGTH, "attend_to_expansion_tokens": False, "skiplist_words": ["word2", "word9"],
        "do_query_expansion": True,
    }  # fmt: skip
    settings = {name: value for name, value in (settings | changed).items() if value is not None}
    write(folder / "config_sentence_transformers.json", **settings)
    return folder


def write(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def colbert(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pylate(tmp_path_factory.mktemp("colbert") / "model", base)


def by_hand(folder: Path, ids: list[int], attended: int, kept: list[bool]) -> NDArray[np.float32]:
    """The kept rows of projected hidden states, of unit length; the first `attended` tokens are seen by all."""
    model = AutoModel.from_pretrained(folder)
    weight = load_file(folder / "1_Dense" / "model.safetensors")["linear.weight"]
    mask = (torch.arange(len(ids)) < attended).long()
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids]), attention_mask=mask[None]).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden @ weight.T, dim=-1)[torch.tensor(kept)].numpy()


def test_an_encoders_vectors_are_its_last_hidden_states(base: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModel.from_pretrained(base)
    made = encoder(base)
    for task in ("query", "document"):
        for text, vectors in zip(TEXTS[:4], made.encode(TEXTS[:4], task), strict=True):
            ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=64 if task == "document" else 32)
            with torch.inference_mode():
                hidden = model(**ids).last_hidden_state[0]
            np.testing.assert_allclose(vectors, torch.nn.functional.normalize(hidden, dim=-1).numpy(), atol=2e-6)
            assert vectors.dtype == np.float32
            assert vectors.shape[1] == made.dimension == 32


def test_an_empty_text_has_vectors(base: Path) -> None:
    """Those of the special tokens."""
    assert [part.shape for part in encoder(base).encode(["", "word1"], "document")] == [(2, 32), (3, 32)]
    assert encoder(base).encode([], "query") == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("task", ["query", "document"])
def test_bytes_depend_on_the_text_alone(dtype: Any, task: Task) -> None:
    made = TokenEncoder(resolve(PACKAGED), LateConfig(), dtype)
    texts = ["Open a file and read its lines.", "Close.", "The area of a circle, given its radius. " * 20, "Add two."]
    alone = [made.encode([text], task)[0] for text in texts]
    many = texts * 9
    random.Random(3).shuffle(many)
    for text, vectors in zip(many, made.encode(many, task), strict=True):
        assert vectors.tobytes() == alone[texts.index(text)].tobytes()


@pytest.mark.parametrize("name", ["base", "colbert"])
def test_padding_changes_nothing(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for rounding: the same texts, each padded to 16 tokens more."""
    made = encoder(request.getfixturevalue(name))
    texts, batches = [text for text in TEXTS if len(text) < 40], made._batches
    for task in ("query", "document"):
        before = made.encode(texts, task)
        with monkeypatch.context() as patched:
            patched.setattr(made, "_batches", lambda *args: ((rows, wide + 16) for rows, wide in batches(*args)))
            after = made.encode(texts, task)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


def test_prompts_and_lengths_of_an_encoder(base: Path) -> None:
    made = encoder(base, query_prompt="word1 ", document_prompt="word2 ", max_tokens=10, query_tokens=6)
    plain = encoder(base, max_tokens=10, query_tokens=6)
    cases: list[tuple[Task, str, int]] = [("query", "word1 ", 6), ("document", "word2 ", 10)]
    for task, prompt, tokens in cases:
        long, short = made.encode(["word3 " * 40, "word4"], task)
        assert (len(long), len(short)) == (tokens, 4)
        for one, other in zip(
            [long, short], plain.encode([prompt + "word3 " * 40, prompt + "word4"], task), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert [len(part) for part in encoder(base, max_tokens=500).encode(["word3 " * 9000], "document")] == [64]


def test_a_colbert_checkpoint_of_pylate(colbert: Path) -> None:
    """Markers after [CLS], queries filled up with [MASK] that nothing attends to, words left out of documents alone."""
    assert is_colbert(resolve(str(colbert)))
    tokenizer, made = AutoTokenizer.from_pretrained(colbert), encoder(colbert)
    assert made.dimension == SIZE
    of = tokenizer.convert_tokens_to_ids
    query = of(["[CLS]", "[Q] ", "word1", "word2", "[SEP]"])
    expanded = query + of(["[MASK]"]) * (QUERY_LENGTH - len(query))
    found = made.encode(["word1 word2", "word3 " * 50], "query")
    np.testing.assert_allclose(found[0], by_hand(colbert, expanded, len(query), [True] * QUERY_LENGTH), atol=2e-6)
    assert len(found[1]) == QUERY_LENGTH
    document = of(["[CLS]", "[D] ", "word1", "word2", "word3", "[SEP]"])
    kept = [True, True, True, False, True, True]
    found = made.encode(["word1 word2 word3", "word3 " * 50], "document")
    np.testing.assert_allclose(found[0], by_hand(colbert, document, len(document), kept), atol=2e-6)
    assert len(found[1]) == DOCUMENT_LENGTH


def test_settings_go_before_a_checkpoints_lengths(colbert: Path) -> None:
    made = encoder(colbert, max_tokens=9, query_tokens=16)
    assert [len(part) for part in made.encode(["word1", "word3 " * 50], "query")] == [16, 16]
    assert [len(part) for part in made.encode(["word1", "word3 " * 50], "document")] == [4, 9]


def test_a_checkpoint_that_would_leave_no_token(base: Path, tmp_path: Path) -> None:
    words = ["[CLS]", "[D] ", "word1", "[SEP]"]
    made = encoder(write_pylate(tmp_path / "model", base, skiplist_words=words))
    assert [len(part) for part in made.encode(["word1", "word1 word2"], "document")] == [4, 1]


def test_a_checkpoint_without_expansion(base: Path, tmp_path: Path) -> None:
    made = encoder(write_pylate(tmp_path / "model", base, do_query_expansion=False))
    assert [len(part) for part in made.encode(["word1 word2"], "query")] == [5]


@pytest.mark.parametrize(
    ("changed", "colbert"),
    [
        ({}, True),
        ({"model_type": None}, True),  # PyLate's first versions
        ({"model_type": "MultiVectorEncoder"}, True),
        ({"model_type": "SentenceTransformer"}, False),
        ({"model_type": None, "query_prefix": None}, False),
    ],
)
def test_what_a_colbert_checkpoint_is(base: Path, tmp_path: Path, changed: dict[str, Any], colbert: bool) -> None:
    assert is_colbert(resolve(str(write_pylate(tmp_path / "model", base, **changed)))) == colbert


def write_stanford(folder: Path, base: Path, **changed: Any) -> Path:
    """Write a checkpoint as Stanford's ColBERT does: the projection among the transformer's weights, one file more."""
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        weights = {f"bert.{name}": value for name, value in weights.items()} | {"linear.weight": torch.randn(SIZE, 32)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", **(config | {"architectures": ["HF_ColBERT"]}))
    metadata = {"query_token_id": "word50", "doc_token_id": "word51", "query_maxlen": 10, "doc_maxlen": 14}
    write(folder / "artifact.metadata", **metadata | changed)
    return folder


def test_a_checkpoint_of_stanfords(base: Path, tmp_path: Path) -> None:
    made = encoder(write_stanford(tmp_path / "model", base))
    assert [part.shape for part in made.encode(["word1", "word2 " * 30], "query")] == [(10, SIZE)] * 2
    assert [part.shape for part in made.encode(["word1", "word2 " * 30], "document")] == [(4, SIZE), (14, SIZE)]


def test_encoders_are_no_colbert(base: Path) -> None:
    assert not is_colbert(resolve(str(base)))
    assert not is_colbert(resolve(PACKAGED))


@pytest.mark.parametrize("name", ["query_prompt", "document_prompt"])
def test_prompts_are_not_for_colbert(colbert: Path, name: str) -> None:
    settings: dict[str, Any] = {name: "query: "}
    with pytest.raises(ConfigError, match="its own markers") as caught:
        check(resolve(str(colbert)), LateConfig(**settings))
    assert caught.value.place == f"retrieve.late.{name}"


def test_a_checkpoint_that_is_broken(colbert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(colbert, folder)
    (folder / "1_Dense" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded as a ColBERT checkpoint"):
        encoder(folder)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded as a sentence encoder"):
        encoder(tmp_path)


def test_a_model_without_hidden_states(tmp_path: Path, base: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = AutoTokenizer.from_pretrained(base)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu").save(str(tmp_path))
    shutil.copy(base / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="StaticEmbedding, which has no hidden states"):
        encoder(tmp_path)


def test_a_decoder_has_token_vectors(tmp_path: Path) -> None:
    made = encoder(write_tiny_decoder(tmp_path / "model", "qwen3"))
    assert all(np.isfinite(part).all() and len(part) for part in made.encode(["yes word1", "no"], "document"))


def test_vectors_that_are_not_finite(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="not finite"):
        encoder(folder).encode(["word1"], "query")
