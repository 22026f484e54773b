"""Bodies of requests and refusals, in the shapes of Cohere's, Jina's, Voyage's, vLLM's, TEI's and OpenAI's clients.

A field that would change an answer is honored or refused. Ignored are only the fields listed here that cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from anmi_ray.core.errors import visible

_MOST = 400  # characters of a message: quoted texts may be of any length
_TYPES = {401: "authentication_error", 413: "request_too_large", 429: "overloaded"}


class RefusalError(Exception):
    """A refused request: HTTP status, message, and seconds until it may be sent again."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(status, message, retry_after_s)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def content(self) -> dict[str, object]:
        """Cohere's clients read message, Jina's and LangChain's detail, OpenAI's and vLLM's the error."""
        text = visible(self.message)
        text = text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"message": text, "detail": text, "error": {"message": text, "type": kind, "code": self.status}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        found: dict[str, str] = {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found


def _text(value: Any) -> Any:
    """A document: a text, or an object that has one."""
    if isinstance(value, dict):
        value = value.get("text")
    if not isinstance(value, str):
        raise ValueError('expected a string or {"text": a string}')
    return value


def _of_texts_alone(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str) and any(not isinstance(one, str) for one in value):
        raise ValueError("expected a string or a list of strings; token ids are not supported")
    return [value] if isinstance(value, str) else value


def _only_true(value: bool) -> bool:
    if not value:
        raise ValueError("is always true: texts are truncated to what the model reads, and vectors have length 1")
    return value


_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Texts = Annotated[list[str], BeforeValidator(_of_texts_alone), WithJsonSchema(_TEXTS)]
_OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[str, BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECT]})]


OnlyTrue = Annotated[bool, AfterValidator(_only_true), WithJsonSchema({"const": True})]
IGNORED = "ignored: it does not change the answer"
Limit = Annotated[int | None, Field(ge=0, description="0, or at least as many tokens as the model reads")]
_MAX_SYSTEMS = 4  # of a search


class Body(BaseModel):
    """A request without unknown fields. Clients send null for unset fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class ModelBody(Body):
    """Common fields of requests to the model: truncation, and fields that only name or schedule a request.

    `limits`: fields that would truncate texts further than the model does.
    """

    model: str | None = Field(default=None, description="ignored: the service has one model")
    user: str | None = Field(default=None, description=IGNORED)
    priority: int | None = Field(default=None, description=IGNORED)
    request_id: str | None = Field(default=None, description=IGNORED)
    cache_salt: str | None = Field(default=None, description=IGNORED)
    truncate: OnlyTrue = True
    truncation: OnlyTrue = True
    truncation_side: Literal["right"] = "right"
    truncation_direction: Literal["right", "Right"] = "right"
    truncate_prompt_tokens: int | None = Field(
        default=None, ge=-1, description="-1, or at least as many tokens as the model reads"
    )

    @property
    def limits(self) -> dict[str, int | None]:
        """Tokens by the name of the field."""
        return {"truncate_prompt_tokens": self.truncate_prompt_tokens}


class RerankBody(ModelBody):
    """Cohere's version 1 and 2, Jina's, and Voyage's: documents to rank for a query."""

    query: str
    documents: list[Document]
    top_n: int | None = Field(
        default=None,
        ge=1,
        validation_alias=AliasChoices("top_n", "top_k"),
        description="results to return; else all. Voyage calls it top_k",
    )
    return_documents: bool | None = Field(default=None, description="whether results hold their document's text")
    raw_scores: bool = Field(default=False, description="relevance_score is the model's own score, not P(relevant)")
    min_relevance: float | None = Field(
        default=None, ge=0, le=1, description="leave out documents whose P(relevant) is lower"
    )
    rank_fields: list[str] | None = Field(default=None, description='["text"] is what is read')
    max_chunks_per_doc: Literal[1] = Field(default=1, description="the beginning of a document is read")
    max_tokens_per_doc: Limit = None
    max_tokens_per_query: Limit = None

    @property
    def limits(self) -> dict[str, int | None]:
        """Tokens by the name of the field."""
        names = ("max_tokens_per_doc", "max_tokens_per_query")
        return super().limits | {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _ranks_by_text(self) -> Self:
        if self.rank_fields not in (None, [], ["text"]):
            raise ValueError('rank_fields: only text is supported; put the fields together in "text"')
        return self


class EitherBody(RerankBody):
    """vLLM's and Jina's shape with `documents`, TEI's with `texts`."""

    documents: list[Document] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    texts: list[str] | None = None
    top_n: int | None = Field(
        default=None,
        ge=0,
        validation_alias=AliasChoices("top_n", "top_k"),
        description="results to return; 0, vLLM's default, and else all",
    )
    return_text: bool | None = Field(default=None, description="with texts: whether results hold them")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give documents or texts, one of both")
        of_the_other = "return_text" if self.texts is None else "return_documents"
        if getattr(self, of_the_other) is not None:
            raise ValueError(f"{of_the_other}: goes with {'texts' if self.texts is None else 'documents'}")
        self.top_n = self.top_n or None
        return self


class EmbeddingsBody(ModelBody):
    """OpenAI's."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, description="the model's own number, if given")
    input_type: Literal["document", "query", "search_document", "search_query"] = Field(
        default="document", description="which of the model's prompts precedes the texts"
    )


class EmbedBody(ModelBody):
    """TEI's."""

    inputs: Texts
    normalize: OnlyTrue = True
    prompt_name: Literal["document", "query"] = Field(
        default="document", description="which of the model's prompts precedes the texts"
    )


class ScoreBody(ModelBody):
    """vLLM's: pairs of texts, the first one a query."""

    text_1: Texts = Field(description="a query, or as many as text_2 has texts")
    text_2: Texts
    raw_scores: bool = Field(default=False, description="score is the model's own score, not P(relevant)")

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.text_1) not in (1, len(self.text_2)):
            raise ValueError(f"text_1: expected one text or {len(self.text_2)}, got {len(self.text_1)}")
        return self


class SearchBody(Body):
    """A query over the run's documents, for one system or for several that are to be compared."""

    query: str
    system: str | None = Field(default=None, description="system to search, see GET /v1/systems; default: reranked")
    systems: list[str] | None = Field(
        default=None, min_length=1, max_length=_MAX_SYSTEMS, description="several, answered together"
    )
    top_n: int | None = Field(default=None, ge=1, description="documents of each ranking; else ten")
    candidates: int | None = Field(
        default=None, ge=1, description="the hybrid's first documents that are reranked; else as many as in the run"
    )
    return_documents: bool = Field(default=True, description="whether results hold title and text")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.system is not None and self.systems is not None:
            raise ValueError("give either system or systems")
        return self
