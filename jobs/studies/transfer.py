"""Does a reranker that was trained on one collection help on another? Train on each, test on each.

    python -m jobs.studies.transfer [--data scifact=FOLDER] [--data npl=FOLDER] ... [--preferences FILE] [--dry-run]

Claim tested, source by source: on collections that it has not seen, the trained model ranks the hybrid's top documents
better than the untrained one (the same start), better than the hybrid itself, and as well as the model that was trained
there. nDCG@10 of the reranked documents alone, and fused half way: half the weight is the model's, half BM25's and
dense's, of scores standardised query by query, so that no weight is learned on the target; `bm25+dense` is the even
fusion of these two. One training a cell. The recipe and what is known of the collections stand in transfer.yaml.

A collection that has test queries only (`halves`) is cut in two by a hash of its queries: one model is trained on each
half. Elsewhere both are tested and their values averaged; at home every query is ranked by the model that did not see
it. So no model is tested on its own train queries, and every query is tested. --data names folders in BEIR layout;
collections without one are left out. --preferences: an LLM's, as the judge `imported` reads them (query_id, doc_a,
doc_b, preference, round; GPT-4o's pairs whose two orders disagreed are ties, .5). `peers` of the YAML file, a list as
rerank.peers, are published rerankers (models or endpoints) that are measured beside ours.

To read: a row is a system, a column the collection that it is tested on; in brackets at home. Bold is told apart, after
Holm's correction over all cells of a table. `trained elsewhere` is the mean of all models that were trained on other
collections. What another seed would do is not in the intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console

from anmi_ray.config.base import Settings
from anmi_ray.config.evaluate import PeerConfig
from anmi_ray.config.load import validate
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import RUN
from anmi_ray.evaluation import fusion, measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.pipeline.per_query import STARTS, of_artifact
from anmi_ray.store import Artifact, Store
from jobs.studies import harness
from jobs.studies.collected import Part, all_parts, by_collection, count_test_queries, halves
from jobs.studies.harness import Results, Table
from jobs.studies.student_training import READ, Material

STUDY = harness.study("transfer", "Transfer", __doc__ or "")
MEASURE = "nDCG@10"
UNTRAINED = "untrained"
HOME = "in-domain"
ELSEWHERE = "trained elsewhere"
CONTROL = "bm25+dense"
HALF_WAY, EVEN = (0.5, 0.25, 0.25), (0.0, 0.5, 0.5)  # weights of a model, of BM25 and of dense
Reals = NDArray[np.float64]
Cells = Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]]
"""(target, part of its queries) -> system -> query -> value."""
Contrasts = Mapping[tuple[str, str], Contrast]
"""(system or source, target or reference) -> how it differs."""


class Collection(Settings):
    """One collection of the study, source and target alike."""

    note: str = Field(description="what it is, and who judged it")
    halves: bool = Field(default=False, description="it has test queries only: each half is trained on for the other")
    least_grade: int = Field(default=1, ge=1, description="halves: grades below it count as not relevant in training")
    preferences: bool = Field(default=False, description="its judge is the file of --preferences")
    settings: dict[str, Any] = Field(default={}, description="settings of the experiment that are its own")


class Plan(Settings):
    """What the file says."""

    level: float = Field(gt=0, lt=0.5, description="level of the tests, after Holm's correction")
    power: float = Field(gt=0, lt=1, description="of the smallest difference that is promised to be detected")
    assumed_sd: float = Field(gt=0, description="sd of per-query differences, before anything is measured")
    depth: int = Field(ge=1, description="documents per query that are ranked, from the top of the hybrid")
    seconds_training: float = Field(gt=0, description="core seconds of a training and all before it")
    seconds_pair: float = Field(gt=0, description="core seconds to score a pair")
    settings: dict[str, Any] = Field(description="settings that all experiments share")
    collections: dict[str, Collection]
    peers: list[dict[str, Any]] = Field(default=[], description="published rerankers beside ours, as rerank.peers")


@dataclass(frozen=True)
class Transfer:
    """What is trained and tested."""

    plan: Plan
    parts: tuple[Part, ...]
    peers: tuple[PeerConfig, ...]
    workers: int

    @property
    def models(self) -> dict[str, list[str]]:
        """The models of every collection, in order."""
        return {name: [part.name for part in parts] for name, parts in by_collection(self.parts).items()}

    @property
    def comparisons(self) -> int:
        """Of the largest family."""
        return (len(self.models) + len(self.peers) - 1) * len(self.models)

    def detectable(self, said: str, sds: Mapping[str, float], queries: Mapping[str, int]) -> Table:
        """The smallest difference on each target."""
        scopes = {name: (name,) for name in self.models}
        return harness.detectable_table(said, scopes, sds, queries, self.comparisons, self.plan.level, self.plan.power)


def prepare(plan: Plan, given: argparse.Namespace) -> Transfer:
    """What the command line leaves of the plan, every experiment validated. Raises ConfigError."""
    folders = harness.folders(given.data, plan.collections)
    place = Path(given.root) / "studies" / "transfer"
    parts: list[Part] = []
    for name, one in plan.collections.items():
        folder = folders.get(name)
        own_reader = one.settings.get("corpus", {}).get("reader", "beir") != "beir"
        if folder is None and not own_reader:
            continue
        judge = _imported_judge(given.preferences) if one.preferences else {}
        cut = one.halves and folder is not None
        paths = halves(str(folder), place / "collections" / name, one.least_grade) if cut else [folder]
        for number, path in enumerate(paths):
            where = {"corpus": {"path": str(path)}} if path is not None else {}
            content = harness.merged([plan.settings, one.settings, judge, where, {"execution": {"root": given.root}}])
            known = {group: {key: value for key, value in values.items() if value is not None}
                     for group, values in content.items()}  # fmt: skip
            named = {**known, "name": f"transfer-{name}-{number}"}
            parts.append(Part(name, number, validate(named, f"the study, {name}")))
    if not parts:
        raise ConfigError("no collection is left", "--data", "give --data NAME=FOLDER")
    taken = {*plan.collections, *(part.name for part in parts), *STARTS}
    return Transfer(plan, tuple(parts), _peers(plan, taken), given.workers)


def _peers(plan: Plan, taken: set[str]) -> tuple[PeerConfig, ...]:
    """The untrained model, and the plan's peers. Raises ConfigError."""
    given = [{"name": UNTRAINED, "untrained": True}, *plan.peers]
    peers = validate({"rerank": {"peers": given}}, "the study, peers").rerank.peers
    if twice := sorted({peer.name for peer in peers} & taken):
        raise ConfigError(f"the names {', '.join(twice)} are taken", "peers", "give the peers others")
    return peers


