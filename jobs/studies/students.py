"""Which student, and is it better than what sentence-transformers trains from the same start and labels?

    python -m jobs.studies.students [--data scifact=FOLDER] [--data npl=FOLDER] ... [--dry-run]

Every system starts from the same weights, learns on one core, and ranks the hybrid's top documents of the same test
queries. Ours learn from mined examples: known positives and judgments of a simulated panel. The systems named `st-` are
sentence-transformers': they learn from the same known positives by its own trainers, losses and mining of hard
negatives (jobs/studies/peer_trainers.py). Rates and epochs were chosen on the quickstart's dev queries.
`untrained` is late interaction before training; bm25+dense is the fusion of both retrievers' scores. `fused` is a
system's score with both, by weights chosen on dev queries, as stage evaluate does. A collection of test queries alone
(`halves`) is cut in two by a hash of its queries: one model is trained on each half and tested on the other; a model's
weights are chosen on its own half, by the scores of the other model, which has not seen it.
As a retriever, the first training of the reference compares each test query with every document by token vectors.

To read: Intervals over queries are of the models that were trained; over queries and seeds, of such trainings in
general. Core seconds are of one process on a machine that others may use; reading the collection and asking judges is
not in them, mining by sentence-transformers is named beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, model_validator

from anmi_ray.config.base import Settings
from anmi_ray.config.load import validate
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import RUN
from anmi_ray.evaluation import fusion, measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.retrieval.hits import rrf
from anmi_ray.stages.rerank.ranking import ranked
from anmi_ray.store import Store
from jobs.studies import harness, peer_trainers
from jobs.studies.collected import Part, by_collection, count_test_queries, halves
from jobs.studies.harness import Results, Table
from jobs.studies.student_training import FOLDER, READ, RETRIEVED, Material, run_file, work

STUDY = harness.study("students", "Students and peers", __doc__ or "")
MEASURE, RECALL = "nDCG@10", "Recall@100"
FIRST = ("bm25", "dense", "hybrid")
CONTROL, UNTRAINED = "bm25+dense", "untrained"
Reals = NDArray[np.float64]


class System(Settings):
    """One way to train: our settings of training, or a trainer of sentence-transformers."""

    train: dict[str, Any] | None = Field(default=None, description="ours: settings of group train")
    peer: str | None = Field(default=None, description="theirs: bi-encoder, late-interaction or cross-encoder")
    batch: int = Field(default=32, ge=1, description="theirs: lists of a step")
    rate: float = Field(default=5e-5, gt=0, description="theirs: learning rate")
    epochs: float = Field(default=1.0, gt=0, description="theirs")
    seeds: int | None = Field(default=None, ge=1, description="at most so many; null: all")

    @model_validator(mode="after")
    def _one(self) -> System:
        if (self.train is None) == (self.peer is None):
            raise ValueError("a system is one of train and peer: give exactly one")
        return self


class Collection(Settings):
    """One collection."""

    max_tokens: int = Field(ge=16, description="of a text, for every system")
    halves: bool = Field(default=False, description="it has test queries only: each half is trained on for the other")
    settings: dict[str, Any] = Field(default={}, description="settings of the experiment that are its own")


class Plan(Settings):
    """What the file says."""

    depth: int = Field(ge=1, description="documents of the hybrid's top that are ranked")
    reference: str = Field(description="the system that others are compared with")
    systems: dict[str, System]
    collections: dict[str, Collection]
    settings: dict[str, Any] = Field(description="settings that all experiments share")
    halves: dict[str, Any] = Field(description="further ones, of collections that are cut in two")


@dataclass(frozen=True)
class Students:
    """What is trained and compared."""

    plan: Plan
    parts: tuple[Part, ...]
    systems: tuple[str, ...]
    seeds: int
    root: str

    @property
    def collections(self) -> dict[str, list[Part]]:
        """The parts of every collection."""
        return by_collection(self.parts)

    def seeds_of(self, system: str) -> int:
        """How often a system is trained; the untrained has nothing drawn."""
        most = 1 if system == UNTRAINED else self.plan.systems[system].seeds
        return min(self.seeds, most or self.seeds)

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Every training, seed after seed, so that a study that is stopped has all systems."""
        found = {}
        for seed in range(self.seeds):
            for part in self.parts:
                for system in (UNTRAINED, *self.systems):
                    if seed < self.seeds_of(system):
                        found[task_name(part, system, seed)] = self._task(part, system, seed)
        return found

    def _task(self, part: Part, system: str, seed: int) -> dict[str, Any]:
        settings = System(train={"student": "late-interaction"}) if system == UNTRAINED else self.plan.systems[system]
        return {
            "name": task_name(part, system, seed),
            "part": part.name,
            "stages": stages_of(part),
            "system": settings.model_dump(mode="json"),
            "untrained": system == UNTRAINED,
            "max_tokens": self.plan.collections[part.collection].max_tokens,
            "depth": self.plan.depth,
            "retrieves": system == self.plan.reference and seed == 0,
            "seed": seed,
        }


