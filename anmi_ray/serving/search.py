"""HTTP routes of the search over a run's documents: `/v1/search`, `/v1/systems`, and the page to try them at `/`."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Protocol, Self

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import Field, model_validator

from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.wire import Body

_MAX_SYSTEMS = 4  # of a request
_RUNS_ONLY = "only a run has documents to search: start the service with anmi serve RUN"
_PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


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


Search = tuple[Callable[[], Awaitable[dict[str, Any]]], Callable[[SearchBody], Awaitable[dict[str, Any]]]]
"""Calls that give the systems, and the rankings of a query."""


class Service(Protocol):
    """The service around the search."""

    name: str

    def check(self, query: str) -> None:
        """Raise RefusalError for a query that no service takes."""
        ...


class SearchRoutes:
    """Routes of search; `search` is None if only a model is served."""

    def __init__(self, service: Service, search: Search | None) -> None:
        self._service = service
        self._search = search

    def add_to(self, app: FastAPI) -> None:
        """Answer these paths."""
        app.add_api_route("/v1/search", self._ranked, methods=["POST"], name="search a run's documents")
        app.add_api_route("/v1/systems", self._systems, methods=["GET"], name="systems that can be searched")
        app.add_api_route("/", self._page, methods=["GET"], name="page to try queries", response_class=HTMLResponse)

    async def _page(self) -> HTMLResponse:
        """A page to try queries and compare two systems; browsers run no other script."""
        self._calls()
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        page = resources.files("anmi_ray.serving").joinpath("page", "search.html").read_text("utf-8")
        return HTMLResponse(page.replace("NONCE", nonce), headers={"Content-Security-Policy": policy, **_PAGE_HEADERS})

    async def _systems(self) -> JSONResponse:
        """The systems, and how deep they rank."""
        systems, _ = self._calls()
        return JSONResponse({"model": self._service.name, **await systems()})

    async def _ranked(self, body: SearchBody) -> JSONResponse:
        """Rankings of the run's documents, with each document's rank and score in every stage."""
        _, search = self._calls()
        self._service.check(body.query)
        return JSONResponse({"id": str(uuid.uuid4()), "model": self._service.name, **await search(body)})

    def _calls(self) -> Search:
        if self._search is None:
            raise RefusalError(404, _RUNS_ONLY)
        return self._search
