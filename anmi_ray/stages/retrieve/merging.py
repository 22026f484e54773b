"""Short plain tasks after the search of the shards: merge a bucket, write a shard's texts, collect a bucket's.

They load neither an index nor a model.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core.records import CANDIDATE, DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.retrieval import late, merge
from anmi_ray.retrieval.hits import texts_of
from anmi_ray.runtime import exchange
from anmi_ray.store import Artifact, Flow


def merge_bucket(
    artifact: Artifact, bucket: int, ingest: Artifact, config: RetrieveConfig, seed: int, shards: int
) -> list[Flow]:
    """Merge a bucket's hits of all shards, and write which texts it needs of each."""
    queries = ingest.read_part("queries", bucket, QUERY)
    hits = _hits(artifact, bucket, config, shards)
    qrels = ingest.read_part("qrels", bucket, QREL)
    found = merge.merge_bucket(hits, queries, qrels, config, seed, rates_dev=config.rates_dev)
    served = set(found.runs["query_id"].to_pylist()) | set(found.candidates["query_id"].to_pylist())
    flows = [Flow("queries", queries.num_rows, len(served), queries.num_rows - len(served))]
    for name, answered in found.answered.items():
        flows.append(Flow(unit_of(name), queries.num_rows, answered, queries.num_rows - answered))
    unanswered = sum(flow.rejected for flow in flows[1:])  # by single retrievers: without reject rows
    exchange.publish(artifact, "wanted", bucket, found.wanted)
    parts = {"runs": (RUN, found.runs), "candidates": (CANDIDATE, found.candidates)}
    artifact.commit_bucket(bucket, parts, flows, found.rejects, unanswered)
    return flows


def unit_of(retriever: str) -> str:
    """Return the unit of the flow of queries for which a retriever found a document."""
    return f"queries of {retriever}"


def give_texts(artifact: Artifact, number: int, ingest: Artifact, buckets: int) -> None:
    """Write the texts of a shard that buckets need, a part for each bucket."""
    wanted = [exchange.read(artifact, "wanted", bucket, number) for bucket in range(buckets)]
    documents = ingest.read_part("documents", number, DOCUMENT)
    texts = texts_of(documents, pc.unique(pa.concat_tables(wanted)["doc_id"]))
    parts = [texts.filter(pc.is_in(texts["doc_id"], value_set=ids["doc_id"].combine_chunks())) for ids in wanted]
    exchange.publish(artifact, "texts", number, parts)


def take_texts(artifact: Artifact, bucket: int, shards: int) -> list[Flow]:
    """Commit the texts of all shards for a bucket."""
    parts = [exchange.read(artifact, "texts", number, bucket) for number in range(shards)]
    texts = pa.concat_tables([TEXT_OF.empty(), *parts]).sort_by("doc_id")
    artifact.commit_bucket(bucket, {"texts": (TEXT_OF, texts)}, [], None)
    return []


def _hits(artifact: Artifact, bucket: int, config: RetrieveConfig, shards: int) -> Iterator[pa.Table]:
    """Yield a bucket's hits of each shard, with late interaction's scores if it is a retriever."""
    for number in range(shards):
        hits = exchange.read(artifact, "hits", number, bucket)
        if "late" in config.retrievers:
            hits = late.with_scores(hits, exchange.read(artifact, "late", number, bucket))
        yield hits
