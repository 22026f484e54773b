"""ingest: a reader's collection -> documents (in shards), queries and qrels (in buckets), rejects.

Only this stage reads the user's files. It runs in one task: readers stream their documents shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import IngestConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.identity import bucket_of, hash_sample, id_array
from anmi_ray.core.records import DOCUMENT, QREL, QUERY
from anmi_ray.runtime.stage import Inputs, Split, Stage
from anmi_ray.runtime.tasks import Context, run_task
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.corpus.counts import CollectionCounts
    from anmi_ray.corpus.own_documents import OwnDocuments

TRAIN_QUERIES = Split(
    "train",
    "give more queries than those of dev and test: they need no label (corpus.unlabelled, corpus.max_train_queries)",
)
OWN = "own"  # optional part: documents that rankings leave out for a query, as Qrel rows of grade 0
TRAIN, DEV, TEST = "train", "dev", "test"  # splits of queries
HIDDEN = "hidden"  # optional part: Qrel rows that only a simulated panel reads


def run(artifact: Artifact, inputs: Inputs, config: IngestConfig, context: Context) -> dict[str, Any]:
    """Read the collection and write it into the store."""
    flows, shards, counts, rejected, own = run_task(context, _ingest, artifact, config, context.buckets)
    for text in rejected:
        context.notice(text)
    facts = {"shards": shards, "splits": counts.queries}
    facts |= {"labelled": counts.labelled, "left_out": counts.left_out, "unread": counts.unread}
    facts |= {"hidden": counts.hidden} if config.hidden else {}
    others = {"over_maximum": counts.over_maximum, "held_out": counts.held_out}
    others |= {"repeated": counts.repeated, "trimmed": counts.trimmed, "own_documents": own.pairs.num_rows}
    facts |= {name: count for name, count in others.items() if count}
    if (found := own.notice()) is not None:
        context.notice(found)
    return {"flows": flows, **facts, "buckets": context.buckets}


def _ingest(
    artifact: Artifact, config: IngestConfig, buckets: int
) -> tuple[list[Flow], int, CollectionCounts, list[str], OwnDocuments]:
    from anmi_ray import corpus
    from anmi_ray.corpus import own_documents
    from anmi_ray.corpus.counts import counted, examples

    reader = corpus.read(config)
    documents = shards = 0
    for shard, table in enumerate(reader.documents()):
        artifact.publish_part("documents", shard, table, DOCUMENT)
        documents, shards = documents + table.num_rows, shard + 1
    queries, qrels, rejects = reader.queries(), reader.qrels(), reader.rejects()
    hidden = reader.hidden_qrels()
    rows_in = reader.rows_in()
    own = _own_documents(artifact, shards, config, queries, qrels)
    rejects = pa.concat_tables([rejects, own_documents.graded(qrels, own.pairs)])
    qrels, hidden = (own_documents.without(table, own.pairs) for table in (qrels, hidden))
    counts = counted(reader, documents, queries, qrels, hidden)
    rows_out = {"documents": documents, "queries": queries.num_rows, "qrels": qrels.num_rows}
    flows = [Flow(unit, rows_in[unit], rows_out[unit], rows_in[unit] - rows_out[unit]) for unit in rows_out]
    for flow in flows:
        rows = sum(place.split(" ", 1)[0] == flow.unit for place in rejects["place"].to_pylist())
        assert rows == flow.rejected, f"{flow.unit}: {flow.rejected} rows are missing, {rows} rejects were written"
    left_out = own.pairs.num_rows
    if left_out + own.kept:
        flows.append(Flow("documents with a query's id", left_out + own.kept, own.kept, left_out))
    bucket_by_query = {
        query: bucket_of(text, buckets)
        for query, text in zip(queries["query_id"].to_pylist(), queries["text_hash"].to_pylist(), strict=True)
    }
    made = {"queries": (QUERY, queries), "qrels": (QREL, qrels)}
    made |= {HIDDEN: (QREL, hidden)} if config.hidden else {}
    made |= {OWN: (QREL, own.pairs)} if own.pairs.num_rows else {}
    places = {
        part: pa.array([bucket_by_query[i] for i in table["query_id"].to_pylist()], type=pa.int64())
        for part, (_, table) in made.items()
    }
    keys = {
        part: [(name, "ascending") for name in ("query_id", "doc_id") if name in table.column_names]
        for part, (_, table) in made.items()
    }
    for bucket in range(buckets):
        parts = {
            part: (record, table.filter(pc.equal(places[part], bucket)).sort_by(keys[part]))
            for part, (record, table) in made.items()
        }
        first = bucket == 0  # the first bucket's footer has the counts of the whole collection
        explained = left_out if first else 0  # the part OWN holds them
        artifact.commit_bucket(bucket, parts, flows if first else [], rejects if first else None, explained)
    return flows, shards, counts, examples(rejects), own


def _own_documents(
    artifact: Artifact, shards: int, config: IngestConfig, queries: pa.Table, qrels: pa.Table
) -> OwnDocuments:
    """Find the queries' own documents in the shards that were written; texts are read only from shards with some."""
    from anmi_ray.corpus import own_documents

    query_ids = own_documents.with_ids_of(queries)["doc_id"].combine_chunks()

    def tables() -> Iterator[pa.Table]:
        for shard in range(shards):
            ids = artifact.read_part("documents", shard, DOCUMENT, columns=["doc_id"])
            if pc.any(pc.is_in(ids["doc_id"], value_set=query_ids)).as_py():
                yield artifact.read_part("documents", shard, DOCUMENT)

    rule = "keep" if config.reader == "pydocs" else config.own_document  # pydocs calls a query after its answer
    train = queries.filter(pc.equal(queries["split"], "train"))
    return own_documents.find(queries, tables(), rule, of_queries(qrels, train))


