"""What do preferences of real language models teach, where queries are few?

    python -m jobs.studies.real_judges --data dl2019=FOLDER --data dl2023=FOLDER --gpt FOLDER

Two TREC tracks: 43 queries of 2019 with preferences of GPT-4o (--gpt, dl2019_judgments.csv), 25 of 2023 with the grades
of three language models, made preferences of pairs drawn by hash. Only documents that people judged are there, so
figures are not those of the whole collection. GPT-4o compared exactly the documents that people call relevant (grade 1
or more): which documents were compared tells the label. So nothing but compared documents is learned from or measured
on dev, and `shuffled` shows what that alone teaches: the same preferences, a query's documents exchanged at random, and
the rates of `judges`.

`labels` learns from people's grades (2 and 3 are positives), `pseudo-labels` from the hybrid's first document. Queries
are cut in five folds by hash. What ranks a fold has learned from the others, at the rate that does best there, each of
them ranked by what learned from the rest: 1e-5, 3e-5 or 1e-4, or the start is kept, where none is better by a standard
error of the difference. Best is by the condition's own gains, of judges P(relevant) without the rank, and on documents
with a gain alone; pseudo-labels have none, so 1e-4. Grades of people are read in the end, and by `labels`. `untrained`
is the start, which itself has learned from questions and passages of the collection's kind; `fused` is the mean of a
system's score and of bm25+dense, weights fixed.

To read: Differences are over queries; with more seeds also over queries and seeds. What could not be told apart is
smaller than the last table's difference, with the chance named there.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, JudgeError
from anmi_ray.core.records import RELEVANCE, find_rows
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation import fusion, judged, measures
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Artifact, Store
from jobs.studies import harness
from jobs.studies.collected import all_parts, view
from jobs.studies.conditions import UNTRAINED, stages_of
from jobs.studies.harness import Results, Table
from jobs.studies.label_free import CONTROL, EVEN, MEASURE, Reals
from jobs.studies.real_preferences import preferences_of, shuffled
from jobs.studies.student_training import Material, run_file, work

STUDY = harness.study("real_judges", "Real judges, few queries", __doc__ or "")
FOLDER = "studies/real_judges"
FOLDS = 5
RATES = (1e-5, 3e-5, 1e-4)
KEPT = 0.0  # the rate of a start that is kept
LABELS, PSEUDO, JUDGES, SHUFFLED = "labels", "pseudo-labels", "judges", "shuffled"
CONDITIONS = (LABELS, PSEUDO, JUDGES, SHUFFLED)
DEPTH = 100
RELEVANT = 2  # the least grade of a positive, as the tracks have it
_ON_GAINS = "nDCG(judged_only=True)@10"
_COLLECTIONS = ("dl2019", "dl2023")
_RETRIEVE = {"depth": 1000, "candidates": 1000, "random_negatives": 4}
_TRAIN = {"student": "late-interaction", "lists_per_step": 16, "max_steps": 20}  # equal cost, however many positives
_MINED: dict[str, Any] = {"recipe": "infonce-mined", "retrieve": {**_RETRIEVE, "candidates": 40}}
_JUDGED: dict[str, Any] = {
    "retrieve": {**_RETRIEVE, "random_negatives": 0},
    "mine": {"anchors": "rated", "allow": [{"rule": "gate", "largest": 0.05}], "sample": "weighted",
             "negatives": 4, "random_negatives": 0, "rated_extra": 0},
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A track: its experiments by condition; `test` ranks all queries."""

    name: str
    root: str
    test: Experiment
    experiments: dict[str, Experiment]

    @cached_property
    def material(self) -> Material:
        """All queries, with people's grades, ranked by both retrievers."""
        return Material(self.root, stages_of(self.test))

    @cached_property
    def queries(self) -> list[str]:
        """Those with a relevant document, in hexadecimal, in order of id."""
        grades = self.material.qrels
        return sorted(one.hex() for one in set(grades.filter(pc.greater(grades["grade"], 0))["query_id"].to_pylist()))

    @cached_property
    def fold(self) -> dict[str, int]:
        """Of every query."""
        drawn = sorted(self.queries, key=lambda one: identity.digest("real-judges", "folds", one))
        return {query: at % FOLDS for at, query in enumerate(drawn)}

    def gains(self, condition: str) -> pa.Table:
        """By what a condition chooses its rate, as qrels."""
        if condition == LABELS:
            return self.material.qrels
        of = self.experiments[condition]
        store = Store(self.root)
        stage = Artifact(store, "anchor", resolve(of)["anchor"].fingerprint)
        found = all_parts(stage, "relevance", RELEVANCE, store.buckets(of.execution.buckets))
        return judged.graded(found, found["by_judges"].to_numpy())

    def run(self, name: str) -> pa.Table:
        """By one training, of the queries that it has not learned from."""
        return pq.read_table(run_file(self.root, name))

    def values(self, run: pa.Table, qrels: pa.Table, measure: str = MEASURE) -> dict[str, float]:
        """The measure of every query that `qrels` measures, by its id in hexadecimal."""
        found = measures.evaluate(run, qrels, [measure])
        return dict(zip((one.hex() for one in found["query_id"].to_pylist()), found["value"].to_pylist(), strict=True))


