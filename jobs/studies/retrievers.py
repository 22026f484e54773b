"""How well does each retriever rank, and what does fusing them give? One table over collections.

    python -m jobs.studies.retrievers --data scifact=FOLDER --data npl=FOLDER ... [--retrievers bm25 lucene dense late]

A collection is retrieved once, by a run's own stages, for its test queries: all single rankings are that run's. Sets of
them are fused from these rankings as the run fuses its own (`hybrid`, all of them): `rrf`, reciprocal ranks; `scores`,
their scores from 0 to 1, weighed alike; `tuned`, scores whose weights and scale were chosen by nDCG@10. Queries are cut
in two by hash, weights are chosen on one half and measured on the other, both ways: no query chose its own weights.

nDCG@10 and Recall@100 with intervals over queries (bootstrap) and paired randomisation tests against bm25, Holm over
all other systems of a collection. `late` ranks what the others found. A retriever that cannot work here, such as Lucene
without a JDK, is left out, and it is said why.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from anmi_ray import environment, identity
from anmi_ray.config.retrieve import RETRIEVERS
from anmi_ray.errors import AnmiError, ConfigError
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.forest import Estimate, Panel, figure
from anmi_ray.evaluation.significance import SystemComparison, compare
from anmi_ray.records import RUN
from anmi_ray.retrieval.fusion import ranks, rrf, weighted_scores
from anmi_ray.store import Store
from jobs.studies.ending import ending
from jobs.studies.retrieved import DEPTH, Retrieved, collection, folders, retrieved
from jobs.studies.small_trainings import heading

BASELINE, ALL = "bm25", "hybrid"
MEASURES = ("nDCG@10", "Recall@100")
SETS = (
    ("bm25", "dense"),
    ("lucene", "dense"),
    ("bm25", "late"),
    ("dense", "late"),
    ("bm25", "dense", "late"),
    ("bm25", "lucene", "dense", "late"),
)
PARTS = 5  # weights are chosen among the fifths that sum to 1
SCALES = ("minmax", "zscore")
PUBLISHED = ("scifact", "lucene", 0.6789, 0.005)  # nDCG@10 of pyserini's flat BM25, and how near ours is to be


@dataclass(frozen=True)
class Rankings:
    """Single rankings of a collection's test queries, N rows: a query, a document, and what R retrievers say of it."""

    retrievers: tuple[str, ...]
    query_id: pa.Array
    doc_id: pa.Array
    rank_RN: NDArray[np.int64]
    score_RN: NDArray[np.float64]

    @cached_property
    def query_N(self) -> NDArray[np.int64]:
        """The query's number, in the order of ids."""
        ids = pa.array(sorted(pc.unique(self.query_id).to_pylist()), identity.ID)
        return pc.index_in(self.query_id, value_set=ids).to_numpy().astype(np.int64)

    @classmethod
    def of(cls, runs: pa.Table, retrievers: Sequence[str]) -> Rankings:
        """Join the single systems of a Run table by query and document."""
        keys = ["query_id", "doc_id"]
        single = runs.filter(pc.is_in(runs["system"], value_set=pa.array(retrievers)))
        rows = single.group_by(keys).aggregate([]).sort_by([(key, "ascending") for key in keys])
        rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
        rank_RN = np.zeros((len(retrievers), rows.num_rows), dtype=np.int64)
        score_RN = np.zeros(rank_RN.shape)
        for r, name in enumerate(retrievers):
            found = single.filter(pc.equal(single["system"], name)).join(rows, keys)
            rank_RN[r, found["row"].to_numpy()] = found["rank"].to_numpy()
            score_RN[r, found["row"].to_numpy()] = found["score"].to_numpy()
        query_id, doc_id = (rows[key].combine_chunks() for key in keys)
        return cls(tuple(retrievers), query_id, doc_id, rank_RN, score_RN)

    def fused(
        self, members: Sequence[str], system: str, weights: Sequence[float] = (), scale: str = "minmax"
    ) -> pa.Table:
        """The Run of a fusion: reciprocal ranks, or by `weights` the members' scores on `scale`."""
        rows = [self.retrievers.index(name) for name in members]
        rank_RN, score_RN = self.rank_RN[rows], self.score_RN[rows]
        if weights:
            fused = weighted_scores(self.query_N, rank_RN, score_RN, np.array(weights), scale)
        else:
            fused = rrf(rank_RN)
        there = np.flatnonzero((rank_RN > 0).any(axis=0))
        doc_N16 = identity.id_matrix(self.doc_id)
        rank = ranks(self.query_N[there], fused[there], doc_N16[there])
        kept = there[rank <= DEPTH]
        return RUN.table(
            {
                "query_id": self.query_id.take(pa.array(kept)),
                "doc_id": self.doc_id.take(pa.array(kept)),
                "system": [system] * len(kept),
                "rank": rank[rank <= DEPTH].astype(np.int32),
                "score": fused[kept],
            }
        )


