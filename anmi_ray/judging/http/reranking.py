"""A reranker behind HTTP: a query and its documents in, a score for each document out, or a named failure.

Two shapes. cohere (Cohere v2, Jina, vLLM): {model, query, documents, top_n} -> {"results": [{index, relevance_score}]};
tei (text-embeddings-inference): {query, texts, raw_scores, truncate} -> [{index, score}]. Both sort by score and name
documents by their place, so a body counts only if it scores every document once, by a finite number.
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
from anmi_ray.judging.http.limits import TokenBucket

_GREATEST = 3.4e38  # runs hold scores in four bytes


@dataclass(frozen=True)
class Scores:
    """Scores in the order of the documents; larger is better, on the server's own scale. `tokens` as it counts them."""

    values: tuple[float, ...]
    tokens: TokenCounts | None = None


class RerankClient(Client[RerankEndpointConfig, Scores]):
    """A rerank endpoint. Use: `async with RerankClient(config) as client: ...`; what entering raises: see Client."""

    def __init__(self, config: RerankEndpointConfig) -> None:
        super().__init__(config, TokenBucket(config.requests_per_minute, None))

    async def score(self, query: str, documents: Sequence[str], key: bytes) -> Scores | Failed:
        """Scores of all `documents`, from as many calls as documents_per_call makes of them; the first failure else."""
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
    """The JSON body that asks for the scores of `documents`."""
    if config.shape == "tei":  # logits: the sigmoid makes ties of what it saturates
        fields: dict[str, Any] = {"query": query, "texts": list(documents), "raw_scores": True, "truncate": True}
    else:
        fields = {"model": config.model, "query": query, "documents": list(documents), "top_n": len(documents)}
    return json.dumps(fields | config.extra, ensure_ascii=False).encode("utf-8", "replace")


def read(content: bytes, documents: int, shape: str) -> Scores | UnreadableBody:
    """What the body of a 200 says of so many documents.

    A body that is cut short may be whole the next time; one that scores other documents than were sent will not.

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

    def unfit(reason: str, said: str) -> UnreadableBody:
        return UnreadableBody(reason, transient=False, tokens=tokens, detail=said, odd=True)

    found: dict[int, float] = {}
    for place, row in enumerate(map(mapping, cast("list[object]", rows))):
        index = row.get("index")
        value = row.get(name)
        if type(index) is not int or not 0 <= index < documents:
            return unfit("index out of range", f"results[{place}].index is {_said(index)} of {documents} documents")
        if index in found:
            return unfit("document scored twice", f"results[{place}].index is {index}, which an earlier result has")
        if type(value) not in (int, float) or not abs(cast(float, value)) <= _GREATEST:
            return unfit("score is not a finite number", f"results[{place}].{name} is {_said(value)}")
        found[index] = float(cast(float, value))
    if missing := [i for i in range(documents) if i not in found]:
        said = f"{len(missing)} of {documents} documents have no score, the first is document {missing[0]}"
        return unfit("documents without a score", said)
    return Scores(tuple(found[i] for i in range(documents)), tokens)


def _said(value: object) -> str:
    """A value as messages show it."""
    return f"{value!r:.40}" if isinstance(value, str | float | int | None) else f"a {type(value).__name__}"


def _tokens(body: Mapping[str, Any]) -> TokenCounts | None:
    """Jina's and vLLM's count; Cohere bills by the search, which is the call."""
    total = mapping(body.get("usage")).get("total_tokens")
    return TokenCounts(total, 0, 0) if type(total) is int and 0 < total < MOST_TOKENS else None