def prepare(name: str, folder: Path, given: Any) -> Source:
    """A track's collections and files of preferences, written under ROOT. Raises ConfigError."""
    place = Path(given.root) / FOLDER / name
    rows = list(BeirFiles(str(folder)).grades("qrels/test.tsv"))
    answers = preferences_of(name, folder, given.gpt)
    files = {JUDGES: place / "judges.csv", SHUFFLED: place / "shuffled.csv"}
    place.mkdir(parents=True, exist_ok=True)
    for condition, path in files.items():
        with path.open("w", newline="", encoding="utf-8") as file:
            of = answers if condition == JUDGES else shuffled(answers)
            csv.writer(file).writerows([("query_id", "doc_a", "doc_b", "preference", "judge"), *of])
    positives = [(query, doc, grade if grade >= RELEVANT else 0) for query, doc, grade in rows]
    folders = {
        "test": view(str(folder), place / "test", {"test": rows}),
        LABELS: view(str(folder), place / "train", {"train": positives}),
        PSEUDO: view(str(folder), place / "unlabelled", {}),
    }

    def experiment(condition: str, own: Mapping[str, Any]) -> Experiment:
        path = str(folders.get(condition, folders[PSEUDO]))
        shared = {
            "name": f"real-judges-{name}-{condition}",
            "corpus": {"reader": "beir", "path": path, "dev_fraction": 0.0},
            "execution": {"root": given.root},
        }
        return validate(harness.merged([own, shared]), f"the study, {condition}")

    experiments = {LABELS: experiment(LABELS, _MINED)}
    experiments[PSEUDO] = experiment(PSEUDO, harness.merged([_MINED, {"mine": {"anchors": "retrieved"}}]))
    judges = sorted({judge for *_, judge in answers})
    for condition, path in files.items():
        panel = [
            {"kind": "imported", "name": f"{condition}-{at}", "path": str(path), "judge": judge}
            for at, judge in enumerate(judges)
        ]
        own = {"compare": {"design": "imported", "path": str(path)}, "judge": {"judges": panel}}
        experiments[condition] = experiment(condition, harness.merged([_JUDGED, own]))
    return Source(name, str(given.root), experiment("test", {"retrieve": _RETRIEVE}), experiments)


def task(of: Source, condition: str, left_out: Sequence[int], rate: float, seed: int) -> dict[str, Any]:
    """A training on the folds that are not left out; the start where nothing is trained."""
    folds = "".join(map(str, left_out))
    untrained = condition == UNTRAINED
    mined = of.test if untrained else of.experiments[condition]
    return {
        "name": f"real-judges-{of.name}-{condition}" + ("" if untrained else f"-{folds}-{rate:g}-s{seed}"),
        "part": of.name,
        "stages": stages_of(mined),
        "tested": stages_of(of.test),
        "system": {"train": {**_TRAIN, "learning_rate": rate or RATES[-1]}, "peer": None},
        "untrained": untrained,
        "learned": [] if untrained else [query for query in of.queries if of.fold[query] not in left_out],
        "max_tokens": 160,
        "depth": DEPTH,
        "retrieves": False,
        "seed": seed,
    }


def choices(of: Source, condition: str, seed: int) -> list[float]:
    """The rate of every fold: the best on the folds that were left out with it, where better by a standard error."""
    if condition == PSEUDO:
        return [RATES[-1]] * FOLDS
    gains = of.gains(condition)
    pair_id = ("query_id", "doc_id")

    def on_gains(name: str) -> dict[str, float]:
        """Over documents with a gain alone: which ones were judged may tell the label."""
        run = of.run(name)
        known = find_rows(gains, {column: run[column] for column in pair_id}) >= 0
        return of.values(run.filter(pa.array(known)), gains, _ON_GAINS)

    start = on_gains(task(of, UNTRAINED, (), KEPT, 0)["name"])
    of_pair = {(pair, rate): on_gains(task(of, condition, pair, rate, seed)["name"])
               for pair in combinations(range(FOLDS), 2) for rate in RATES}  # fmt: skip
    chosen = []
    for fold in range(FOLDS):
        best, most = KEPT, 0.0
        others = [query for query in start if of.fold.get(query, fold) != fold]
        for rate in RATES:
            learned = [of_pair[tuple(sorted((fold, of.fold[query]))), rate].get(query, 0.0) for query in others]  # type: ignore[index]
            gain = np.array(learned) - np.array([start[query] for query in others])
            if gain.mean() > max(most, gain.std(ddof=1) / np.sqrt(len(gain))):
                best, most = rate, float(gain.mean())
        chosen.append(best)
    return chosen


