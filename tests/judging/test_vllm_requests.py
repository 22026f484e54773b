"""Questions as requests to vLLM's engine, and what it gives back as answers; the engine itself is in tests/stages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from anmi_ray.api.prompts import preview_prompts
from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.vllm import EMPTY, FAILED, TOO_LONG, Requests, VllmModel, answers, check_engine, examine
from anmi_ray.judging.preferences import of_answers
from anmi_ray.judging.prompt_builder import PromptBuilder
from tests.judging.test_questions import world
from tests.models.tiny import write_tiny_llm

HASHES = {name: bytes([i]) * 16 for i, name in enumerate(("query_hash", "first_hash", "second_hash"))}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("requests") / "tiny")


def config(model: Path | str, **more: Any) -> VllmJudgeConfig:
    return VllmJudgeConfig.model_validate({"kind": "vllm", "name": "llm", "model": str(model), **more})


@pytest.fixture(scope="module")
def judge(model: Path) -> VllmModel:
    return examine(config(model, prompt={"document_tokens": 64}))


def output(**more: Any) -> dict[str, Any]:
    """What comes back for a request, as Ray's engine stage gives it."""
    first = {35: {"logprob": -0.2, "decoded_token": "A"}, 36: {"logprob": -2.0, "decoded_token": "B"}}
    given = {"num_input_tokens": 50, "num_generated_tokens": 1, "generated_text": "A", "time_taken_llm": 0.5}
    return {**HASHES, FAILED: "", "bucket": 0, "logprobs": [first], **given, **more}


def test_a_request_is_the_endpoints_prompt_in_tokens(model: Path, judge: VllmModel) -> None:
    asked = world([(0, 1, 2), (0, 1, 3), (1, 1, 2)])
    which = np.array([5, 0, 3])
    rows = Requests(judge).of(asked, which, 7).to_pylist()
    prompter = PromptBuilder.load(judge.config.prompt.model_copy(update={"tokenizer": str(model)}))
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompt = prompter.prompts(asked)
    for q, row in zip(which.tolist(), rows, strict=True):
        text = tokenizer.decode(row["tokenized_prompt"])
        assert all(message["content"] in text for message in prompt(q))
        assert text.endswith("<|im_start|>assistant\n")
        assert (row["bucket"], row["start"], row[FAILED]) == (7, 0, "")
    hashes = asked.hashes(which)
    assert [row["first_hash"] for row in rows] == hashes["first_hash"].to_pylist()


@settings(max_examples=25)
@given(st.lists(st.text(max_size=40), min_size=3, max_size=3))
def test_whatever_a_text_holds_only_its_own_row_fails(judge: VllmModel, texts: list[str]) -> None:
    asked = world([(0, a, b) for a in range(4) for b in range(a)])
    column = pa.array([*texts, "a text of words"], pa.string())
    asked = replace(asked, texts=asked.texts.set_column(asked.texts.schema.get_field_index("text"), "text", column))
    which = np.arange(len(asked.query))
    rows = Requests(judge).of(asked, which, 0).to_pylist()
    prompt = judge_prompter(judge)
    blank = [not prompt.document(text).text.strip() for text in column.to_pylist()]
    for q, row in zip(which.tolist(), rows, strict=True):
        expected = blank[int(asked.first[q])] or blank[int(asked.second[q])]
        assert row[FAILED] == (EMPTY if expected else "")
        assert bool(row["tokenized_prompt"]) != expected
        assert row["tokenized_prompt"].count(1) in (0, 3)  # turns begin where the chat template begins them


def judge_prompter(judge: VllmModel) -> PromptBuilder:
    return Requests(judge).builder


def test_a_dry_run_shows_the_prompt_though_the_model_is_elsewhere(model: Path, small_collection: Path) -> None:
    for name, tokens in ((str(model), "tokens"), ("/no/such/model", "tokens at most")):
        judges = [{"kind": "vllm", "name": "llm", "model": name}]
        corpus = {"reader": "beir", "path": str(small_collection)}
        shown = list(
            preview_prompts(validate({"corpus": corpus, "judge": {"judges": judges}}, "x.yaml"), None, None, None)
        )
        assert any(f"judge llm: {name} on the cluster, template letters/1" in line and tokens in line for line in shown)
        assert any(line.startswith("--- system") for line in shown)
        assert sum("tokenizer not loaded" in line for line in shown) == (name != str(model))