def stages_of(part: Part) -> dict[str, str]:
    """Fingerprints of the stages that a training reads."""
    resolved = resolve(part.experiment)
    return {name: resolved[name].fingerprint for name in READ}


def task_name(part: Part, system: str, seed: int) -> str:
    """Of one training."""
    return f"{part.name}-{system}-s{seed}"


def prepare(plan: Plan, given: argparse.Namespace) -> Students:
    """What the command line leaves of the plan, every experiment validated. Raises ConfigError."""
    folders = harness.folders(given.data, plan.collections)
    systems = tuple(filter(None, (given.systems or "").split(","))) or tuple(plan.systems)
    if strangers := [name for name in (*systems, plan.reference) if name not in plan.systems]:
        raise ConfigError(
            f"no system is called {', '.join(strangers)}", "--systems", f"choose from {', '.join(plan.systems)}"
        )
    if (lacking := peer_trainers.lacking()) and any(plan.systems[name].peer for name in systems):
        raise ConfigError(
            f"the peers' trainers need {' and '.join(lacking)}",
            "--systems",
            f"{environment.install('bench')}, or leave them out",
        )
    parts: list[Part] = []
    for name, one in plan.collections.items():
        folder = folders.get(name)
        if folder is None and one.settings.get("corpus", {}).get("reader") != "pydocs":
            continue
        place = Path(given.root) / FOLDER / "collections" / name
        paths = halves(str(folder), place) if one.halves else [folder]
        for number, path in enumerate(paths):
            where = {"corpus": {"path": str(path)}} if path is not None else {}
            layers = [plan.settings, plan.halves if one.halves else {}, one.settings, where]
            content = harness.merged([*layers, {"execution": {"root": given.root}}])
            parts.append(
                Part(name, number, validate({**content, "name": f"students-{name}-{number}"}, f"the study, {name}"))
            )
    chosen = set(filter(None, (given.collections or "").split(",")))
    kept = tuple(part for part in parts if not chosen or part.collection in chosen)
    if not kept:
        raise ConfigError("no collection is left", "--data", "give --data NAME=FOLDER")
    return Students(plan, kept, systems, given.seeds, str(given.root))


@dataclass(frozen=True)
class Values:
    """nDCG@10 by (collection, system), float64[S, Q], queries by part and id; alone, and fused with both retrievers."""

    alone: Mapping[tuple[str, str], Reals]
    fused: Mapping[tuple[str, str], Reals]


def values_of(of: Students) -> Values:
    """Measure every run, and every fusion by weights of other queries."""
    alone: dict[tuple[str, str], Reals] = {}
    fused: dict[tuple[str, str], Reals] = {}
    for collection, parts in of.collections.items():
        read = [Material(of.root, stages_of(part)) for part in parts]
        for system in (UNTRAINED, *of.systems):
            rows: list[list[Reals]] = []
            for seed in range(of.seeds_of(system)):
                runs = [pq.read_table(run_file(of.root, task_name(part, system, seed))) for part in parts]
                rows.append([np.concatenate(each) for each in zip(*_measured(read, runs, of.plan.depth), strict=True)])
            single, both, control = (np.stack(each) for each in zip(*rows, strict=True))
            alone[collection, system] = single
            fused[collection, system] = both
            alone[collection, CONTROL] = control[:1]
    return Values(alone, fused)