def values_of(of: Source, names: Sequence[str]) -> dict[str, Reals]:
    """What people's grades say of every query's ranking, alone and fused, float64[Q]; a training for every fold."""
    material = of.material
    hybrid, *partners = (material.system(system, "test") for system in ("hybrid", "bm25", "dense"))
    folds = []
    for fold, name in enumerate(names):
        ids = [bytes.fromhex(query) for query in of.queries if of.fold[query] == fold]
        run = of.run(name)
        folds.append(run.filter(pc.is_in(run["query_id"], value_set=identity.id_array(ids))))
    run = pa.concat_tables(folds)
    both, control = (fusion.fuse(run, hybrid, one, DEPTH, "fused", partners) for one in (EVEN, (0.0, 0.5, 0.5)))
    found = {kind: of.values(ranked, material.qrels)
             for kind, ranked in (("alone", run), ("fused", both), (CONTROL, control))}  # fmt: skip
    return {kind: np.array([values[query] for query in of.queries]) for kind, values in found.items()}


@dataclass(frozen=True)
class Found:
    """Of a track: values float64[S, Q] by condition, alone and fused; the rates chosen, by condition and seed."""

    alone: dict[str, Reals]
    fused: dict[str, Reals]
    rates: dict[str, list[list[float]]]


def trained(sources: Sequence[Source], seeds: int, workers: int, refused: list[str]) -> dict[str, Found]:
    """Make examples, train what is missing: first what chooses the rates, then what they choose.

    refused: receives a line for each track whose shuffled preferences a run refuses.
    """
    harness.make([of.test for of in sources], last="retrieve")
    for of in sources:
        for condition in CONDITIONS:
            try:
                harness.make([of.experiments[condition]])
            except JudgeError as error:
                if condition != SHUFFLED:
                    raise
                del of.experiments[condition]  # as it should be: the run refuses the control
                refused.append(f"{of.name}: {condition} is refused, {error.message}")
    root = sources[0].root
    out = Store(str(Path(root) / FOLDER / "trainings"))

    def carry_out(tasks: Sequence[dict[str, Any]]) -> None:
        harness.work_side_by_side({one["name"]: one for one in tasks}, partial(work, root), out, workers)

    several = [(of, condition, seed) for seed in range(seeds) for of in sources for condition in of.experiments]
    first = [task(of, UNTRAINED, (), KEPT, 0) for of in sources]
    for of, condition, seed in several:
        if condition in (LABELS, JUDGES):
            pairs = combinations(range(FOLDS), 2)
            first += [task(of, condition, pair, rate, seed) for pair in pairs for rate in RATES]
    carry_out(first)
    rates: dict[tuple[str, str, int], list[float]] = {}
    for of, condition, seed in several:  # judges before shuffled, whose rates are theirs
        shared = rates.get((of.name, JUDGES, seed)) if condition == SHUFFLED else None
        rates[of.name, condition, seed] = shared or choices(of, condition, seed)
    last: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for of, condition, seed in several:
        chosen = rates[of.name, condition, seed]
        last[of.name, condition, seed] = [
            task(of, UNTRAINED, (), KEPT, 0) if rate == KEPT else task(of, condition, (fold,), rate, seed)
            for fold, rate in enumerate(chosen)
        ]
    carry_out([one for tasks in last.values() for one in tasks])
    found = {of.name: Found({}, {}, {}) for of in sources}
    for of in sources:
        start = values_of(of, [task(of, UNTRAINED, (), KEPT, 0)["name"]] * FOLDS)
        one = found[of.name]
        one.alone[CONTROL] = start[CONTROL][None]
        one.alone[UNTRAINED], one.fused[UNTRAINED] = start["alone"][None], start["fused"][None]
        for condition in of.experiments:
            each = [values_of(of, [made["name"] for made in last[of.name, condition, seed]]) for seed in range(seeds)]
            one.alone[condition] = np.stack([values["alone"] for values in each])
            one.fused[condition] = np.stack([values["fused"] for values in each])
            one.rates[condition] = [rates[of.name, condition, seed] for seed in range(seeds)]
    return found


