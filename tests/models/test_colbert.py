"""ColBERT checkpoints as rerankers: scores, before and after export, as sentence-transformers gives them alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

import anmi_ray
from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.models import card as model_card
from anmi_ray.models.encoder import TokenEncoder
from anmi_ray.models.kinds import load_reranker, reads_apart
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import resolve
from anmi_ray.models.pairs import Ragged
from tests.models.test_token_vectors import write, write_pylate, write_stanford
from tests.models.tiny import write_tiny_decoder, write_tiny_encoder

NAMES = "token_embeddings"
SKIPPED = ["word2", "word9"]
QUERIES = ["word1", "word2 word3", "word4 strange word2 word9", "word5 " * 30, "word2", "", "word2 word9 word2"]
DOCUMENTS = ["word1 word2", "word9 word1 word2 word4", "word6 " * 90, "word3 word2 word7 word1", "word9", "", "word5"]


def write_multi_vector(
    folder: Path,
    encoder: Path,
    dense: tuple[tuple[int, int, bool], ...] = ((32, 16, False),),
    prompts: Mapping[str, str] | None = None,
    above: tuple[nn.Module, ...] = (),
    mask: Mapping[str, Any] | None = None,
    activation: nn.Module | None = None,
    **settings: Any,
) -> Path:
    """Write a checkpoint as sentence-transformers does, its projection of layers (inputs, outputs, bias)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [
            Dense(inputs, size, bias, activation or nn.Identity(), module_input_name=NAMES)
            for inputs, size, bias in dense
        ]
    modules = [
        Transformer(str(encoder), **settings),
        *layers,
        *above,
        MultiVectorMask(**mask or {}),
        Normalize(module_input_name=NAMES),
    ]
    model = MultiVectorEncoder(modules=modules, prompts=dict(prompts or {}), device="cpu")
    model.save(str(folder), create_model_card=False)
    return folder


def expansion(length: int = 12, **more: Any) -> dict[str, Any]:
    return {"strategy": "fixed", "length": length, **more}


MADE: dict[str, Callable[[Path, Path], Path]] = {
    "pylate": write_pylate,
    "pylate that attends": lambda folder, base: write_pylate(folder, base, attend_to_expansion_tokens=True),
    "pylate without expansion": lambda folder, base: write_pylate(folder, base, do_query_expansion=False),
    "stanford": write_stanford,
    "stanford that attends": lambda folder, base: write_stanford(folder, base, attend_to_mask_tokens=True),
    "multi-vector": write_multi_vector,
    "two layers, biases, prompts": lambda folder, base: write_multi_vector(
        folder,
        base,
        ((32, 24, True), (24, 8, True)),
        prompts={"query": "word10 ", "document": "word11 word12 "},
        mask={"skiplist_words": [*SKIPPED, "no token"]},
        query_length=9,
        document_length=21,
    ),
    "no projection": lambda folder, base: write_multi_vector(
        folder, base, (), mask={"skiplist_words": SKIPPED, "skiplist_tasks": ["query", "document"]}, document_length=30
    ),
    "at least so many": lambda folder, base: write_multi_vector(
        folder, base, query_expansion=expansion(10, strategy="min", token="word40"), query_length=14
    ),
    "any length": lambda folder, base: write_multi_vector(
        folder, base, query_expansion=expansion(7, strategy="min", attend=True)
    ),
    "roberta": lambda folder, base: write_multi_vector(
        folder,
        write_tiny_encoder(folder.parent / "roberta", "roberta"),
        prompts={"query": "word10 "},
        query_expansion=expansion(11, token="word40"),
    ),
    "modernbert": lambda folder, base: write_multi_vector(
        folder,
        write_tiny_encoder(folder.parent / "modernbert", "modernbert"),
        query_expansion=expansion(21, token="word40", attend=True),
    ),
}


