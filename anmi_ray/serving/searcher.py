"""Search a run's documents: the first stage, used by one thread, and the ranking of its results.

Legend: N candidates of a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.api import reranking
from anmi_ray.api.runs import Run
from anmi_ray.config.load import validate_as
from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.fusion import FUSED, ServedFusion
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.kinds import reads_apart
from anmi_ray.models.pairs import document_text
from anmi_ray.retrieval.merge import HYBRID, STUDENT
from anmi_ray.serving.wire import RefusalError, SearchBody
from anmi_ray.stages.ingest import queries_of
from anmi_ray.stages.rerank.ranking import SYSTEM as RERANKED
from anmi_ray.stages.retrieve.live import FirstStage, Places, Student
from anmi_ray.store import Artifact

_TOP_N = 10
_EXAMPLES = 6
_EXAMPLE_CHARACTERS = 120
_MAX_EMBEDDED = 20_000  # documents that the student embeds at the start, five minutes on two cores
_DOES = {
    "bm25": "words, by BM25",
    "lucene": "words, by Lucene's BM25",
    "dense": "vectors of the run's encoder",
    "late": "late interaction over what the others found",
    HYBRID: "the retrievers fused",
    STUDENT: "vectors of the trained model, over all documents",
    RERANKED: "the trained model, over the hybrid's first",
    FUSED: "the trained model's scores and the first stage's, by the run's weights",
}

Score = Callable[[str, list[str]], Awaitable[NDArray[np.float64]]]
"""Scores float64[N] of texts for a query."""


class RunSearcher:
    """The first stage of run `name` under `root`. One query is searched at a time: torch's threads are the process's.

    `systems`: the answer of /v1/systems. `notes`: indexes that were rebuilt at the start.
    Raises ConfigError if the run's collection or a retrieval model is gone, or its settings are of another version;
    DamagedError if its documents were changed.
    """

    def __init__(self, name: str, root: str, threads: int) -> None:
        run = Run(name, root)
        ingest = run.artifact("ingest", "documents")
        config = retrieval_of(run)
        student = _student(run, ingest, threads)
        self._first = FirstStage(ingest, config, threads, student)
        self._thread = ThreadPoolExecutor(1)
        self._fusion = _fusion(run, {*config.retrievers, HYBRID})
        self._depth = config.depth
        self._candidates = min(int(run.record["config"].get("rerank", {}).get("depth", config.depth)), config.depth)
        names = [*config.retrievers, HYBRID, *([STUDENT] if student else []), RERANKED]
        self._names = [*names, *([FUSED] if self._fusion else [])]
        self.systems: dict[str, Any] = {
            "run": name,
            "documents": self._first.documents,
            "systems": [{"name": name, "does": _DOES[name]} for name in self._names],
            "depth": self._depth,
            "candidates": self._candidates,
            "examples": _examples(ingest),
        }
        self.notes = [f"{index} was missing and is rebuilt" for index in self._first.made]

    def close(self) -> None:
        """Close the indexes, after the searches under way."""
        self._thread.shutdown()
        self._first.close()

    async def search(self, body: SearchBody, score: Score) -> dict[str, Any]:
        """Rankings as JSON. Raises RefusalError for a system or a depth that the run does not have."""
        names = body.systems or [body.system or RERANKED]
        self._check(body, names)
        top_n = body.top_n or min(_TOP_N, self._depth)
        candidates = body.candidates or max(self._candidates, top_n)
        reranks = RERANKED in names or FUSED in names
        first = {*names, *([HYBRID] if reranks else [])} - {RERANKED, FUSED}
        loop = asyncio.get_running_loop()
        places = await loop.run_in_executor(self._thread, self._first.search, body.query, first)
        if reranks:
            await self._rerank(body.query, places, _top(places, HYBRID, candidates), score, fuses=FUSED in names)
        ranked = {name: _top(places, name, top_n) for name in names}
        shown = {doc_id for ranking in ranked.values() for doc_id in ranking}
        texts = await loop.run_in_executor(self._thread, self._first.texts, shown)
        rankings = [
            {"system": name, "results": [_result(texts[one], places[one], name, body) for one in ranked[name]]}
            for name in names
        ]
        return {"rankings": rankings} if body.systems is not None else {"results": rankings[0]["results"]}

    def _check(self, body: SearchBody, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._names:
                raise RefusalError(422, f"system: {name[:80]} is not one of {', '.join(self._names)}")
        for field, value in (("top_n", body.top_n), ("candidates", body.candidates)):
            if value is not None and value > self._depth:
                raise RefusalError(422, f"{field}: is {value}, and the run ranks {self._depth} documents of a query")

    async def _rerank(self, query: str, places: Places, pool: list[bytes], score: Score, *, fuses: bool) -> None:
        """Add the model's ranks and scores, and the fusion's if wanted, for the documents in `pool`."""
        if not pool:
            return
        texts = await asyncio.get_running_loop().run_in_executor(self._thread, self._first.texts, pool)
        score_N = await score(query, [document_text(*texts[one][1:]) for one in pool])
        _add(places, pool, RERANKED, score_N)
        if fuses and self._fusion is not None:
            given = {name: _scores_of(name, pool, places) for name in self._fusion.partners}
            _add(places, pool, FUSED, reranking.fused(self._fusion, score_N, given))


def _top(places: Places, system: str, count: int) -> list[bytes]:
    """Documents within the first `count` of a system, best first."""
    found = [one for one, by_system in places.items() if system in by_system and by_system[system][0] <= count]
    return sorted(found, key=lambda one: places[one][system][0])


def _add(places: Places, pool: Sequence[bytes], system: str, score_N: NDArray[np.float64]) -> None:
    """Rank by falling score; ties keep their order."""
    for rank, at in enumerate(np.argsort(-score_N, kind="stable").tolist(), start=1):
        places[pool[at]][system] = (rank, float(score_N[at]))


def _scores_of(system: str, pool: Sequence[bytes], places: Places) -> list[float]:
    """Scores of a partner in a fusion; missing documents get its lowest score of the query."""
    lowest = min((one[system][1] for one in places.values() if system in one), default=0.0)
    return [places[one][system][1] if system in places[one] else lowest for one in pool]


def _result(
    texts: tuple[str, str, str], places: dict[str, tuple[int, float]], system: str, body: SearchBody
) -> dict[str, Any]:
    name, title, text = texts
    rank, score = places[system]
    why = {stage: {"rank": rank, "score": score} for stage, (rank, score) in places.items()}
    document = {"document": {"title": title, "text": text}} if body.return_documents else {}
    return {"id": name, "rank": rank, "score": score, **document, "why": why}


def retrieval_of(run: Run) -> RetrieveConfig:
    """The settings of a run's first stage. Raises ConfigError if this version does not read them."""
    place = f"run {run.name}, retrieve"
    remedy = "the run is of another version: run it again with this one (anmi run CONFIG)"
    config = validate_as(RetrieveConfig, run.record["config"]["retrieve"], place, remedy)
    searching = tuple(name for name in config.retrievers if name != "engine")
    if not {*searching} - {"late"}:
        what = "its candidates are another engine's rankings, in which new queries cannot be searched"
        raise ConfigError(what, place, f"anmi export {run.name} --to FOLDER, then anmi serve FOLDER: it only reranks")
    return config.model_copy(update={"retrievers": searching})


