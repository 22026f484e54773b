"""rerank: the trained model, and what is compared with it, score the hybrid's top documents of dev and test queries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.evaluate import RerankConfig
from anmi_ray.models.cross_encoder import Precision
from anmi_ray.models.pairs import document_text
from anmi_ray.models.reranker import Reranker, load_reranker
from anmi_ray.recorded import TRAINED
from anmi_ray.records import RUN, TEXT_OF, rejects
from anmi_ray.stages.folders import local_folder
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.runtime import Context, run_buckets
from anmi_ray.store import Artifact, Flow

HELD_OUT = ("dev", "test")
SYSTEM = "reranked"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RerankConfig, context: Context) -> dict[str, Any]:
    """One task per bucket, as many at once as there are cores, one thread each; returns flows for the manifest."""
    from anmi_ray.stages import peers  # it ranks as this module does

    retrieve, ingest = inputs["retrieve"], inputs["ingest"]
    others = {
        peer.name: peers.scored(
            peer, retrieve, ingest, config.depth, context, trained=inputs.get(f"{TRAINED}{peer.name}")
        )
        for peer in config.peers
    }
    args = (inputs["train"], retrieve, ingest, config, others)
    flows = run_buckets(context, artifact, ("runs", RUN), _bucket, *args)
    return {"flows": flows, "depth": config.depth, **({"peers": list(others)} if others else {})}


@lru_cache(maxsize=1)
def _model(folder: str, max_tokens: int | None, precision: Precision) -> Reranker:
    """The model, loaded once per worker process."""
    return load_reranker(folder, max_tokens=max_tokens, dtype=precision, threads=1)


def _bucket(
    artifact: Artifact,
    bucket: int,
    train: Artifact,
    retrieve: Artifact,
    ingest: Artifact,
    config: RerankConfig,
    others: Mapping[str, Artifact],
) -> list[Flow]:
    from anmi_ray.stages import peers

    queries = queries_of(ingest, bucket, *HELD_OUT)
    runs = of_queries(retrieve.read_part("runs", bucket, RUN), queries)
    hybrid = runs.filter(pc.equal(runs["system"], "hybrid"))
    top = hybrid.filter(pc.less_equal(hybrid["rank"], config.depth))
    texts = retrieve.read_part("texts", bucket, TEXT_OF)
    reranked = RUN.empty()
    if top.num_rows:
        model = _model(str(local_folder(train, "model")), config.max_tokens, config.precision)
        reranked = with_tail(rerank(top, queries, texts, model), hybrid)
    found = set(reranked["query_id"].to_pylist())
    lost = [query for query in queries["query_id"].to_pylist() if query not in found]
    flows = [Flow("held-out queries", queries.num_rows, len(found), len(lost))]
    why = rejects("rerank", [(query.hex(), "no candidate", "the hybrid run holds nothing to rerank") for query in lost])
    runs, whys = [reranked], [why]
    for name, other in others.items():
        run = peers.of_bucket(other, name, bucket)
        runs.append(with_tail(run, hybrid))
        flow, refused = peers.refused(other, name, bucket)
        flows.append(flow)
        whys.append(refused)
    artifact.commit_bucket(bucket, {"runs": (RUN, pa.concat_tables(runs))}, flows, pa.concat_tables(whys))
    return flows


def rerank(run: pa.Table, queries: pa.Table, texts: pa.Table, model: Reranker, system: str = SYSTEM) -> pa.Table:
    """Score every (query, document) of `run` and rank by score; ties go by the rank before. Returns a Run."""
    return ranked(run, model.score(*pairs_of(run, queries, texts)).astype(np.float64), system)


def pairs_of(run: pa.Table, queries: pa.Table, texts: pa.Table) -> tuple[list[str], list[str]]:
    """The texts of every row's query and document."""
    query_text = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    document = {
        doc: document_text(title, text)
        for doc, title, text in zip(
            texts["doc_id"].to_pylist(), texts["title"].to_pylist(), texts["text"].to_pylist(), strict=True
        )
    }
    ids, docs = run["query_id"].to_pylist(), run["doc_id"].to_pylist()
    return [query_text[q] for q in ids], [document[d] for d in docs]


def ranked(run: pa.Table, score: NDArray[np.floating[Any]], system: str = SYSTEM) -> pa.Table:
    """The documents of `run` (one system) ranked by `score`, highest first; ties go by the rank before."""
    query = np.unique(np.array(run["query_id"].to_pylist(), dtype=object), return_inverse=True)[1]
    order = np.lexsort((run["rank"].to_numpy(), -score, query))
    first = np.flatnonzero(np.diff(query[order], prepend=-1))
    sizes = np.diff(np.append(first, len(order)))
    taken = run.take(pa.array(order))
    return RUN.table(
        {
            "query_id": taken["query_id"],
            "doc_id": taken["doc_id"],
            "system": [system] * len(order),
            "rank": (np.arange(len(order)) - np.repeat(first, sizes) + 1).astype(np.int32),
            "score": score[order].astype(np.float64),
        }
    )


def with_tail(reranked: pa.Table, run: pa.Table) -> pa.Table:
    """`reranked` followed, per query, by the documents of `run` below its depth, in their order.

    Scores go on falling by one a rank, so that a tool that sorts by score sees the same ranking.
    """
    lowest = reranked.group_by("query_id").aggregate([("score", "min"), ("rank", "max")])
    tail = run.join(lowest, "query_id", join_type="inner", use_threads=False)
    tail = tail.filter(pc.greater(tail["rank"], tail["rank_max"]))
    below = pc.subtract(tail["score_min"], pc.cast(pc.subtract(tail["rank"], tail["rank_max"]), pa.float64()))
    system = reranked["system"][0].as_py() if reranked.num_rows else ""
    columns = {name: tail[name] for name in ("query_id", "doc_id", "rank")}
    added = RUN.table({**columns, "system": [system] * tail.num_rows, "score": below})
    return pa.concat_tables([reranked, added]).sort_by([("query_id", "ascending"), ("rank", "ascending")])
