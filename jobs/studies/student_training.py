"""One training of the study of students: what a system learns from, how, and its ranking of the held-out queries."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.identity import ID
from anmi_ray.core.records import DOCUMENT, EXAMPLE, QREL, QUERY, RUN
from anmi_ray.core.schema import Record
from anmi_ray.stages.ingest import of_queries
from anmi_ray.stages.rerank.ranking import SYSTEM, document_texts, pairs_of, ranked
from anmi_ray.store import Artifact, Store
from jobs.studies.collected import all_parts

if TYPE_CHECKING:
    from anmi_ray.models.late_interaction import LateInteraction

FOLDER = "studies/students"
READ = ("ingest", "retrieve", "mine")  # stages whose artifacts a training reads
RETRIEVED = 100  # documents of a query that a system finds in the whole collection
_BLOCK = 500  # documents that are compared with all queries at once
Score = Callable[[Sequence[str], Sequence[str]], NDArray[np.floating[Any]]]
"""Scores [N] of N queries and documents, text by text."""
Compare = Callable[[Sequence[str], Sequence[str]], NDArray[np.floating[Any]]]
"""Scores [Q, D] of every query with every document."""


def run_file(root: str, name: str, kind: str = "runs") -> Path:
    """Where a training's run of the held-out queries stands; kind `retrieved`: of the whole collection."""
    return Path(root) / FOLDER / kind / f"{name}.parquet"


class Material:
    """What systems of a part learn from and are tested on, read from the run's artifacts."""

    def __init__(self, root: str, stages: Mapping[str, str]) -> None:
        store = Store(root)
        self._made = {name: Artifact(store, name, stages[name]) for name in READ}

    def _all(self, stage: str, part: str, record: Record, cut: str = "buckets") -> pa.Table:
        count = int((self._made["ingest"].manifest() or {})[cut])
        return all_parts(self._made[stage], part, record, count)

    @cached_property
    def queries(self) -> pa.Table:
        """Of all splits."""
        return self._all("ingest", "queries", QUERY)

    @cached_property
    def qrels(self) -> pa.Table:
        """Of all splits."""
        return self._all("ingest", "qrels", QREL)

    @cached_property
    def relevant(self) -> set[tuple[bytes, bytes]]:
        """(query_id, doc_id) of what is labelled relevant, of all splits."""
        known = self.qrels.filter(pc.greater(self.qrels["grade"], 0))
        return set(zip(known["query_id"].to_pylist(), known["doc_id"].to_pylist(), strict=True))

    @cached_property
    def runs(self) -> pa.Table:
        """The retrievers' and the hybrid's, of dev and test queries."""
        return self._all("retrieve", "runs", RUN)

    @cached_property
    def examples(self) -> pa.Table:
        """Mined lists."""
        return self._all("mine", "examples", EXAMPLE)

    @cached_property
    def documents(self) -> pa.Table:
        """Every document of the collection."""
        return self._all("ingest", "documents", DOCUMENT, "shards")

    def positives(self) -> list[tuple[str, str]]:
        """(query, positive) texts of the train queries that have examples."""
        text = dict(zip(self.documents["doc_id"].to_pylist(), document_texts(self.documents), strict=True))
        query = dict(zip(self.queries["query_id"].to_pylist(), self.queries["text"].to_pylist(), strict=True))
        known = of_queries(self.qrels, self.examples)
        known = known.filter(pc.greater(known["grade"], 0)).sort_by(
            [("query_id", "ascending"), ("doc_id", "ascending")]
        )
        pairs = zip(known["query_id"].to_pylist(), known["doc_id"].to_pylist(), strict=True)
        return [(query[q], text[d]) for q, d in pairs if d in text]

    def of_split(self, rows: pa.Table, split: str) -> pa.Table:
        """Those of `rows`, of a run or of qrels, that are of a split's queries."""
        return of_queries(rows, self.queries.filter(pc.equal(self.queries["split"], split)))

    def system(self, name: str, split: str) -> pa.Table:
        """A retriever's run of a split's queries."""
        return self.of_split(self.runs.filter(pc.equal(self.runs["system"], name)), split)


