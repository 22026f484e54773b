"""Settings of models behind HTTP: judges (OpenAI-compatible chat completions) and rerankers (Cohere, Jina, vLLM, TEI).

`ServerConfig` says how any server is reached. `SamplingConfig` is what may change a judge's answer and belongs into its
identity. The key itself is never a setting: `key_env` names the environment variable that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, JsonValue, field_validator

from anmi_ray.config.base import Settings


class ServedModel(Settings):
    """Base of requests to a served model."""

    # a key pasted into the wrong field must not come back in an error message
    model_config = ConfigDict(hide_input_in_errors=True)

    fixed: ClassVar[tuple[str, ...]]  # fields of the body that `extra` may not set

    model: str = Field(min_length=1, max_length=200)
    """Name of the model, as the server knows it."""
    extra: dict[str, JsonValue] = {}
    """More fields of the request's body, such as structured_outputs, reasoning_effort or max_tokens_per_doc."""

    @field_validator("extra")
    @classmethod
    def _not_fixed(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(set(value) & set(cls.fixed)):
            raise ValueError(f"{', '.join(taken)}: set by this program or by a setting of that name, not in extra")
        return value


class SamplingConfig(ServedModel):
    """Fields of a request that may change an answer, besides the messages."""

    fixed = (
        "model", "messages", "max_tokens", "temperature", "seed", "logprobs", "top_logprobs", "stream", "n",
    )  # fmt: skip

    max_tokens: int | None = Field(default=16, ge=1)
    """Longest answer; null: not sent, the server's default."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; null: not sent (some reasoning models refuse it)."""
    seed: int | None = None
    """The server's sampling seed; null: not sent."""
    logprobs: int = Field(default=0, ge=0, le=20)
    """Most likely first tokens to ask for; 0: none."""


class ServerConfig(ServedModel):
    """A server and how to reach it.

    Only the address and the fields of ServedModel can change an answer: a model of the same name on another server may
    differ.
    """

    how_only = frozenset({
        "allow_external", "key_env", "timeout_s", "retries", "max_wait_s", "concurrency", "requests_per_minute",
    })  # fmt: skip
    endpoint: ClassVar[str]  # what is added to base_url
    role: ClassVar[str]  # how messages name what is asked

    base_url: str
    """The server's API up to /v1, such as http://127.0.0.1:8000/v1."""
    allow_external: bool = False
    """Texts may leave for an address that is neither this machine nor a private network."""
    key_env: str | None = None
    """Name of the environment variable that holds the key; null: the server wants none."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds from sending a request to its last byte."""
    retries: int = Field(default=5, ge=0, le=100)
    """Times a question is sent again after a passing failure, within five times timeout_s."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait, the server's own Retry-After included."""
    concurrency: int = Field(default=32, ge=1, le=4096)
    """Requests in flight at once, at most, over all actors."""
    requests_per_minute: float | None = Field(default=None, ge=1)
    """Requests sent a minute by all actors; null: no limit."""

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if set(value) & set("@?#"):  # before anything is parsed, and its parts named in an error
            raise ValueError("must hold no user, password or query: the key belongs into the environment (key_env)")
        try:
            parts = urlsplit(value)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be an http or https address, such as http://127.0.0.1:8000/v1")
        if value.rstrip("/").endswith(cls.endpoint):
            raise ValueError(f"must end before {cls.endpoint}, which is added to it")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _name_not_key(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", value):
            raise ValueError("must be the name of an environment variable in capitals, such as OPENAI_API_KEY")
        return value


class EndpointConfig(SamplingConfig, ServerConfig):
    """A chat model behind a server. Only the fields of SamplingConfig, and the address, can change an answer."""

    how_only = ServerConfig.how_only | {
        "tokens_per_minute", "input_price", "cached_price", "output_price",
    }  # fmt: skip
    endpoint = "/chat/completions"
    role = "judge"

    tokens_per_minute: float | None = Field(default=None, ge=1)
    """Prompt and answer tokens a minute; null: no limit."""
    input_price: float | None = Field(default=None, ge=0)
    """Dollars per million prompt tokens; null: unknown."""
    cached_price: float | None = Field(default=None, ge=0)
    """Dollars per million prompt tokens read from a cache; null: as input_price."""
    output_price: float | None = Field(default=None, ge=0)
    """Dollars per million answer tokens; null: unknown."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if (self.input_price is None) != (self.output_price is None):
            yield "input_price and output_price are given together or not at all"
        if self.cached_price is not None and self.input_price is None:
            yield "cached_price needs input_price and output_price"

    @property
    def sampling(self) -> SamplingConfig:
        """The fields that may change an answer."""
        return SamplingConfig(**{name: getattr(self, name) for name in SamplingConfig.model_fields})


class RerankEndpointConfig(ServerConfig):
    """A reranker behind a server: POST base_url/rerank, in Cohere's shape (also Jina's and vLLM's) or in TEI's."""

    fixed = ("model", "query", "documents", "texts", "top_n", "raw_scores")
    endpoint = "/rerank"
    role = "reranker"

    shape: Literal["cohere", "tei"] = "cohere"
    """cohere: {model, query, documents, top_n} -> results of index, relevance_score (Cohere v2, Jina, vLLM); tei:
    {query, texts} -> a list of index, score (text-embeddings-inference, which knows no model name)."""
    documents_per_call: int = Field(default=100, ge=1, le=10_000)
    """Documents of a query sent at once; fewer than rerank.depth is for models that score each document for itself: one
    that reads them together (jina-reranker-v3) gives other scores in every call."""
