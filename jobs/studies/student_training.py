"""One training of the study of students: what a system learns from, how, and its ranking of the held-out queries."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anmi_ray.core.records import DOCUMENT, EXAMPLE, QREL, QUERY, RUN
from anmi_ray.core.schema import Record
from anmi_ray.stages.ingest import of_queries
from anmi_ray.stages.rerank.ranking import document_texts, pairs_of, ranked
from anmi_ray.store import Artifact, Store
from jobs.studies.collected import all_parts

FOLDER = "studies/students"
READ = ("ingest", "retrieve", "mine")  # stages whose artifacts a training reads


def run_file(root: str, name: str) -> Path:
    """Where a training's run of the held-out queries stands."""
    return Path(root) / FOLDER / "runs" / f"{name}.parquet"


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

    The run stands under `root`, at `run_file`.
    """
    import torch

    torch.set_num_threads(1)
    of = Material(root, task["stages"])
    begin = time.process_time()
    score, mining_s = _ours(of, task) if task["system"]["train"] is not None else _theirs(of, root, task)
    train_s = time.process_time() - begin - mining_s
    top = pa.concat_tables([of.system("hybrid", split) for split in ("dev", "test")])
    top = top.filter(pc.less_equal(top["rank"], task["depth"]))
    begin = time.process_time()
    scores = score(*pairs_of(top, of.queries, of.documents))
    score_s = time.process_time() - begin
    path = run_file(root, task["name"])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ranked(top, np.asarray(scores, dtype=np.float64)), path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"mining_s": mining_s, "train_s": train_s, "score_s": score_s, "peak_gib": peak}


def _ours(of: Material, task: Mapping[str, Any]) -> tuple[Any, float]:
    from anmi_ray.config.train import TrainConfig, TrainExecution
    from anmi_ray.models.kinds import load_student
    from anmi_ray.training.loop import train
    from anmi_ray.training.training_set import prepare

    own = {"max_tokens": task["max_tokens"], "engine": "ddp", "dev_points": (), "seed": task["seed"]}
    config = TrainConfig.model_validate({**own, **task["system"]["train"]})
    model = load_student(config)
    if task["untrained"]:
        return model.scorer("auto").score, 0.0
    data = prepare([of.examples], [of.documents], [of.queries], model.pairs)
    return train(model, data, None, config, TrainExecution(threads=1)).model.scorer("auto").score, 0.0


def _theirs(of: Material, root: str, task: Mapping[str, Any]) -> tuple[Any, float]:
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
    return peer_trainers.trained(system["peer"], start, data, system, longest, task["seed"]), mining_s