def theirs(folder: Path, queries: list[str], documents: list[str]) -> NDArray[np.float32]:
    """Scores by sentence-transformers alone; its own are sums over the query's vectors where a folder says nothing."""
    model = MultiVectorEncoder(str(folder), device="cpu", similarity_fn_name="meanmaxsim")
    return model.similarity_pairwise(model.encode_query(queries), model.encode_document(documents)).numpy()


def countable(queries: list[str], documents: list[str]) -> tuple[list[str], list[str]]:
    """All pairs of the texts."""
    both = [(query, document) for query in queries for document in documents]
    return [query for query, _ in both], [document for _, document in both]


@pytest.mark.parametrize("name", MADE)
def test_scores_are_sentence_transformers_before_and_after_export(name: str, base: Path, tmp_path: Path) -> None:
    start = MADE[name](tmp_path / "start", base)
    pairs = countable(QUERIES, DOCUMENTS)
    model = LateInteraction.load(str(start))
    scores = model.score(*pairs)
    assert scores.std() > 1e-2
    np.testing.assert_allclose(scores, theirs(start, *pairs), atol=1e-5)
    with torch.no_grad():  # as training would
        for parameter in model.network.parameters():
            parameter.mul_(1.05)
    folder = model.export(tmp_path / "model", "Trained on nothing.")
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "Trained on nothing." in text
    assert "1_Pooling" not in text
    assert not (folder / "1_Pooling").exists()
    scores = model.score(*pairs)
    np.testing.assert_allclose(scores, theirs(folder, *pairs), atol=1e-5)
    assert reads_apart(str(folder))
    again = load_reranker(str(folder))
    assert isinstance(again, LateInteraction)
    np.testing.assert_array_equal(again.score(*pairs), scores)
    assert again.max_tokens == model.max_tokens
    once_more = again.export(tmp_path / "again", "Trained on nothing.")
    for path in sorted(folder.rglob("*")):
        assert path.is_dir() or path.read_bytes() == (once_more / path.relative_to(folder)).read_bytes(), path.name


@pytest.mark.parametrize("name", ["pylate", "stanford", "two layers, biases, prompts"])
def test_the_export_retrieves_as_it_ranks(name: str, base: Path, tmp_path: Path) -> None:
    model = LateInteraction.load(str(MADE[name](tmp_path / "start", base)), max_tokens=17)
    folder = model.export(tmp_path / "model")
    tokens = TokenEncoder(resolve(str(folder)), LateConfig(model=str(folder)))
    assert tokens.limits["document"] == model.max_tokens == 17
    both = zip(tokens.encode(QUERIES, "query"), tokens.encode(DOCUMENTS, "document"), strict=True)
    wanted = [float((query @ document.T).max(1).mean()) for query, document in both]
    np.testing.assert_allclose(model.score(QUERIES, DOCUMENTS), wanted, atol=1e-5)


def test_a_text_of_skipped_words_alone_counts_with_all_its_tokens(base: Path, tmp_path: Path) -> None:
    """As a retriever's does; sentence-transformers would compare with no vector at all."""
    every = {"skiplist_words": [*SKIPPED, "[CLS]", "[SEP]"], "skiplist_tasks": ["query", "document"]}
    folder = write_multi_vector(tmp_path / "skips", base, mask=every)
    model = LateInteraction.load(str(folder))
    tokens = TokenEncoder(resolve(str(folder)), LateConfig(model=str(folder)))
    texts = ["word2 word9", "word2", "", "word1 word2"]
    both = zip(tokens.encode(texts, "query"), tokens.encode(texts[::-1], "document"), strict=True)
    wanted = [float((query @ document.T).max(1).mean()) for query, document in both]
    np.testing.assert_allclose(model.score(texts, texts[::-1]), wanted, atol=1e-5)
    counted = model.pairs.batch([model.pairs.of_documents([text])[0] for text in texts]).counted  # type: ignore[call-arg, arg-type]
    assert counted.sum(1).tolist() == [4, 3, 2, 1]