def work(root: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Train one system with one seed and rank the held-out queries; what it cost.

    These are of the stages `tested`, where a system learns from another collection than it is tested on. Where the task
    names queries `learned` (ids in hexadecimal), examples are theirs, and all others are ranked. The run stands under
    `root`, at `run_file`, and that of the whole collection where the task asks for it.
    """
    import torch

    torch.set_num_threads(1)
    of = Material(root, task["stages"])
    begin = time.process_time()
    ours = task["system"]["train"] is not None
    score, compare, mining_s = _ours(of, task) if ours else _theirs(of, root, task)
    train_s = time.process_time() - begin - mining_s
    if "tested" in task:
        of = Material(root, task["tested"])
    top = pa.concat_tables([of.system("hybrid", split) for split in ("dev", "test")])
    top = top.filter(pc.less_equal(top["rank"], task["depth"]))
    if "learned" in task:
        top = top.filter(pc.invert(_learned(top, task)))
    begin = time.process_time()
    scores = score(*pairs_of(top, of.queries, of.documents))
    score_s = time.process_time() - begin
    _write(run_file(root, task["name"]), ranked(top, np.asarray(scores, dtype=np.float64)))
    if task["retrieves"]:
        _write(run_file(root, task["name"], "retrieved"), retrieved(of, compare))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"mining_s": mining_s, "train_s": train_s, "score_s": score_s, "peak_gib": peak}


def _learned(rows: pa.Table, task: Mapping[str, Any]) -> pa.ChunkedArray:
    """Which of `rows` are of queries that are learned from, bool[N]."""
    names = pa.array([bytes.fromhex(one) for one in task["learned"]], type=ID)
    return pc.is_in(rows["query_id"], value_set=names)


def _write(path: Path, run: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(run, path)


def retrieved(of: Material, compare: Compare) -> pa.Table:
    """Run of the test queries over every document of the collection, compared one by one: nothing is approximated."""
    queries = of.of_split(of.queries, "test")
    score_QD = compare(queries["text"].to_pylist(), document_texts(of.documents))
    kept = min(RETRIEVED, score_QD.shape[1])
    best_QK = np.argpartition(-score_QD, kept - 1, axis=1)[:, :kept]
    every = np.repeat(np.arange(len(score_QD)), kept)
    top = RUN.table(
        {
            "query_id": queries["query_id"].take(pa.array(every)),
            "doc_id": of.documents["doc_id"].take(pa.array(best_QK.ravel())),
            "system": [SYSTEM] * best_QK.size,
            "rank": np.tile(np.arange(1, kept + 1, dtype=np.int32), len(score_QD)),
            "score": np.zeros(best_QK.size),
        }
    )
    return ranked(top, np.take_along_axis(score_QD, best_QK, axis=1).ravel())


def _by_pairs(score: Score, queries: Sequence[str], texts: Sequence[str]) -> NDArray[np.floating[Any]]:
    """Scores [Q, D] of all queries and texts, asked for pair by pair."""
    blocks: list[NDArray[np.floating[Any]]] = []
    for start in range(0, len(texts), _BLOCK):
        block = list(texts[start : start + _BLOCK])
        pairs = [query for query in queries for _ in block], block * len(queries)
        blocks.append(score(*pairs).reshape(len(queries), len(block)))
    return np.concatenate(blocks, axis=1)


def _by_tokens(
    model: LateInteraction, max_tokens: int, queries: Sequence[str], texts: Sequence[str]
) -> NDArray[np.float32]:
    """Scores float32[Q, D] of a late-interaction model, a text's tokens compared with those of all queries at once."""
    from anmi_ray.models.encoder import TokenEncoder
    from anmi_ray.models.loading import resolve
    from anmi_ray.models.reranker import resolve_precision

    with tempfile.TemporaryDirectory() as folder:
        settings = LateConfig(model=folder, max_tokens=max_tokens, query_tokens=max_tokens)
        encoder = TokenEncoder(resolve(str(model.export(folder))), settings, resolve_precision("auto", model.device))
    asked = encoder.encode(queries, "query")
    length_Q = np.array([len(vectors) for vectors in asked])
    vector_Td = np.concatenate(asked)
    first_Q = np.cumsum(length_Q) - length_Q
    score_QD = np.empty((len(queries), len(texts)), dtype=np.float32)
    for start in range(0, len(texts), _BLOCK):
        for at, text_Ud in enumerate(encoder.encode(texts[start : start + _BLOCK], "document"), start):
            best_T = (vector_Td @ text_Ud.T).max(axis=1)
            score_QD[:, at] = np.add.reduceat(best_T, first_Q) / length_Q
    return score_QD


def _ours(of: Material, task: Mapping[str, Any]) -> tuple[Score, Compare, float]:
    """Train one of our students, on a GPU where there is one."""
    import torch

    from anmi_ray.config.train import TrainConfig, TrainExecution
    from anmi_ray.models.kinds import load_student
    from anmi_ray.models.late_interaction import LateInteraction
    from anmi_ray.training.loop import train
    from anmi_ray.training.training_set import prepare

    own = {"max_tokens": task["max_tokens"], "engine": "ddp", "dev_points": (), "seed": task["seed"]}
    config = TrainConfig.model_validate({**own, **task["system"]["train"]})
    gpu = torch.cuda.is_available()
    model = load_student(config, "cuda" if gpu else "cpu")
    if not task["untrained"]:
        examples = of.examples.filter(_learned(of.examples, task)) if "learned" in task else of.examples
        data = prepare([examples], [of.documents], [of.queries], model.pairs)
        model = train(model, data, None, config, TrainExecution(threads=1, use_gpu=gpu)).model
    score = model.scorer("auto").score
    if isinstance(model, LateInteraction):
        return score, partial(_by_tokens, model, task["max_tokens"]), 0.0
    return score, partial(_by_pairs, score), 0.0


def _theirs(of: Material, root: str, task: Mapping[str, Any]) -> tuple[Score, Compare, float]:
    from anmi_ray.config.train import TrainConfig
    from anmi_ray.models import loading
    from jobs.studies import peer_trainers

    system, longest = task["system"], task["max_tokens"]
    start = str(loading.resolve(TrainConfig().model).path_or_id)
    cache = str(Path(root) / FOLDER / "vectors" / task["part"])
    corpus = document_texts(of.documents)
    begin = time.process_time()
    data = peer_trainers.mined(system["peer"], start, of.positives(), corpus, cache, longest)
    mining_s = time.process_time() - begin
    score = peer_trainers.trained(system["peer"], start, data, system, longest, task["seed"])
    return score, partial(_by_pairs, score), mining_s
