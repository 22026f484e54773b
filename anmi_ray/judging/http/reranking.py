"""Rerankers behind HTTP: a query and its documents in, a score for each document or a named failure out.

cohere format (Cohere v2, Jina, vLLM): {model, query, documents, top_n} -> {"results": [{index, relevance_score}]}.
tei format (text-embeddings-inference): {query, texts, raw_scores, truncate} -> [{index, score}]. Both sort by score and
identify documents by index; a body is accepted only if it has one finite score for every document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from anmi_ray.config.endpoint import RerankEndpointConfig
from anmi_ray.judging.http.client import Client, Failed
from anmi_ray.judging.http.completion import MOST_TOKENS, TokenCounts, UnreadableBody, mapping, parsed

_GREATEST = 3.4e38  # scores are stored as float32


@dataclass(frozen=True)
class Scores:
    """Scores in the order of the documents, on the server's scale (larger is better), and its token count."""

    values: tuple[float, ...]
    tokens: TokenCounts | None = None


class RerankClient(Client[RerankEndpointConfig, Scores]):
    """A rerank endpoint. Use: `async with RerankClient(config) as client: ...`; see Client for errors."""

    async def score(self, query: str, documents: Sequence[str], key: bytes) -> Scores | Failed:
        """Return the scores of all `documents`, documents_per_call at a time, or the first failure."""
        size = self.config.documents_per_call
        parts = [documents[start : start + size] for start in range(0, len(documents), size)]
        calls = (self._call(query, part, key + i.to_bytes(4, "big")) for i, part in enumerate(parts))
        values: list[float] = []
        for scored in await asyncio.gather(*calls):
            if isinstance(scored, Failed):
                return scored
            values += scored.values
        return Scores(tuple(values))

    async def _call(self, query: str, documents: Sequence[str], key: bytes) -> Scores | Failed:
        body = request_body(self.config, query, documents)
        reply = await self.send(body, key, lambda content: read(content, len(documents), self.config.shape))
        return reply if isinstance(reply, Failed) else reply.answer


def request_body(config: RerankEndpointConfig, query: str, documents: Sequence[str]) -> bytes:
    """Return the JSON body of a request for the scores of `documents`."""
    if config.shape == "tei":  # logits, since the sigmoid saturates
        fields: dict[str, Any] = {"query": query, "texts": list(documents), "raw_scores": True, "truncate": True}
    else:
        fields = {"model": config.model, "query": query, "documents": list(documents), "top_n": len(documents)}
    return json.dumps(fields | config.extra, ensure_ascii=False).encode("utf-8", "replace")


def read(content: bytes, documents: int, shape: str) -> Scores | UnreadableBody:
    """Parse the body of a 200 for a number of documents.

    A truncated body is a temporary failure; one that scores other documents than were sent is not.

    >>> read(b'{"results": [{"index": 1, "relevance_score": 0.2}, {"index": 0, "relevance_score": 0.9}]}', 2, "cohere")
    Scores(values=(0.9, 0.2), tokens=None)
    >>> read(b'[{"index": 0, "score": 0.9}]', 2, "tei").detail
    '1 of 2 documents have no score, the first is document 1'
    """
    body = parsed(content)
    if body is None:
        return UnreadableBody("invalid JSON", transient=True, odd=True)
    rows, name = (body, "score") if shape == "tei" else (mapping(body).get("results"), "relevance_score")
    tokens = _tokens(mapping(body))
    if not isinstance(rows, list):
        return UnreadableBody("no results", transient=True, tokens=tokens, odd=True)

    def unfit(reason: str, detail: str) -> UnreadableBody:
        return UnreadableBody(reason, transient=False, tokens=tokens, detail=detail, odd=True)

    found: dict[int, float] = {}
    for place, row in enumerate(map(mapping, cast("list[object]", rows))):
        index = row.get("index")
        value = row.get(name)
        if type(index) is not int or not 0 <= index < documents:
            return unfit("index out of range", f"results[{place}].index is {_shown(index)} of {documents} documents")
        if index in found:
            return unfit("document scored twice", f"results[{place}].index is {index}, which an earlier result has")
        if type(value) not in (int, float) or not abs(cast(float, value)) <= _GREATEST:
            return unfit("score is not a finite number", f"results[{place}].{name} is {_shown(value)}")
        found[index] = float(cast(float, value))
    if missing := [i for i in range(documents) if i not in found]:
        detail = f"{len(missing)} of {documents} documents have no score, the first is document {missing[0]}"
        return unfit("documents without a score", detail)
    return Scores(tuple(found[i] for i in range(documents)), tokens)


def _shown(value: object) -> str:
    """Format a value for messages."""
    return f"{value!r:.40}" if isinstance(value, str | float | int | None) else f"a {type(value).__name__}"


def _tokens(body: Mapping[str, Any]) -> TokenCounts | None:
    """Return the count of Jina and vLLM; Cohere bills by call."""
    total = mapping(body.get("usage")).get("total_tokens")
    return TokenCounts(total, 0, 0) if type(total) is int and 0 < total < MOST_TOKENS else None
