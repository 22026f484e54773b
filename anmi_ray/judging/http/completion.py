"""The chat-completions format: request bodies, and responses as the various servers write them."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from anmi_ray.config.endpoint import SamplingConfig
from anmi_ray.judging.parse_reply import without_reasoning

Message = Mapping[str, Any]
NO_LOGPROBS = "no log-probabilities"
NOT_ALIGNED = "log-probabilities do not match the answer"
MOST_TOKENS = 1 << 21  # larger token counts are errors
_LEAST = -1e6  # smaller log-probabilities are errors
_CONTAINERS = 300_000  # maximum lists and objects of a body: the smallest take forty times their size when parsed
_LONGEST = 1 << 18  # characters of an answer, reasoning included
_WORDS = 200  # maximum characters of a server's message
_SPECIAL_TOKEN = re.compile(r"<[^<>]{1,60}>|\[/?[A-Z_]{1,20}\]|")  # as `_visible` leaves it, or nothing


@dataclass(frozen=True)
class TokenCounts:
    """Tokens as the server counts them: `prompt` includes `cached`, `answer` includes hidden reasoning."""

    prompt: int
    cached: int
    answer: int

    @property
    def total(self) -> int:
        """Tokens that count towards rate limits."""
        return self.prompt + self.answer


@dataclass(frozen=True)
class Completion:
    """A readable answer.

    text: the whole text, including reasoning that the server did not remove.
    logprobs: natural logarithms of the alternatives to the first token after reasoning and white space; None: the
        server returned none; empty: they belong to other text.
    cut: it ends because max_tokens was reached.
    """

    text: str
    logprobs: dict[str, float] | None
    tokens: TokenCounts | None
    cut: bool = False


@dataclass(frozen=True)
class UnreadableBody:
    """A body without an answer, and the tokens billed for it.

    transient: asking again may help; again: at once.
    odd: the body has another format, perhaps that of another kind of server.
    """

    reason: str
    transient: bool
    tokens: TokenCounts | None = None
    detail: str = ""
    odd: bool = False
    again: bool = True


def request_body(config: SamplingConfig, messages: Sequence[Message], max_tokens: str = "max_tokens") -> bytes:
    """Return the JSON body of a request; max_tokens: the server's name of this field."""
    messages = [dict(message) for message in messages]
    fields: dict[str, Any] = {"model": config.model, "messages": messages, "stream": False}
    for name in ("max_tokens", "temperature", "seed"):
        if (value := getattr(config, name)) is not None:
            fields[max_tokens if name == "max_tokens" else name] = value
    if config.logprobs:
        fields |= {"logprobs": True, "top_logprobs": config.logprobs}
    return json.dumps(fields | config.extra, ensure_ascii=False).encode("utf-8", "replace")


def read(content: bytes) -> Completion | UnreadableBody:
    """Parse the body of a 200.

    >>> read(b'{"choices": []}').reason
    'no choices'
    """
    body = parsed(content)
    if not isinstance(body, dict):
        return UnreadableBody("invalid JSON" if body is None else "no choices", transient=True, odd=True)
    if body.get("error"):
        return UnreadableBody("error in the answer", transient=True, detail=words(content)[1], odd=True)
    tokens = _tokens(mapping(body.get("usage")))
    choices = body.get("choices")
    choice = mapping(choices[0] if isinstance(choices, list) and choices else None)
    message = mapping(choice.get("message"))
    if not message:
        return UnreadableBody("no choices", transient=True, tokens=tokens, odd=True)
    text = _text(message.get("content"))
    finish = _string(choice.get("finish_reason"))
    if finish.startswith("content_filter"):
        return UnreadableBody("refused: content filter", transient=False, tokens=tokens)
    if finish == "error":  # of the server, while it wrote the answer
        return UnreadableBody("error in the answer", transient=True, tokens=tokens)
    if len(text) > _LONGEST:
        return UnreadableBody("answer too long", transient=False, tokens=tokens)
    cut = finish == "length"
    if not text.strip():
        if message.get("refusal"):
            return UnreadableBody("refused: model", transient=False, tokens=tokens)
        # reasoning used up max_tokens, as it would again
        return UnreadableBody("max_tokens before an answer" if cut else "empty answer", not cut, tokens)
    reasoning = _string(message.get("reasoning_content")) or _string(message.get("reasoning"))
    return Completion(text, _first_logprobs(choice.get("logprobs"), text, reasoning), tokens, cut)


def read_logprobs(content: bytes) -> Completion | UnreadableBody:
    """Read a body as `read` does, but require log-probabilities that belong to the answer."""
    answer = read(content)
    if isinstance(answer, Completion) and answer.logprobs is None:
        return UnreadableBody(NO_LOGPROBS, transient=True, tokens=answer.tokens, again=False)
    if isinstance(answer, Completion) and not answer.logprobs:
        return UnreadableBody(NOT_ALIGNED, transient=False, tokens=answer.tokens)
    return answer