def check(run: Run) -> None:
    """Raise ConfigError, before Ray starts, if a run's first stage cannot be searched."""
    from anmi_ray.retrieval import lucene

    config = retrieval_of(run)
    run.artifact("ingest", "documents")
    if "lucene" in config.retrievers:
        lucene.check()


def _student(run: Run, ingest: Artifact, threads: int) -> Student | None:
    """The trained model, if it has vectors of texts, and the collection is small enough to embed at the start."""
    folder = run.model
    flows = {flow["unit"]: flow["rows_out"] for flow in (ingest.manifest() or {})["flows"]}
    if not reads_apart(str(folder)) or flows.get("documents", 0) > _MAX_EMBEDDED:
        return None
    loaded: Any = reranking.load(str(folder), threads)
    if not isinstance(loaded, BiEncoder) or loaded.pooling is None:
        return None

    def encode(texts: list[str], queries: bool) -> NDArray[np.float32]:
        lists = loaded.pairs.of_queries(texts) if queries else loaded.pairs.of_documents(texts)
        return loaded.vectors(lists, np.arange(len(texts)))

    return Student(run.artifact("train", "model").fingerprint, encode)


def _fusion(run: Run, systems: set[str]) -> ServedFusion | None:
    """The run's fusion, if it has one over the systems available here."""
    fusion = run.fusion()
    return fusion if fusion is not None and set(fusion.partners) <= systems else None


def _examples(ingest: Artifact) -> list[str]:
    """Some short test queries."""
    buckets = range(int((ingest.manifest() or {})["buckets"]))
    texts = (text for bucket in buckets for text in queries_of(ingest, bucket, "test")["text"].to_pylist())
    return list(islice((text for text in texts if len(text) <= _EXAMPLE_CHARACTERS), _EXAMPLES))
