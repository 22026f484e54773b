"""How often is a mined negative relevant? The report's Table 1, by mining strategy and depth.

    python -m jobs.studies.false_negatives --data cacm=FOLDER --data npl=FOLDER ... [--pool FOLDER [--runs FOLDER]]

Of every query's known positives (two or more) some are hidden, negatives are mined as if they were not known, and the
hidden ones among the mined are counted: once with a random half hidden, once with all but one, as where a query has one
label. Nobody judged the other documents that are mined, so both are lower bounds on the share of false negatives; the
first is of hidden positives that are as many as the known. In a --pool every document was judged (grades from 2 on are
positive, one is shown), so there the share is the share. What is ranked there is the pool alone, which is richer in
relevant documents than the collection it comes from: --runs are TREC run files over that whole collection, rerankers'
too, in which the unjudged count as not relevant.

Strategies: random documents; BM25, a bi-encoder that was trained elsewhere, their reciprocal rank fusion (`hybrid`).
Letters: Q queries, S seeds of the hiding, K depths.

To read: rates are percent with 95 % intervals over queries (bootstrap), the hidings averaged; tests are paired, Holm.
Outside a pool rates are bounds from below. Table 1 compares unlike depths, the differences here are at equal depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import digest, hash_sample, rng
from anmi_ray.core.records import RUN, by_query
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.tables import trec
from jobs.studies import harness
from jobs.studies.collected import Retrieved, retrieval_of, retrieved, tested
from jobs.studies.harness import Results, Table

STUDY = harness.study("false_negatives", "False negatives", __doc__ or "")
Design = Literal["half", "one"]
"""half: a random half is hidden; one: all but one, as where a label a query is all there is."""
Grades = Mapping[bytes, int]
Ranking = Sequence[bytes]
Reals = NDArray[np.float64]
DEPTHS = (10, 20, 30, 50, 100)
COMPARED = (10, 30)  # depths at which strategies are compared
POOL = "trec-dl-2019"
WHOLE = f"{POOL}, whole collection"
TOGETHER = "together"  # the collections that are no pool
LEAST = 2  # grade from which a document of the pool is positive, as the track says
PAIRS = (
    ("bm25", "random"),
    ("dense", "bm25"),
    ("hybrid", "bm25"),
    ("ms_duet_passage", "bm25base_p"),  # runs submitted to TREC DL 2019: rerankers of BM25's first thousand
    ("p_bert", "bm25base_p"),
    ("idst_bert_p1", "bm25base_p"),
)
# Table 1 of the report: strategy, depth, % of false negatives on MS MARCO, and on collections of one domain.
CLAIMS = (
    ("random", 100, (0.0, 1.0), (0.0, 1.0)),
    ("bm25", 100, (5.0, 10.0), (10.0, 20.0)),
    ("dense", 50, (15.0, 25.0), (25.0, 40.0)),
    ("reranker", 20, (30.0, 50.0), (40.0, 60.0)),
)
QUANTITIES = {
    "rate": "Hidden positives among the mined, %",
    "recall": "Mined among the hidden positives, %",
    "related_rate": "Any positive grade among the mined, %",
    "unjudged_rate": "Never judged for the query among the mined, %",
}
SHOWN = {"half": "half hidden", "one": "one shown"}


def hidden(query: bytes, positives: Sequence[bytes], design: Design, seed: int) -> set[bytes]:
    """Which of the positives the miner is not shown; it is shown one at least.

    half: n/2 of n by hash, an odd n rounded by a coin, so half of all on average. A single positive is shown.

    >>> docs = [bytes([i]) for i in range(5)]
    >>> len(hidden(b"q", docs, "half", 0)) in (2, 3), len(hidden(b"q", docs, "one", 0))
    (True, 4)
    """
    coin = digest("coin", query, design, seed)[0] & 1
    count = len(positives) - 1 if design == "one" else (len(positives) + coin * (len(positives) > 1)) // 2
    return set(hash_sample(positives, count, "hidden", query, design, seed))


def at_random(query: bytes, documents: Sequence[bytes], size: int, seed: int) -> list[bytes]:
    """`size` of all documents, or as many as there are, drawn by the query and the seed."""
    drawn = rng("random negatives", query, seed).choice(len(documents), min(size, len(documents)), replace=False)
    return [documents[i] for i in drawn.tolist()]


def count(
    ranking: Callable[[bytes, int], Ranking],
    grades: Mapping[bytes, Grades],
    least: int,
    design: Design,
    seeds: int,
    depths: Sequence[int],
) -> dict[str, Reals]:
    """Mine the first of `ranking(query, seed)` for every query of `grades`, each seed hiding others.

    float64[S, Q, K] of every quantity. `least` is the grade from which a document is positive; queries must have two
    positives or more.
    """
    found = {name: np.zeros((seeds, len(grades), len(depths))) for name in QUANTITIES}
    for q, (query, graded) in enumerate(sorted(grades.items())):
        positives = sorted(doc for doc, grade in graded.items() if grade >= least)
        for seed in range(seeds):
            concealed = hidden(query, positives, design, seed)
            shown = set(positives) - concealed
            mined = list(islice((doc for doc in ranking(query, seed) if doc not in shown), depths[-1]))
            flags = {
                "rate": [doc in concealed for doc in mined],
                "related_rate": [graded.get(doc, 0) > 0 for doc in mined],
                "unjudged_rate": [doc not in graded for doc in mined],
            }
            for at, depth in enumerate(depths):
                taken = max(len(mined[:depth]), 1)
                for name, flag in flags.items():
                    found[name][seed, q, at] = sum(flag[:depth]) / taken
                found["recall"][seed, q, at] = sum(flags["rate"][:depth]) / len(concealed)
    return found


def judged_often(grades: Mapping[bytes, Grades], least: int, positives: int = 2) -> dict[bytes, Grades]:
    """The queries with so many positives or more: of fewer, none can be hidden while one is shown."""
    return {
        query: graded
        for query, graded in grades.items()
        if sum(grade >= least for grade in graded.values()) >= positives
    }


@dataclass(frozen=True)
class Collection:
    """What is mined from: grades by query, its documents, and the rankings that negatives are taken from."""

    name: str
    grades: Mapping[bytes, Grades]
    least: int
    rankings: Mapping[str, Mapping[bytes, Ranking]]
    documents: Sequence[bytes] = ()
    designs: tuple[Design, ...] = ("half", "one")
    related: bool = False  # grades below `least` say something

    def ranking(self, strategy: str) -> Callable[[bytes, int], Ranking]:
        """A strategy's ranking of a query under a seed."""
        if strategy == "random":
            size = DEPTHS[-1] + max(len(graded) for graded in self.grades.values())
            return lambda query, seed: at_random(query, self.documents, size, seed)
        ranked = self.rankings[strategy]
        return lambda query, seed: ranked.get(query, ())

    @property
    def strategies(self) -> tuple[str, ...]:
        """Their names, cheapest first."""
        return (*(("random",) if self.documents else ()), *self.rankings)


