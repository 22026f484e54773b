"""What studies of training share: the quickstart's examples, queries that no training sees, and trainings side by side.

All that comes before the examples is made once under ROOT, with Ray; trainings are plain processes, one a core. What a
training found is a JSON file beside its settings, so a study that is stopped goes on where it was.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import environment, experiment, identity
from anmi_ray.config.experiment import Experiment, load
from anmi_ray.console import ConsoleReporter
from anmi_ray.models.cross_encoder import torch_threads
from anmi_ray.models.reranker import Reranker
from anmi_ray.records import CANDIDATE, EXAMPLE, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.schema import Record
from anmi_ray.store import Artifact, Store

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
MEASURE, DEPTH = "nDCG@10", 10
MORE_QUERIES = 120  # train queries kept out of every training, beside the dev queries


@dataclass(frozen=True)
class Quickstart:
    """The artifacts of the quickstart up to its examples."""

    settings: Experiment
    artifacts: Mapping[str, Artifact]

    def table(self, stage: str, part: str, kind: Record) -> pa.Table:
        """A part of a stage, all buckets."""
        found = self.artifacts[stage]
        buckets = range(found.store.buckets(self.settings.execution.buckets))
        return pa.concat_tables([found.read_part(part, bucket, kind) for bucket in buckets])

    @property
    def examples(self) -> pa.Table:
        """All examples."""
        return self.table("mine", "examples", EXAMPLE)

    @property
    def texts(self) -> pa.Table:
        """Texts of all documents that are compared, trained on or reranked."""
        return self.table("retrieve", "texts", TEXT_OF)

    @property
    def queries(self) -> pa.Table:
        """The queries of all splits."""
        return self.table("ingest", "queries", QUERY)

    @property
    def qrels(self) -> pa.Table:
        """The known positives of all queries."""
        return self.table("ingest", "qrels", QREL)


def quickstart(root: str, console: Any = None) -> Quickstart:
    """The quickstart's artifacts under `root`; what is missing is made, with Ray, if `console` is there to tell."""
    settings = load(CONFIG, [f"execution.root={root}", "name=small-trainings"])
    store, resolved = Store(root), experiment.resolve(settings)
    stages = list(resolved)[: list(resolved).index("mine") + 1]
    artifacts = {name: Artifact(store, name, resolved[name].fingerprint) for name in stages}
    if console is not None and any(one.manifest() is None for one in artifacts.values()):
        from anmi_ray.stages.runtime import ray_session

        with ray_session(settings.execution):
            experiment.run(settings, ConsoleReporter(console), last="mine")
    return Quickstart(settings, artifacts)


@dataclass(frozen=True)
class HeldOut:
    """Queries that no training sees, with the hybrid's top documents, labels and texts."""

    run: pa.Table
    qrels: pa.Table
    texts: pa.Table
    queries: pa.Table

    def ndcg(self, model: Reranker) -> dict[str, float]:
        """nDCG@10 of the model alone by query, in hexadecimal."""
        from anmi_ray.evaluation import measures
        from anmi_ray.stages.rerank import SYSTEM, ranked
        from anmi_ray.stages.train import DevInputs, dev_set

        on = dev_set(DevInputs(self.run, self.qrels, self.texts, self.queries, MEASURE), model)
        with torch_threads(1):
            score_N = model.scorer("auto").score_tokens(on.queries, on.query_N, on.documents, on.document_N)
        found = measures.evaluate(ranked(self.run, score_N), self.qrels, [MEASURE], [SYSTEM])
        return {row["query_id"].hex(): row["value"] for row in found.to_pylist()}


def held_out(of: Quickstart, more: int = MORE_QUERIES) -> HeldOut:
    """The dev queries, and `more` train queries with one positive, drawn by hash."""
    queries = of.queries
    dev = queries.filter(pc.equal(queries["split"], "dev"))["query_id"].to_pylist()
    extra = kept_out(of.examples, more)
    ids = pa.array(sorted([*dev, *extra]), type=identity.ID)
    runs = of.table("retrieve", "runs", RUN)
    of_dev = runs.filter(pc.and_(pc.equal(runs["system"], "hybrid"), pc.less_equal(runs["rank"], DEPTH)))
    candidates = of.table("retrieve", "candidates", CANDIDATE)
    top = candidates.filter(pc.less_equal(candidates["rank"], DEPTH))  # added and random ones have no rank
    of_train = RUN.table(
        {
            "query_id": top["query_id"],
            "doc_id": top["doc_id"],
            "system": pa.array(["hybrid"] * top.num_rows),
            "rank": top["rank"],
            "score": top["fused_score"],
        }
    )
    run = _among(pa.concat_tables([of_dev, of_train]), "query_id", ids)
    texts = _among(of.texts, "doc_id", pc.unique(run["doc_id"]))
    return HeldOut(run, _among(of.qrels, "query_id", ids), texts, _among(queries, "query_id", ids))


def kept_out(examples: pa.Table, count: int = MORE_QUERIES) -> list[bytes]:
    """`count` queries with one example, by hash."""
    counts = examples.group_by("query_id").aggregate([("example_id", "count")])
    alone = counts.filter(pc.equal(counts["example_id_count"], 1))["query_id"].to_pylist()
    return identity.hash_sample(sorted(alone), count, "study", "kept out")


def without(examples: pa.Table, queries: Collection[bytes]) -> pa.Table:
    """The examples of other queries."""
    ids = pa.array(list(queries), type=identity.ID)
    return examples.filter(pc.invert(pc.is_in(examples["query_id"], value_set=ids)))


def _among(table: pa.Table, column: str, ids: pa.Array) -> pa.Table:
    return table.filter(pc.is_in(table[column], value_set=ids))


def side_by_side(
    tasks: Mapping[str, Mapping[str, Any]],
    work: Callable[[Mapping[str, Any]], dict[str, Any]],
    out: Store,
    workers: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """What `work` finds of every task, by name, as JSON under `out`; what is there for the same settings is not redone.

    Tasks hold JSON values only. Each runs in a process of its own, `workers` at a time.
    """
    records = {name: out.read_json(f"{name}.json") for name in tasks}
    missing = [name for name, record in records.items() if not record or record["settings"] != dict(tasks[name])]
    say(f"{len(tasks) - len(missing)} of {len(tasks)} trainings are done")
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(work, tasks[name]): name for name in missing}
        for count, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            records[name] = {"settings": dict(tasks[name]), "found": future.result()}
            out.publish_json(f"{name}.json", records[name])
            say(f"✓ {count} of {len(missing)}  {name}")
    return {name: records[name]["found"] for name in tasks}


@lru_cache(maxsize=1)
def of_process(root: str) -> tuple[Quickstart, HeldOut]:
    """The quickstart and the held-out queries, read once a process."""
    found = quickstart(root)
    return found, held_out(found)


def stacked(found: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
    """Values by query of several trainings as float64[S, Q], queries by id."""
    return np.array([[one[query] for query in sorted(found[0])] for one in found])


def heading(*columns: str) -> str:
    r"""The first two lines of a Markdown table.

    >>> heading("a", "b")
    '| a | b |\n|---|---|'
    """
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def cores() -> int:
    """Trainings at once unless the command line says otherwise."""
    return environment.cores()
