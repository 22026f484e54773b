"""Does a reranker that was trained on one collection help on another? Train on each, test on each.

    python jobs/studies/transfer.py [--data scifact=FOLDER] [--data npl=FOLDER] ... [--preferences FILE] [--dry-run]

Claim tested, source by source: on collections that it has not seen, the trained model ranks the hybrid's top documents
better than the untrained one (the same start, its head drawn and not trained), better than the hybrid itself, and as
well as the model that was trained there. nDCG@10 of the reranked documents alone, fused with nothing; paired tests over
queries, corrected by Holm over all cells of a table. One training a cell: what another seed would do is not in the
intervals. The recipe and what is known of the collections stand in jobs/studies/transfer.yaml.

A collection that has test queries only (`halves`) is cut in two by a hash of its queries: one model is trained on each
half. Elsewhere both are tested and their values averaged; at home every query is ranked by the model that did not see
it. So no model is tested on its own train queries, and every query is tested. --data names folders in BEIR layout;
collections without one are left out. --preferences: year,round,qid,winner,loser,kind, where kind
tie_broken_by_length is a pair whose two orders disagreed, and counts as a tie. --peers: a YAML list as rerank.peers,
published rerankers (models or endpoints) that are measured beside ours.

A training is an artifact of ROOT (`anmi show transfer-npl-0`), and so are the scores of every model on every
collection, bucket by bucket: what is there is not made again, after Ctrl-C or kill -9 or by another study.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import yaml
from pydantic import Field, ValidationError
from rich.console import Console

from anmi_ray import environment, experiment, identity
from anmi_ray.config.base import Settings
from anmi_ray.config.evaluate import PeerConfig
from anmi_ray.config.experiment import Experiment, validate
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.errors import AnmiError, ConfigError, DataError
from anmi_ray.evaluation import measures, transfer
from anmi_ray.records import QREL, RUN
from anmi_ray.store import Artifact, Store

HERE = Path(__file__).parent
MEASURE = "nDCG@10"
STARTS = ("bm25", "dense", "hybrid")
UNTRAINED = "untrained"
TIE = "tie_broken_by_length"


class Collection(Settings):
    """One collection of the study, source and target alike."""

    note: str = Field(description="what it is, and who judged it")
    halves: bool = Field(default=False, description="it has test queries only: each half is trained on for the other")
    least_grade: int = Field(default=1, ge=1, description="halves: grades below it count as not relevant in training")
    preferences: bool = Field(default=False, description="its judge is the file of --preferences")
    settings: dict[str, Any] = Field(default={}, description="settings of the experiment that are its own")


class Study(Settings):
    """The whole plan."""

    level: float = Field(gt=0, lt=0.5, description="level of the tests, after Holm's correction")
    power: float = Field(gt=0, lt=1, description="of the smallest difference that is promised to be detected")
    assumed_sd: float = Field(gt=0, description="sd of per-query differences, before anything is measured")
    depth: int = Field(ge=1, description="documents per query that are ranked, from the top of the hybrid")
    seconds_training: float = Field(gt=0, description="core seconds of a training and all before it")
    seconds_pair: float = Field(gt=0, description="core seconds to score a pair")
    settings: dict[str, Any] = Field(description="settings that all experiments share")
    collections: dict[str, Collection]


@dataclass(frozen=True)
class Part:
    """A collection, or a half of one: what is trained on, and the queries that are tested."""

    collection: str
    number: int
    experiment: Experiment

    @property
    def name(self) -> str:
        """Of the part, and of the model that was trained on it."""
        return f"{self.collection}-{self.number}"


@dataclass(frozen=True)
class Plan:
    """What is trained and tested, and where the results go."""

    study: Study
    parts: tuple[Part, ...]
    peers: tuple[PeerConfig, ...]
    out: Store
    workers: int

    @property
    def collections(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(dict.fromkeys(part.collection for part in self.parts))

    @property
    def comparisons(self) -> int:
        """Of the largest family."""
        return (len(self.collections) + len(self.peers) - 1) * len(self.collections)


def read(path: Path) -> Study:
    """The study's settings. Raises ConfigError."""
    try:
        return Study.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"cannot be read: {error}", str(path), "see jobs/studies/transfer.yaml") from None