def own_of(ingest: Artifact, bucket: int) -> pa.Table:
    """Return the documents (query_id, doc_id) that rankings leave out for queries of a bucket."""
    if not (ingest.manifest() or {}).get("own_documents"):
        return QREL.empty()
    return ingest.read_part(OWN, bucket, QREL)


def queries_of(ingest: Artifact, bucket: int, *splits: str) -> pa.Table:
    """Queries of a bucket that belong to `splits`."""
    table = ingest.read_part("queries", bucket, QUERY)
    return table.filter(pc.is_in(table["split"], value_set=pa.array(splits)))


def of_queries(table: pa.Table, queries: pa.Table) -> pa.Table:
    """The rows of `table` that belong to `queries`."""
    return table.filter(pc.is_in(table["query_id"], value_set=id_array(queries["query_id"].to_pylist())))


def sample_queries(artifact: Artifact, part: str, buckets: int, size: int, salt: str) -> tuple[pa.Table, int]:
    """The `size` queries of a part with the smallest salted hash (a column query_id), and the number of buckets read.

    Buckets are read one after another until they have eight times as many queries: they are drawn by hash themselves.
    """
    query_ids: set[bytes] = set()
    read = 0
    while read < buckets and len(query_ids) < 8 * size:
        ids = artifact.store.read_table(artifact.part_path(part, read), columns=["query_id"])["query_id"]
        query_ids.update(pc.unique(ids).to_pylist())
        read += 1
    return pa.table({"query_id": id_array(hash_sample(sorted(query_ids), size, salt))}), read


def stacked(of_buckets: Iterable[Sequence[pa.Table]]) -> list[pa.Table]:
    """Concatenate each of several tables over all buckets."""
    return [pa.concat_tables(tables) for tables in zip(*of_buckets, strict=True)]


def config_of(experiment: Experiment) -> IngestConfig:
    """Return the settings for reading the collection."""
    panels = (experiment.judge, experiment.ensemble, experiment.assessors)
    simulated = any(panel is not None and panel.simulated for panel in panels)
    return IngestConfig.of(experiment.corpus, simulated, experiment.evaluate.judged == "unlabelled")


def _content(config: IngestConfig, _: Experiment, content: str) -> dict[str, str]:
    """Return the content hash, wherever the files are, and for collections of files the version of their readers.

    2: ids without white space at their ends; headers of tsv files are not rows; grades written 1.0; unknown ids.
    """
    return {"content": content} | ({} if config.reader == "pydocs" else {"readers": "2"})


STAGE = Stage(
    name="ingest",
    version=4,
    inputs=(),
    does="read the collection, refuse what is malformed, split the queries",
    run=run,
    settings="corpus",
    config=config_of,
    left_out=frozenset({"path", "documents", "queries", "qrels"}),
    also=_content,
)
