"""Count tokens of prompts and truncate texts, with a mark where they were cut.

Exact with the judge's tokenizer; otherwise estimated from bytes, rather too high.
"""

from __future__ import annotations

import math
import re
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
_MARKUP = re.compile(r"[<\[].+[>\]]", re.DOTALL)
_TURN = 8  # assumed tokens of a chat template around a message


class ByteTokens:
    """Tokens estimated from UTF-8 bytes, for planning and for judges whose tokenizer is not at hand.

    A third of a token per ASCII letter, space or line break; one per other ASCII character (digits, punctuation); half
    per byte of other characters (1 for Cyrillic, 1½ for Chinese, Hindi, Thai), 4 for those of four bytes (emoji).
    Ratio to GPT-4 and GPT-4o: 1.7 for English prose, 1.2-1.6 for code and formulas, 1.2-1.4 (GPT-4) and 2 (GPT-4o) for
    Chinese and Korean, up to 4.6 (GPT-4o, Hindi), .95 for hashes. Not an upper bound, which is one token per byte.
    """

    exact = False
    special_tokens: tuple[str, ...] = ()

    def neutral(self, text: str) -> str:
        """Return `text` without common special tokens, roles, imitated fences and control characters."""
        return neutralise(text)

    def count(self, text: str) -> int:
        """Return the estimated tokens, rounded up.

        >>> ByteTokens().count("A reranker"), ByteTokens().count("3.14")
        (4, 4)
        """
        return math.ceil(int(_sixths(text).sum()) / 6)

    def count_tokens(self, messages: list[Message]) -> int:
        """Return the estimated tokens of messages, with 8 each for the chat template and 8 before the answer."""
        return sum(self.count(message["content"]) + _TURN for message in messages) + _TURN

    def __call__(self, text: str, limit: int) -> str:
        """Return `text`, or its beginning and the mark in at most `limit` estimated tokens."""
        sixths = np.cumsum(_sixths(text))
        if not len(sixths) or sixths[-1] <= 6 * limit:
            return text
        room = 6 * (limit - self.count(MARK))
        _check_room(room, limit)
        kept = int(np.searchsorted(sixths, room, side="right"))
        return text.encode(errors="replace")[:kept].decode(errors="ignore").rstrip() + MARK


class TokenizerTokens:
    """Tokens of a fast Hugging Face tokenizer. Raises ConfigError for a slow one."""

    exact = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ConfigError("the tokenizer has no fast form", tokenizer.name_or_path, "name another, or null")
        self.tokenizer = tokenizer
        added = list(tokenizer.added_tokens_decoder.items())
        # tokens that look like markup (<tool_call>) are not always declared special
        marks = [(i, token.content) for i, token in added if token.special or _MARKUP.fullmatch(token.content)]
        self.special_tokens: tuple[str, ...] = tuple(sorted({*tokenizer.all_special_tokens, *(c for _, c in marks)}))
        # the unknown token is harmless
        self._special_ids: set[object] = {*tokenizer.all_special_ids, *(i for i, _ in marks)}
        self._special_ids.discard(tokenizer.unk_token_id)

    def neutral(self, text: str) -> str:
        """Return `text` without special tokens, roles, imitated fences and control characters.

        Text that the tokenizer still maps to a special token becomes U+FFFD.
        """
        text = neutralise(text, self.special_tokens)
        while spans := self._special_spans(text):
            for start, end in reversed(spans):
                text = text[:start] + "\ufffd" * (end - start) + text[end:]
        return text

    def count(self, text: str) -> int:
        """Return the tokens of `text`, without special tokens at its ends."""
        return len(self._encode(text)[0])

    def count_tokens(self, messages: list[Message]) -> int:
        """Return the tokens of a prompt as the model reads it; without a chat template, of the joined contents."""
        if self.tokenizer.chat_template is None:
            return self.count("\n\n".join(message["content"] for message in messages))
        try:
            text = self._chat(messages)
        except jinja2.TemplateError:  # some templates refuse a system message
            text = self._chat(without_system(messages))
        return self.count(text)

    def __call__(self, text: str, limit: int) -> str:
        """Return `text`, or its beginning up to a token boundary and the mark in at most `limit` tokens."""
        ids, offsets = self._encode(text)
        if len(ids) <= limit:
            return text
        keep = limit - self.count(MARK)
        _check_room(keep, limit)
        # the beginning alone may have more tokens than as part of the text
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
        """Return token ids and the characters that each covers, without special tokens at the ends."""
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return coded["input_ids"], coded["offset_mapping"]  # type: ignore[return-value]

    def _special_spans(self, text: str) -> list[tuple[int, int]]:
        ids, offsets = self._encode(text)
        found = [span for i, span in zip(ids, offsets, strict=True) if i in self._special_ids]
        return [(start, end) for start, end in found if text[start:end].strip("\ufffd")]


def load_tokens(name: str | None) -> ByteTokens | TokenizerTokens:
    """Load the tokenizer of a folder or the hub (org/model@revision); without a name, estimate from bytes.

    Runs no code of the tokenizer's repository. Raises ConfigError if it is missing, has only special tokens (as
    transformers' fallback without tokenizer files has), or has no fast form.
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
        raise ConfigError(f"a limit of {limit} tokens leaves no room for the mark{MARK}", "prompt", "raise the limit")


def _weights() -> NDArray[np.int64]:
    """Return sixths of a token by value of a byte."""
    weights = np.full(256, 3, dtype=np.int64)
    for byte in range(128):
        weights[byte] = 2 if chr(byte).isalpha() or chr(byte).isspace() else 6
    weights[0xF0:] = 15  # first byte of a four-byte character
    return weights


_WEIGHTS = _weights()


def _sixths(text: str) -> NDArray[np.int64]:
    return _WEIGHTS[np.frombuffer(text.encode(errors="replace"), dtype=np.uint8)]
