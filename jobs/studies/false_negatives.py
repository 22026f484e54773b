"""How often is a mined negative relevant? The report's Table 1, by mining strategy and depth.

    python -m jobs.studies.false_negatives --data cacm=FOLDER --data npl=FOLDER ... [--pool FOLDER [--runs FOLDER]]

Of every query's known positives (two or more) some are hidden, negatives are mined as if they were not known, and the
hidden ones among the mined are counted: once with a random half hidden, once with all but one, as where a query has one
label. Nobody judged the other documents that are mined, so both are lower bounds on the share of false negatives; the
first is of hidden positives that are as many as the known. In a --pool every document was judged (grades from 2 on are
positive, one is shown), so there the share is the share. What is ranked there is the pool alone, which is richer in
relevant documents than the collection it comes from: --runs are TREC run files over that whole collection, in which the
unjudged count as not relevant.

Strategies: random documents; BM25, a bi-encoder that was trained elsewhere, their reciprocal rank fusion (`hybrid`); a
cross-encoder that reranks the fusion's first 50 (`reranker`), trained on the shown positives of the other half of all
collections' queries (folded_rerankers.py). Intervals are over queries (bootstrap), the hidings averaged; tests are
paired, Holm.

What retrieval and training made stays under ROOT; what is there is not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from anmi_ray import environment
from anmi_ray.config.experiment import Experiment
from anmi_ray.errors import ConfigError, DataError
from anmi_ray.evaluation import measures, trec
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.records import RUN
from anmi_ray.store import Store
from jobs.studies import folded_rerankers
from jobs.studies.ending import ending
from jobs.studies.false_negative_figures import Line, Panel, picture
from jobs.studies.hidden_positives import Counts, Design, Grades, Ranking, at_random, count, judged_often
from jobs.studies.retrieved import collection, folders, retrieved, tested
from jobs.studies.small_trainings import heading, side_by_side

Reals = NDArray[np.float64]
DEPTHS = (10, 20, 30, 50, 100)
POOL = "trec-dl-2019"
WHOLE = f"{POOL}, whole collection"
TOGETHER = "together"  # the collections that are no pool
LEAST = 2  # grade from which a document of the pool is positive, as the track says
RERANKED = max(depth for depth in DEPTHS if depth < folded_rerankers.DEPTH)  # deeper, the shown may leave too few
PAIRS = (
    ("bm25", "random"),
    ("dense", "bm25"),
    ("hybrid", "bm25"),
    ("reranker", "bm25"),
    ("reranker", "dense"),
    ("ms_duet_passage", "bm25base_p"),  # runs submitted to TREC DL 2019: rerankers of BM25's first thousand
    ("p_bert", "bm25base_p"),
    ("idst_bert_p1", "bm25base_p"),
)
DRAWN = {"bm25base_p": "bm25", "idst_bert_p1": "reranker"}  # submitted runs in the figure, and as what
# Table 1 of the report: strategy, depth, % of false negatives on MS MARCO, and on collections of one domain.
CLAIMS = (
    ("random", 100, (0.0, 1.0), (0.0, 1.0)),
    ("bm25", 100, (5.0, 10.0), (10.0, 20.0)),
    ("dense", 50, (15.0, 25.0), (25.0, 40.0)),
    ("reranker", 20, (30.0, 50.0), (40.0, 60.0)),
)
QUANTITIES = ("rate", "recall", "related_rate", "unjudged_rate", "taken")


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
    counts: Mapping[tuple[Design, str], Counts]
    ndcg: Mapping[str, float]

    def values(self, design: Design, strategy: str, depth: int, quantity: str = "rate") -> Reals | None:
        """float64[S, Q]; None where the strategy does not go so deep."""
        if strategy == "reranker" and depth > RERANKED:
            return None
        found: Reals = getattr(self.counts[design, strategy], quantity)
        return found[:, :, DEPTHS.index(depth)]


def read(
    name: str, folder: str, root: str, least: int, designs: tuple[Design, ...], console: Console
) -> tuple[Collection, Experiment]:
    """Retrieve; also the experiment that did."""
    own = tested(folder, Path(root) / "studies" / "false-negatives" / "collections" / name)
    of = collection(f"false-negatives-{name}", own, root)
    data = retrieved(of, console)
    ranked = folded_rerankers.rankings(data)
    ranked = {one: ranked[one] for one in ("bm25", "dense", "hybrid")}
    grades = judged_often(folded_rerankers.grades_of(data), least)
    if len(grades) < 2:
        raise DataError(f"{len(grades)} queries have two positives or more", name, "give a collection with more")
    return Collection(name, grades, least, ranked, data.documents, designs, designs == ("one",)), of


def reranked(
    found: Sequence[tuple[Collection, Experiment]], given: argparse.Namespace, console: Console
) -> list[Collection]:
    """The collections with the ranking of a reranker, trained for each fold of their queries."""
    sources = [folded_rerankers.Source(of, one.least) for one, of in found]
    tasks = folded_rerankers.tasks(sources, given.folds, {"max_steps": given.steps})
    out, say = Store(f"{given.root}/studies/false-negatives"), partial(console.print, highlight=False)
    made = side_by_side(tasks, folded_rerankers.work, out, given.workers, say)
    ranked = folded_rerankers.rankings_of(list(made.values()))
    return [replace(one, rankings={**one.rankings, "reranker": ranked[of.name]}) for one, of in found]


def whole(pool: Collection, folder: Path) -> Collection:
    """The rankings of TREC run files over the collection that a pool was taken from, with the pool's grades."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".trec", ".txt", ".run"))
    if not paths:
        raise ConfigError("holds no .trec, .txt or .run", str(folder), "give a folder of TREC run files")
    ranked: dict[str, dict[bytes, list[bytes]]] = {}
    for path in paths:
        run = trec.read_run(path)
        for system in pc.unique(run["system"]).to_pylist():
            ranked[system] = folded_rerankers.ordered(run.filter(pc.equal(run["system"], system)))
    return Collection(WHOLE, pool.grades, pool.least, ranked, (), ("one",), True)


