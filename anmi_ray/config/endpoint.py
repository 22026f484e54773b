"""Settings of a judge behind an OpenAI-compatible chat-completions endpoint (OpenAI, Gemini, Anthropic, vLLM).

`SamplingConfig` is what may change an answer and belongs into a judge's identity; the rest of `EndpointConfig` says how
the server is reached. The key itself is never a setting: `key_env` names the environment variable that holds it.
"""

from __future__ import annotations

import re
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from anmi_ray.config.base import Settings

_OWN = ("model", "messages", "max_tokens", "temperature", "seed", "logprobs", "top_logprobs", "stream", "n")


class SamplingConfig(Settings):
    """What is asked of the model: all that may change an answer beside the messages."""

    # a key pasted into the wrong field must not come back in an error message
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    model: str = Field(min_length=1, max_length=200, description="name of the model, as the server knows it")
    max_tokens: int | None = Field(default=16, ge=1, description="longest answer; null: not sent, the server's default")
    temperature: float | None = Field(
        default=0.0, ge=0, le=2, description="sampling temperature; null: not sent (some reasoning models refuse it)"
    )
    seed: int | None = Field(default=None, description="the server's sampling seed; null: not sent")
    logprobs: int = Field(default=0, ge=0, le=20, description="most likely first tokens to ask for; 0: none")
    extra: dict[str, JsonValue] = Field(
        default={}, description="more fields of the request's body, such as structured_outputs or reasoning_effort"
    )

    @field_validator("extra")
    @classmethod
    def _not_own(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = sorted(set(value) & set(_OWN))
        if taken:
            raise ValueError(f"{', '.join(taken)}: set by this program or by a setting of that name, not in extra")
        return value


class EndpointConfig(SamplingConfig):
    """A model behind a server, and how to reach it. What is added to SamplingConfig cannot change an answer.

    But for the address: another server's model of the same name may be another model.
    """

    how_only: ClassVar[frozenset[str]] = frozenset({
        "allow_external", "key_env", "timeout_s", "connect_timeout_s", "deadline_s", "retries", "backoff_s",
        "max_wait_s", "concurrency", "requests_per_minute", "tokens_per_minute",
        "input_price", "cached_price", "output_price",
    })  # fmt: skip

    base_url: str = Field(description="the server's API up to /v1, such as http://127.0.0.1:8000/v1")
    allow_external: bool = Field(
        default=False, description="texts may leave for an address that is neither this machine nor a private network"
    )
    key_env: str | None = Field(
        default=None, description="name of the environment variable that holds the key; null: the server wants none"
    )
    timeout_s: float = Field(default=60.0, gt=0, description="seconds from sending a request to its last byte")
    connect_timeout_s: float = Field(default=10.0, gt=0, description="seconds to open a connection")
    deadline_s: float = Field(
        default=300.0, gt=0, description="seconds a question may take with its retries, waiting for rate limits aside"
    )
    retries: int = Field(default=5, ge=0, le=100, description="times a question is sent again after a passing failure")
    backoff_s: float = Field(
        default=1.0, gt=0, description="the k-th retry waits U(0, 1) · 2^(k−1) times these seconds"
    )
    max_wait_s: float = Field(default=60.0, gt=0, description="longest wait, the server's own Retry-After included")
    concurrency: int = Field(
        default=32, ge=1, le=4096, description="requests in flight at once, at most, over all actors"
    )
    requests_per_minute: float | None = Field(
        default=None, ge=1, description="requests sent a minute by all actors; null: no limit"
    )
    tokens_per_minute: float | None = Field(
        default=None, ge=1, description="prompt and answer tokens a minute; null: no limit"
    )
    input_price: float | None = Field(
        default=None, ge=0, description="dollars per million prompt tokens; null: unknown"
    )
    cached_price: float | None = Field(
        default=None, ge=0, description="dollars per million prompt tokens read from a cache; null: as input_price"
    )
    output_price: float | None = Field(
        default=None, ge=0, description="dollars per million answer tokens; null: unknown"
    )

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if set(value) & set("@?#"):  # before anything is parsed, and its parts named in an error
            raise ValueError("must hold no user, password or query: the key stands in the environment (key_env)")
        try:
            parts = urlsplit(value)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be an http or https address, such as http://127.0.0.1:8000/v1")
        if value.rstrip("/").endswith("/chat/completions"):
            raise ValueError("must end before /chat/completions, which is added to it")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _name_not_key(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", value):
            raise ValueError("must be the name of an environment variable in capitals, such as OPENAI_API_KEY")
        return value

    @model_validator(mode="after")
    def _prices_together(self) -> EndpointConfig:
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("input_price and output_price are given together or not at all")
        if self.cached_price is not None and self.input_price is None:
            raise ValueError("cached_price needs input_price and output_price")
        return self

    @property
    def sampling(self) -> SamplingConfig:
        """The part that may change an answer."""
        return SamplingConfig(**{name: getattr(self, name) for name in SamplingConfig.model_fields})
