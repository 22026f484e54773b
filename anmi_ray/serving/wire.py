"""Bodies of requests, in the shapes of Cohere's, Jina's, vLLM's, TEI's and OpenAI's clients.

Keys that a client sends beyond these are ignored, as those services do; what would change an answer is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator


def _text(value: Any) -> Any:
    """A document: a text, or an object that has one."""
    if isinstance(value, dict):
        value = value.get("text")
    if not isinstance(value, str):
        raise ValueError('is neither a text nor {"text": a text}')
    return value


def _of_texts_alone(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str) and any(not isinstance(one, str) for one in value):
        raise ValueError("must be a text or a list of texts; lists of token ids are not read")
    return [value] if isinstance(value, str) else value


_OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[str, BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECT]})]


class _Body(BaseModel):
    """Clients send null for what nobody set."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class RerankBody(_Body):
    """Cohere's version 1 and 2, and Jina's: documents to rank for a query."""

    model: str | None = Field(default=None, description="ignored: the service has one model")
    query: str
    documents: list[Document]
    top_n: int | None = Field(default=None, ge=1, description="results to return; else all")
    return_documents: bool | None = Field(default=None, description="whether results hold their document's text")
    raw_scores: bool = Field(default=False, description="relevance_score is the model's own score, not P(relevant)")
    min_relevance: float | None = Field(
        default=None, ge=0, le=1, description="leave out documents whose P(relevant) is lower"
    )
    rank_fields: list[str] | None = Field(default=None, description='["text"] is what is read')

    @model_validator(mode="after")
    def _ranks_by_text(self) -> Self:
        if self.rank_fields not in (None, [], ["text"]):
            raise ValueError('rank_fields: text is the only one that is read; put the fields together in "text"')
        return self


class EitherBody(RerankBody):
    """vLLM's and Jina's shape with `documents`, TEI's with `texts`."""

    documents: list[Document] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    texts: list[str] | None = None
    top_n: int | None = Field(default=None, ge=0, description="results to return; 0, vLLM's default, and else all")
    return_text: bool = Field(default=False, description="with texts: whether results hold them")
    truncate: bool = Field(default=True, description="with texts: true, as long texts are always cut")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give documents or texts, one of both")
        self.top_n = self.top_n or None
        return self


class EmbeddingsBody(_Body):
    """OpenAI's."""

    model: str | None = Field(default=None, description="ignored: the service has one model")
    input: Annotated[
        list[str],
        BeforeValidator(_of_texts_alone),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, description="the model's own number, if given")
    input_type: Literal["document", "query", "search_document", "search_query"] = Field(
        default="document", description="which of the model's prompts stands before the texts"
    )