def test_what_is_too_long_fails_before_an_engine_sees_it(judge: VllmModel) -> None:
    asked = world([(0, 1, 2)])
    long = Requests(judge).of(asked, np.arange(2), 0)
    tokens = len(long[0].as_py()["tokenized_prompt"])
    fits = Requests(replace(judge, max_model_len=tokens + 1)).of(asked, np.arange(1), 0).to_pylist()
    over = Requests(replace(judge, max_model_len=tokens)).of(asked, np.arange(1), 0).to_pylist()
    assert (fits[0][FAILED], over[0][FAILED], over[0]["tokenized_prompt"]) == ("", TOO_LONG, [])


def test_the_longest_prompt_fits_what_is_worked_out(model: Path) -> None:
    small = examine(config(model, prompt={"document_tokens": 100, "query_tokens": 32}))
    asked = world([(0, 1, 2)])
    column = pa.array(["keyword argument class " * 200, "statement module name " * 200])
    asked = replace(asked, texts=asked.texts.set_column(asked.texts.schema.get_field_index("text"), "text", column))
    tokens = [len(row["tokenized_prompt"]) for row in Requests(small).of(asked, np.arange(2), 0).to_pylist()]
    assert 0 < max(tokens) < small.max_model_len <= max(tokens) + 128
    assert examine(config(model)).max_model_len == 2048  # what the model was made for


def test_answers_are_votes_or_named_failures(judge: VllmModel) -> None:
    odd = {7: {"logprob": -0.1, "decoded_token": "Well"}}
    rows = [
        output(),
        output(**{FAILED: EMPTY}),
        output(**{FAILED: TOO_LONG}),
        output(**{FAILED: "VLLMValidationError: This model's maximum context length is 64 tokens."}),
        output(**{FAILED: "RuntimeError: the weather"}),
        output(logprobs=[odd]),
        output(logprobs=None),
    ]
    table = answers(judge, rows)
    reasons = [None, EMPTY, TOO_LONG, TOO_LONG, "engine: RuntimeError", "no letter among the tokens", "empty answer"]
    assert table["error"].to_pylist() == reasons
    assert table["transient"].to_pylist() == [False, False, False, False, True, False, False]
    p, error = of_answers(table, None)
    assert error.to_pylist() == reasons
    np.testing.assert_allclose(p[0], 1 / (1 + np.exp(-1.8)))
    assert np.isnan(p[1:]).all()
    assert table["prompt_tokens"].to_pylist() == [50, 0, 0, 0, 0, 50, 50]


def test_words_are_kept_as_said(model: Path) -> None:
    judge = examine(config(model, prompt={"template": "scale", "readout": "soft"}, temperature=0.3))
    table = answers(judge, [output(generated_text="-0.5"), output(generated_text="\n ")])
    assert table["text"].to_pylist() == ["-0.5", None]
    assert table["error"].to_pylist() == [None, "empty answer"]
    assert judge.sampling() == {"max_tokens": 16, "temperature": 0.3, "seed": 0}


def test_words_that_took_all_their_tokens_are_cut_short(model: Path) -> None:
    judge = examine(config(model, prompt={"template": "scale", "readout": "soft"}, max_tokens=3))
    rows = [output(generated_text="Score: -0", num_generated_tokens=tokens) for tokens in (2, 3)]
    table = answers(judge, rows)
    assert table["error"].to_pylist() == [None, "cut short"]
    assert not any(table["transient"].to_pylist())
    assert table["answer_tokens"].to_pylist() == [2, 3]


def test_mistakes_are_named_before_an_engine_starts(model: Path, tmp_path: Path) -> None:
    torn, pickled, foreign = tmp_path / "torn", tmp_path / "pickled", tmp_path / "foreign"
    pickled.mkdir()
    shutil.copytree(model, torn)
    shutil.copytree(model, foreign)
    foreign_config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(foreign_config | {"vocab_size": 2 * foreign_config["vocab_size"]}))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace("B", "B!B")
    tokenizer.save(str(torn / "tokenizer.json"))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (pickled / name).write_bytes((model / name).read_bytes())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model": str(tmp_path / "none")}, "no such folder"),
        ({"model": str(pickled)}, "no \\*.safetensors"),
        ({"model": str(torn)}, "single tokens, and B"),
        ({"model": str(foreign)}, "another model's"),
        ({"model": str(model), "prompt": {"template": "none.jinja"}}, "no such template"),
    ]
    for given_, said in wrong:
        with pytest.raises(ConfigError, match=said):
            examine(VllmJudgeConfig.model_validate({"kind": "vllm", "name": "llm", **given_}))