def pairs(options: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE options by name. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in options:
        name, sign, value = text.partition("=")
        if not sign or not name or not value or name in found:
            raise ConfigError(f"{text!r} is not NAME=VALUE, or its name stands twice", option, "see --help")
        found[name] = value
    return found


def plan(study: Study, given: argparse.Namespace) -> Plan:
    """What the command line leaves of the study, every experiment validated. Raises ConfigError."""
    folders = pairs(given.data, "--data")
    if strangers := sorted(set(folders) - set(study.collections)):
        known = ", ".join(study.collections)
        raise ConfigError(f"no collection is called {', '.join(strangers)}", "--data", f"choose from {known}")
    out = Path(given.out or Path(given.root) / "studies" / "transfer")
    parts: list[Part] = []
    for name, one in study.collections.items():
        folder = folders.get(name)
        own_reader = one.settings.get("corpus", {}).get("reader", "beir") != "beir"
        if folder is None and not own_reader:
            continue
        if one.preferences and given.preferences is None:
            raise ConfigError("the preferences that judge it are missing", name, "give --preferences FILE")
        more: dict[str, Any] = {}
        if one.preferences and given.preferences is not None:
            file = str(imported(given.preferences, out / "preferences.csv"))
            more = {
                "compare": {"design": "imported", "path": file, "degree": None},
                "judge": {"preset": None, "judges": [{"kind": "imported", "name": "imported", "path": file}]},
            }
        paths = halves(folder, one, out / "collections" / name) if one.halves and folder else [folder]
        for number, path in enumerate(paths):
            place = {"corpus": {"path": str(path)}} if path is not None else {}
            layers = (study.settings, one.settings, more, place)
            parts.append(Part(name, number, _experiment(f"transfer-{name}-{number}", layers, given.root)))
    if not parts:
        raise ConfigError("no collection is left", "--data", "give --data NAME=FOLDER")
    peers = others(given.peers, {*study.collections, *(part.name for part in parts), *STARTS})
    return Plan(study, tuple(parts), peers, Store(str(out)), given.workers)


def others(path: Path | None, taken: set[str]) -> tuple[PeerConfig, ...]:
    """The untrained model, and the peers of a YAML file. Raises ConfigError."""
    given: Any = []
    if path is not None:
        try:
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot be read: {error}", str(path), "give a list as rerank.peers") from None
        if not isinstance(given, list):
            raise ConfigError("holds no list", str(path), "give a list as rerank.peers")
    peers = validate({"rerank": {"peers": [{"name": UNTRAINED, "untrained": True}, *given]}}, str(path)).rerank.peers
    if twice := sorted({peer.name for peer in peers} & taken):
        raise ConfigError(f"the names {', '.join(twice)} are taken", str(path), "give the peers others")
    return peers


def _experiment(name: str, layers: Sequence[Mapping[str, Any]], root: str) -> Experiment:
    content: dict[str, Any] = {}
    for layer in layers:
        for group, values in layer.items():
            merged = {**content.get(group, {}), **values}
            content[group] = {key: value for key, value in merged.items() if value is not None}
    content["execution"] = {**content.get("execution", {}), "root": str(root)}
    return validate({**content, "name": name}, f"jobs/studies/transfer.yaml, {name}")


def imported(path: Path, target: Path) -> Path:
    """An LLM's preferences as the columns that the judge `imported` reads, written to `target`. Raises DataError.

    A pair that stands in several rows was asked several times: the n-th time is its round n.
    """
    try:
        table = pacsv.read_csv(path)
        text = {name: table[name].cast(pa.string()) for name in ("qid", "winner", "loser", "kind")}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"cannot be read: {error}", str(path), "give year,round,qid,winner,loser,kind") from None
    times: Counter[tuple[str, ...]] = Counter()
    rounds = []
    for query, *pair in zip(*(text[name].to_pylist() for name in ("qid", "winner", "loser")), strict=True):
        rounds.append(times[query, *sorted(pair)])
        times[query, *sorted(pair)] += 1
    preference = pc.if_else(pc.equal(text["kind"], TIE), 0.5, 1.0)
    columns = {"query_id": text["qid"], "doc_a": text["winner"], "doc_b": text["loser"], "preference": preference}
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(f".{os.getpid()}")
    pacsv.write_csv(pa.table({**columns, "round": rounds}), beside)
    beside.replace(target)
    return target