def test_which_tokens_are_seen_and_counted(base: Path, tmp_path: Path) -> None:
    """By hand, of PyLate's: [CLS], marker, words, [SEP], [MASK] up to twelve."""
    folder = write_pylate(tmp_path / "model", base)
    of = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids
    pairs: Any = LateInteraction.load(str(folder)).pairs
    queries, documents = pairs.of_queries(["word2 word3"]), pairs.of_documents(["word2 word3", "word1 " * 90])
    assert isinstance(queries, Ragged)
    assert (pairs.lengths(queries).tolist(), pairs.lengths(documents).tolist()) == ([12], [5, 20])
    batch = pairs.batch([queries[0], documents[0]])
    assert batch.ids.shape == (2, 16)
    query = of(["[CLS]", "[Q] ", "word2", "word3", "[SEP]", *["[MASK]"] * 7, *["[PAD]"] * 4])
    document = of(["[CLS]", "[D] ", "word2", "word3", "[SEP]", *["[PAD]"] * 11])
    assert batch.ids.tolist() == [query, document]
    assert batch.mask.tolist() == [[1] * 5 + [0] * 11] * 2
    assert batch.counted.tolist() == [[1] * 12 + [0] * 4, [1, 1, 0, 1, 1] + [0] * 11]


def test_the_export_ranks_by_the_front_door_and_its_card_speaks_of_no_pooling(base: Path, tmp_path: Path) -> None:
    model = LateInteraction.load(str(write_pylate(tmp_path / "model", base)))
    folder = model.export(tmp_path / "out")
    found = anmi_ray.rerank(folder, QUERIES[1], DOCUMENTS, threads=1)
    wanted = model.score([QUERIES[1]] * len(DOCUMENTS), DOCUMENTS)
    assert found["index"].to_pylist() == np.argsort(-wanted, kind="stable").tolist()
    np.testing.assert_allclose(found["score"].to_numpy(), np.sort(wanted)[::-1], atol=1e-6)
    text = model_card.text(model_card.Card("name", str(base), "a judge", False, "words", [], [], []), folder)
    assert "MultiVectorEncoder" in text
    assert "is cut to\n20 tokens." in text
    assert "Pooling" not in text


def test_adapters_leave_the_projection_to_be_trained(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = LateInteraction.load(str(write_pylate(tmp_path / "model", base)), lora=LoraConfig(rank=2))
    trained = [name for name, parameter in model.network.named_parameters() if parameter.requires_grad]
    assert "projection.0.weight" in trained
    assert all("lora_" in name or name == "projection.0.weight" for name in trained)
    pairs = countable(QUERIES, DOCUMENTS)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.0 + 0.1 * parameter.requires_grad)
    np.testing.assert_allclose(theirs(model.export(tmp_path / "out"), *pairs), model.score(*pairs), atol=1e-5)


def test_a_bfloat16_copy_is_close(base: Path, tmp_path: Path) -> None:
    model = LateInteraction.load(str(write_pylate(tmp_path / "model", base)))
    exact = model.score(*countable(QUERIES, DOCUMENTS))
    copy = model.scorer("bfloat16").score(*countable(QUERIES, DOCUMENTS))
    np.testing.assert_allclose(copy, exact, atol=0.1 * float(exact.std()) + 0.02)


