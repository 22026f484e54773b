"""Search over a run's documents: `/v1/search`, `/v1/systems`, and the page to try them at `/`.

The first stage finds, in a process of its own; what is to be reranked waits in the queue of all requests' texts, so its
bounds and those of the gate hold here too. Candidates are scored once, whatever systems are asked for together.
Legend: N candidates of a query.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from numpy.typing import NDArray
from pydantic import Field, model_validator

from anmi_ray.api import reranking
from anmi_ray.evaluation.fusion import FUSED
from anmi_ray.models.pairs import document_text
from anmi_ray.retrieval.merge import HYBRID, STUDENT
from anmi_ray.serving import pages
from anmi_ray.serving.found import About, FoundDocument, QueryVector
from anmi_ray.serving.refusals import RefusalError, of_another_model
from anmi_ray.serving.wire import Body
from anmi_ray.stages.rerank.ranking import SYSTEM as RERANKED

_TOP_N = 10
_MOST_SYSTEMS = 4  # of a request
_MOST_SEARCHES = 64  # that wait for the first stage, or are in it
_OF_RUNS_ALONE = "a folder and a published model have no documents to search: start the service with anmi serve RUN"


class SearchBody(Body):
    """A query over the run's documents, for one system or for several that are to be compared."""

    query: str
    system: str | None = Field(default=None, description="whose ranking; GET /v1/systems lists them; else reranked")
    systems: list[str] | None = Field(
        default=None, min_length=1, max_length=_MOST_SYSTEMS, description="several, answered together"
    )
    top_n: int | None = Field(default=None, ge=1, description="documents of each ranking; else ten")
    candidates: int | None = Field(
        default=None, ge=1, description="the hybrid's first documents that are reranked; else as many as in the run"
    )
    return_documents: bool = Field(default=True, description="whether results hold title and text")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.system is not None and self.systems is not None:
            raise ValueError("give system or systems, one of both")
        return self


class Searching(Protocol):
    """Who holds the first stage."""

    async def about(self) -> About:
        """What can be searched. Raises RefusalError where the first stage did not open."""
        ...

    async def find(self, query: str, deepest: dict[str, int], vector: QueryVector | None) -> list[FoundDocument]:
        """As `RunSearcher.find`."""
        ...


class Model(Protocol):
    """What search needs of the service around it."""

    name: str

    def check(self, query: str) -> None:
        """Raise RefusalError for a query that no service takes."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> tuple[NDArray[np.float64], str]:
        """Scores float64[N], and the fingerprint of the model that gave them."""
        ...

    async def vector(self, query: str) -> QueryVector:
        """The model's vector of a query. Raises RefusalError where it has none."""
        ...


@dataclass
class _Ranked:
    """A document that may be shown."""

    texts: tuple[str, str, str]
    places: dict[str, tuple[int, float]]

    def place(self, system: str) -> tuple[int, float]:
        """Rank and score; the rank is beyond all others where it has none."""
        return self.places.get(system, (1 << 31, 0.0))


