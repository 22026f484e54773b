"""The HTTP service: routes, checks, answers; independent of Ray.

Legend: N texts of a request.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from numpy.typing import NDArray
from scipy import special
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from anmi_ray import __version__
from anmi_ray.serving.gate import Gate
from anmi_ray.serving.queue import BatchQueue, Compute, ServiceMeters
from anmi_ray.serving.scorer import Computed, Task
from anmi_ray.serving.settings import ServiceSettings
from anmi_ray.serving.wire import (
    EitherBody,
    EmbedBody,
    EmbeddingsBody,
    ModelBody,
    RefusalError,
    RerankBody,
    ScoreBody,
    SearchBody,
)

BATCHES_EACH = 2  # per scoring process: one is computed, the next is ready
_HALF = re.compile(r"[\ud800-\udfff]")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Search = tuple[Callable[[], Awaitable[dict[str, Any]]], Callable[[SearchBody], Awaitable[dict[str, Any]]]]
"""Calls that give the systems, and the rankings of a query."""


class RerankService:
    """The ASGI application `app`; `compute` computes a batch.

    `search`: searches the documents of the served run; None: search is refused.
    """

    def __init__(self, settings: ServiceSettings, compute: Compute, search: Search | None = None) -> None:
        self._settings = settings
        self.name = settings.called
        """Name of the model in answers: of the one that scored last."""
        self._meters = ServiceMeters(lambda: self._queue.waiting, lambda: self.app.inside)
        self._queue = BatchQueue(compute, settings, BATCHES_EACH * settings.most, self._meters)
        self._search = search
        routes = self._routes()
        paths = {str(getattr(route, "path", "")) for route in routes.routes}
        self.app = Gate(routes, settings, paths, self._meters.request)
        self.asgi: Any = self.app
        """`app`, with headers for pages of other origins if the settings name any."""
        if settings.cors_origins:
            origins = settings.cors_origins.split(",")
            self.asgi = CORSMiddleware(self.app, origins, allow_methods=["GET", "POST"], allow_headers=["*"])

    def _routes(self) -> FastAPI:
        app = FastAPI(title=f"anmi serve: {self.name}", version=__version__, redoc_url=None, docs_url="/docs")
        for path in ("/v1/rerank", "/v2/rerank"):
            app.add_api_route(path, self._rerank, methods=["POST"], name=f"rerank {path[1:3]}")
        app.add_api_route("/rerank", self._either, methods=["POST"], name="rerank as vLLM or TEI")
        for path in ("/v1/score", "/score"):
            app.add_api_route(path, self._score, methods=["POST"], name="score pairs as vLLM")
        app.add_api_route("/v1/embeddings", self._embeddings, methods=["POST"], name="embeddings")
        app.add_api_route("/embed", self._embed, methods=["POST"], name="embeddings as TEI")
        app.add_api_route("/v1/models", self._models, methods=["GET"], name="models")
        app.add_api_route("/info", self._info, methods=["GET"], name="model and limits as TEI")
        app.add_api_route("/v1/search", self._searched, methods=["POST"], name="search a run's documents")
        app.add_api_route("/v1/systems", self._systems, methods=["GET"], name="systems that can be searched")
        app.add_api_route("/", self._page, methods=["GET"], name="page to try queries", response_class=HTMLResponse)
        app.add_api_route("/health", self._health, methods=["GET"], name="health")
        app.add_route("/health", self._alive, methods=["HEAD"], include_in_schema=False)
        app.add_api_route("/metrics", self._metrics, methods=["GET"], name="metrics", response_class=PlainTextResponse)
        app.add_exception_handler(RefusalError, _refused)
        app.add_exception_handler(RequestValidationError, _invalid)
        app.add_exception_handler(HTTPException, _not_served)
        app.add_exception_handler(Exception, _failed)
        return app

    async def _rerank(self, body: RerankBody) -> JSONResponse:
        """Cohere's and Jina's: results by falling score."""
        return await self._ranked(body, body.documents, bool(body.return_documents))

    async def _either(self, body: EitherBody) -> JSONResponse:
        """vLLM's and Jina's shape where documents are given, TEI's where texts are."""
        if body.texts is None:
            # vLLM returns the documents by default
            return await self._ranked(body, body.documents or [], body.return_documents is not False)
        found = await self._scores(body, body.texts, "texts")
        shown = [{"text": text} if body.return_text else {} for text in body.texts]
        return JSONResponse([{"index": at, "score": score, **shown[at]} for at, score in self._ranking(found, body)])

    async def _ranked(self, body: RerankBody, documents: Sequence[str], with_text: bool) -> JSONResponse:
        found = await self._scores(body, documents, "documents")
        shown = [{"document": {"text": text}} if with_text else {} for text in documents]
        results = [{"index": at, "relevance_score": score, **shown[at]} for at, score in self._ranking(found, body)]
        tokens = int(found.tokens.sum())
        units = {"search_units": math.ceil(len(documents) / 100)}  # what Cohere bills
        return JSONResponse(
            {
                "id": str(uuid.uuid4()),
                "model": self.name,
                "results": results,
                "meta": {"billed_units": units, "tokens": {"input_tokens": tokens}},
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    async def _score(self, body: ScoreBody) -> JSONResponse:
        """vLLM's: the scores of pairs, in their order."""
        self._check_texts(body.text_1, "text_1")
        self._check_texts(body.text_2, "text_2")
        if len(body.text_1) == 1:
            all_found = [await self._computed("score", body.text_1[0], body.text_2)]
        else:
            pairs = zip(body.text_1, body.text_2, strict=True)
            all_found = await asyncio.gather(*(self._computed("score", query, [text]) for query, text in pairs))
        _check_limits(body, all_found[0].max_tokens)
        scores = [value for found in all_found for value in _shown(found, body.raw_scores).tolist()]
        data = [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)]
        tokens = sum(int(found.tokens.sum()) for found in all_found)
        return JSONResponse(self._listed(data, tokens))

    async def _embeddings(self, body: EmbeddingsBody) -> JSONResponse:
        """OpenAI's: the unit vectors of texts."""
        task = "query" if body.input_type.endswith("query") else "document"
        vectors, tokens = await self._vectors(task, body.input, "input", body)
        size = vectors.shape[1]
        if body.dimensions not in (None, size):
            raise RefusalError(400, f"dimensions is {body.dimensions}, and the model's vectors have {size}")
        data = [
            {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        return JSONResponse(self._listed(data, tokens))

    async def _embed(self, body: EmbedBody) -> JSONResponse:
        """TEI's: the unit vectors of texts."""
        vectors, _ = await self._vectors(body.prompt_name, body.inputs, "inputs", body)
        return JSONResponse(vectors.astype(np.float64).tolist())

    async def _vectors(
        self, task: Task, texts: Sequence[str], place: str, body: ModelBody
    ) -> tuple[NDArray[np.float32], int]:
        """The unit vectors float32[N, d] of texts, and the number of tokens."""
        self._check_texts(texts, place)
        found = await self._computed(task, "", texts)
        _check_limits(body, found.max_tokens)
        if found.values is None:
            raise RefusalError(400, f"{self.name} has no vector of a text: it reads pairs, or tokens; use /v1/rerank")
        return found.values, int(found.tokens.sum())

    def _listed(self, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """An answer in the form of OpenAI's lists."""
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.name, "usage": usage}

    async def _models(self) -> JSONResponse:
        """OpenAI's: the one model."""
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "anmi_ray"}]})

    async def _info(self) -> JSONResponse:
        """TEI's: the model, and the limits of a request."""
        found = await self._computed("score", "a", ["a"])
        limits = {"max_input_length": found.max_tokens, "max_client_batch_size": self._settings.max_documents}
        kind = {"model_id": self.name, "model_dtype": self._settings.precision, "model_type": {"reranker": {}}}
        return JSONResponse({**kind, **limits, "auto_truncate": True, "version": __version__})

    async def _page(self) -> HTMLResponse:
        """A page to try queries and compare two systems; browsers run no other script."""
        self._searcher()
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        page = resources.files("anmi_ray.serving").joinpath("page", "search.html").read_text("utf-8")
        return HTMLResponse(page.replace("NONCE", nonce), headers={"Content-Security-Policy": policy, **_PAGE_HEADERS})

    async def _systems(self) -> JSONResponse:
        """The systems, and how deep they rank."""
        systems, _ = self._searcher()
        return JSONResponse({"model": self.name, **await systems()})

    async def _searched(self, body: SearchBody) -> JSONResponse:
        """Rankings of the run's documents, with each document's rank and score in every stage."""
        _, search = self._searcher()
        self._check_query(body.query)
        return JSONResponse({"id": str(uuid.uuid4()), "model": self.name, **await search(body)})

    def _searcher(self) -> Search:
        if self._search is None:
            raise RefusalError(404, "only a run has documents to search: start the service with anmi serve RUN")
        return self._search

    async def _health(self) -> JSONResponse:
        """200 while requests are taken."""
        status = "stopping" if self.app.draining else "ok"
        content = {"status": status, "model": self.name, "waiting_texts": self._queue.waiting}
        return JSONResponse(content, 503 if self.app.draining else 200)

    async def _alive(self, request: Request) -> JSONResponse:
        """HEAD /health, as load balancers ask."""
        return await self._health()

    async def _metrics(self) -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(self._meters.page(), media_type=_PROMETHEUS)

    async def _scores(self, body: RerankBody, texts: Sequence[str], place: str) -> Computed:
        self._check_query(body.query)
        self._check_texts(texts, place)
        found = await self._computed("score", body.query, texts)
        _check_limits(body, found.max_tokens)
        if body.min_relevance is not None and found.model.curve is None:
            raise RefusalError(422, f"min_relevance: {self.name} has no calibrated P(relevant); leave it out")
        return found

    async def _computed(self, task: Task, query: str, texts: Sequence[str]) -> Computed:
        found = await self._queue.computed(task, query, texts)
        self.name = found.model.name or self.name
        if task == "score" and (found.values is None or not np.isfinite(found.values).all()):
            raise RefusalError(500, "the model's scores are not finite: its weights are damaged")
        return found

    def _ranking(self, found: Computed, body: RerankBody) -> list[tuple[int, float]]:
        """The first `top_n` (index, score) by falling score; ties go to the earlier text."""
        score_N, relevance_N = _shown(found, True), _shown(found, False)
        order = np.argsort(-score_N, kind="stable")
        order = order[relevance_N[order] >= (body.min_relevance or 0.0)]
        shown_N = score_N if body.raw_scores else relevance_N
        return [(int(index), float(shown_N[index])) for index in order[: body.top_n]]

    def _check_query(self, query: str) -> None:
        """Raise RefusalError for a query that is empty, too long, or invalid."""
        if not query.strip():
            raise RefusalError(422, "query: is empty")
        self._check_texts([query], "query")

    async def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Scores float64[N] of texts, truncated to the limit of clients."""
        found = await self._computed("score", query, [text[: self._settings.max_characters] for text in texts])
        return _shown(found, True)

    def _check_texts(self, texts: Sequence[str], place: str) -> None:
        most, longest = self._settings.max_documents, self._settings.max_characters
        if not texts:
            raise RefusalError(422, f"{place}: is empty, give one text at least")
        if len(texts) > most:
            raise RefusalError(413, f"{place}: are {len(texts):,}, and a request may have {most:,}")
        for index, text in enumerate(texts):
            at = place if place == "query" else f"{place}.{index}"
            if not text.isascii() and _HALF.search(text):
                raise RefusalError(422, f"{at}: contains half of a surrogate pair")
            if len(text) > longest:
                raise RefusalError(413, f"{at}: has {len(text):,} characters, and a text may have {longest:,}")


def _shown(found: Computed, raw: bool) -> NDArray[np.float64]:
    """Scores float64[N] as answers show them: the model's own, or P(relevant), of other models their sigmoid."""
    assert found.values is not None
    score_N = found.values.astype(np.float64)
    curve = found.model.curve
    return score_N if raw else special.expit(score_N) if curve is None else curve.of(score_N)


