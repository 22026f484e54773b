"""Import a file of preferences: read once in batches, split by query bucket, shared by compare and judge.

The result is an artifact identified by the file's content and the collection. Each batch becomes one exchange file with
a part per bucket; then one task per bucket merges its parts. Unusable rows become rejects with file, line and reason.
Letters: N rows of a batch, Q queries of the collection.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.judge import ImportedJudgeConfig, JudgeConfig
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import id_matrix, mix, normalize_id
from anmi_ray.core.records import DOCUMENT, IMPORTED, QUERY, REJECT
from anmi_ray.core.schema import Record
from anmi_ray.judging import imported
from anmi_ray.judging.protocol import AnswerSource
from anmi_ray.runtime import exchange
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.store import Artifact, Flow, fingerprint
from anmi_ray.tables import formats
from anmi_ray.tables.preferences import ANSWERS, read_preference_batches

VERSION = 3  # 3: orders in words, ids and names without blanks
NO_QUERY = "unknown query"
HELD_OUT = "a test query"
NO_DOCUMENT = "unknown document"
_UNKNOWN = "unknown.bin"
_MAX_REJECTED = 0.01  # maximum share of malformed rows
_NAMED = 8  # maximum judges in a message


def bring_in(source: CompareConfig | ImportedJudgeConfig, ingest: Artifact, context: Context) -> Artifact:
    """Return the artifact of a file's preferences, created if missing: Imported rows and Rejects per bucket.

    Raises ConfigError or DataError if the file cannot be read, too many rows are malformed, or none can be used.
    """
    path = Path(source.path or "")
    inputs = [f"content={formats.content_hash(path)}", f"ingest={ingest.fingerprint}"]
    artifact = Artifact(
        ingest.store, "import", fingerprint("import", VERSION, {"format": formats.format_of(path)}, inputs)
    )
    manifest = artifact.manifest()
    if manifest is None:
        read = run_task(context, _spread, artifact, path, ingest, context.buckets)
        _check_read(read, path)
        flows = run_buckets(context, artifact, ("preferences", IMPORTED), _gather, read["batches"])
        manifest = artifact.complete(flows, version=VERSION, inputs=inputs, **read)
    _check(manifest, path)
    if manifest["stripped"]:
        context.notice(f"{path}: {manifest['stripped']:,} ids or names had blanks around them, which were removed")
    return artifact


def rejects_of(artifact: Artifact, bucket: int) -> pa.Table:
    """Return the Rejects of a bucket; those without a query are spread evenly."""
    path = artifact.part_path("rejects", bucket)
    return artifact.read_part("rejects", bucket, REJECT) if artifact.store.exists(path) else REJECT.empty()


@dataclass(frozen=True)
class ImportedAnswers:
    """The imported answers of a judge: their artifact, and the judge's name in the file."""

    artifact: Artifact
    judge: str

    def answers(self, bucket: int) -> AnswerSource:
        """Return the answers about a bucket's comparisons."""
        return imported.judge_of(self.artifact.read_part("preferences", bucket, IMPORTED), self.judge)


def judges(config: JudgeConfig, ingest: Artifact, context: Context) -> dict[str, ImportedAnswers]:
    """Return the imported judges of a panel by name. Raises ConfigError if one of several in a file must be chosen."""
    return {one.name: _chosen(one, bring_in(one, ingest, context)) for one in config.imported}