def halves(folder: str, one: Collection, target: Path) -> list[Path]:
    """Two BEIR folders whose train queries are the other's test queries; documents and queries are links."""
    files = BeirFiles(folder)
    rows = list(files.grades(files.find("qrels/test.tsv")))
    names = sorted({query for query, _, grade in rows if grade >= one.least_grade})
    by_id = {identity.query_id(name): name for name in names}
    first = {by_id[one] for one in identity.hash_sample(sorted(by_id), len(by_id) // 2, "transfer", "halves")}
    made = []
    for number, trained in enumerate((first, set(names) - first)):
        place = target / str(number)
        (place / "qrels").mkdir(parents=True, exist_ok=True)
        for name in (files.find("corpus.jsonl"), files.find("queries.jsonl")):
            link = place / name
            if not link.exists():
                link.symlink_to((Path(folder) / name).resolve())
        for split in ("train", "test"):
            kept = [row for row in rows if row[0] in names and (row[0] in trained) == (split == "train")]
            floor = one.least_grade if split == "train" else 1
            lines = [f"{query}\t{document}\t{grade if grade >= floor else 0}" for query, document, grade in kept]
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
            (place / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
        made.append(place)
    return made


def train(of: Plan, console: Console) -> dict[str, dict[str, Any]]:
    """Train what is missing; every experiment's run record by its name."""
    from anmi_ray.stages.side_by_side import run_all

    store = Store(of.parts[0].experiment.execution.root)
    missing, records = [], {}
    for part in of.parts:
        name, fingerprint = part.experiment.name, experiment.resolve(part.experiment)["train"].fingerprint
        record = store.read_json(f"runs/{name}.json")
        if Artifact(store, "train", fingerprint).manifest() is None or record is None:
            missing.append(part.experiment)
        elif record["stages"].get("train", {}).get("fingerprint") != fingerprint:
            missing.append(part.experiment)  # every stage is there: the record alone is made anew
        else:
            records[name] = record
    console.print(f"{len(records)} of {len(of.parts)} trainings are done", highlight=False)
    for done in run_all(missing, "train", of.workers):
        records[done.experiment.name] = done.record
        console.print(f"✓ {len(records)} of {len(of.parts)}  {done.experiment.name}  {done.seconds:.0f} s")
    return records


def score(of: Plan, records: Mapping[str, Mapping[str, Any]], console: Console) -> dict[tuple[str, int], Any]:
    """Every system's nDCG@10 on the test queries of every part, as `transfer.values_of` wants it.

    A model is a peer of the run whose queries it is tested on: `stages.peers` keeps its scores.
    """
    from anmi_ray.stages import peers
    from anmi_ray.stages.folders import local_folder
    from anmi_ray.stages.runtime import Context, ray_session

    store = Store(of.parts[0].experiment.execution.root)
    stages = {
        part.name: {name: Artifact(store, name, one["fingerprint"]) for name, one in record["stages"].items()}
        for part in of.parts
        for record in [records[part.experiment.name]]
    }
    systems: list[tuple[PeerConfig, Part | None]] = [
        (peer.started(of.parts[0].experiment.train), None) for peer in of.peers
    ]
    for part in of.parts:
        folder = str(local_folder(stages[part.name]["train"], "model"))
        systems.append((PeerConfig(name=part.name, model=folder), part))
    execution = of.parts[0].experiment.execution.model_copy(update={"window": of.workers})
    context = Context(store, execution, store.buckets(execution.buckets), 0, lambda *_, **__: None)
    cells: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for part in of.parts:
        cells[part.collection, part.number] = {
            name: values(stages[part.name], context.buckets, "retrieve", name) for name in STARTS
        }
    wanted = [
        (system, part)
        for system, trained in systems
        for part in of.parts  # of its own collection a model ranks the half alone that it was not trained on
        if trained is None or trained.name == part.name or trained.collection != part.collection
    ]
    at = {name: (one["retrieve"], one["ingest"], of.study.depth) for name, one in stages.items()}
    missing = [pair for pair in wanted if peers.artifact_of(pair[0], *at[pair[1].name]).manifest() is None]
    console.print(f"{len(wanted) - len(missing)} of {len(wanted)} cells are scored", highlight=False)
    with ray_session(execution) if missing else nullcontext():
        for system, part in missing:
            peers.scored(system, *at[part.name], context)
            console.print(f"✓ {system.name} on {part.name}", highlight=False)
    for system, part in wanted:
        made = {**stages[part.name], "peer": peers.artifact_of(system, *at[part.name])}
        cells[part.collection, part.number][system.name] = values(made, context.buckets, "peer", "peer")
    return cells


def values(stages: Mapping[str, Artifact], buckets: int, stage: str, system: str) -> dict[str, float]:
    """nDCG@10 of one system by test query, in hexadecimal; a peer's queries without scores are left out."""
    from anmi_ray.stages.ingest import of_queries, queries_of

    runs, qrels = [], []
    for bucket in range(buckets):
        asked = queries_of(stages["ingest"], bucket, "test")
        run = of_queries(stages[stage].read_part("runs", bucket, RUN), asked)
        runs.append(run.filter(pc.equal(run["system"], system)))
        qrels.append(of_queries(stages["ingest"].read_part("qrels", bucket, QREL), asked))
    run = pa.concat_tables(runs)
    rows = measures.evaluate(run, pa.concat_tables(qrels), [MEASURE], [system]).to_pylist()
    ranked = set(run["query_id"].to_pylist()) if stage == "peer" else {row["query_id"] for row in rows}
    return {row["query_id"].hex(): row["value"] for row in rows if row["query_id"] in ranked}


def print_plan(of: Plan, queries: Mapping[str, int]) -> None:
    """What will be trained and scored, how long it takes, and what it can detect."""
    print(f"{len(of.parts)} trainings, {len(of.collections)} collections; every system ranks the hybrid's top "
          f"{of.study.depth}\n")  # fmt: skip
    total = 0.0
    for name in of.collections:
        one = of.study.collections[name]
        count = sum(part.collection == name for part in of.parts)
        models = len(of.peers) + len(of.parts) - count + 1
        total += count * of.study.seconds_training
        total += models * queries[name] * of.study.depth * of.study.seconds_pair
        halves = "; two halves, a model each" if one.halves else ""
        print(f"{name}: {queries[name]} test queries{halves}. {one.note}")
    minutes = total / 60 / min(of.workers, environment.cores())
    print(f"\nAbout {minutes:.0f} minutes on {of.workers} core(s), if nothing is there yet.")
    print_detectable(of, {name: of.study.assumed_sd for name in of.collections}, queries, "as assumed before")


def print_detectable(of: Plan, sds: Mapping[str, float], queries: Mapping[str, int], said: str) -> None:
    """The smallest difference on each target, for the largest family."""
    table = transfer.detectable(sds, queries, of.comparisons, of.study.level, of.study.power)
    print(f"\nSmallest difference in {MEASURE} to be detected, {said}\n\n{table}\n\n"
          f"Two-sided at {of.study.level:g}/{of.comparisons} (Holm's first step over a table), power "
          f"{of.study.power:g}; what another training would give comes on top.")  # fmt: skip


def count_queries(of: Plan) -> dict[str, int]:
    """Test queries with a relevant document of every collection; reads the collections, computes nothing."""
    from anmi_ray import corpus

    found = dict.fromkeys(of.collections, 0)
    for part in of.parts:
        reader = corpus.read(part.experiment.corpus)
        for _ in reader.documents():
            pass
        queries, qrels = reader.queries(), reader.qrels()
        judged = pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"])
        test = queries.filter(pc.equal(queries["split"], "test"))
        found[part.collection] += pc.sum(pc.is_in(test["query_id"], value_set=judged)).as_py() or 0
    return found


def finish(of: Plan, cells: Mapping[tuple[str, int], Any]) -> None:
    """Tables, and the results as study.json."""
    models = {name: [part.name for part in of.parts if part.collection == name] for name in of.collections}
    names = [peer.name for peer in of.peers]
    found = transfer.values_of(cells, models, [*STARTS, *names])
    print(f"\n{MEASURE}, 95 % over queries; (at home)\n\n{transfer.levels(found)}")
    compared = [*(name for name in names if name != UNTRAINED), *of.collections]
    tables = {one: transfer.contrasts(found, compared, one) for one in (UNTRAINED, "hybrid", "dense", transfer.HOME)}
    for reference, table in tables.items():
        print(f"\nLess {reference}; bold: p < {of.study.level:g} after Holm's correction over the table\n\n"
              f"{transfer.differences(found, table, of.study.level)}")  # fmt: skip
    elsewhere = transfer.elsewhere(found, list(tables))
    if elsewhere:
        print("\nOn all collections but its own, queries counted alike; Holm over a column\n\n"
              f"{transfer.pooled(found, elsewhere, of.study.level)}")  # fmt: skip
    sds = transfer.observed_sds(tables["hybrid"])
    print_detectable(of, sds, found.queries, "as observed, against the hybrid")
    of.out.publish_json("study.json", {
        "cells": {f"{target}-{part}": by_system for (target, part), by_system in cells.items()},
        "tables": {name: {f"{a} on {b}": asdict(one) for (a, b), one in rows.items()} for name, rows in tables.items()},
        "elsewhere": {f"{a} less {b}": asdict(one) for (a, b), one in elsewhere.items()},
        "observed_sd": sds,
        **environment.describe(),
    })  # fmt: skip
    print(f"\n-> {of.out.where('study.json')}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the plan, train and score what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE / "transfer.yaml")
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    parser.add_argument("--preferences", type=Path, help="file of preferences of the collection that imports them")
    parser.add_argument("--peers", type=Path, help="YAML list as rerank.peers: published rerankers beside ours")
    parser.add_argument("--root", default="results", help="folder of artifacts and runs")
    parser.add_argument("--out", help="folder of the study; default: ROOT/studies/transfer")
    parser.add_argument("--workers", type=int, default=environment.cores(), help="trainings at once, a core each")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it can detect; train nothing")
    given = parser.parse_args(arguments)
    from anmi_ray.stages.side_by_side import alone

    try:
        chosen = plan(read(given.config), given)
        print_plan(chosen, count_queries(chosen))
        if not given.dry_run:
            console = Console(stderr=True)
            with alone(chosen.out, "transfer"):
                finish(chosen, score(chosen, train(chosen, console), console))
    except AnmiError as error:
        sys.exit(f"transfer: {error}")
    except KeyboardInterrupt:
        print("\ntransfer: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