def parsed(content: bytes) -> object:
    """Parse a JSON body; None for invalid JSON or null."""
    if content.count(b"[") + content.count(b"{") > _CONTAINERS:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def words(content: bytes) -> tuple[str, str]:
    """Return (code, message) of an error body in any of the forms in use; else ("", beginning of the text).

    >>> words(b'{"error": {"message": "no such model", "code": "model_not_found"}}')
    ('model_not_found', 'no such model')
    """
    body = parsed(content)
    if body is None:
        return "", shown(content)
    if isinstance(body, list) and body:  # Gemini
        body = body[0]
    outer = mapping(body)
    error = outer.get("error", outer)  # older vLLM has no envelope
    if isinstance(error, str):
        return "", shown(error)
    fields = mapping(error)
    codes = (_string(fields.get(name))[:_WORDS] for name in ("code", "type", "status"))
    message = next((fields[name] for name in ("message", "detail") if fields.get(name)), "")
    try:
        message = message if isinstance(message, str) else json.dumps(message)
    except RecursionError:  # writing recurses deeper than reading
        message = ""
    return " ".join(filter(None, codes)), shown(message)


def shown(said: str | bytes, most: int = _WORDS) -> str:
    r"""Return the beginning of a server's text as one printable line, without terminal escapes.

    >>> shown(b"<html>\x1b[31m\n  busy </html>")
    '<html> [31m busy </html>'
    """
    said = said[: 8 * most]
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:most]


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _valid(text: str) -> str:
    """Replace lone surrogates, which are possible in JSON but not in UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(content: object) -> str:
    if isinstance(content, list):  # parts, as the request may have them
        content = "".join(_string(mapping(part).get("text")) for part in cast("list[object]", content))
    return _valid(_string(content))


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tokens(usage: Mapping[str, Any]) -> TokenCounts | None:
    def count(fields: Mapping[str, Any], name: str) -> int:
        value = fields.get(name)
        return value if type(value) is int and 0 <= value < MOST_TOKENS else 0

    prompt = count(usage, "prompt_tokens")
    answer = count(usage, "completion_tokens")
    if not prompt:
        return None
    cached = count(mapping(usage.get("prompt_tokens_details")), "cached_tokens")
    # Gemini's completion_tokens exclude reasoning, which is billed and part of the total
    return TokenCounts(prompt, min(cached, prompt), max(answer, count(usage, "total_tokens") - prompt))


def _first_logprobs(logprobs: object, text: str, reasoning: str) -> dict[str, float] | None:
    """Return the log-probabilities of the alternatives to the answer's first token; see Completion.

    text: the message's content, perhaps with reasoning; reasoning: the part that the server separated.
    """
    positions = mapping(logprobs).get("content")
    positions = [mapping(one) for one in cast("list[object]", positions)] if isinstance(positions, list) else []
    if not positions:
        return None
    start = _start_of_answer(positions, text, reasoning)
    if start is None:
        return {}
    first = positions[start]
    top = first.get("top_logprobs")
    found: dict[str, float] = {}
    for entry in map(mapping, [*(top if isinstance(top, list) else []), first]):
        token = entry.get("token")
        value = entry.get("logprob")
        if isinstance(token, str) and isinstance(value, int | float) and _LEAST < value < -_LEAST:  # no NaN, no inf
            token = _valid(token)  # two byte sequences may decode alike: keep the likelier
            found[token] = max(float(value), found.get(token, -math.inf))
    return found or None


def _start_of_answer(positions: Sequence[Mapping[str, Any]], text: str, reasoning: str) -> int | None:
    """Index of the token that begins the answer; None if the tokens do not end with the text.

    A reasoning parser removes the reasoning from the text but not from the tokens, so other tokens may precede. Tokens
    that are only the beginning of the reasoning are not the answer, even if they end with the same letter.
    """
    pieces = [_visible(one.get("bytes") or one.get("token")) for one in positions]
    while pieces and _SPECIAL_TOKEN.fullmatch(pieces[-1]):
        pieces.pop()
    tokens = "".join(pieces)
    answer = without_reasoning(text).strip()
    begin = len(tokens) - len(_visible(answer))
    generated = "".join(itertools.dropwhile(_SPECIAL_TOKEN.fullmatch, pieces))
    if not tokens.endswith(_visible(text)) or not answer[:1].isascii() or _visible(reasoning).startswith(generated):
        return None
    starts = itertools.accumulate(map(len, pieces), initial=0)
    return next(
        (index for index, at in enumerate(starts) if at == begin and index < len(pieces) and pieces[index]), None
    )


def _visible(text: object) -> str:
    """The printable ASCII characters of a text, or of UTF-8 as a list of bytes, without spaces.

    Servers write these alike in tokens and in texts, unlike white space and characters split between tokens.
    """
    if isinstance(text, list):
        try:
            text = bytes(cast("list[int]", text)).decode("ascii", "ignore")
        except (TypeError, ValueError):
            return ""
    return re.sub(r"[^!-~]", "", _string(text))