def _imported_judge(path: Path | None) -> dict[str, Any]:
    """The settings that take a collection's pairs and preferences from a file."""
    if path is None:
        raise ConfigError("the preferences that judge a collection are missing", "--preferences", "give the file")
    judge = {"kind": "imported", "name": "imported", "path": str(path)}
    return {
        "compare": {"design": "imported", "path": str(path), "degree": None},
        "judge": {"preset": None, "judges": [judge]},
    }


def score(of: Transfer, records: Mapping[str, Mapping[str, Any]]) -> tuple[Cells, Cells]:
    """Every system's nDCG@10 on the test queries of every part: alone, and fused half way.

    A model is a peer of the run whose queries it is tested on: `stages.peers` keeps its scores.
    """
    from anmi_ray.runtime.tasks import Context, ray_session
    from anmi_ray.stages.rerank import peers
    from anmi_ray.store.folders import local_folder

    first = of.parts[0].experiment
    store = Store(first.execution.root)
    stages = {
        part.name: {
            name: Artifact(store, name, one["fingerprint"])
            for name, one in records[part.experiment.name]["stages"].items()
        }
        for part in of.parts
    }
    systems: list[tuple[PeerConfig, Part | None]] = [(peer.started(first.train), None) for peer in of.peers]
    for part in of.parts:
        folder = str(local_folder(stages[part.name]["train"], "model"))
        systems.append((PeerConfig(name=part.name, model=folder), part))
    execution = first.execution.model_copy(update={"window": of.workers})
    context = Context(store, execution, store.buckets(execution.buckets), 0, lambda *_, **__: None)
    wanted = [
        (system, part)
        for system, trained in systems
        for part in of.parts  # of its own collection a model ranks the half alone that it was not trained on
        if trained is None or trained.name == part.name or trained.collection != part.collection
    ]
    at = {name: (one["retrieve"], one["ingest"], of.plan.depth) for name, one in stages.items()}
    missing = [pair for pair in wanted if peers.artifact_of(pair[0], *at[pair[1].name]).manifest() is None]
    console = Console(stderr=True)
    console.print(f"{len(wanted) - len(missing)} of {len(wanted)} cells are scored", highlight=False)
    with ray_session(execution) if missing else nullcontext():
        for system, part in missing:
            peers.scored(system, *at[part.name], context)
            console.print(f"✓ {system.name} on {part.name}", highlight=False)
    alone: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    fused: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for part in of.parts:
        scored = {one.name: peers.artifact_of(one, *at[part.name]) for one, on in wanted if on is part}
        of_part = [(name, stages[part.name]["retrieve"], name) for name in STARTS]
        of_part += [(name, made, "peer") for name, made in scored.items()]
        ingest, key = stages[part.name]["ingest"], (part.collection, part.number)
        alone[key] = {
            name: of_artifact(ingest, made, context.buckets, MEASURE, system, only_ranked=system == "peer")
            for name, made, system in of_part
        }
        read = Material(first.execution.root, {name: stages[part.name][name].fingerprint for name in READ})
        runs = {name: all_parts(made, "runs", RUN, context.buckets) for name, made in scored.items()}
        fused[key] = {"hybrid": alone[key]["hybrid"], **half_way(read, runs, of.plan.depth)}
    return alone, fused