@dataclass(frozen=True)
class Measured:
    """Counts by design and strategy of one collection, and nDCG@10 of its rankings."""

    of: Collection
    counts: Mapping[tuple[Design, str], Mapping[str, Reals]]
    ndcg: Mapping[str, float]

    def values(self, design: Design, strategy: str, depth: int, quantity: str = "rate") -> Reals:
        """float64[S, Q]."""
        return self.counts[design, strategy][quantity][:, :, DEPTHS.index(depth)]


def read(name: str, folder: str, root: str, least: int, designs: tuple[Design, ...]) -> Collection:
    """Retrieve a collection and read what is there. Raises DataError."""
    own = tested(folder, Path(root) / "studies" / "false-negatives" / "collections" / name)
    data = retrieved(retrieval_of(f"false-negatives-{name}", own, root))
    grades = judged_often(grades_of(data), least)
    if len(grades) < 2:
        raise DataError(f"{len(grades)} queries have two positives or more", name, "give a collection with more")
    ranked = {one: ordered(data.runs.filter(pc.equal(data.runs["system"], one))) for one in ("bm25", "dense", "hybrid")}
    return Collection(name, grades, least, ranked, data.documents, designs, designs == ("one",))


def grades_of(data: Retrieved) -> dict[bytes, Grades]:
    """The grades of every query's documents that the collection has."""
    qrels = data.qrels.filter(pc.is_in(data.qrels["doc_id"], value_set=pa.array(data.documents, pa.binary(16))))
    return {
        query: dict(zip(rows["doc_id"].to_pylist(), rows["grade"].to_pylist(), strict=True))
        for query, rows in by_query(qrels)
    }


