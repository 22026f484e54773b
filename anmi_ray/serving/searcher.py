"""What the process that searches does: a run's first stage, open, asked by one thread.

Legend: N texts, d dimensions.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.api import reranking
from anmi_ray.api.export import fusion_of
from anmi_ray.api.runs import Run
from anmi_ray.config.load import validate_as
from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.fusion import FUSED
from anmi_ray.evaluation.served_fusion import ServedFusion
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.kinds import reads_apart
from anmi_ray.retrieval.merge import HYBRID, STUDENT
from anmi_ray.serving.found import About, FoundDocument, QueryVector
from anmi_ray.serving.refusals import of_another_model
from anmi_ray.stages.ingest import queries_of
from anmi_ray.stages.rerank.ranking import SYSTEM as RERANKED
from anmi_ray.stages.retrieve.live import FirstStage, StudentVectors
from anmi_ray.store import Artifact

_EXAMPLES = 6
_LONGEST_EXAMPLE = 120  # characters
_MOST_EMBEDDED = 20_000  # documents whose vectors of the student are made at the start, five minutes on two cores
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


class RunSearcher:
    """The first stage of run `name` under `root`. One query is searched at a time: torch's threads are the process's.

    Raises ConfigError where the run has no collection any more, is of a version whose settings are not read, or a model
    of its retrieval is gone; DamagedError where its documents are not what was written.
    """

    def __init__(self, name: str, root: str, threads: int) -> None:
        run = Run(name, root)
        ingest = run.artifact("ingest", "documents")
        config = retrieval_of(run)
        trained = _student(run, ingest, threads)
        self._first = FirstStage(ingest, config, threads, trained)
        self._thread = ThreadPoolExecutor(1)
        fusion = _fusion(run, {*config.retrievers, HYBRID})
        names = [*config.retrievers, HYBRID, *([STUDENT] if trained else []), RERANKED, *([FUSED] if fusion else [])]
        depth = int(run.record["config"].get("rerank", {}).get("depth", config.depth))
        self.about = About(
            run=name,
            documents=self._first.documents,
            systems={name: _DOES[name] for name in names},
            depth=config.depth,
            candidates=min(depth, config.depth),
            fusion=fusion,
            examples=tuple(_examples(ingest)),
            notes=tuple(f"{one} was missing and is made again" for one in self._first.made),
            fingerprint=run.artifact("train", "model").fingerprint,
        )

    def close(self) -> None:
        """Let go of the indexes, after the searches under way."""
        self._thread.shutdown()
        self._first.close()

    async def find(self, query: str, deepest: dict[str, int], vector: QueryVector | None) -> list[FoundDocument]:
        """Every document within a ranking of the systems in `deepest`, with its texts if its rank is not below that.

        Raises RefusalError where the vector is of another model than the documents'.
        """
        if vector is not None and vector.fingerprint != self.about.fingerprint:
            raise of_another_model()
        vector_d = None if vector is None else vector.vector_d
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, query, deepest, vector_d)

    def _find(self, query: str, deepest: dict[str, int], vector_d: NDArray[np.float32] | None) -> list[FoundDocument]:
        places = self._first.search(query, deepest.keys(), vector_d)
        shown = [
            doc_id
            for doc_id, of_document in places.items()
            if any(rank <= deepest.get(name, 0) for name, (rank, _) in of_document.items())
        ]
        texts = self._first.texts(shown)
        return [FoundDocument(texts.get(doc_id), of_document) for doc_id, of_document in places.items()]


def retrieval_of(run: Run) -> RetrieveConfig:
    """The settings of a run's first stage. Raises ConfigError where this version does not read them."""
    place = f"run {run.name}, retrieve"
    remedy = "the run is of another version: carry it out again with this one (anmi run CONFIG)"
    return validate_as(RetrieveConfig, run.record["config"]["retrieve"], place, remedy)


def check(run: Run) -> None:
    """Raise ConfigError, before Ray starts, where a run's first stage cannot be searched."""
    from anmi_ray.retrieval import lucene

    config = retrieval_of(run)
    run.artifact("ingest", "documents")
    if "lucene" in config.retrievers:
        lucene.check()


def _student(run: Run, ingest: Artifact, threads: int) -> StudentVectors | None:
    """The trained model, where it has vectors of texts by which this collection can be searched."""
    folder = run.model
    flows = {flow["unit"]: flow["rows_out"] for flow in (ingest.manifest() or {})["flows"]}
    if not reads_apart(str(folder)) or flows.get("documents", 0) > _MOST_EMBEDDED:
        return None
    loaded: Any = reranking.load(str(folder), threads)
    if not isinstance(loaded, BiEncoder) or loaded.pooling is None:
        return None

    def encode(texts: list[str]) -> NDArray[np.float32]:
        lists = loaded.pairs.of_documents(texts)
        return loaded.vectors(lists, np.arange(len(texts)))

    return StudentVectors(run.artifact("train", "model").fingerprint, encode)


def _fusion(run: Run, systems: set[str]) -> ServedFusion | None:
    """The run's fusion, where it has one, and of what is here: other rerankers are not."""
    try:
        fusion = fusion_of(run.artifact("evaluate"))
    except ConfigError:  # not evaluated
        return None
    return fusion if fusion is not None and set(fusion.partners) <= systems else None


def _examples(ingest: Artifact) -> list[str]:
    """Some test queries, short ones."""
    found: list[str] = []
    for bucket in range(int((ingest.manifest() or {})["buckets"])):
        texts = queries_of(ingest, bucket, "test")["text"].to_pylist()
        found += [text for text in texts if len(text) <= _LONGEST_EXAMPLE]
        if len(found) >= _EXAMPLES:
            break
    return found[:_EXAMPLES]
