"""The encoder judge: what transformers says when asked directly, each document scored once, faults named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from anmi_ray.config.judge import EncoderJudgeConfig, JudgeSettings
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import NOTHING, comparison_id, doc_id, query_id, rng, text_hash
from anmi_ray.core.records import ANSWER, COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.encoder import NOT_FINITE, EncoderEngine, Texts
from anmi_ray.judging.preferences import of_answers
from anmi_ray.judging.questions import AT_ONCE, TextQuestions, direct_questions, text_questions
from anmi_ray.judging.truncate import Truncator
from anmi_ray.models.classifier import Classifier
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.loading import resolve
from tests.models.tiny import WORDS, write_tiny_bert, write_tiny_classifier, write_tiny_decoder, write_tiny_llm

TITLES = ("", "word1 word2")
UNNAMED = {"first_label": None, "second_label": None, "tie_label": None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("classifiers")
    return {
        "reranker": write_tiny_classifier(root / "reranker", ["score"]),
        "pair": write_tiny_classifier(root / "pair", ["FIRST", "SECOND", "TIE"]),
        "two": write_tiny_classifier(root / "two", ["SECOND", "FIRST"]),
        "bert": write_tiny_bert(root / "bert"),
        "likelihood": write_tiny_llm(root / "llm"),
        "scaled": write_tiny_decoder(root / "cohere", "cohere"),
    }


def settings(kind: str, folder: Path, **more: object) -> EncoderJudgeConfig:
    forms: dict[str, dict[str, object]] = {
        "pointwise": {},
        "likelihood": {"form": "likelihood"},
        "pairwise": {"form": "pairwise", "first_label": "FIRST", "second_label": "SECOND", "tie_label": "TIE"},
    }
    given = {"kind": "encoder", "model": str(folder), **forms[kind], **more}
    return EncoderJudgeConfig.model_validate(given)


def words(count: int, *key: str | int) -> str:
    return " ".join(WORDS[i] for i in rng("text", *key).integers(len(WORDS), size=count))


def questions(
    documents: int = 6, queries: int = 2, longest: int = 40, replaced: dict[str, str] | None = None
) -> TextQuestions:
    """Every pair of `documents` under each of `queries`; `replaced` texts by their names, as q0 and d3."""
    given = replaced or {}
    names = [f"q{q}" for q in range(queries)], [f"d{d}" for d in range(documents)]
    asked = [given.get(name, words(2 + i, "query", i)) for i, name in enumerate(names[0])]
    shown = [given.get(name, words(1 + (7 * i) % longest, "document", i)) for i, name in enumerate(names[1])]
    titles = ["" if name in given else TITLES[i % 2] for i, name in enumerate(names[1])]
    query_ids, ids = [query_id(name) for name in names[0]], [doc_id(name) for name in names[1]]
    pairs = [(q, a, b) for q in query_ids for a, b in combinations(sorted(ids), 2)]
    return text_questions(
        COMPARISON.table(
            {
                "comparison_id": [comparison_id(*pair) for pair in pairs],
                "query_id": [pair[0] for pair in pairs],
                "doc_a": [pair[1] for pair in pairs],
                "doc_b": [pair[2] for pair in pairs],
                "round": [0] * len(pairs),
                "design": ["all"] * len(pairs),
            }
        ),
        QUERY.table(
            {
                "query_id": query_ids,
                "external_id": names[0],
                "text": asked,
                "text_hash": [text_hash(name, text) for name, text in zip(names[0], asked, strict=True)],
                "split": ["train"] * queries,
            }
        ),
        TEXT_OF.table(
            {
                "doc_id": ids,
                "external_id": names[1],
                "text_hash": [text_hash(name) for name in names[1]],
                "title": titles,
                "text": shown,
            }
        ),
    )


def slices(count: int, *sizes: int) -> Iterator[np.ndarray]:
    start = 0
    for size in (*sizes, count):
        yield np.arange(start, min(start + size, count))
        start = min(start + size, count)


def asked(config: EncoderJudgeConfig, of: TextQuestions, *sizes: int) -> tuple[list[pa.Table], pa.Table]:
    """(what was handed over at once, all of it in the questions' order)."""
    handed: list[pa.Table] = []
    engine = kinds.of(config).engine()
    assert isinstance(engine, EncoderEngine)
    engine.ask(of, slices(len(of.ids), *sizes), handed.append)
    table = pa.concat_tables([ANSWER.check(one, "handed over") for one in handed])
    keys = ("query_hash", "first_hash", "second_hash")
    wanted = list(zip(*(of.hashes(np.arange(len(of.ids)))[key].to_pylist() for key in keys), strict=True))
    found = list(zip(*(table[key].to_pylist() for key in keys), strict=True))
    assert len(set(found)) == len(found)
    assert set(found) == set(wanted)
    position = {key: row for row, key in enumerate(found)}
    return handed, table.take(pa.array([position[key] for key in wanted]))


def direct(folder: Path, texts: list[str], pairs: list[str] | None) -> np.ndarray:
    """Logits of transformers, one input at a time."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = []
    for i, text in enumerate(texts):
        coded = tokenizer(text, None if pairs is None else pairs[i], truncation=True, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model.eval()(**coded).logits[0].double().numpy())
    return np.array(rows)


def shown(of: TextQuestions) -> list[tuple[str, str, str]]:
    texts = Texts(of)
    columns = (of.query.tolist(), of.first.tolist(), of.second.tolist())
    return [(texts.query(q), texts.document(a), texts.document(b)) for q, a, b in zip(*columns, strict=True)]


def test_a_rerankers_preference_is_the_sigmoid_of_its_scores_difference(folders: dict[str, Path]) -> None:
    of, folder = questions(), folders["reranker"]
    _, table = asked(settings("pointwise", folder, slope=2.5), of)
    seen = shown(of)
    score = direct(folder, [q for q, _, _ in seen], [a for _, a, _ in seen])[:, 0]
    other = direct(folder, [q for q, _, _ in seen], [b for _, _, b in seen])[:, 0]
    p_first, error = of_answers(table, kinds.of(settings("pointwise", folder)).read_reply())
    assert error.null_count == len(p_first)
    np.testing.assert_allclose(p_first, 1 / (1 + np.exp(-2.5 * (score - other))), atol=1e-5)
    assert np.std(p_first) > 0.05
    forward, back = of.of_comparison.T
    np.testing.assert_allclose(p_first[forward] + p_first[back], 1.0, atol=1e-12)


def test_a_reranker_says_of_one_document_the_sigmoid_of_its_score(folders: dict[str, Path]) -> None:
    pairs, folder = questions(), folders["reranker"]
    docs = pairs.texts["doc_id"].to_pylist()
    rows = [
        (comparison_id(q, d, NOTHING), q, d, NOTHING, 1, "x")
        for q in pairs.queries["query_id"].to_pylist()
        for d in docs
    ]
    comparisons = COMPARISON.table(dict(zip(COMPARISON.schema.names, zip(*rows, strict=True), strict=True)))
    of = direct_questions(comparisons, pairs.queries, pairs.texts)
    _, table = asked(settings("pointwise", folder, slope=2.5), of, 5)
    seen = shown(of)
    score = direct(folder, [q for q, _, _ in seen], [a for _, a, _ in seen])[:, 0]
    p, _ = of_answers(table, kinds.of(settings("pointwise", folder)).read_reply())
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-2.5 * score)), atol=1e-5)
    assert np.std(p) > 0.01


@pytest.mark.parametrize("name", ["pair", "two"])
def test_a_pairwise_preference_is_read_from_the_labels(folders: dict[str, Path], name: str) -> None:
    of, folder = questions(longest=20), folders[name]
    labels = {} if name == "pair" else {"tie_label": None}
    _, table = asked(settings("pairwise", folder, **labels), of)
    logits = direct(folder, [q for q, _, _ in shown(of)], [f"{a} [SEP] {b}" for _, a, b in shown(of)])
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = share[:, 0] + share[:, 2] / 2 if name == "pair" else share[:, 1]
    np.testing.assert_allclose(of_answers(table, None)[0], wanted, atol=1e-5)
    assert (table["log_tie"].null_count == 0) == (name == "pair")


def test_a_likelihood_is_the_language_models_own_of_each_query_alone(folders: dict[str, Path]) -> None:
    of, config = questions(documents=5, queries=3), settings("likelihood", folders["likelihood"], max_tokens=32)
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(config.model)

    def mean_log(query: str, document: str) -> float:
        before, text, cue, asked = tokenizer(["Document: ", document, "\nQuery:", f" {query}"])["input_ids"]
        ids = torch.tensor([[*before, *text[:32], *cue, *asked[:32]]])
        labels = torch.where(torch.arange(ids.shape[1]) < ids.shape[1] - len(asked[:32]), -100, ids)
        with torch.inference_mode():
            return -float(model(ids, labels=labels).loss)

    difference = [3 * (mean_log(q, a) - mean_log(q, b)) for q, a, b in shown(of)]
    p_first, _ = of_answers(asked(config, of)[1], None)
    np.testing.assert_allclose(p_first, 1 / (1 + np.exp(-np.array(difference))), atol=1e-5)
    assert np.std(p_first) > 0.05


@pytest.mark.parametrize("kind", ["pointwise", "likelihood", "pairwise"])
def test_answers_do_not_depend_on_slices_or_batches(folders: dict[str, Path], kind: str) -> None:
    of, folder = questions(documents=10), folders[{"pointwise": "reranker", "pairwise": "pair"}.get(kind, kind)]
    _, whole = asked(settings(kind, folder), of)
    handed, parts = asked(settings(kind, folder), of, 7, 1, 60, 0, 11)
    assert len(handed) > 4
    np.testing.assert_allclose(of_answers(parts, None)[0], of_answers(whole, None)[0], atol=1e-5)


def test_a_reranker_scores_every_document_of_a_query_once(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, scored = questions(documents=30), []
    score = CrossEncoder.score_tokens

    def counting(self: CrossEncoder, tokens: Any, *rest: Any) -> Any:
        scored.append(len(tokens.query_N))
        return score(self, tokens, *rest)

    monkeypatch.setattr(CrossEncoder, "score_tokens", counting)
    handed, _ = asked(settings("pointwise", folders["reranker"]), of, 30 * 29)  # slices are whole queries
    assert sum(scored) == 2 * 30
    assert len(handed) >= len(of.ids) // AT_ONCE
    assert max(table.num_rows for table in handed) <= AT_ONCE


def test_empty_texts_and_scores_that_are_not_finite_fail_by_name_and_alone(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    of = questions(documents=5, replaced={"d2": " \n", "q1": "\t"})
    bad = doc_id("d2")
    rows = of.texts["doc_id"].to_pylist().index(bad)
    empty_query = of.queries["external_id"].to_pylist().index("q1")
    for kind, folder in (("pointwise", folders["reranker"]), ("pairwise", folders["pair"])):
        error = asked(settings(kind, folder), of)[1]["error"].to_pylist()
        for q, reason in enumerate(error):
            bare = rows in (of.first[q], of.second[q])
            wanted = "empty query" if of.query[q] == empty_query else "empty document" if bare else None
            assert reason == wanted
    broken = tmp_path / "broken"
    shutil.copytree(folders["reranker"], broken)
    weights = load_file(broken / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"][5] = torch.nan  # word0's
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    of = questions(documents=4, queries=1, longest=3, replaced={"q0": "word7", "d0": "word8 word0", "d1": "word9"})
    table = asked(settings("pointwise", broken), of)[1]
    texts = of.texts["text"].to_pylist()
    holds = [any("word0" in texts[d].split() for d in (of.first[q], of.second[q])) for q in range(len(of.ids))]
    assert any(holds)
    assert not all(holds)
    assert table["error"].to_pylist() == [NOT_FINITE if hit else None for hit in holds]
    assert not any(table["transient"].to_pylist())


@given(lengths=st.tuples(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90)), limit=st.integers(16, 64))
def test_what_is_read_fits_and_the_order_changes_no_cut(
    folders: dict[str, Path], fitters: dict[int, Truncator], lengths: tuple[int, int, int], limit: int
) -> None:
    if limit not in fitters:
        model = Classifier(resolve(str(folders["pair"])), limit)
        fitters[limit] = Truncator(model, "{query}", "{first} {sep} {second}")
    truncator = fitters[limit]
    query, a, b = (words(count, "fit", i) for i, count in enumerate(lengths))
    texts, pairs = truncator([(query, a, b), (query, b, a)])
    assert pairs is not None
    assert texts[0] == texts[1]
    parts = [texts[0], *pairs[0].split(" [SEP] ")]
    assert sorted(parts[1:]) == sorted(pairs[1].split(" [SEP] "))
    kept = [len(part.split()) for part in parts]
    assert all(full.startswith(part) for full, part in zip((query, a, b), parts, strict=True))
    room = limit - 4  # [CLS] and three [SEP]
    assert sum(kept) <= room
    cut = [i for i in range(3) if kept[i] < lengths[i]]
    if cut:
        assert sum(kept) > room - 3
        assert len({kept[i] for i in cut}) == 1
        assert max(kept) == kept[cut[0]]


@pytest.fixture(scope="module")
def fitters() -> dict[int, Truncator]:
    return {}


def test_a_document_cannot_pose_as_another(folders: dict[str, Path]) -> None:
    model = Classifier(resolve(str(folders["pair"])))
    truncator = Truncator(model, "{query}", "{first} {sep} {second}")
    texts, pairs = truncator([("word1", "word2 [SEP] word3 [sep]", "word4")])
    ids = model.encode(texts, pairs)["input_ids"][0]
    assert [model.tokenizer.sep_token_id == i for i in ids].count(True) == 3
    assert pairs is not None
    assert pairs[0].startswith("word2")
    assert "word3" in pairs[0]


def test_identity_is_what_can_change_an_answer(folders: dict[str, Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folders["reranker"], moved)
    config = settings("pointwise", folders["reranker"])
    before = kinds.of(config).identity
    same = {"name": "other", "model": str(moved), "gpus": 0.5}
    assert kinds.of(config.model_copy(update=same)).identity == before
    for change in ({"slope": 2.0}, {"max_tokens": 32}, {"dtype": "bfloat16"}, {"trust_remote_code": True}):
        assert kinds.of(config.model_copy(update=change)).identity != before
    pairwise = settings("pairwise", folders["pair"])
    assert (
        kinds.of(pairwise).identity
        != kinds.of(settings("pairwise", folders["pair"], first_label="TIE", tie_label="FIRST")).identity
    )
    (moved / "config.json").write_text((moved / "config.json").read_text() + " ")
    assert kinds.of(config.model_copy(update=same)).identity != before


@pytest.mark.parametrize(
    ("name", "kind", "more", "message"),
    [
        ("bert", "pointwise", {}, "its weights lack .*classifier"),
        ("pair", "pointwise", {}, r"has 3 labels \(FIRST, SECOND, TIE\)"),
        ("reranker", "pairwise", {}, "has no label FIRST, SECOND, TIE; its labels are score"),
        ("pair", "pairwise", {"tie_label": None}, r"has 3 labels .*, and the settings leave out TIE"),
        ("pair", "pairwise", {"tie_label": "DRAW"}, "has no label DRAW; its labels are FIRST, SECOND, TIE"),
        ("reranker", "pointwise", {"max_tokens": 65}, "is 65, and the model has 64 positions"),
        ("scaled", "likelihood", {}, "cohere cannot read several queries after one document"),
        ("likelihood", "likelihood", {"max_tokens": 1100}, "positions for 10.. of a document and of a query"),
        ("nowhere/at/all", "pointwise", {}, "no such folder, and not a Hugging Face id"),
        ("no-org/no-such-model", "pointwise", {}, "not in the local cache"),
        ("pair", "pairwise", UNNAMED, "needs first_label and second_label"),
        ("no-org/no-such-model", "pairwise", UNNAMED, "needs first_label and second_label"),
    ],
)
def test_what_cannot_judge_is_refused_with_a_remedy(
    folders: dict[str, Path], name: str, kind: str, more: dict[str, object], message: str
) -> None:
    config = settings(kind, folders.get(name, Path(name)), **more)
    with pytest.raises(ConfigError, match=message) as caught:
        kinds.of(config).engine()
    assert caught.value.remedy
    if more is UNNAMED:  # named before anything runs
        with pytest.raises(ConfigError, match=message):
            kinds.of(config).content()


def test_only_safetensors_are_loaded(folders: dict[str, Path], tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(folders["reranker"], pickled)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        kinds.of(settings("pointwise", pickled)).engine()
    assert "safetensors" in (caught.value.remedy or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_gpu_is_said(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"(no GPU is seen|built for CPUs alone) on .*\n.*set gpus: 0"):
        kinds.of(settings("pointwise", folders["reranker"], gpus=1)).engine()


def test_our_own_rerankers_judge(folders: dict[str, Path], tmp_path: Path) -> None:
    """Both heads as `export` writes them, in either precision."""
    of = questions()
    seen = shown(of)
    for pooling in ("mean", "cls"):
        folder = CrossEncoder.load(str(folders["bert"]), pooling=pooling, seed=1).export(tmp_path / pooling)
        model = CrossEncoder.load(str(folder))
        difference = model.score([q for q, _, _ in seen], [a for _, a, _ in seen]) - model.score(
            [q for q, _, _ in seen], [b for _, _, b in seen]
        )
        for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.02)):
            p_first, _ = of_answers(asked(settings("pointwise", folder, dtype=dtype), of)[1], None)
            np.testing.assert_allclose(p_first, 1 / (1 + np.exp(-difference)), atol=tolerance)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"form": "pairwise", "first_label": "A"}, "needs first_label and second_label"),
        ({"form": "pairwise", "tie_label": "T"}, "needs first_label and second_label"),
        ({"form": "pairwise", "first_label": "A", "second_label": "A"}, "must differ"),
        ({"form": "pairwise", "first_label": "A", "second_label": "B", "slope": 2}, "belongs to form: pointwise"),
        ({"tie_label": "T"}, "belongs to form: pairwise"),
        ({"max_tokens": 4}, "greater than or equal to 16"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(JudgeSettings).validate_python({"kind": "encoder", "model": "m", **given})