@dataclass(frozen=True)
class Choice:
    """Weights of a tuned fusion, by half of the queries: what the other half chose."""

    members: tuple[str, ...]
    weights: tuple[tuple[float, ...], tuple[float, ...]]
    scales: tuple[str, str]


def simplex(members: int, parts: int = PARTS) -> list[tuple[float, ...]]:
    """All weights that are multiples of 1/parts and sum to 1.

    >>> len(simplex(2)), simplex(2, 2)
    (6, [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
    """
    grid = itertools.product(range(parts + 1), repeat=members)
    return [tuple(one / parts for one in weights) for weights in grid if sum(weights) == parts]


def halves(queries: Iterable[bytes]) -> tuple[pa.Array, pa.Array]:
    """The ids cut in two by hash, each sorted."""
    ids = sorted(set(queries))
    first = set(identity.hash_sample(ids, len(ids) // 2, "retrievers", "halves"))
    return (
        pa.array([one for one in ids if one in first], identity.ID),
        pa.array([one for one in ids if one not in first], identity.ID),
    )


def tuned(of: Rankings, members: tuple[str, ...], qrels: pa.Table, system: str) -> tuple[pa.Table, Choice]:
    """The Run whose every query is fused by the weights that were best on the other half, and these weights."""
    cut = halves(qrels["query_id"].to_pylist())
    tried = [(weights, scale) for weights in simplex(len(members)) for scale in SCALES]
    runs = [of.fused(members, system, *setting) for setting in tried]
    chosen, parts = [], []
    for half, other in (cut, cut[::-1]):
        judged = _of(qrels, other)
        value = [measures.mean(measures.evaluate(_of(run, other), judged, MEASURES[:1], [system]), system, MEASURES[0])
                 for run in runs]  # fmt: skip
        best = int(np.argmax(value))
        chosen.append(tried[best])
        parts.append(_of(runs[best], half))
    (first, scale), (second, other_scale) = chosen
    return pa.concat_tables(parts), Choice(members, (first, second), (scale, other_scale))


def _of(table: pa.Table, queries: pa.Array) -> pa.Table:
    return table.filter(pc.is_in(table["query_id"], value_set=queries))


@dataclass(frozen=True)
class Measured:
    """A collection: how every system compares with bm25, by measure, and the weights of tuned fusions."""

    name: str
    queries: int
    rows: Mapping[str, Mapping[str, SystemComparison]]
    choices: Mapping[str, Choice]


def measure(name: str, data: Retrieved, retrievers: Sequence[str]) -> Measured:
    """Single systems, the run's own fusion, and every set that is there under every rule, over the test queries."""
    tested = data.queries.filter(pc.equal(data.queries["split"], "test"))["query_id"].combine_chunks()
    qrels = _of(data.qrels, tested)
    of = Rankings.of(data.runs, retrievers)
    runs, choices = [data.runs], dict[str, Choice]()
    for members in (one for one in SETS if set(one) <= set(retrievers)):
        whole = set(members) == set(retrievers)
        joined = "all" if whole and len(members) > 2 else "+".join(members)
        if not whole:  # else it is the run's own
            runs.append(of.fused(members, f"{joined}, rrf"))
        runs.append(of.fused(members, f"{joined}, scores", [1.0] * len(members)))
        run, choices[joined] = tuned(of, members, qrels, f"{joined}, tuned")
        runs.append(run)
    every = pa.concat_tables(runs)
    named = [system for run in runs[1:] for system in pc.unique(run["system"]).to_pylist()]
    systems = list(dict.fromkeys([*retrievers, ALL, *named]))
    metrics = measures.evaluate(every, qrels, MEASURES, systems)
    rows = {one: {row.system: row for row in compare(metrics, BASELINE, systems, one)} for one in MEASURES}
    return Measured(name, rows[MEASURES[0]][BASELINE].queries, rows, choices)


def works(retriever: str, root: str) -> str | None:
    """None where a retriever can work here, else why not: three documents are retrieved by it (late: by bm25 first)."""
    folder = Path(root) / "studies" / "retrievers" / "probe"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    texts = ("a shard of an index", "a bucket of queries", "a rank of a document")
    documents = [{"_id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "index shard"}) + "\n", encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t0\t1\n", encoding="utf-8")
    names = [retriever] if retriever != "late" else [BASELINE, retriever]
    try:
        retrieved(collection(f"probe-{retriever}", str(folder), root, retrievers=names))
    except AnmiError as error:
        return str(error)
    return None


def retrieved_by(
    names: Sequence[str], named: Mapping[str, str], root: str, console: Console
) -> tuple[dict[str, Retrieved], list[str], dict[str, str]]:
    """Every collection retrieved by all of `names` that can work here; these, and why the others cannot."""
    left: dict[str, str] = {}
    while True:
        used = [name for name in names if name not in left]
        try:
            return {
                name: retrieved(collection(f"retrievers-{name}", folder, root, retrievers=used), console)
                for name, folder in named.items()
            }, used, left  # fmt: skip
        except AnmiError:
            why = {name: reason for name in used if (reason := works(name, root)) is not None}
            if not why or BASELINE in why:
                raise
            left |= why
            for name, reason in why.items():
                console.print(f"{name} is left out: {reason}", highlight=False)


def cell(row: SystemComparison, level: float = 0.05) -> str:
    """A mean with its interval; bold: told apart from bm25 after Holm's correction."""
    text = f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return f"**{text}**" if row.p_holm is not None and row.p_holm < level else text


def show(every: Sequence[Measured], left: Mapping[str, str]) -> None:
    """A table a measure: a system a row, a collection a column; the chosen weights; what was left out."""
    for one in MEASURES:
        names = [f"{of.name} ({of.queries})" for of in every]
        print(f"\n{one}, 95 % over queries; bold: p < .05 against {BASELINE} after Holm\n\n{heading('', *names)}")
        for system in every[0].rows[one]:
            print(f"| {system} | {' | '.join(cell(of.rows[one][system]) for of in every)} |")
    print(f"\nWeights of `tuned`, for either half what the other chose\n\n{heading('set', 'collection', 'weights')}")
    for of in every:
        for name, choice in of.choices.items():
            said = "; ".join(f"{', '.join(f'{w:.1f}' for w in weights)} ({scale})"
                             for weights, scale in zip(choice.weights, choice.scales, strict=True))  # fmt: skip
            print(f"| {name} | {of.name} | {said} |")
    for name, why in left.items():
        print(f"\n{name} was left out: {why}")
    name, system, value, near = PUBLISHED
    for of in every:
        if of.name == name and system in of.rows[MEASURES[0]]:
            off = of.rows[MEASURES[0]][system].mean - value
            print(f"\n{system} on {name}: {off:+.4f} from the published {value}, "
                  f"{'within' if abs(off) <= near else 'not within'} {near:g}")  # fmt: skip


def picture(every: Sequence[Measured]) -> str:
    """Differences from bm25 in nDCG@10 as SVG."""
    systems = [name for name in every[0].rows[MEASURES[0]] if name != BASELINE]
    panels = []
    for of in every:
        rows = [of.rows[MEASURES[0]][name] for name in systems]
        estimates = [Estimate(row.difference or 0.0, row.difference_low or 0.0, row.difference_high or 0.0,
                              sure=row.p_holm is not None and row.p_holm < 0.05) for row in rows]  # fmt: skip
        baseline = of.rows[MEASURES[0]][BASELINE].mean
        panels.append(Panel(f"{of.name}: {of.queries} queries, bm25 {baseline:.3f}", estimates))
    notes = ("95 % over queries; green: told apart from bm25 (p < .05, Holm over a collection).",)
    return figure("Retrievers and their fusions less bm25", notes, systems, panels, f"difference in {MEASURES[0]}")


def results(every: Sequence[Measured], left: Mapping[str, str]) -> dict[str, Any]:
    """Everything measured, as JSON values."""
    return {
        "rows": {
            of.name: {one: [asdict(row) for row in rows.values()] for one, rows in of.rows.items()} for of in every
        },
        "weights": {of.name: {name: asdict(choice) for name, choice in of.choices.items()} for of in every},
        "left_out": dict(left),
        **environment.describe(),
    }


@ending("retrievers")
def main(arguments: Sequence[str] | None = None) -> None:
    """Retrieve, fuse, measure; print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    parser.add_argument("--retrievers", nargs="+", default=list(RETRIEVERS), choices=RETRIEVERS, metavar="NAME",
                        help="of bm25, lucene, dense, late; default: all")  # fmt: skip
    parser.add_argument("--root", default="results", help="folder of artifacts and runs")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the figure")
    given = parser.parse_args(arguments)
    from anmi_ray.stages.side_by_side import alone

    store, console = Store(f"{given.root}/studies/retrievers"), Console(stderr=True)
    if BASELINE not in given.retrievers:
        raise ConfigError(f"does not name {BASELINE}, which the others are compared with", "--retrievers", "add it")
    names = [name for name in RETRIEVERS if name in given.retrievers]
    with alone(store, "study"):
        found, used, left = retrieved_by(names, folders(given.data), given.root, console)
        every = [measure(name, data, used) for name, data in found.items()]
        show(every, left)
        store.publish_json("study.json", results(every, left))
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "retrievers.svg").write_text(picture(every), encoding="utf-8")
    print(f"\n-> {store.where('study.json')}\n-> {given.out / 'retrievers.svg'}")


if __name__ == "__main__":
    main()