def results(sources: Sequence[Source], found: Mapping[str, Found], refused: Sequence[str]) -> Results:
    """Levels, differences, the rates that were chosen, what was learned from, and what could have been seen."""
    tables = [_levels(name, one) for name, one in found.items()]
    differences: dict[str, Any] = {}
    sds: dict[str, float] = {}
    for kind in ("alone", "fused"):
        rows = []
        for name, one in found.items():
            values: dict[str, Reals] = getattr(one, kind)
            pairs = [(condition, UNTRAINED) for condition in CONDITIONS] + [(JUDGES, SHUFFLED), (JUDGES, PSEUDO)]
            pairs = [pair for pair in pairs if values.keys() >= set(pair)]
            of_track = [
                contrast(f"{name}: {condition}", reference, [values[condition] - values[reference]])
                for condition, reference in pairs
            ]
            rows += of_track
            if kind == "alone":
                sds[name] = next(one.query_sd for one in of_track if one.system.endswith(f": {JUDGES}"))
        corrected = family(rows)
        differences[kind] = [asdict(one) for one in corrected]
        tables.append(harness.contrasts_table(kind.capitalize(), corrected))
    tables += [_rates(found), _learned(sources)]
    queries = {name: one.alone[UNTRAINED].shape[1] for name, one in found.items()}
    scopes = {name: [name] for name in found}
    tables.append(harness.detectable_table(f"{JUDGES} less {UNTRAINED}, alone", scopes, sds, queries, 1))
    levels = {f"{name}: {kind} {condition}": rows.mean(1).tolist()
              for name, one in found.items() for kind in ("alone", "fused")
              for condition, rows in getattr(one, kind).items()}  # fmt: skip
    return Results(tables, tuple(refused), {"levels": levels, "differences": differences})


def _levels(name: str, of: Found) -> Table:
    rows = [(CONTROL, harness.interval(contrast(CONTROL, "", [of.alone[CONTROL]])), "")]
    rows += [
        (condition, *(harness.interval(contrast(condition, "", [one[condition]])) for one in (of.alone, of.fused)))
        for condition in (UNTRAINED, *CONDITIONS)
        if condition in of.alone
    ]
    queries = of.alone[CONTROL].shape[1]
    return Table(f"{name}, {MEASURE}, {queries} queries, depth {DEPTH}", ("condition", "alone", "fused"), rows)


def _rates(found: Mapping[str, Found]) -> Table:
    rows = []
    for name, of in found.items():
        for condition, by_seed in of.rates.items():
            all_of = [rate for rates in by_seed for rate in rates]
            rows.append((name, condition, *(str(all_of.count(rate)) for rate in (KEPT, *RATES))))
    return Table("Rates that were chosen, in folds and seeds", ("track", "condition", "start kept",
                 *(f"{rate:g}" for rate in RATES)), rows)  # fmt: skip


def _learned(sources: Sequence[Source]) -> Table:
    """Of the lists that conditions learn from, how people grade positives and negatives."""
    rows = []
    for of in sources:
        grades = of.material.qrels
        for condition in of.experiments:
            examples = Material(of.root, stages_of(of.test, of.experiments[condition])).examples
            lists = zip(examples["query_id"].to_pylist(), examples["doc_ids"].to_pylist(), strict=True)
            pairs = [(query, doc, at == 0) for query, docs in lists for at, doc in enumerate(docs)]
            keys = {"query_id": [query for query, *_ in pairs], "doc_id": [doc for _, doc, _ in pairs]}
            place = find_rows(grades, {name: pa.array(ids, type=identity.ID) for name, ids in keys.items()})
            relevant = np.append(grades["grade"].to_numpy() >= RELEVANT, False)[place]
            positive = np.array([first for *_, first in pairs])
            queries = pc.count_distinct(examples["query_id"]).as_py()
            shares = (f"{relevant[one].mean():.0%}" if one.any() else "" for one in (positive, ~positive))
            rows.append((of.name, condition, str(queries), str(positive.sum()), *shares))
    columns = ("track", "condition", "queries", "positives", "of them graded 2 or 3", "of negatives")
    return Table("What was learned from, all folds", columns, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = harness.parser(STUDY, seeds=1, data=True)
    parser.add_argument("--gpt", help="folder with dl2019_judgments.csv")
    given = parser.parse_args(words)

    def run() -> Results:
        folders = harness.folders(given.data, _COLLECTIONS)
        if not folders:
            raise ConfigError("no track is given", "--data", "give --data dl2019=FOLDER, --data dl2023=FOLDER or both")
        sources = [prepare(name, Path(folder), given) for name, folder in folders.items()]
        refused: list[str] = []
        return results(sources, trained(sources, given.seeds, given.workers, refused), refused)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