class SearchRoutes:
    """The paths of search; `first` is None where the service has a model alone."""

    def __init__(self, model: Model, first: Searching | None) -> None:
        self._model = model
        self._first = first
        self._inside = 0

    def add_to(self, app: FastAPI) -> None:
        """Answer these paths."""
        app.add_api_route("/v1/search", self._search, methods=["POST"], name="search a run's documents")
        app.add_api_route("/v1/systems", self._systems, methods=["GET"], name="systems that can be searched")
        app.add_api_route("/", self._page, methods=["GET"], name="page to try queries", response_class=HTMLResponse)

    async def _page(self) -> HTMLResponse:
        """A page to try queries, and to compare systems side by side."""
        self._there()
        return HTMLResponse(*pages.search())

    async def _systems(self) -> JSONResponse:
        """Which systems there are, and how deep they rank."""
        about = await self._there().about()
        systems = [{"name": name, "does": does} for name, does in about.systems.items()]
        return JSONResponse(
            {
                "model": self._model.name,
                "run": about.run,
                "documents": about.documents,
                "systems": systems,
                "depth": about.depth,
                "candidates": about.candidates,
                "examples": about.examples,
            }
        )

    async def _search(self, body: SearchBody) -> JSONResponse:
        """Rankings of the run's documents, with each document's rank and score of every stage that took part."""
        first = self._there()
        self._model.check(body.query)
        about = await first.about()
        systems = body.systems or [body.system or RERANKED]
        _check(body, systems, about)
        top_n = body.top_n or min(_TOP_N, about.depth)
        candidates = body.candidates or max(about.candidates, top_n)
        if self._inside >= _MOST_SEARCHES:
            raise RefusalError(429, f"{self._inside} searches are under way already", 1)
        self._inside += 1
        try:
            vector = await self._model.vector(body.query) if STUDENT in systems else None
            found = await first.find(body.query, _deepest(systems, top_n, candidates), vector)
        finally:
            self._inside -= 1
        documents = [_Ranked(one.texts, dict(one.places)) for one in found if one.texts is not None]
        if RERANKED in systems or FUSED in systems:
            await self._rerank(body.query, documents, found, candidates, about if FUSED in systems else None)
        rankings = [
            {"system": name, "results": _results(documents, name, top_n, body.return_documents)} for name in systems
        ]
        answer = {"rankings": rankings} if body.systems is not None else {"results": rankings[0]["results"]}
        return JSONResponse({"id": str(uuid.uuid4()), "model": self._model.name, **answer})

    def _there(self) -> Searching:
        if self._first is None:
            raise RefusalError(404, _OF_RUNS_ALONE)
        return self._first

    async def _rerank(
        self,
        query: str,
        documents: Sequence[_Ranked],
        found: Sequence[FoundDocument],
        candidates: int,
        fused: About | None,
    ) -> None:
        """Give the hybrid's first documents the model's places, and those of the fusion where it is asked for."""
        pool = sorted(documents, key=lambda one: one.place(HYBRID)[0])
        pool = [one for one in pool if one.place(HYBRID)[0] <= candidates]
        if not pool:
            return
        score_N, fingerprint = await self._model.scores(query, [document_text(*one.texts[1:]) for one in pool])
        if fused is not None and fused.fingerprint != fingerprint:
            raise of_another_model()
        _rank(pool, RERANKED, score_N)
        if fused is not None and fused.fusion is not None:
            given = {name: _scores_of(name, pool, found) for name in fused.fusion.partners}
            _rank(pool, FUSED, reranking.fused(fused.fusion, score_N, given))


def _check(body: SearchBody, systems: Sequence[str], about: About) -> None:
    for name in systems:
        if name not in about.systems:
            raise RefusalError(422, f"system: {name[:80]} is not one of {', '.join(about.systems)}")
    for name, value in (("top_n", body.top_n), ("candidates", body.candidates)):
        if value is not None and value > about.depth:
            raise RefusalError(422, f"{name}: is {value}, and the run ranks {about.depth} documents of a query")


def _deepest(systems: Sequence[str], top_n: int, candidates: int) -> dict[str, int]:
    """By system of the first stage that is needed, the rank down to which its documents' texts are."""
    deepest = {name: top_n for name in systems if name not in (RERANKED, FUSED)}
    if RERANKED in systems or FUSED in systems:
        deepest[HYBRID] = max(candidates, deepest.get(HYBRID, 0))
    return deepest


def _rank(pool: Sequence[_Ranked], system: str, score_N: NDArray[np.float64]) -> None:
    """Ranks by falling score; of equal ones the document that stood first stays first."""
    for rank, at in enumerate(np.argsort(-score_N, kind="stable").tolist(), start=1):
        pool[at].places[system] = (rank, float(score_N[at]))


def _scores_of(system: str, pool: Sequence[_Ranked], found: Sequence[FoundDocument]) -> list[float]:
    """A partner's scores; of a document that it has not its lowest of the query, as the run's fusion has it."""
    lowest = min((one.places[system][1] for one in found if system in one.places), default=0.0)
    return [one.places[system][1] if system in one.places else lowest for one in pool]


def _results(documents: Sequence[_Ranked], system: str, top_n: int, with_text: bool) -> list[dict[str, Any]]:
    ranked = sorted((one for one in documents if system in one.places), key=lambda one: one.place(system)[0])
    return [_result(one, system, with_text) for one in ranked[:top_n]]


def _result(one: _Ranked, system: str, with_text: bool) -> dict[str, Any]:
    name, title, text = one.texts
    rank, score = one.place(system)
    why = {stage: {"rank": rank, "score": score} for stage, (rank, score) in one.places.items()}
    document = {"document": {"title": title, "text": text}} if with_text else {}
    return {"id": name, "rank": rank, "score": score, **document, "why": why}