def _chosen(config: ImportedJudgeConfig, artifact: Artifact) -> ImportedAnswers:
    names: list[str] = sorted((artifact.manifest() or {})["judges"])
    listed = ", ".join(name or "(unnamed)" for name in names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    wanted = None if config.judge is None else normalize_id(config.judge)
    if wanted is None and len(names) > 1:
        remedy = f"set judge of judge {config.name} to one of them"
        raise ConfigError(f"holds answers of {len(names)} judges ({listed})", config.path, remedy)
    if wanted is not None and wanted not in names:
        raise ConfigError(f"has no answers of judge {config.judge}; its judges are {listed}", config.path, "name one")
    return ImportedAnswers(artifact, names[0] if wanted is None else wanted)


@dataclass
class _Read:
    """Counts of what was read.

    stripped: number of ids and names with blanks around them, which were removed.
    malformed, strangers: rejected rows by reason, and rows of unknown or held-out queries.
    examples: first row and its place by reason.
    """

    batches: int = 0
    rows: int = 0
    stripped: int = 0
    malformed: Counter[str] = field(default_factory=Counter)
    strangers: Counter[str] = field(default_factory=Counter)
    judges: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def count(self, refused: pa.Table, into: Counter[str]) -> None:
        """Count Rejects by reason, and store the first of each."""
        into.update(refused["reason"].to_pylist())
        for reason in pc.unique(refused["reason"]).to_pylist():
            first = refused.slice(pc.index(refused["reason"], reason).as_py(), 1).to_pylist()[0]
            place = f"{first['place']}: {first['detail']}" if first["detail"] else first["place"]
            self.examples.setdefault(reason, f"{first['key']} ({place})" if first["key"] else place)


def _spread(artifact: Artifact, path: Path, ingest: Artifact, buckets: int) -> dict[str, Any]:
    """Read the file, write each batch with a part per bucket, and return counts."""
    known = _queries(ingest, buckets)
    read = _Read()
    documents = np.zeros(0, np.uint64)
    for rows in read_preference_batches(path, ANSWERS):
        table, repeated = imported.once(imported.imported_rows(rows))
        refused = pa.concat_tables([rows.rejects, repeated])
        row = pc.index_in(table["query_id"], value_set=known["query_id"].combine_chunks())
        found = known.take(row.combine_chunks())
        flags_by_reason = {NO_QUERY: pc.is_null(row), HELD_OUT: pc.fill_null(found["test"], False)}
        strange = [imported.refused(table.filter(flags), reason) for reason, flags in flags_by_reason.items()]
        read.rows += table.num_rows + refused.num_rows
        read.stripped += rows.stripped
        read.count(refused, read.malformed)
        for one in strange:
            read.count(one, read.strangers)
        usable = pc.invert(pc.fill_null(found["test"], True))
        table = table.filter(usable)
        bucket = found.filter(usable)["bucket"].to_numpy()
        read.judges.update(table["judge"].to_pylist())
        if table.num_rows:
            read.examples.setdefault("row", f"{table['key'][0]} ({table['place'][0]})")
        documents = np.union1d(documents, np.concatenate([_marks(table[name]) for name in ("doc_a", "doc_b")]))
        refused = pa.concat_tables([refused, *strange])
        _publish(artifact, "rows", read.batches, table, bucket, buckets)
        _publish(artifact, "refused", read.batches, refused, np.arange(refused.num_rows) % buckets, buckets)
        read.batches += 1
    artifact.store.publish(f"{artifact.path}/{_UNKNOWN}", _unknown(ingest, documents).tobytes())
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(read).items()}


def _queries(ingest: Artifact, buckets: int) -> pa.Table:
    """Return each query's id, bucket, and whether it is a test query."""
    tables = []
    for bucket in range(buckets):
        queries = ingest.read_part("queries", bucket, QUERY, ["query_id", "split"])
        test = pc.equal(queries["split"], "test")
        number = pa.repeat(pa.scalar(bucket), queries.num_rows)
        tables.append(pa.table({"query_id": queries["query_id"], "bucket": number, "test": test}))
    return pa.concat_tables(tables)