def _measured(read: Sequence[Material], runs: Sequence[pa.Table], depth: int) -> list[tuple[Reals, Reals, Reals]]:
    """Of every part: its test queries' values of the system alone, of its fusion and of the fusion without it."""
    out = []
    for number, (of, run) in enumerate(zip(read, runs, strict=True)):
        other, its_run, split = (of, run, "dev") if len(read) == 1 else (read[1 - number], runs[1 - number], "test")
        own, hybrid, partners = _runs(other, its_run, split)
        judged = other.of_split(other.qrels, split)
        sweep = fusion.choose_weights(own, hybrid, judged, 10, depth, MEASURE, partners)
        own, hybrid, partners = _runs(of, run, "test")
        fused = [fusion.fuse(own, hybrid, one, depth, "fused", partners) for one in (sweep.chosen, sweep.control)]
        judged = of.of_split(of.qrels, "test")
        out.append(tuple(measures.evaluate(one, judged, [MEASURE])["value"].to_numpy() for one in (own, *fused)))
    return out


def _runs(of: Material, run: pa.Table, split: str) -> tuple[pa.Table, pa.Table, list[pa.Table]]:
    """The system's run, the hybrid's and the retrievers', of a split's queries."""
    return of.of_split(run, split), of.system("hybrid", split), [of.system(name, split) for name in ("bm25", "dense")]


def results(of: Students, values: Values, found: Mapping[str, Mapping[str, Any]]) -> Results:
    """Levels, differences from the reference and from the control, costs."""
    tables = [levels_table(of, values, name) for name in of.collections]
    scopes = harness.scopes_of(of.collections)
    differences: dict[str, Any] = {}
    for title, compare in _COMPARED.items():
        rows: list[Contrast] = []
        for scope, within in scopes.items():
            for system in (UNTRAINED, *of.systems):
                found_in = [compare(of, values, name, system) for name in within]
                strata = [one for one in found_in if one is not None]
                if len(strata) == len(within):
                    rows.append(contrast(f"{scope}: {system}", _reference(of, title), strata))
        corrected = family(rows)
        differences[title] = [asdict(one) for one in corrected]
        tables += [harness.contrasts_table(title, corrected)] if corrected else []
    if of.plan.reference in of.systems:
        tables.append(recall_table(of))
    tables.append(costs_table(of, found))
    levels = {f"{kind}: {collection} {system}": rows.mean(1).tolist()
              for kind, every in (("alone", values.alone), ("fused", values.fused))
              for (collection, system), rows in every.items()}  # fmt: skip
    return Results(tables, values={"levels": levels, "differences": differences, "costs": dict(found)})


def _less_reference(of: Students, values: Values, collection: str, system: str) -> Reals | None:
    """A system alone less the reference alone, seed by seed."""
    if system == of.plan.reference or of.plan.reference not in of.systems:
        return None
    rows, other = values.alone[collection, system], values.alone[collection, of.plan.reference]
    seeds = min(len(rows), len(other))
    return rows[:seeds] - other[:seeds]


def _less_control(of: Students, values: Values, collection: str, system: str) -> Reals | None:
    return values.alone[collection, system] - values.alone[collection, CONTROL]


def _fused_less_control(of: Students, values: Values, collection: str, system: str) -> Reals | None:
    return values.fused[collection, system] - values.alone[collection, CONTROL]


_COMPARED = {
    "Alone, less the reference": _less_reference,
    f"Alone, less {CONTROL}": _less_control,
    f"Fused with both retrievers, less {CONTROL}": _fused_less_control,
}


def _reference(of: Students, title: str) -> str:
    return of.plan.reference if title.endswith("reference") else CONTROL


def levels_table(of: Students, values: Values, collection: str) -> Table:
    """Every system of a collection."""
    rows = [(CONTROL, harness.interval(contrast(CONTROL, "", [values.alone[collection, CONTROL]])), "", "", "")]
    for system in (UNTRAINED, *of.systems):
        cells = []
        for every in (values.alone, values.fused):
            one = every[collection, system]
            cells += [harness.interval(contrast(system, "", [one])), " ".join(f"{value:.3f}" for value in one.mean(1))]
        rows.append((system, *cells))
    queries = values.alone[collection, CONTROL].shape[1]
    columns = ("system", "alone", "by seed", "fused", "by seed")
    return Table(f"{collection}, {MEASURE}, {queries} test queries, depth {of.plan.depth}", columns, rows)