def measure(of: Collection, seeds: int) -> Measured:
    """Mine by every strategy under every design."""
    counts: dict[tuple[Design, str], Counts] = {
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


def level(values: Sequence[Reals], name: str) -> Contrast:
    """The mean over queries of all strata, with its interval."""
    return contrast(name, "", values)


def differences(every: Sequence[Measured], design: Design, depth: int) -> dict[str, Contrast]:
    """PAIRS on every collection at one depth, and on those with unjudged documents together; Holm over all of them."""
    rows: dict[str, Contrast] = {}
    for system, reference in PAIRS:
        found: dict[str, Reals] = {}
        for one in every:
            both = [one.values(design, name, depth) for name in (system, reference) if (design, name) in one.counts]
            if len(both) == 2 and both[0] is not None and both[1] is not None:
                found[one.of.name] = both[0] - both[1]
        rows |= {f"{name}: {system} − {reference}": contrast(system, reference, [d]) for name, d in found.items()}
        strata = [found[one.of.name] for one in every if one.of.name in found and not one.of.related]
        if len(strata) > 1:
            rows[f"{TOGETHER}: {system} − {reference}"] = contrast(system, reference, strata)
    return dict(zip(rows, family(list(rows.values())), strict=True))


def percent(one: Contrast) -> str:
    """Value and interval in percent."""
    return f"{100 * one.difference:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]"


def print_rates(every: Sequence[Measured], design: Design, quantity: str, title: str) -> None:
    """A table: a strategy of a collection a row, a depth a column."""
    print(f"\n{title}\n\n{heading('collection', 'strategy', *(f'top {depth}' for depth in DEPTHS))}")
    for one in every:
        for strategy in one.of.strategies:
            cells = []
            for depth in DEPTHS:
                values = one.values(design, strategy, depth, quantity)
                cells.append("" if values is None else percent(level([values], strategy)))
            print(f"| {one.of.name} | {strategy} | {' | '.join(cells)} |")


def verdict(one: Contrast, claim: tuple[float, float], bound: bool) -> str:
    """Where the interval lies: in the claimed range in part or whole, below it, above it. A bound from below may be."""
    low, high = 100 * one.low, 100 * one.high
    below = "below, as a bound may be" if bound else "below"
    return below if high < claim[0] else "above" if low > claim[1] else "as said"


def print_claims(every: Sequence[Measured]) -> None:
    """Table 1's rows beside what was measured, one positive shown."""
    names = ("strategy, depth", "said", "measured on", "measured, %", "")
    print(f"\nThe report's Table 1, one positive shown\n\n{heading(*names)}")
    for strategy, depth, of_marco, of_domain in CLAIMS:
        strata: list[Reals] = []
        for one in every:
            for name in one.of.strategies:
                values = one.values("one", name, depth) if plays(name) == strategy else None
                if values is not None:
                    strata += [] if one.of.related else [values]
                    on = one.of.name if name == strategy else f"{one.of.name} ({name})"
                    _print_claim(f"{strategy}, top {depth}", of_marco if one.of.related else of_domain, on, [values])
        if len(strata) > 1:
            _print_claim(f"{strategy}, top {depth}", of_domain, TOGETHER, strata)


def _print_claim(what: str, said: tuple[float, float], on: str, values: Sequence[Reals]) -> None:
    found = level(values, on)
    where = verdict(found, said, not on.startswith(POOL))
    print(f"| {what} | {said[0]:g} to {said[1]:g} | {on} | {percent(found)} | {where} |")


def plays(system: str) -> str:
    """Which strategy of Table 1 a system is; of submitted runs BM25 as it is, or a neural reranker of it; else none."""
    if system in {strategy for strategy, *_ in CLAIMS}:
        return system
    if "bert" in system or "duet" in system:
        return "reranker"
    return "bm25" if "bm25" in system and "rm3" not in system else ""


def print_quality(every: Sequence[Measured]) -> None:
    """How good each strategy's ranking is: smart mining is a good ranking."""
    print(f"\nnDCG@10, all positives known\n\n{heading('collection', 'queries', 'strategy', 'nDCG@10')}")
    for one in every:
        for name, value in one.ndcg.items():
            print(f"| {one.of.name} | {len(one.of.grades)} | {name} | {value:.3f} |")


def print_differences(rows: Mapping[str, Contrast], title: str) -> None:
    """Paired differences in percentage points."""
    print(f"\n{title}\n\n{heading('', 'difference', 'p')}")
    for name, one in rows.items():
        print(f"| {name} | {percent(one)} | {one.p_holm:.4f} |")


def results(every: Sequence[Measured]) -> list[dict[str, Any]]:
    """Everything measured, a row each."""
    rows: list[dict[str, Any]] = []
    for one in every:
        for (design, strategy), depth in ((key, depth) for key in one.counts for depth in DEPTHS):
            row = {"collection": one.of.name, "design": design, "strategy": strategy, "depth": depth}
            for quantity in QUANTITIES:
                values = one.values(design, strategy, depth, quantity)
                if values is not None:
                    found = level([values], strategy)
                    rows.append({**row, "quantity": quantity, "queries": found.queries, "seeds": found.seeds,
                                 "value": found.difference, "low": found.low, "high": found.high})  # fmt: skip
    return rows


def panels(every: Sequence[Measured]) -> list[Panel]:
    """The figure's: half hidden where there is that design, else one shown; of submitted runs those in DRAWN."""
    found = []
    for one in every:
        design = one.of.designs[0]
        drawn = DRAWN if one.of.name == WHOLE else {name: name for name in one.of.strategies}
        lines = []
        for strategy in (name for name in one.of.strategies if name in drawn):
            values = [(depth, one.values(design, strategy, depth)) for depth in DEPTHS]
            levels = [(depth, level([rates], strategy)) for depth, rates in values if rates is not None]
            lines.append(Line(drawn[strategy], tuple((at, r.difference, r.low, r.high) for at, r in levels)))
        what = "half of the positives hidden" if design == "half" else "one positive shown"
        found += [Panel(one.of.name, f"{len(one.of.grades)} queries, {what}", lines)] if lines else []
    return found


def finish(every: Sequence[Measured], root: str, out: Path, seeds: int) -> None:
    """Tables, results as JSON and the figure."""
    print_quality(every)
    halves = [one for one in every if "half" in one.of.designs]
    sets: tuple[tuple[Design, str, Sequence[Measured]], ...] = (
        ("half", "half hidden", halves),
        ("one", "one shown", every),
    )
    for design, what, these in sets:
        print_rates(these, design, "rate", f"Hidden positives among the mined, % ({what}, {seeds} hidings)")
        print_rates(these, design, "recall", f"Mined among the hidden positives, % ({what})")
        for depth in (10, RERANKED):
            title = f"Differences in points, {what}, top {depth}; p after Holm over the table"
            print_differences(differences(these, design, depth), title)
    if pools := [one for one in every if one.of.related]:
        print_rates(pools, "one", "related_rate", "Any positive grade among the mined, % (one shown)")
        print_rates(pools, "one", "unjudged_rate", "Never judged for the query among the mined, %")
    print_claims(every)
    tests = {
        f"{what}, top {depth}": {name: asdict(one) for name, one in differences(these, design, depth).items()}
        for design, what, these in sets
        for depth in DEPTHS
    }
    store = Store(f"{root}/studies/false-negatives")
    store.publish_json("study.json", {
        "rates": results(every),
        "differences": tests,
        "ndcg": {one.of.name: dict(one.ndcg) for one in every},
        **environment.describe(),
    })  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "false-negatives.svg").write_text(picture(panels(every)), encoding="utf-8")
    print(f"\n-> {store.where('study.json')}\n-> {out / 'false-negatives.svg'}")


