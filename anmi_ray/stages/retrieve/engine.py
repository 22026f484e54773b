"""Rankings of another search engine, read from a file and searched like a retriever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import DOCUMENT, QUERY
from anmi_ray.corpus import ids
from anmi_ray.runtime import exchange
from anmi_ray.runtime.tasks import Context, run_task
from anmi_ray.stages.ingest import of_queries
from anmi_ray.store import Artifact
from anmi_ray.tables import trec

NAME = "engine"


def read(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Write the engine's rankings by bucket, unless they are there, with a notice about queries that it does not rank.

    Raises DataError if the file has several systems, no query of the collection, or mostly unknown documents.
    """
    if NAME in config.retrievers and exchange.groups_of(artifact, NAME, 0) is None:
        for line in run_task(context, _read, artifact, ingest, config, context.buckets, shards):
            context.notice(line)


def of_bucket(artifact: Artifact, config: RetrieveConfig, bucket: int) -> pa.Table | None:
    """Return the rankings (query_id, doc_id, score) of a bucket's queries; None without that retriever."""
    return exchange.read(artifact, NAME, 0, bucket) if NAME in config.retrievers else None


def _read(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, buckets: int, shards: int) -> list[str]:
    place, said = str(config.engine), list[str]()
    run = trec.one_system(Path(place), said.append)
    top = run.table.filter(pc.less_equal(run.table["rank"], config.depth + 1))  # its own document is left out later
    buckets_of = [ingest.read_part("queries", bucket, QUERY) for bucket in range(buckets)]
    parts = [_of_queries(top, asked, "external_id") for asked in buckets_of]
    if not any(part.num_rows for part in parts):  # a log of searches has no ids
        parts = [_of_queries(top, asked, "text") for asked in buckets_of]
    splits, ranked = Counter[str](), Counter[str]()
    for asked, part in zip(buckets_of, parts, strict=True):
        splits.update(asked["split"].to_pylist())
        ranked.update(of_queries(asked, part)["split"].to_pylist())
    if not ranked:
        names = [name for asked in buckets_of for name in asked["external_id"].to_pylist()]
        change = ids.likely_change(set(run.queries), names)
        what = f"none of its {len(run.queries):,} queries is in the collection{change and f' ({change})'}"
        raise DataError(what, place, "write the collection's ids, or the queries as they are there")
    rest = set(pc.unique(pa.concat_tables(parts)["doc_id"]).to_pylist())
    total = len(rest)
    for shard in range(shards):
        rest.difference_update(ingest.read_part("documents", shard, DOCUMENT, ["doc_id"])["doc_id"].to_pylist())
    unknown = [name for name, doc_id in run.documents.items() if doc_id in rest]
    ids.report_unknown(unknown, len(unknown), total, "documents", place, _names(ingest, shards), said.append)
    exchange.publish(artifact, NAME, 0, parts)
    short = {split: (ranked[split], count) for split, count in splits.items() if ranked[split] < count}
    if short:
        parts_of = " and ".join(f"{found:,} of {count:,} {split} queries" for split, (found, count) in short.items())
        said.append(f"{place}: ranks documents for {parts_of}; on test the others count as 0 for {NAME}")
    return said


def _of_queries(top: pa.Table, asked: pa.Table, column: str) -> pa.Table:
    """Return the rows of a run of the queries `asked`, which it names by their `column`."""
    names = identity.id_array(identity.query_id(identity.normalize_id(name)) for name in asked[column].to_pylist())
    at = pc.index_in(top["query_id"], value_set=names)
    columns = {"query_id": asked["query_id"].take(at), "doc_id": top["doc_id"], "score": top["score"]}
    return pa.table(columns).filter(pc.is_valid(at))


def _names(ingest: Artifact, shards: int) -> Iterator[str]:
    for shard in range(shards):
        yield from ingest.read_part("documents", shard, DOCUMENT, ["external_id"])["external_id"].to_pylist()