def _check_limits(body: ModelBody, max_tokens: int) -> None:
    """Raise RefusalError if the client wants texts truncated to fewer tokens than the model reads."""
    for name, limit in body.limits.items():
        if limit is not None and 0 < limit < max_tokens:
            what = f"{name}: is {limit:,}; texts are cut to the model's {max_tokens:,} tokens, and no further"
            raise RefusalError(422, f"{what}: leave it out")


def _written(vector: NDArray[np.float32], how: str) -> list[float] | str:
    """A vector as a list, or little-endian float32 in base 64, as OpenAI's clients request."""
    if how == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.astype(np.float64).tolist()


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusalError)
    return JSONResponse(error.content, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        what = str(first.get("ctx", {}).get("error", "not JSON"))
        return await _refused(request, RefusalError(400, f"the body is not JSON: {what}"))
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    what = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "unknown field; /docs lists those that are read"
    return await _refused(request, RefusalError(422, f"{place}: {what}" if place else what))


async def _not_served(request: Request, error: Exception) -> JSONResponse:
    """404, 405, and bodies that the framework cannot read."""
    assert isinstance(error, HTTPException)
    served = "POST /v1/rerank, /v2/rerank, /rerank, /v1/score, /v1/embeddings, /embed, /v1/search"
    served += "; GET /, /v1/models, /v1/systems, /info, /health, /metrics, /docs"
    what = f"{request.method} {request.url.path} is not served; there are {served}"
    message = what if error.status_code in (404, 405) else str(error.detail)
    return await _refused(request, RefusalError(error.status_code, message))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """A bug: Serve's log has the traceback."""
    return await _refused(request, RefusalError(500, f"the service failed: {type(error).__name__}"))