def ordered(run: pa.Table) -> dict[bytes, list[bytes]]:
    """The documents by query, from rank 1 down."""
    return {query: rows.sort_by("rank")["doc_id"].to_pylist() for query, rows in by_query(run)}


def whole(pool: Collection, folder: Path) -> Collection:
    """The rankings of TREC run files over the collection that a pool was taken from, with the pool's grades."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".trec", ".txt", ".run"))
    if not paths:
        raise ConfigError("holds no .trec, .txt or .run", str(folder), "give a folder of TREC run files")
    ranked: dict[str, dict[bytes, list[bytes]]] = {}
    for path in paths:
        run = trec.read_run(path)
        for system in pc.unique(run["system"]).to_pylist():
            ranked[system] = ordered(run.filter(pc.equal(run["system"], system)))
    return Collection(WHOLE, pool.grades, pool.least, ranked, (), ("one",), True)


def measure(of: Collection, seeds: int) -> Measured:
    """Mine by every strategy under every design."""
    counts: dict[tuple[Design, str], Mapping[str, Reals]] = {
        (design, strategy): count(of.ranking(strategy), of.grades, of.least, design, seeds, DEPTHS)
        for design in of.designs
        for strategy in of.strategies
    }
    return Measured(of, counts, {name: ndcg(of, ranked) for name, ranked in of.rankings.items()})


def ndcg(of: Collection, ranked: Mapping[bytes, Ranking]) -> float:
    """Mean nDCG@10 of a ranking over the collection's queries, all grades known."""
    rows = [(query, doc, at + 1) for query in of.grades for at, doc in enumerate(ranked.get(query, ())[:10])]
    query, doc, rank = (list(column) for column in zip(*rows, strict=True))
    run = RUN.table({"query_id": query, "doc_id": doc, "system": ["it"] * len(rows), "rank": rank,
                     "score": [-float(one) for one in rank]})  # fmt: skip
    graded = [(query, doc, grade) for query, docs in of.grades.items() for doc, grade in docs.items()]
    names = ("query_id", "doc_id", "grade")
    qrels = pa.table(dict(zip(names, (list(column) for column in zip(*graded, strict=True)), strict=True)))
    return measures.mean(measures.evaluate(run, qrels, ["nDCG@10"]), "it", "nDCG@10")


def differences(every: Sequence[Measured], design: Design, depth: int) -> dict[str, Contrast]:
    """PAIRS on every collection at one depth, and on those with unjudged documents together; Holm over all of them."""
    rows: dict[str, Contrast] = {}
    for system, reference in PAIRS:
        known = [one for one in every if {(design, system), (design, reference)} <= one.counts.keys()]
        found = {one.of.name: one.values(design, system, depth) - one.values(design, reference, depth) for one in known}
        rows |= {f"{name}: {system} − {reference}": contrast(system, reference, [d]) for name, d in found.items()}
        strata = [found[one.of.name] for one in known if not one.of.related]
        if len(strata) > 1:
            rows[f"{TOGETHER}: {system} − {reference}"] = contrast(system, reference, strata)
    return dict(zip(rows, family(list(rows.values())), strict=True))


def percent(one: Contrast) -> str:
    """Value and interval in percent."""
    return harness.interval(one, 100, 1)


def rates_table(every: Sequence[Measured], design: Design, quantity: str) -> Table:
    """A strategy of a collection a row, a depth a column."""
    rows = []
    for one in every:
        for strategy in one.of.strategies:
            values = [one.values(design, strategy, depth, quantity) for depth in DEPTHS]
            rows.append((one.of.name, strategy, *(percent(contrast(strategy, "", [value])) for value in values)))
    columns = ("collection", "strategy", *(f"top {depth}" for depth in DEPTHS))
    return Table(f"{QUANTITIES[quantity]} ({SHOWN[design]})", columns, rows)


def verdict(one: Contrast, claim: tuple[float, float], bound: bool) -> str:
    """Where the interval lies: in the claimed range in part or whole, below it, above it. A bound from below may be."""
    if 100 * one.high < claim[0]:
        return "below, as a bound may be" if bound else "below"
    return "above" if 100 * one.low > claim[1] else "as said"