def test_the_engine_is_there_and_knows_its_arguments(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("vllm"):
        check_engine(config(model, engine_kwargs={"kv_cache_dtype": "fp8"}))
        with pytest.raises(ConfigError, match="did you mean kv_cache_dtype"):
            check_engine(config(model, engine_kwargs={"kv_cache_dtyp": "fp8"}))
    monkeypatch.setattr(sys, "path", [])
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(ConfigError, match="not installed"):
        check_engine(config(model))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"engine_kwargs": {"load_format": "auto"}}, "load_format"),
        ({"temperature": 0.5}, "leave out temperature"),
        ({"engine_kwargs": {"reasoning_parser": "qwen3"}}, "prompt.readout: sign"),
        ({"prompt": {"tokenizer": "other"}}, "own tokenizer"),
        ({"execution": {"engines": [3, 2]}}, "must not be above"),
        ({"execution": {"device": "cpu", "tensor_parallel": 2}}, "no GPUs"),
    ],
)
def test_settings_that_do_not_suit_are_refused(given_: dict[str, Any], said: str) -> None:
    judge = {"kind": "vllm", "name": "llm", "model": "some/model", **given_}
    with pytest.raises(ConfigError, match=said):
        validate({"name": "x", "judge": {"judges": [judge]}}, "x.yaml")


def test_only_what_can_change_an_answer_is_in_the_identity(model: Path, tmp_path: Path) -> None:
    one = config(model)
    name = kinds.of(one).identity
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in model.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    same = [{"name": "other"}, {"model": str(moved)}, {"max_tokens": 5}, {"execution": {"device": "cpu"}},
            {"engine_kwargs": {"max_num_seqs": 9, "load_format": "runai_streamer"}}]  # fmt: skip
    assert {kinds.of(config(**{"model": model, **one_})).identity for one_ in same} == {name}
    different: list[dict[str, Any]] = [
        {"dtype": "float32"}, {"prompt": {"document_tokens": 99}}, {"chat": {"a": 1}},
        {"engine_kwargs": {"quantization": "fp8"}}, {"trust_remote_code": True}, {"prompt": {"readout": "sign"}},
        {"prompt": {"readout": "sign"}, "max_tokens": 5},
    ]  # fmt: skip
    names = {kinds.of(config(model, **one_)).identity for one_ in different}
    assert len(names | {name}) == 1 + len(different)
    (moved / "config.json").write_text((moved / "config.json").read_text() + "\n")
    assert kinds.of(config(moved)).identity != name
    assert "execution" not in result_settings(config(model, execution={"device": "cpu"}))


def test_the_engine_is_started_safely(judge: VllmModel, model: Path) -> None:
    given_ = judge.engine_kwargs()
    assert given_["max_num_batched_tokens"] == 16_384
    fewer = replace(judge, config=config(model, engine_kwargs={"max_num_batched_tokens": 8}))
    assert fewer.engine_kwargs()["max_num_batched_tokens"] == 8
    assert (given_["load_format"], given_["trust_remote_code"]) == ("safetensors", False)
    assert given_["distributed_executor_backend"] == "uni"
    several = replace(judge, config=config(model, execution={"tensor_parallel": 2}))
    assert several.engine_kwargs()["distributed_executor_backend"] == "mp"
    cpu = replace(judge, config=config(model, execution={"device": "cpu", "environment": {"VLLM_LOGGING_LEVEL": "X"}}))
    assert cpu.engine_kwargs()["block_size"] == 32
    assert "gpu_memory_utilization" not in cpu.engine_kwargs()
    assert cpu.environment()["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert cpu.environment()["VLLM_LOGGING_LEVEL"] == "X"


def test_a_panel_may_hold_one(model: Path) -> None:
    settings_ = Experiment.model_validate(
        {"name": "x", "judge": {"judges": [{"kind": "vllm", "name": "llm", "model": str(model)}]}}
    )
    (one,) = settings_.judge.reading
    assert isinstance(one, VllmJudgeConfig)
    assert (one.prompt.template, one.prompt.readout) == ("letters", "logprob")