def recall_table(of: Students) -> Table:
    """What the first stage finds, and what the reference finds in the whole collection, alone and fused with BM25."""
    searching = of.plan.reference
    rows = []
    for collection, parts in of.collections.items():
        read = [Material(of.root, stages_of(part)) for part in parts]
        own = [pq.read_table(run_file(of.root, task_name(part, searching, 0), "retrieved")) for part in parts]
        found = {name: [one.system(name, "test") for one in read] for name in FIRST}
        fused = [_by_ranks(*both) for both in zip(found["bm25"], own, strict=True)]
        values: dict[str, Reals] = {}
        for system, runs in {**found, searching: own, f"bm25, {searching}": fused}.items():
            parted = [
                measures.evaluate(run, one.of_split(one.qrels, "test"), [RECALL])
                for one, run in zip(read, runs, strict=True)
            ]
            values[system] = np.concatenate([one["value"].to_numpy() for one in parted])
        for system, value_Q in values.items():
            less = contrast(system, "hybrid", [(value_Q - values["hybrid"])[None]])
            level = harness.interval(contrast(system, "", [value_Q[None]]))
            rows.append((f"{collection}: {system}", level, "" if system == "hybrid" else str(less)))
    return Table(f"{RECALL} over the whole collection, seed 0", ("", RECALL, "less the hybrid's"), rows)


def _by_ranks(*runs: pa.Table) -> pa.Table:
    """Reciprocal ranks of runs over the same queries fused, as the hybrid's are: the first 100 documents."""
    rows = pa.concat_tables(runs)
    gain = pa.array(rrf(rows["rank"].to_numpy()[None].astype(np.int64)))
    summed = rows.select(["query_id", "doc_id"]).append_column("gain", gain)
    summed = summed.group_by(["query_id", "doc_id"]).aggregate([("gain", "sum")])
    summed = summed.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    blank = {"system": ["fused"] * len(summed), "rank": np.arange(len(summed), dtype=np.int32)}
    table = RUN.table(
        {"query_id": summed["query_id"], "doc_id": summed["doc_id"], **blank, "score": summed["gain_sum"]}
    )
    fused = ranked(table, table["score"].to_numpy(), "fused")
    return fused.filter(pc.less_equal(fused["rank"], RETRIEVED))


def costs_table(of: Students, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """What trainings cost: medians over seeds, sums over a collection's parts, the largest peak."""
    rows = []
    for collection, parts in of.collections.items():
        for system in (UNTRAINED, *of.systems):
            every = [[found[task_name(part, system, seed)] for part in parts] for seed in range(of.seeds_of(system))]
            cells = [
                f"{np.median([sum(one[name] for one in each) for each in every]):.0f}"
                for name in ("train_s", "score_s")
            ]
            mining = max(sum(one["mining_s"] for one in each) for each in every)
            peak = max(one["peak_gib"] for each in every for one in each)
            rows.append((collection, system, cells[0], f"{mining:.0f}", cells[1], f"{peak:.1f}"))
    columns = ("collection", "system", "training", "mining, the first seed's", "scoring dev and test", "peak GiB")
    return Table("Core seconds of one training, and peak memory", columns, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = harness.parser(STUDY, seeds=5, data=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--systems", help="some of the systems, by commas")
    parser.add_argument("--collections", help="some of the collections, by commas")
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained; train nothing")
    given = parser.parse_args(words)

    def run() -> Results | None:
        of = prepare(harness.read_settings(Plan, given.config), given)
        tasks = of.tasks()
        queries = {
            name: sum(count_test_queries(part.experiment) for part in parts) for name, parts in of.collections.items()
        }
        print(
            f"{len(tasks)} trainings; test queries: {', '.join(f'{name} {count}' for name, count in queries.items())}\n"
        )
        if given.dry_run:
            return None
        harness.make([part.experiment for part in of.parts])
        out = Store(str(Path(given.root) / FOLDER / "trainings"))
        found = harness.work_side_by_side(tasks, partial(work, of.root), out, given.workers)
        return results(of, values_of(of), found)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