@ending("false_negatives")
def main(arguments: Sequence[str] | None = None) -> None:
    """Retrieve, train, mine; print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    parser.add_argument("--pool", help="folder, in BEIR layout, of a pool of documents that were all judged")
    parser.add_argument("--runs", type=Path, help="folder of TREC run files over the pool's whole collection")
    parser.add_argument("--root", default="results", help="folder of artifacts and runs")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the figure")
    parser.add_argument("--seeds", type=int, default=20, help="hidings, each averaged over")
    parser.add_argument("--folds", type=int, default=2, help="rerankers, each for the others' queries")
    parser.add_argument("--steps", type=int, default=folded_rerankers.CHEAP["max_steps"], help="of their training")
    parser.add_argument("--no-reranker", action="store_true", help="leave it out: nothing is trained")
    parser.add_argument("--workers", type=int, default=environment.cores(), help="trainings at once, a core each")
    given = parser.parse_args(arguments)
    from anmi_ray.stages.side_by_side import alone

    console = Console(stderr=True)
    if given.runs is not None and given.pool is None:
        raise ConfigError("there is no pool whose grades they are measured by", "--runs", "give --pool FOLDER")
    named = folders(given.data) if given.data or not given.pool else {}
    with alone(Store(f"{given.root}/studies/false-negatives"), "study"):
        read_in = [read(name, folder, given.root, 1, ("half", "one"), console) for name, folder in named.items()]
        if given.pool:
            read_in.append(read(POOL, given.pool, given.root, LEAST, ("one",), console))
        found = [one for one, _ in read_in] if given.no_reranker else reranked(read_in, given, console)
        found += [whole(found[-1], given.runs)] if given.runs is not None else []
        finish([measure(one, given.seeds) for one in found], given.root, given.out, given.seeds)


if __name__ == "__main__":
    main()