def half_way(read: Material, runs: Mapping[str, pa.Table], depth: int) -> dict[str, dict[str, float]]:
    """nDCG@10 by test query, in hexadecimal, of every run fused half way with both retrievers, and of these two."""
    hybrid, judged = read.system("hybrid", "test"), read.of_split(read.qrels, "test")
    partners = [read.system(name, "test") for name in ("bm25", "dense")]
    found = {}
    for name, run, weights in [(CONTROL, hybrid, EVEN), *((name, run, HALF_WAY) for name, run in runs.items())]:
        table = fusion.fuse(run, hybrid, weights, depth, name, partners)
        rows = measures.evaluate(table, judged, [MEASURE], [name]).to_pylist()
        found[name] = {row["query_id"].hex(): row["value"] for row in rows}
    return found


def print_plan(of: Transfer) -> None:
    """What will be trained and scored, how long it takes, and what it can detect."""
    queries = {name: sum(count_test_queries(part.experiment) for part in of.parts if part.collection == name)
               for name in of.models}  # fmt: skip
    print(f"{len(of.parts)} trainings; every system ranks the hybrid's top {of.plan.depth}\n")
    total = 0.0
    for name, models in of.models.items():
        one = of.plan.collections[name]
        systems = len(of.peers) + len(of.parts) - len(models) + 1
        total += len(models) * of.plan.seconds_training
        total += systems * queries[name] * of.plan.depth * of.plan.seconds_pair
        print(f"{name}: {queries[name]} test queries{'; two halves, a model each' if one.halves else ''}. {one.note}")
    minutes = total / 60 / min(of.workers, environment.cores())
    print(f"\nAbout {minutes:.0f} minutes on {of.workers} core(s), if nothing is there yet.\n")
    assumed = dict.fromkeys(of.models, of.plan.assumed_sd)
    print(f"{of.detectable('as assumed before', assumed, queries).markdown()}\n")


@dataclass(frozen=True)
class Values:
    """float64[Q] by (system or source, target), queries in one order per target.

    A source is a collection that was trained on. Its value of a query is the mean of its models that were tested on it.
    """

    sources: tuple[str, ...]
    others: tuple[str, ...]
    of: Mapping[tuple[str, str], Reals]

    def less(self, system: str, reference: str, target: str) -> Reals:
        """float64[1, Q]; `HOME`: less the target's own models."""
        return (self.of[system, target] - self.of[target if reference == HOME else reference, target])[None]

    def label(self, name: str) -> str:
        """Of a row."""
        return f"trained on {name}" if name in self.sources else name


def values_of(cells: Cells, models: Mapping[str, Sequence[str]], others: Sequence[str]) -> Values:
    """Join the cells: `models` names the systems of every source, `others` the systems that were trained on none.

    Every source is a target. At home a model's cell is left out where its train queries were; some model must be left.
    Raises DataError where a query has no value of a system, naming both.
    """
    found: dict[tuple[str, str], list[Reals]] = {}
    for (target, part), by_system in cells.items():
        ids = sorted({query for values in by_system.values() for query in values})
        for name, systems in {**{other: [other] for other in others}, **models}.items():
            there = [by_system[system] for system in systems if system in by_system]
            lost = [query for query in ids if any(query not in values for values in there)]
            if lost or not there or not ids:
                raise DataError(
                    f"{name} has no value of {f'query {lost[0]}' if lost else 'any query'}",
                    f"{target}, part {part}",
                    "run again, which makes what is missing; or leave the system out",
                )
            rows = [[values[query] for query in ids] for values in there]
            found.setdefault((name, target), []).append(np.mean(rows, axis=0))
    return Values(tuple(models), tuple(others), {key: np.concatenate(parts) for key, parts in found.items()})


def contrasts(values: Values, systems: Sequence[str], reference: str, rounds: int = 10_000) -> Contrasts:
    """Every one of `systems` less `reference` on every target, Holm over all."""
    keys = [(system, target) for system in systems for target in values.sources]
    keys = [key for key in keys if not (reference == HOME and key[0] == key[1])]
    rows = [contrast(name, reference, [values.less(name, reference, target)], rounds) for name, target in keys]
    return dict(zip(keys, family(rows), strict=True))


