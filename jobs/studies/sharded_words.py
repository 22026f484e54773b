"""What does BM25 lose if each shard of a corpus knows its own words alone? By the number of shards.

    python -m jobs.studies.sharded_words [--data NAME=FOLDER ...] [--root results]

The documents of a collection (BEIR layout; the standard library's documentation is always one), in its order, are cut
into shards of equal size, each is searched for all judged queries, and hits are merged by their scores: once with the
statistics of words of each shard, once with those of the collection, as retrieve takes them. The second is the ranking
of one index over everything. Prints nDCG@10 and Recall@100 of both and the difference, with intervals over queries
(bootstrap) and paired tests, Holm over the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import corpus, environment, identity
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.retrieve import Bm25Config
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.records import QREL, QUERY
from anmi_ray.retrieval import bm25
from anmi_ray.retrieval.fusion import ranks
from anmi_ray.retrieval.runs import to_run
from anmi_ray.retrieval.shard import full_texts
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.store import Store
from jobs.studies.ending import ending
from jobs.studies.retrieved import folders
from jobs.studies.small_trainings import heading

SHARDS, DEPTH = (1, 4, 16, 64), 100
OWN, WHOLE = "own", "whole"
MEASURES = ("nDCG@10", "Recall@100")


@dataclass(frozen=True)
class Collection:
    """Document, Query and Qrel tables; only queries that are judged."""

    name: str
    documents: pa.Table
    queries: pa.Table
    qrels: pa.Table


@dataclass(frozen=True)
class Measured:
    """Means by (measure, whose statistics), and the difference of each measure: own less whole."""

    collection: str
    shards: int
    mean: dict[tuple[str, str], float]
    difference: dict[str, Contrast]


def read(name: str, config: CorpusConfig) -> Collection:
    """The collection of these settings."""
    reader = corpus.read(config)
    documents = pa.concat_tables(reader.documents())  # in this order: qrels are those of what was read
    queries = QUERY.check(reader.queries(), name)
    qrels = QREL.check(reader.qrels(), name)
    judged = pc.unique(qrels.filter(pc.greater_equal(qrels["grade"], 1))["query_id"])
    queries = queries.filter(pc.is_in(queries["query_id"], value_set=judged))
    return Collection(name, documents, queries, qrels)


def searched(of: Collection, shards: int) -> pa.Table:
    """The Run table of both systems, OWN and WHOLE."""
    texts, config = full_texts(of.documents), Bm25Config()
    bounds = np.linspace(0, len(texts), shards + 1).astype(int)
    parts = [bm25.Counts.of(texts[bounds[i] : bounds[i + 1]], config) for i in range(shards)]
    known = {OWN: None, WHOLE: Statistics.merged(part.statistics() for part in parts)}
    systems, asked = [], of.queries["text"].to_pylist()
    for name, statistics in known.items():
        found = [bm25.Bm25Index(part, config, statistics).search(asked, DEPTH) for part in parts]
        index = [np.where(index >= 0, index + begin, -1) for begin, (index, _) in zip(bounds[:-1], found, strict=True)]
        systems.append(_merged(of, name, np.hstack(index), np.hstack([score for _, score in found])))
    return pa.concat_tables(systems)


def _merged(of: Collection, system: str, index_QK: NDArray[np.int64], score_QK: NDArray[np.float64]) -> pa.Table:
    row, place = np.nonzero(index_QK >= 0)
    doc_N16 = identity.id_matrix(of.documents["doc_id"])[index_QK[row, place]]
    score = score_QK[row, place]
    rank = ranks(row, score, doc_N16)
    query_N16 = identity.id_matrix(of.queries["query_id"])[row]
    return to_run(query_N16, doc_N16, {system: (np.where(rank <= DEPTH, rank, 0), score)})


def measure(of: Collection, shards: int) -> Measured:
    """Both systems at one number of shards."""
    metrics = measures.evaluate(searched(of, shards), of.qrels, MEASURES, [OWN, WHOLE])
    mean, difference = dict[tuple[str, str], float](), dict[str, Contrast]()
    for name in MEASURES:
        rows = metrics.filter(pc.equal(metrics["measure"], name))
        values = {system: rows.filter(pc.equal(rows["system"], system)).sort_by("query_id")["value"].to_numpy()
                  for system in (OWN, WHOLE)}  # fmt: skip
        mean |= {(name, system): float(value.mean()) for system, value in values.items()}
        difference[name] = contrast(OWN, WHOLE, [(values[OWN] - values[WHOLE])[None, :]])
    return Measured(of.name, shards, mean, difference)


def show(found: Sequence[Measured]) -> None:
    """Print the table."""
    columns = [part for name in MEASURES for part in (f"{name}, own", "whole", "difference", "p")]
    print(f"BM25, statistics of words of each shard or of the whole collection\n\n{heading('', 'shards', *columns)}")
    for one in found:
        cells = [part for name in MEASURES for part in (
            f"{one.mean[name, OWN]:.3f}", f"{one.mean[name, WHOLE]:.3f}",
            f"{one.difference[name].difference:+.3f} [{one.difference[name].low:+.3f}, "
            f"{one.difference[name].high:+.3f}]", f"{one.difference[name].p_holm:.4f}")]  # fmt: skip
        print(f"| {one.collection} | {one.shards} | {' | '.join(cells)} |")


def corrected(found: Sequence[Measured]) -> list[Measured]:
    """With p after Holm over everything but single shards, of which nothing is asked."""
    asked = [(at, name) for at, one in enumerate(found) if one.shards > 1 for name in MEASURES]
    rows = dict(zip(asked, family([found[at].difference[name] for at, name in asked]), strict=True))
    return [
        replace(one, difference={name: rows.get((at, name), plain) for name, plain in one.difference.items()})
        for at, one in enumerate(found)
    ]


@ending("sharded_words")
def main(arguments: Sequence[str] | None = None) -> None:
    """Search, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    parser.add_argument("--root", default="results", help="folder of results")
    given = parser.parse_args(arguments)
    configs = {"pydocs": CorpusConfig()}
    for name, folder in (folders(given.data) if given.data else {}).items():
        configs[name] = CorpusConfig(reader="beir", path=folder, max_reject_fraction=1.0)
    found = corrected([
        measure(of, shards) for of in (read(name, config) for name, config in configs.items()) for shards in SHARDS
    ])  # fmt: skip
    show(found)
    store, path = Store(given.root), "studies/sharded-words/study.json"
    rows = [{"collection": one.collection, "shards": one.shards,
             "mean": {" ".join(key): value for key, value in one.mean.items()},
             "difference": {name: asdict(row) for name, row in one.difference.items()}} for one in found]  # fmt: skip
    store.publish_json(path, {"rows": rows, **environment.describe()})
    print(f"\n-> {store.where(path)}")


if __name__ == "__main__":
    main()