def refused(folder: Path, **asked: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        LateInteraction.load(str(folder), **asked)
    assert caught.value.place in (f"model {folder}", "max_tokens")
    return str(caught.value)


def test_a_decoder_is_no_start(tmp_path: Path) -> None:
    """Unless it says that its tokens see both sides."""
    folder = write_tiny_decoder(tmp_path / "model", "qwen3")
    found = refused(folder)
    assert "a decoder (qwen3): its token vectors see the text to the left only" in found
    assert "train.student: cross-encoder with train.pooling: last or yes-no" in found
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", **config | {"use_bidirectional_attention": True})
    LateInteraction.load(str(folder))


def test_models_without_a_vector_of_every_token_are_refused(base: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    folder = tmp_path / "static"
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu").save(str(folder))
    shutil.copy(base / "config.json", folder)
    assert "StaticEmbedding is not supported" in refused(folder)
    text: dict[str, Any] = {"vocab_size": 65, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 2}
    t5 = AutoConfig.for_model("t5", vocab_size=65, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    clip = AutoConfig.for_model("clip", text_config=text, vision_config=text)
    for config, what in ((t5, "T5Model gives no vector of every token"), (clip, "reads more than text")):
        folder = tmp_path / config.model_type
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        assert what in refused(folder)


@pytest.mark.parametrize("write_one", [write_pylate, write_stanford])
def test_a_marker_that_the_tokenizer_lacks_is_refused(
    base: Path, tmp_path: Path, write_one: Callable[..., Path]
) -> None:
    changed = {"query_prefix": "[Query] "} if write_one is write_pylate else {"doc_token_id": "[unused1]"}
    found = refused(write_one(tmp_path / "model", base, **changed))
    assert f"marker {next(iter(changed.values()))!r} is not a token of its tokenizer" in found


def test_what_is_above_the_transformer_and_not_read_is_refused(base: Path, tmp_path: Path) -> None:
    found = refused(write_multi_vector(tmp_path / "gelu", base, activation=nn.GELU()))
    assert "Dense with the activation torch.nn.modules.activation.GELU" in found
    folder = write_multi_vector(tmp_path / "own", base)
    config = json.loads((folder / "1_Dense" / "config.json").read_text())
    write(folder / "1_Dense" / "config.json", **config | {"activation_function": "somebody.Own"})
    assert "Dense with the activation somebody.Own" in refused(folder)
    del config["activation_function"]
    write(folder / "1_Dense" / "config.json", **config)
    assert "Dense with the activation torch.nn.modules.activation.Tanh" in refused(folder)
    assert "keeps listed tokens alone" in refused(
        write_multi_vector(tmp_path / "keeps", base, mask={"keep_only_token_ids": [7]})
    )
    twice = (Normalize(module_input_name=NAMES),)
    assert "modules are Transformer, Dense, Normalize, " in refused(
        write_multi_vector(tmp_path / "twice", base, above=twice)
    )
    residual = tmp_path / "residual"
    shutil.copytree(write_multi_vector(tmp_path / "square", base, ((32, 32, False),)), residual)
    config = json.loads((residual / "1_Dense" / "config.json").read_text())
    write(residual / "1_Dense" / "config.json", **config | {"use_residual": True})
    assert "Dense with a residual" in refused(residual)


def test_a_projection_of_another_width_is_refused(base: Path, tmp_path: Path) -> None:
    folder = write_multi_vector(tmp_path / "model", base, ((24, 8, False),))
    assert "gives no vector of every token: mat1 and mat2" in refused(folder)
    (folder / "1_Dense" / "model.safetensors").unlink()
    assert "cannot be loaded as a ColBERT checkpoint" in refused(folder)


def test_lengths_that_the_model_does_not_hold_are_refused(base: Path, tmp_path: Path) -> None:
    folder = write_pylate(tmp_path / "model", base, query_length=80)
    assert "fills queries up to 80 tokens, and has 64 positions" in refused(folder)
    short = write_pylate(tmp_path / "short", base, query_length=3)
    assert "a query has 3 tokens, 3 of them special or its marker's" in refused(short)
    folder = write_pylate(tmp_path / "long", base, document_length=500)
    assert LateInteraction.load(str(folder)).max_tokens == 64
    assert "is 80, and the model has 64 positions" in refused(folder, max_tokens=80)
    assert "a document has 3 tokens" in refused(folder, max_tokens=3)
    folder = write_multi_vector(tmp_path / "queries", base, query_length=500)
    assert len(LateInteraction.load(str(folder)).pairs.of_queries(["word1 " * 900])[0]) == 64