def elsewhere(values: Values, references: Sequence[str], rounds: int = 10_000) -> Contrasts:
    """Every source on all targets but its own, queries counted alike, less each reference; Holm over a reference.

    `ELSEWHERE` is the mean over all sources but a target itself, query by query.
    """
    found: dict[tuple[str, str], Contrast] = {}
    for reference in references if len(values.sources) > 1 else ():
        rows = []
        for source in values.sources:
            strata = [values.less(source, reference, target) for target in values.sources if target != source]
            rows.append(contrast(source, reference, strata, rounds))
        means = [
            np.mean([values.less(one, reference, target) for one in values.sources if one != target], axis=0)
            for target in values.sources
        ]
        rows.append(contrast(ELSEWHERE, reference, means, rounds))
        found |= {(row.system, reference): row for row in family(rows)}
    return found


def levels_table(values: Values, how: str) -> Table:
    """Every system on every target with its interval over queries; at home in brackets."""
    rows = []
    for name in (*values.others, *values.sources):
        cells = [harness.interval(contrast(name, "", [values.of[name, target][None]])) for target in values.sources]
        home = [f"({cell})" if name == target else cell for cell, target in zip(cells, values.sources, strict=True)]
        rows.append((values.label(name), *home))
    return Table(f"{MEASURE}, {how}, 95 % over queries, (at home)", ("system", *values.sources), rows)


def contrasts_table(title: str, values: Values, found: Contrasts, level: float) -> Table:
    """A row a system, a column a target or a reference; bold: told apart after Holm's correction."""
    columns = list(dict.fromkeys(column for _, column in found))

    def cell(one: Contrast | None) -> str:
        return "" if one is None else f"**{one}**" if one.p_holm < level else str(one)

    rows = [
        (values.label(name), *(cell(found.get((name, column))) for column in columns))
        for name in dict.fromkeys(name for name, _ in found)
    ]
    return Table(title, ("system", *columns), rows)


def results(of: Transfer, alone: Cells, fused: Cells) -> Results:
    """Levels, differences from every reference, and all collections but the own together; alone and half way."""
    names = [peer.name for peer in of.peers]
    compared = [*(name for name in names if name != UNTRAINED), *of.models]
    tables, content = list[Table](), dict[str, Any]()
    for how, cells, others, references in (
        ("alone", alone, STARTS, (UNTRAINED, "hybrid", "dense", HOME)),
        ("fused half way", fused, ("hybrid", CONTROL), ("hybrid", CONTROL, UNTRAINED)),
    ):
        found = values_of(cells, of.models, [*others, *names])
        by_reference = {one: contrasts(found, compared, one) for one in references}
        tables.append(levels_table(found, how))
        for reference, table in by_reference.items():
            tables.append(contrasts_table(f"{how.capitalize()}, less {reference}", found, table, of.plan.level))
        if together := elsewhere(found, references):
            title = f"{how.capitalize()}, on all collections but its own, queries counted alike, Holm over a column"
            tables.append(contrasts_table(title, found, together, of.plan.level))
        tables.append(of.detectable(f"as observed, {how}, against the hybrid", *_noise(by_reference["hybrid"], found)))
        content[how] = {
            "cells": {f"{target}-{part}": by_system for (target, part), by_system in cells.items()},
            "differences": {
                reference: {f"{a} on {b}": asdict(one) for (a, b), one in rows.items()}
                for reference, rows in by_reference.items()
            },
            "elsewhere": {f"{a} less {b}": asdict(one) for (a, b), one in together.items()},
        }
    return Results(tables, values=content)


def _noise(rows: Contrasts, values: Values) -> tuple[dict[str, float], dict[str, int]]:
    """By target: the sd of a query's difference, the root of its mean square over the systems, and the queries."""
    sds = {
        name: float(np.sqrt(np.mean([row.query_sd**2 for (_, on), row in rows.items() if on == name])))
        for name in values.sources
    }
    return sds, {name: len(values.of[name, name]) for name in values.sources}


def main(words: Sequence[str] | None = None) -> None:
    """Print the plan, train and score what is missing, print the tables."""
    parser = harness.parser(STUDY, data=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--preferences", type=Path, help="file of preferences of the collection that imports them")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it can detect; train nothing")
    given = parser.parse_args(words)

    def run() -> Results | None:
        of = prepare(harness.read_settings(Plan, given.config), given)
        print_plan(of)
        if given.dry_run:
            return None
        records = harness.run_side_by_side([part.experiment for part in of.parts], "train", given.workers)
        return results(of, *score(of, records))

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