def claims_table(every: Sequence[Measured]) -> Table:
    """Table 1's rows beside what was measured, one positive shown."""
    rows = []
    for strategy, depth, of_marco, of_domain in CLAIMS:
        measured: list[tuple[str, tuple[float, float], list[Reals]]] = []
        for one in every:
            for name in (name for name in one.of.strategies if plays(name) == strategy):
                on = one.of.name if name == strategy else f"{one.of.name} ({name})"
                measured.append((on, of_marco if one.of.related else of_domain, [one.values("one", name, depth)]))
        strata = [rates for _, said, (rates,) in measured if said is of_domain]
        measured += [(TOGETHER, of_domain, strata)] if len(strata) > 1 else []
        for on, said, values in measured:
            found = contrast(on, "", values)
            where = verdict(found, said, not on.startswith(POOL))
            rows.append((f"{strategy}, top {depth}", f"{said[0]:g} to {said[1]:g}", on, percent(found), where))
    return Table("The report's Table 1, one positive shown", ("strategy, depth", "said", "measured on", "%", ""), rows)


def plays(system: str) -> str:
    """Which strategy of Table 1 a system is; of submitted runs BM25 as it is, or a neural reranker of it; else none."""
    if system in {strategy for strategy, *_ in CLAIMS}:
        return system
    if "bert" in system or "duet" in system:
        return "reranker"
    return "bm25" if "bm25" in system and "rm3" not in system else ""


def rates(every: Sequence[Measured]) -> list[dict[str, Any]]:
    """Everything measured, a row each."""
    rows: list[dict[str, Any]] = []
    for one in every:
        for (design, strategy), depth in ((key, depth) for key in one.counts for depth in DEPTHS):
            for quantity in QUANTITIES:
                found = contrast(strategy, "", [one.values(design, strategy, depth, quantity)])
                row = {"collection": one.of.name, "design": design, "strategy": strategy, "depth": depth}
                rows.append({**row, "quantity": quantity, "queries": found.queries, "seeds": found.seeds,
                             "value": found.difference, "low": found.low, "high": found.high})  # fmt: skip
    return rows


def results(every: Sequence[Measured]) -> Results:
    """How good every ranking is, what it holds at its top, how they differ, and the claims."""
    quality = [(one.of.name, str(len(one.of.grades)), name, f"{value:.3f}")
               for one in every for name, value in one.ndcg.items()]  # fmt: skip
    tables = [Table("nDCG@10, all positives known", ("collection", "queries", "strategy", "nDCG@10"), quality)]
    tests: dict[str, Any] = {}
    sets: tuple[tuple[Design, Sequence[Measured]], ...] = (
        ("half", [one for one in every if "half" in one.of.designs]),
        ("one", every),
    )
    for design, these in sets:
        tables += [rates_table(these, design, quantity) for quantity in ("rate", "recall")]
        for depth in COMPARED:
            found = differences(these, design, depth)
            rows = [(name, percent(one), f"{one.p_holm:.4f}") for name, one in found.items()]
            title = f"Differences in points, {SHOWN[design]}, top {depth}, p after Holm over the table"
            tables.append(Table(title, ("", "difference", "p"), rows))
            tests[f"{SHOWN[design]}, top {depth}"] = {name: asdict(one) for name, one in found.items()}
    if pools := [one for one in every if one.of.related]:
        tables += [rates_table(pools, "one", quantity) for quantity in ("related_rate", "unjudged_rate")]
    return Results([*tables, claims_table(every)], values={"rates": rates(every), "differences": tests})


def main(words: Sequence[str] | None = None) -> None:
    """Retrieve, mine, print the tables."""
    parser = harness.parser(STUDY, seeds=20, data=True)
    parser.add_argument("--pool", help="folder, in BEIR layout, of a pool of documents that were all judged")
    parser.add_argument("--runs", type=Path, help="folder of TREC run files over the pool's whole collection")
    given = parser.parse_args(words)

    def run() -> Results:
        named = harness.folders(given.data)
        if given.runs is not None and given.pool is None:
            raise ConfigError("there is no pool whose grades they are measured by", "--runs", "give --pool FOLDER")
        if not named and given.pool is None:
            raise ConfigError("no collection is given", "--data", "give --data NAME=FOLDER, a folder in BEIR layout")
        found = [read(name, folder, given.root, 1, ("half", "one")) for name, folder in named.items()]
        if given.pool:
            found.append(read(POOL, given.pool, given.root, LEAST, ("one",)))
        found += [whole(found[-1], given.runs)] if given.runs is not None else []
        return results([measure(one, given.seeds) for one in found])

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
