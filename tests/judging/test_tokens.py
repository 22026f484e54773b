from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from anmi_ray.config.prompt import PromptConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.prompt_builder import PromptBuilder, preview
from anmi_ray.judging.tokens import MARK, ByteTokens, TokenizerTokens, load_tokens

CORPUS = [
    f"Mutations of gene {i} cause disease {i}; the lungs, the liver and the heart suffer most." for i in range(200)
]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT
TURNS = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "The heart."}]


def _tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the spot, with ChatML's special tokens, a tool token and one that is normalised."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)  # type: ignore[call-arg]
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<turn!>", normalized=True)])
    tokenizer.add_tokens(["<tool>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", **options)


@pytest.fixture(scope="module")
def tokens() -> TokenizerTokens:
    return TokenizerTokens(_tokenizer(chat_template=CHAT))


TEXTS = st.one_of(
    st.text(), st.text("abc de\n", max_size=400), st.lists(st.sampled_from(CORPUS), max_size=5).map(" ".join)
)


@settings(max_examples=200)
@given(TEXTS, st.integers(16, 60))
def test_a_cut_text_has_at_most_its_tokens_and_a_mark(tokens: TokenizerTokens, text: str, limit: int) -> None:
    text = text.encode(errors="replace").decode()
    for counter in (tokens, ByteTokens()):
        cut = counter(text, limit)
        assert counter.count(cut) <= limit
        if counter.count(text) <= limit:
            assert cut == text
        else:
            assert cut.endswith(MARK)
            assert text.startswith(cut.removesuffix(MARK))


def test_the_cut_is_at_a_token_boundary_and_wastes_little(tokens: TokenizerTokens) -> None:
    text = " ".join(CORPUS)
    cut = tokens(text, 64)
    assert tokens.count(cut) in (63, 64)
    kept = tokens.tokenizer(cut.removesuffix(MARK), add_special_tokens=False)["input_ids"]
    whole = tokens.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert kept == whole[: len(kept)]  # type: ignore[index]


def test_a_limit_without_room_is_named(tokens: TokenizerTokens) -> None:
    for counter in (tokens, ByteTokens()):
        with pytest.raises(ConfigError, match="no room"):
            counter("The heart and the lungs and the liver", 2)


HOSTILE = [
    "<|im_end|>",
    "<|im_start|>system",
    "<tool>",
    "<TOOL>",
    "＜turn!＞",
    "<turn!>",
    "<|im_",
    "end|>",
    "<",
    "x",
    "\u200b",
]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(HOSTILE), max_size=10).map("".join))
def test_no_document_reaches_a_special_token(tokens: TokenizerTokens, text: str) -> None:
    ids = tokens.tokenizer(tokens.neutral(text), add_special_tokens=False)["input_ids"]
    names = ["<|im_end|>", "<|im_start|>", "<tool>", "<turn!>"]
    special = tokens.tokenizer.convert_tokens_to_ids(names)
    assert [token for token in special if token in ids] == []  # type: ignore[union-attr,operator]


def test_what_only_normalisation_makes_special_is_replaced(tokens: TokenizerTokens) -> None:
    assert set(tokens.special_tokens) == {"<|im_start|>", "<|im_end|>", "<turn!>", "<tool>"}
    assert tokens.neutral("a ＜turn!＞ b <tool>") == "a ＜ turn!＞ b < tool>"
    own = _tokenizer(chat_template=CHAT)
    own.backend_tokenizer.normalizer = normalizers.Replace("§", "<")
    assert TokenizerTokens(own).neutral("a §turn!> b") == "a \ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd b"


def test_prompts_are_counted_with_the_chat_template(tokens: TokenizerTokens) -> None:
    text = "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\nThe heart.<|im_end|>\n<|im_start|>assistant\n"
    assert tokens.count_tokens(TURNS) == tokens.count(text)
    plain = TokenizerTokens(_tokenizer())
    assert plain.count_tokens(TURNS) == plain.count("Judge.\n\nThe heart.")
    refusing = TokenizerTokens(_tokenizer(chat_template=NO_SYSTEM))
    merged = "<|im_start|>user\nJudge.\n\nThe heart.<|im_end|>\n<|im_start|>assistant\n"
    assert refusing.count_tokens(TURNS) == refusing.count(merged)


def test_tokenizers_are_loaded_from_folders(tokens: TokenizerTokens, tmp_path: Path) -> None:
    tokens.tokenizer.save_pretrained(tmp_path)
    again = load_tokens(str(tmp_path))
    assert again.exact
    assert again.special_tokens == tokens.special_tokens
    assert again.count_tokens(TURNS) == tokens.count_tokens(TURNS)
    assert isinstance(load_tokens(None), ByteTokens)
    for name in (str(tmp_path / "none"), "nobody/nothing@main"):
        with pytest.raises(ConfigError, match="cannot be loaded"):
            load_tokens(name)


# Tokens that OpenAI's cl100k_base makes of these texts.
@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("Rerankers trained from pairwise preferences instead of labels need a judge.", 15),
        ("ELISA showed IL-6 (p < 0.001, n=342) and TNF-α at 12.4±3.1 pg/mL; Pten^{fl/fl} mice 2.3-fold.", 48),
        ("文档通过成对比较进行评估,然后为每个文档计算一个分数。", 28),
        ("문서는 쌍별 비교를 통해 평가되며, 이후 각 문서의 점수가 계산됩니다.", 39),
        ("दस्तावेज़ों का मूल्यांकन जोड़ीवार तुलना द्वारा किया जाता है", 62),
        ("3141592653589793 2023-05-06 192.168.0.1", 21),
        ("😀🎉✅🔥", 10),
    ],
)
def test_estimates_lean_to_the_long_side(text: str, counted: int) -> None:
    assert counted <= ByteTokens().count(text) <= 3 * counted


@pytest.mark.parametrize("exact", [True, False])
def test_a_preview_is_the_prompt_with_all_that_was_done_to_it(
    exact: bool, tokens: TokenizerTokens, tmp_path: Path
) -> None:
    tokens.tokenizer.save_pretrained(tmp_path)
    config = PromptConfig(document_tokens=32, tokenizer=str(tmp_path) if exact else None, template="letters")
    prompter = PromptBuilder.load(config)
    shown = preview(prompter, "Which gene?", "Short <|im_end|>", " ".join(CORPUS))
    assert (shown.template, shown.exact) == ("letters/1", exact)
    assert (shown.truncated, shown.altered) == (("second document",), ("first document",))
    assert [message["role"] for message in shown.messages] == ["system", "user"]
    assert shown.text == "\n\n".join([*(message["content"] for message in shown.messages), "Answer:"])
    assert f"{MARK}\n</document-B-" in shown.text
    assert shown.tokens == prompter.tokens.count_tokens(shown.messages)
    assert shown == preview(prompter, "Which gene?", "Short <|im_end|>", " ".join(CORPUS))


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "<|im_end|>" * 100_000, " " * 1_000_000 + "end", "the heart " * 100_000]
)
def test_a_megabyte_of_text_is_cut_in_time(tokens: TokenizerTokens, text: str) -> None:
    template = PromptBuilder.load(PromptConfig()).template
    for counter in (tokens, ByteTokens()):
        start = time.perf_counter()
        part = PromptBuilder(template, counter, 64, 64).document(text)
        assert counter.count(part.text) <= 64
        assert part.truncated == (not text.endswith("end"))
        assert time.perf_counter() - start < 20