def _marks(ids: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 64 bits of every id; a collision with a known document is harmless, since it is not a candidate."""
    return mix(id_matrix(ids))


def _unknown(ingest: Artifact, documents: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the sorted marks without a document in the collection; shards are read one by one."""
    for shard in range(int((ingest.manifest() or {})["shards"])):
        ids = ingest.read_part("documents", shard, DOCUMENT, ["doc_id"])["doc_id"]
        documents = np.setdiff1d(documents, _marks(ids))
    return documents


def _publish(
    artifact: Artifact, part: str, batch: int, table: pa.Table, bucket_N: NDArray[np.int64], buckets: int
) -> None:
    """Publish the rows of a batch by bucket."""
    order = np.argsort(bucket_N, kind="stable")
    bounds = np.searchsorted(bucket_N[order], np.arange(buckets + 1)).tolist()
    table = table.take(pa.array(order))
    parts = (table.slice(start, stop - start) for start, stop in itertools.pairwise(bounds))
    exchange.publish(artifact, part, batch, parts)


def _read(artifact: Artifact, part: str, batches: int, bucket: int, record: Record) -> pa.Table:
    """Return a bucket's rows of all batches, in the order of the file."""
    tables = (exchange.read(artifact, part, batch, bucket) for batch in range(batches))
    return pa.concat_tables([record.empty(), *tables]).combine_chunks()


def _gather(artifact: Artifact, bucket: int, batches: int) -> list[Flow]:
    rows = _read(artifact, "rows", batches, bucket, IMPORTED)
    refused = _read(artifact, "refused", batches, bucket, REJECT)
    total = rows.num_rows + refused.num_rows
    strange = pc.is_in(refused["reason"], pa.array([NO_QUERY, HELD_OUT]))
    rows, repeated = imported.once(rows)
    unknown = np.frombuffer(artifact.store.read(f"{artifact.path}/{_UNKNOWN}"), np.uint64)
    lost = np.isin(_marks(rows["doc_a"]), unknown) | np.isin(_marks(rows["doc_b"]), unknown)
    rows, lost = rows.filter(pa.array(~lost)), imported.refused(rows.filter(pa.array(lost)), NO_DOCUMENT)
    good = rows.num_rows + lost.num_rows + (pc.sum(strange).as_py() or 0)
    flows = [Flow("rows", total, good, total - good), Flow("preferences", good, rows.num_rows, good - rows.num_rows)]
    rejects = pa.concat_tables([refused, repeated, lost])
    artifact.commit_bucket(bucket, {"preferences": (IMPORTED, rows)}, flows, rejects)
    return flows


def _check_read(read: dict[str, Any], path: Path) -> None:
    """Raise DataError if nothing in the file can be used."""
    if not read["rows"]:
        raise DataError("no preferences in the file", str(path), "give rows in which two documents are compared")
    good = read["rows"] - sum(read["malformed"].values())
    foreign, held_out = (read["strangers"].get(reason, 0) for reason in (NO_QUERY, HELD_OUT))
    if good and foreign == good:
        remedy = "ids must be those of the collection: _id in queries.jsonl"
        example = read["examples"][NO_QUERY]
        raise DataError(f"none of its queries is in the collection, such as that of {example}", str(path), remedy)
    if good and foreign + held_out == good:
        remedy = "test queries are not compared: give the collection qrels of a train split with these queries"
        example = read["examples"][HELD_OUT]
        raise DataError(f"its queries are test queries or unknown, such as that of {example}", str(path), remedy)


def _check(manifest: dict[str, Any], path: Path) -> None:
    """Raise DataError for too many malformed rows, or if all documents are unknown."""
    found = {flow["unit"]: flow for flow in manifest["flows"]}
    bad = found["rows"]["rejected"]
    rows = found["rows"]["rows_in"]
    if bad > _MAX_REJECTED * rows:
        reasons = Counter(manifest["malformed"])
        examples = manifest["examples"]
        reasons[imported.REPEATED] += bad - reasons.total()
        why = [f"{n:,} {reason} ({examples.get(reason, 'far apart')})" for reason, n in reasons.most_common() if n]
        raise DataError(
            f"{bad:,} of {rows:,} rows cannot be used ({bad / rows:.1%}, allowed {_MAX_REJECTED:.1%}): "
            + "; ".join(why),
            str(path),
            "fix or remove these rows",
        )
    if not found["preferences"]["rows_out"]:
        remedy = "ids must be those of the collection: _id in corpus.jsonl"
        raise DataError(
            f"none of its pairs is of known documents, such as {manifest['examples']['row']}", str(path), remedy
        )
