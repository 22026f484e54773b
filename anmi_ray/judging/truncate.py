"""The inputs of a model that reads a query and two documents: its texts filled in, cut to the tokens that it reads.

Where words alone decide a tokenizer's tokens, every text is tokenised once and an input is put together from its
pieces' tokens; else the filled texts are tokenised. Both give the same inputs.
Letters: N questions.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.tokens import TokenizerTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from anmi_ray.models.classifier import Coded

Shown = tuple[str, str, str]  # query, first document, second document
Texts = tuple[list[str], list[str] | None]  # a model's first texts and its second ones; None where it reads one
Ids = NDArray[np.int32]
# Parts of a tokenizer that look at one character, split at white space, and see one word: what stands beyond the white
# space around a piece of text changes none of its tokens, and the beginning of a word has the word's first tokens.
_CHARACTERWISE = {"BertNormalizer", "Lowercase"}
_SPLITTING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_WORDWISE = {"WordPiece", "WordLevel"}
_WHITE = " \n"
_PROBES = (
    ("what is it?", "An example: x = f(a, b)", "Überraschung 東京 ﬁn\u0301e, don't 3.14"),
    ("unquestionably", "tokens' ends\tand\nlines", "-- ... words words"),
)


@dataclass(frozen=True)
class TokenizedText:
    """A text without special tokens, and its tokens; `coded` knows where in it each of them is."""

    text: str
    ids: Ids
    coded: Any

    def beginning(self, tokens: int) -> str:
        """The text of its first tokens."""
        if len(self.ids) <= tokens:
            return self.text
        return self.text[: self.coded.token_to_chars(tokens - 1)[1]] if tokens else ""

    def whole_at(self, tokens: int) -> bool:
        """Whether its first tokens end where a character does: some become several letters in lower case."""
        if len(self.ids) <= tokens:
            return True
        return tokens > 0 and self.coded.token_to_chars(tokens - 1)[1] <= self.coded.token_to_chars(tokens)[0]


class TextModel(Protocol):
    """A model that reads texts, as far as they are put together for it: `max_tokens` of them at most."""

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    name: str

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Coded:
        """The tokenizer's own inputs for texts, or for (text, pair), neither cut nor padded."""
        ...


class Truncator:
    """Puts (query, first, second) into a model's texts, cut so that it reads no more than its `max_tokens`.

    The longest of the three are cut to one length in tokens, so the order of the documents changes no cut. Special
    tokens in a text are neutralised: a document cannot end itself and begin another. Raises ConfigError where
    `max_tokens` leaves no room.
    """

    def __init__(self, model: TextModel, text: str, text_pair: str | None) -> None:
        self.model = model
        self.templates = (text, text_pair)
        self.tokens = TokenizerTokens(model.tokenizer)
        self._special = np.array(sorted({*model.tokenizer.all_special_ids} - {model.tokenizer.unk_token_id}))  # type: ignore[arg-type]
        self._separator = str(model.tokenizer.sep_token or "\n")
        frame = len(model.encode(*self._filled([("", "", "")]))["input_ids"][0])
        self.room = model.max_tokens - frame
        if self.room < 3:
            raise ConfigError(
                f"the model's texts take {frame} tokens without query and documents, of {model.max_tokens}",
                f"model {model.name}",
                "raise max_tokens, or shorten text and text_pair",
            )
        self.frame = self._frame()

    def __call__(self, shown: Sequence[Shown]) -> Texts:
        """The model's texts."""
        return self._cut(shown, self._parts(shown))[0]

    def inputs(self, shown: Sequence[Shown]) -> Coded:
        """The model's inputs: what its tokenizer makes of those texts."""
        parts = self._parts(shown)
        return self._cut(shown, parts)[1] if self.frame is None else self._assembled(shown, parts, self.frame)

    def _cut(self, shown: Sequence[Shown], parts: dict[str, TokenizedText]) -> tuple[Texts, Coded]:
        room = np.full(len(shown), self.room)
        while True:
            cut: list[Shown] = []
            for texts, left in zip(shown, room.tolist(), strict=True):
                level = common_length([len(parts[text].ids) for text in texts], left)
                query, first, second = (parts[text].beginning(level) for text in texts)
                cut.append((query, first, second))
            filled = self._filled(cut)
            coded = self.model.encode(*filled)
            over = np.array([len(ids) for ids in coded["input_ids"]], dtype=np.int64) - self.model.max_tokens
            if (over <= 0).all():
                return filled, coded
            room = np.maximum(room - np.maximum(over, 0), 0)  # put together, texts may have a token more than apart

    def _assembled(self, shown: Sequence[Shown], parts: dict[str, TokenizedText], frame: Frame) -> Coded:
        """Inputs from the parts' tokens; of questions with a cut inside a character, from the texts."""
        rows: list[list[Ids]] = []
        apart: list[int] = []
        for number, texts in enumerate(shown):
            three = [parts[text] for text in texts]
            level = common_length([len(part.ids) for part in three], self.room)
            rows.append([part.ids[:level] for part in three])
            if not all(part.whole_at(level) for part in three):
                apart.append(number)
        coded = frame.inputs(rows)
        if apart:
            slow = self._cut([shown[number] for number in apart], parts)[1]
            for name, values in coded.items():
                for number, value in zip(apart, slow[name], strict=True):
                    values[number] = value
        return coded

    def _frame(self) -> Frame | None:
        """How inputs are put together; None where they are not known to equal the tokenizer's own."""
        if not _wordwise(self.model.tokenizer):
            return None
        frame = Frame.of(self.model, self.templates, self._separator)
        if frame is None:
            return None
        parts = self._parts(_PROBES)
        ours = self._assembled(_PROBES, parts, frame)
        own = self._cut(_PROBES, parts)[1]
        equal = ours.keys() == own.keys() and all(
            [list(map(int, one)) for one in ours[name]] == [list(one) for one in own[name]] for name in own
        )
        return frame if equal else None

    def _filled(self, shown: Sequence[Shown]) -> Texts:
        def fill(template: str) -> list[str]:
            return [template.format(query=q, first=a, second=b, sep=self._separator).strip() for q, a, b in shown]

        text, pair = self.templates
        return fill(text), None if pair is None else fill(pair)

    def _parts(self, shown: Sequence[Shown]) -> dict[str, TokenizedText]:
        """Each distinct text, tokenised once."""
        texts = list(dict.fromkeys(text for three in shown for text in three))
        found = dict(zip(texts, self._tokenised(texts), strict=True))
        for text, part in found.items():
            if np.isin(part.ids, self._special).any():
                found[text] = self._tokenised([self.tokens.neutral(text)])[0]
        return found

    def _tokenised(self, texts: list[str]) -> list[TokenizedText]:
        coded = self.model.tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )
        each = zip(texts, cast(Any, coded["input_ids"]), cast(Any, coded.encodings), strict=True)
        return [TokenizedText(text, np.array(ids, dtype=np.int32), one) for text, ids, one in each]


