"""Tokens of a judge: how many a prompt has, and texts cut to a number of them, with a mark where the cut is.

With the judge's tokenizer all of it is exact. Without one it is an estimate from bytes that leans to the long side.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.prompt import Message, without_system
from anmi_ray.judging.sanitize import neutralise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = " […]"
_TURN = 8  # tokens that a chat template puts around a message, at most, when no tokenizer tells


class ByteTokens:
    """Tokens estimated from UTF-8 bytes, for planning and for judges whose tokenizer is not at hand.

    A third of a token per ASCII letter, space or line break; one per other ASCII character (digits, punctuation); half
    per byte of other characters (1 for Cyrillic, 1½ for Chinese, Hindi, Thai), 4 for those of four bytes (emoji).
    Measured beside the vocabularies of GPT-4 and GPT-4o: 1.7 times as many for English prose, 1.2-1.6 for code and
    formulas, 1.2-1.4 (GPT-4) and 2 (GPT-4o) for Chinese and Korean, up to 4.6 (GPT-4o, Hindi); too few, by a twentieth,
    only for hashes. It is no bound: one token per byte is, for vocabularies that fall back to bytes.
    """

    exact = False
    special_tokens: tuple[str, ...] = ()

    def neutral(self, text: str) -> str:
        """`text` without the common special tokens, roles, imitated fences and control characters."""
        return neutralise(text)

    def count(self, text: str) -> int:
        """Estimated tokens, rounded up.

        >>> ByteTokens().count("A reranker"), ByteTokens().count("3.14")
        (4, 4)
        """
        return math.ceil(int(_sixths(text).sum()) / 6)

    def count_tokens(self, messages: list[Message]) -> int:
        """Estimated tokens of the contents, and 8 for what a chat template puts around each and before the answer."""
        return sum(self.count(message["content"]) + _TURN for message in messages) + _TURN

    def __call__(self, text: str, limit: int) -> str:
        """`text`, or as much of its beginning as `limit` estimated tokens hold with the mark."""
        sixths = np.cumsum(_sixths(text))
        if not len(sixths) or sixths[-1] <= 6 * limit:
            return text
        room = 6 * (limit - self.count(MARK))
        _check_room(room, limit)
        kept = int(np.searchsorted(sixths, room, side="right"))
        return text.encode(errors="replace")[:kept].decode(errors="ignore").rstrip() + MARK


class TokenizerTokens:
    """Tokens of a fast Hugging Face tokenizer. Raises ConfigError if it is a slow one."""

    exact = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ConfigError("the tokenizer has no fast form", tokenizer.name_or_path, "name another, or null")
        self.tokenizer = tokenizer
        added = list(tokenizer.added_tokens_decoder.items())
        # Tokens that only look like markup (<tool_call>) are not always declared special, and mean as much.
        marks = [(i, token.content) for i, token in added if token.special or _is_markup(token.content)]
        self.special_tokens: tuple[str, ...] = tuple(sorted({*tokenizer.all_special_tokens, *(c for _, c in marks)}))
        # The unknown token says nothing to a model but that a text holds something unknown.
        self._special_ids: set[object] = {*tokenizer.all_special_ids, *(i for i, _ in marks)}
        self._special_ids.discard(tokenizer.unk_token_id)

    def neutral(self, text: str) -> str:
        """`text` without special tokens, roles, imitated fences and control characters.

        What a tokenizer's own normalisation would still turn into a special token becomes U+FFFD.
        """
        text = neutralise(text, self.special_tokens)
        while spans := self._special_spans(text):
            for start, end in reversed(spans):
                text = text[:start] + "\ufffd" * (end - start) + text[end:]
        return text

    def count(self, text: str) -> int:
        """Tokens of `text`, without those that a model puts at its ends."""
        return len(self._encode(text)[0])

    def count_tokens(self, messages: list[Message]) -> int:
        """Tokens of a prompt as the model reads it; without a chat template, the contents and empty lines between."""
        if self.tokenizer.chat_template is None:
            return self.count("\n\n".join(message["content"] for message in messages))
        try:
            text = self._chat(messages)
        except jinja2.TemplateError:  # some templates refuse a system message
            text = self._chat(without_system(messages))
        return self.count(text)

    def __call__(self, text: str, limit: int) -> str:
        """`text`, or its beginning up to the last token boundary at which it has `limit` tokens with the mark."""
        ids, offsets = self._encode(text)
        if len(ids) <= limit:
            return text
        keep = limit - self.count(MARK)
        _check_room(keep, limit)
        # What is left may have more tokens than it had as a beginning: a character of several tokens, another merge.
        while keep > 0:
            cut = text[: offsets[keep - 1][1]].rstrip() + MARK
            over = self.count(cut) - limit
            if over <= 0:
                return cut
            keep -= over
        return MARK

    def _chat(self, messages: list[Message]) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids and the characters that each covers, without special tokens at the ends."""
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return coded["input_ids"], coded["offset_mapping"]  # type: ignore[return-value]

    def _special_spans(self, text: str) -> list[tuple[int, int]]:
        ids, offsets = self._encode(text)
        found = [span for i, span in zip(ids, offsets, strict=True) if i in self._special_ids]
        return [(start, end) for start, end in found if text[start:end].strip("\ufffd")]


def load_tokens(name: str | None) -> ByteTokens | TokenizerTokens:
    """Tokens of the tokenizer in a folder or on the hub (org/model@revision); without a name, estimates from bytes.

    No code of the tokenizer's repository is run. Raises ConfigError if there is none, it has no vocabulary but special
    tokens, which is what transformers makes up without tokenizer files, or it has no fast form.
    """
    if name is None:
        return ByteTokens()
    from transformers import AutoTokenizer

    folder = Path(name).expanduser()
    source, _, revision = (str(folder), "", "") if folder.is_dir() else name.partition("@")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or None)
    except (OSError, ValueError, KeyError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "name a folder with a tokenizer or a hub id (org/model@revision), or null to estimate from bytes"
        raise ConfigError(f"cannot be loaded: {cause}", f"tokenizer {name}", remedy) from None
    if len(tokenizer) - len(tokenizer.added_tokens_decoder) <= 1:
        remedy = "name a folder with tokenizer.json, a hub id (org/model@revision), or null to estimate from bytes"
        raise ConfigError(f"it has {len(tokenizer)} special tokens and no vocabulary", f"tokenizer {name}", remedy)
    return TokenizerTokens(tokenizer)


def _check_room(room: int, limit: int) -> None:
    if room <= 0:
        raise ConfigError(f"a limit of {limit} tokens has no room for the mark{MARK}", "prompt", "raise the limit")


def _is_markup(token: str) -> bool:
    return token[:1] in "<[" and token[-1:] in ">]" and len(token) > 2


def _weights() -> NDArray[np.int64]:
    """Sixths of a token per value of a byte."""
    weights = np.full(256, 3, dtype=np.int64)
    for byte in range(128):
        weights[byte] = 2 if chr(byte).isalpha() or chr(byte).isspace() else 6
    weights[0xF0:] = 15  # opens a character of four bytes
    return weights


_WEIGHTS = _weights()


def _sixths(text: str) -> NDArray[np.int64]:
    return _WEIGHTS[np.frombuffer(text.encode(errors="replace"), dtype=np.uint8)]
