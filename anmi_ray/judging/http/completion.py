"""The chat-completions format: the body of a request, and what a server's body says, whoever wrote the server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from anmi_ray.config.endpoint import SamplingConfig

Message = Mapping[str, Any]
_COUNTS = 1 << 40  # a count of tokens beyond it is not one
_LEAST = -1e6  # nor is a logarithm of a probability below it


@dataclass(frozen=True)
class TokenCounts:
    """Tokens as the server counts them: `prompt` includes `cached`, `answer` includes hidden reasoning."""

    prompt: int
    cached: int
    answer: int

    @property
    def total(self) -> int:
        """What rate limits count."""
        return self.prompt + self.answer


@dataclass(frozen=True)
class Completion:
    """A readable answer. `logprobs`: natural logarithms of the first token's alternatives; None: not given."""

    text: str
    logprobs: dict[str, float] | None
    tokens: TokenCounts | None


@dataclass(frozen=True)
class UnreadableBody:
    """A body that holds no answer: why, whether asking again may help, and what was billed for it all the same."""

    reason: str
    transient: bool
    tokens: TokenCounts | None = None
    detail: str = ""


def request_body(config: SamplingConfig, messages: Sequence[Message]) -> bytes:
    """The JSON body that asks `messages`."""
    fields: dict[str, Any] = {"model": config.model, "messages": [dict(message) for message in messages]}
    for name in ("max_tokens", "temperature", "seed"):
        if (value := getattr(config, name)) is not None:
            fields[name] = value
    if config.logprobs:
        fields |= {"logprobs": True, "top_logprobs": config.logprobs}
    return json.dumps(fields | config.extra, ensure_ascii=False).encode("utf-8", "replace")


def read(content: bytes) -> Completion | UnreadableBody:
    """What the body of a 200 says.

    >>> read(b'{"choices": []}')
    UnreadableBody(reason='no choices', transient=True, tokens=None, detail='')
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return UnreadableBody("invalid JSON", transient=True)
    if not isinstance(body, dict):
        return UnreadableBody("invalid JSON", transient=True)
    if body.get("error"):
        return UnreadableBody("error in the answer", transient=True, detail=words(content)[1])
    tokens = _tokens(mapping(body.get("usage")))
    choices = body.get("choices")
    choice = mapping(choices[0] if isinstance(choices, list) and choices else None)
    message = mapping(choice.get("message"))
    if not message:
        return UnreadableBody("no choices", transient=True, tokens=tokens)
    text = _text(message.get("content"))
    finish = str(choice.get("finish_reason") or "")
    if finish.startswith("content_filter"):
        return UnreadableBody("refused: content filter", transient=False, tokens=tokens)
    if not text.strip():
        if message.get("refusal"):
            return UnreadableBody("refused: model", transient=False, tokens=tokens)
        spent = finish == "length"  # reasoning used up max_tokens: asking again would too
        return UnreadableBody("max_tokens before an answer" if spent else "empty answer", not spent, tokens)
    return Completion(text, _first_token(choice.get("logprobs")), tokens)


def words(content: bytes) -> tuple[str, str]:
    """(code, message) of an error body, in any of the forms in use; ("", the beginning of the text) of another.

    >>> words(b'{"error": {"message": "no such model", "code": "model_not_found"}}')
    ('model_not_found', 'no such model')
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return "", _clip(content.decode("utf-8", "replace"))
    if isinstance(body, list) and body:  # Gemini
        body = body[0]
    outer = mapping(body)
    error = outer.get("error", outer)  # vLLM once wrote the fields without the envelope
    if isinstance(error, str):
        return "", _clip(error)
    fields = mapping(error)
    codes = (str(fields[name]) for name in ("code", "type", "status") if isinstance(fields.get(name), str))
    message = next((fields[name] for name in ("message", "detail") if fields.get(name)), "")
    return " ".join(codes), _clip(message if isinstance(message, str) else json.dumps(message))


def _clip(text: str) -> str:
    return _valid(" ".join(text.split())[:300])


def mapping(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _valid(text: str) -> str:
    """Without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(content: object) -> str:
    if isinstance(content, list):  # parts, as the request may have them
        content = "".join(str(mapping(part).get("text") or "") for part in content)
    return _valid(content) if isinstance(content, str) else ""


def _tokens(usage: Mapping[str, Any]) -> TokenCounts | None:
    def count(fields: Mapping[str, Any], name: str) -> int:
        value = fields.get(name)
        return value if type(value) is int and 0 <= value < _COUNTS else 0

    prompt = count(usage, "prompt_tokens")
    answer = count(usage, "completion_tokens")
    if not prompt:
        return None
    cached = count(mapping(usage.get("prompt_tokens_details")), "cached_tokens")
    # Gemini's completion_tokens leave its reasoning out, which is billed and stands in the total
    return TokenCounts(prompt, min(cached, prompt), max(answer, count(usage, "total_tokens") - prompt))


def _first_token(logprobs: object) -> dict[str, float] | None:
    positions = mapping(logprobs).get("content")
    first = mapping(positions[0] if isinstance(positions, list) and positions else None)
    top = first.get("top_logprobs")
    found: dict[str, float] = {}
    for entry in map(mapping, [*(top if isinstance(top, list) else []), first]):
        token = entry.get("token")
        value = entry.get("logprob")
        if isinstance(token, str) and isinstance(value, int | float) and _LEAST < value < -_LEAST:  # no NaN, no inf
            token = _valid(token)  # two byte sequences may read alike: the likelier speaks
            found[token] = max(float(value), found.get(token, -math.inf))
    return found or None