@dataclass(frozen=True)
class Frame:
    """A model's input as pieces: tokens that stand in all inputs, or the number of a text (0 query, 1, 2).

    types: the segment of each piece; names: the model's inputs.
    """

    pieces: tuple[Ids | int, ...]
    types: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, model: TextModel, templates: tuple[str, str | None], separator: str) -> Frame | None:
        """The frame of a tokenizer whose tokens words alone decide; None where no white space parts the texts."""
        given = [template for template in templates if template is not None]
        cut = [_pieces(template, separator) for template in given]
        if any(one is None for one in cut):
            return None
        tokenizer = model.tokenizer
        coded = tokenizer("a", "a" if len(given) > 1 else None, return_token_type_ids=True)
        pieces: list[Ids | int] = []
        types: list[int] = []
        ids = cast(Any, coded["input_ids"])
        segments = cast(Any, coded["token_type_ids"])
        for token, segment, side in zip(ids, segments, coded.sequence_ids(0), strict=True):
            for piece in [np.array([token], np.int32)] if side is None else cast(Any, cut[side]):
                if isinstance(piece, str):
                    piece = np.array(tokenizer(piece, add_special_tokens=False)["input_ids"], np.int32)
                pieces.append(piece)
                types.append(segment)
        names = tuple(name for name in tokenizer.model_input_names if name in coded)
        known = set(names) <= {"input_ids", "token_type_ids", "attention_mask"}
        numbers = sorted(piece for piece in pieces if isinstance(piece, int))
        return cls(tuple(pieces), tuple(types), names) if known and numbers == [0, 1, 2] else None

    def inputs(self, rows: Sequence[Sequence[Ids]]) -> Coded:
        """Inputs of the texts' tokens, three each."""
        found: Coded = {name: [] for name in self.names}
        for row in rows:
            pieces = [row[piece] if isinstance(piece, int) else piece for piece in self.pieces]
            ids = np.concatenate(pieces)
            values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            if "token_type_ids" in found:
                values["token_type_ids"] = np.repeat(self.types, [len(piece) for piece in pieces])
            for name, lists in found.items():
                lists.append(values[name])
        return found


def common_length(lengths: Sequence[int], room: int) -> int:
    """The length to which the longest are cut so that all together have at most `room`.

    >>> common_length([5, 40, 90], 100), common_length([5, 10, 20], 100)
    (55, 20)
    """
    left = room
    level = max(lengths)
    for number, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - number)
        if length > share:
            return share
        left -= length
    return level


def _pieces(template: str, separator: str) -> list[str | int] | None:
    """Literal texts and the numbers of texts in between; None where a text touches something but white space."""
    filled = list(string.Formatter().parse(template.strip()))
    merged: list[str | int] = [""]
    for literal, name, _, _ in filled:
        merged[-1] = f"{merged[-1]}{literal}"
        if name == "sep":
            merged[-1] = f"{merged[-1]}{separator}"
        elif name is not None:
            merged += [("query", "first", "second").index(name), ""]
    literals = [piece for piece in merged if isinstance(piece, str)]
    last = len(literals) - 1
    apart = [_parts_texts(one, number > 0, number < last) for number, one in enumerate(literals)]
    return merged if all(apart) else None


def _parts_texts(literal: str, after: bool, before: bool) -> bool:
    """Whether a literal that stands `after` and `before` a text has white space at these ends."""
    if not literal:
        return not (after and before)
    return (not after or literal[0] in _WHITE) and (not before or literal[-1] in _WHITE)


def _wordwise(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer's tokens are those of its text's words, whatever stands beside them."""
    made = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
    if made["model"]["type"] not in _WORDWISE or made["pre_tokenizer"] is None:
        return False
    parts = ((made["normalizer"], _CHARACTERWISE, "normalizers"), (made["pre_tokenizer"], _SPLITTING, "pretokenizers"))
    for part, allowed, inner in parts:
        kinds = [] if part is None else [one["type"] for one in part.get(inner, [part])]
        if not set(kinds) <= allowed:
            return False
    return not any(token["single_word"] or any(map(str.isspace, token["content"])) for token in made["added_tokens"])
