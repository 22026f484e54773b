"""Inputs put together from texts that are tokenised once equal those of the tokenizer called on the filled texts."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification

from anmi_ray.judging.truncate import Shown, Truncator
from anmi_ray.models.classifier import Classifier, Coded
from anmi_ray.models.loading import resolve
from tests.models.tiny import SPECIAL, in_bert_form, write_tiny_classifier

TEMPLATES = (
    ("{query}", "{first} {sep} {second}"),
    ("{query} {sep} {first}", "better?\n{second}"),
    ("ab {query} cd {sep} {first} b {second} ab", None),
    ("{query}", "{second}\n{sep}\n{first}"),
)
# Letters, pieces and signs that a vocabulary of words' beginnings knows; what it does not know; what changes in lower
# case; marks that join the letter before them; control characters, white space of many kinds, special tokens.
PIECES = ("a", "ab", "abc", "cd", "bcd", "unab", ".", "-", "[", "]")
PIECES += ("東", "京", "É", "e\u0301", "İ", "ß", "ﬁ", "\u0301")
STRANGE = ("z", "\x00", "\u200b", "\u00a0", "\u2028", *" \n\t", "  ", "[SEP]", "[sep]", "[UNK]", "{first}", "a" * 120)


def write_wordpiece(folder: Path, strip_accents: bool | None = None, single_word: bool = False) -> Path:
    """A random BERT that classifies, with a WordPiece of few letters in BERT's form."""
    starts = [*string.ascii_lowercase[:9], "ab", "abc", "cd", "un", "e", "i", ".", "-", "[", "]", "東", "f", "\u0307"]
    vocabulary = {
        token: i
        for i, token in enumerate(dict.fromkeys([*SPECIAL, *starts, *(f"##{one}" for one in starts), "##bc", "better"]))
    }
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast = in_bert_form(backend, 128)
    if single_word:
        from tokenizers import AddedToken

        fast.add_tokens([AddedToken("ab", single_word=True)])  # type: ignore[arg-type]
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(fast),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fitters(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool | None, int, int], Truncator]:
    """By stripping of accents, template, tokens that are read."""
    found = {}
    for strip in (None, False):
        folder = write_wordpiece(tmp_path_factory.mktemp("wordpiece"), strip)
        for limit in (20, 33, 128):
            model = Classifier(resolve(str(folder)), limit)
            for number, template in enumerate(TEMPLATES):
                found[strip, number, limit] = Truncator(model, *template)
    return found


def plain(coded: Coded) -> dict[str, list[list[int]]]:
    return {name: [[int(i) for i in one] for one in values] for name, values in coded.items()}


TEXT = st.lists(st.sampled_from(PIECES + STRANGE), min_size=1, max_size=40).map("".join) | st.text(max_size=60)


@given(
    shown=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=3),
    key=st.tuples(st.sampled_from([None, False]), st.integers(0, len(TEMPLATES) - 1), st.sampled_from([20, 33, 128])),
)
@example(shown=[("a", "İ" * 40, "ab" * 40)], key=(False, 0, 20))
@example(shown=[("e\u0301" * 9, "ab\u0301" * 9, "a[SEP]b" * 9)], key=(None, 2, 20))
def test_inputs_equal_the_tokenizers_own(
    fitters: dict[tuple[bool | None, int, int], Truncator], shown: list[Shown], key: tuple[bool | None, int, int]
) -> None:
    truncator = fitters[key]
    assert truncator.frame is not None
    coded = plain(truncator.inputs(shown))
    assert coded == plain(truncator.model.encode(*truncator(shown)))
    assert max(len(ids) for ids in coded["input_ids"]) <= key[2]


def test_a_cut_inside_a_character_is_made_as_in_text(fitters: dict[tuple[bool | None, int, int], Truncator]) -> None:
    """İ is two letters in lower case, two tokens here: a text cannot end between them."""
    truncator = fitters[False, 0, 20]
    shown = [("a", "b" + "İ" * 20, "c"), ("a", "b", "c")]
    part = truncator._parts(shown)[shown[0][1]]
    assert len(part.ids) == 41
    assert [part.whole_at(n) for n in (1, 2, 3, 40, 41, 99)] == [True, False, True, False, True, True]
    assert plain(truncator.inputs(shown)) == plain(truncator.model.encode(*truncator(shown)))


def test_logits_are_those_of_the_filled_texts(tmp_path: Path) -> None:
    model = Classifier(resolve(str(write_wordpiece(tmp_path / "model"))), 40)
    truncator = Truncator(model, "{query}", "{first} {sep} {second}")
    shown = [(f"ab {'cd ' * (i % 3)}", "abc. " * (i % 17 + 1), "un-ab " * (23 - i % 23)) for i in range(60)]
    assert truncator.frame is not None
    own = model.logits(*truncator(shown))
    torch.testing.assert_close(model.logits_of(truncator.inputs(shown)), own, atol=0, rtol=0)


def test_other_tokenizers_read_the_filled_texts(tmp_path: Path) -> None:
    """Where white space does not part the texts, or more than words decide the tokens."""
    words = Classifier(resolve(str(write_tiny_classifier(tmp_path / "words", ["a", "b"]))))
    assert Truncator(words, "{query}", "{first} {sep} {second}").frame is not None
    shown = [("word1", "word2 " * 40, "word3, word4"), ("[SEP]", "word5", "word6 [CLS]")]
    for text, pair in (("{query}", "{first}{sep}{second}"), ("q:{query}", "{first} {sep} {second}")):
        truncator = Truncator(words, text, pair)
        assert truncator.frame is None
        assert plain(truncator.inputs(shown)) == plain(words.encode(*truncator(shown)))
    for name, change in {
        "single": lambda backend: None,
        "bytes": lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "composed": lambda backend: setattr(backend, "normalizer", normalizers.NFKC()),
    }.items():
        folder = write_wordpiece(tmp_path / name, single_word=name == "single")
        file = folder / "tokenizer.json"
        backend = Tokenizer.from_file(str(file))
        change(backend)
        backend.save(str(file))
        model = Classifier(resolve(str(folder)))
        truncator = Truncator(model, "{query}", "{first} {sep} {second}")
        assert truncator.frame is None, name
        texts = [("ab", "abc " * 50, "unab cd")]
        assert plain(truncator.inputs(texts)) == plain(model.encode(*truncator(texts)))


def test_the_frame_is_the_templates(tmp_path: Path) -> None:
    model = Classifier(resolve(str(write_tiny_classifier(tmp_path / "words", ["a", "b"]))))
    frame = Truncator(model, "word1 {query}", "{second} {sep}\n{first} word2").frame
    assert frame is not None
    pieces = [piece if isinstance(piece, int) else piece.tolist() for piece in frame.pieces]
    one, two = (model.tokenizer.convert_tokens_to_ids(word) for word in ("word1", "word2"))
    assert pieces == [[2], [one], 0, [], [3], [], 2, [3], 1, [two], [3]]
    assert frame.types == (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1)
