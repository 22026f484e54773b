"""How like real queries are those that are made of documents alone, and what does the filter leave of them?

    python -m jobs.studies.queries --data scifact=FOLDER

`anmi queries` is carried out over the documents of each collection, pydocs (the quickstart's) among them; their own
queries and labels are not read. Then BM25 searches what is known to be relevant: a made query's document, with the
query masked in it, before the filter asks for a place among the first ten; of a real query the first relevant
document, in the collection as it is. The peak of memory is the process's, from the first collection on.

To read: made queries that BM25 answers as often as real ones are as hard for words as these. What they are worth for
training is not measured here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pyarrow.compute as pc

from anmi_ray import corpus
from anmi_ray.api.queries import DEPTH, MadeQueries, make_queries
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.queries import choose
from anmi_ray.queries.kinds import KINDS
from anmi_ray.queries.words import words
from anmi_ray.retrieval.known_items import KnownItems
from jobs.studies import harness
from jobs.studies.harness import Results, Table

STUDY = harness.study("queries", "Queries made of documents", __doc__ or "")
_REASONS = {
    "short, long": (choose.SHORT, choose.LONG),
    "say nothing": (choose.EMPTY,),
    "near-duplicates": (choose.NEAR,),
    "two others": (choose.CROWDED,),
    "little left": (choose.BARE,),
    "not found": (choose.LOST,),
    "not needed": (choose.SPARE,),
}


def collections(data: dict[str, str]) -> dict[str, Experiment]:
    """The quickstart's collection and those of --data."""
    found = {"pydocs": Experiment()}
    for name, folder in data.items():
        found[name] = Experiment(corpus=CorpusConfig(reader="beir", path=str(Path(folder).resolve())))
    return found


def real_ranks(experiment: Experiment) -> tuple[list[str], list[int]]:
    """The queries of the collection, and at which rank the first relevant document is (0: not in the first ten)."""
    reader = corpus.read(experiment.corpus)
    with tempfile.TemporaryDirectory() as scratch:
        index = KnownItems(experiment.retrieve.bm25, Path(scratch))
        for table in reader.documents():
            index.add(table, {})
        queries = reader.queries()
        qrels = reader.qrels()
        qrels = qrels.filter(pc.greater_equal(qrels["grade"], 1))
        texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
        asked = qrels["query_id"].to_pylist()
        ranks = index.ranks([texts[query] for query in asked], qrels["doc_id"].to_pylist(), {}, DEPTH)
    best: dict[bytes, int] = {}
    for query, rank in zip(asked, ranks.tolist(), strict=True):
        best[query] = min(rank or DEPTH + 1, best.get(query, DEPTH + 1))
    return [texts[query] for query in best], [rank if rank <= DEPTH else 0 for rank in best.values()]


def rank_row(name: str, kind: str, texts: Sequence[str], ranks: Sequence[int]) -> list[str]:
    """How many queries, how long, and how often their document is first and among the first ten."""
    length = statistics.median(len(words(text)) for text in texts) if texts else 0
    found = np.array(ranks)
    shares = [f"{(found == 1).mean():.2f}", f"{(found > 0).mean():.2f}"] if texts else ["", ""]
    return [name, kind, f"{len(texts):,}", f"{length:g}", *shares]


def yield_rows(name: str, made: MadeQueries) -> list[list[str]]:
    """By kind, the candidates and what became of them."""
    rows: list[list[str]] = []
    for kind, counts in made.counts().items():
        left = [f"{sum(counts[reason] for reason in reasons):,}" for reasons in _REASONS.values()]
        rows.append([name, kind, f"{sum(counts.values()):,}", *left, f"{counts['kept']:,}"])
    return rows


def study(found: dict[str, Experiment], number: int) -> Results:
    """Make queries of every collection and measure them."""
    yields: list[list[str]] = []
    ranks: list[list[str]] = []
    costs: list[list[str]] = []
    for name, experiment in found.items():
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            made = make_queries(experiment, Path(folder) / "made", number, lambda _: None)
            seconds = time.process_time() - start
        peak = getrusage(RUSAGE_SELF).ru_maxrss / 2**20
        costs.append([name, f"{made.documents:,}", f"{len(made.queries):,}", f"{seconds:.0f}", f"{peak:.2f}"])
        yields += yield_rows(name, made)
        for kind in KINDS:
            of_kind = {query.text: rank for query, rank in made.searched.items() if query.kind == kind}
            ranks.append(rank_row(name, kind, list(of_kind), list(of_kind.values())))
        ranks.append(rank_row(name, "real", *real_ranks(experiment)))
    shares = ("document first", f"in the first {DEPTH}")
    return Results(
        [
            Table(
                "Candidates by kind, and what became of them",
                ("collection", "kind", "candidates", *_REASONS, "kept"),
                yields,
            ),
            Table("Queries that BM25 searched", ("collection", "kind", "queries", "median words", *shares), ranks),
            Table(
                "What it takes", ("collection", "documents", "queries", "seconds of a core", "peak memory, GiB"), costs
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out the study."""
    parser = harness.parser(STUDY, data=True)
    parser.add_argument("--number", type=int, default=2000, help="queries to make of each collection")
    given = parser.parse_args(arguments)
    harness.carry_out(STUDY, given, lambda: study(collections(harness.folders(given.data)), given.number))


if __name__ == "__main__":
    main(sys.argv[1:])
