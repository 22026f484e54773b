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
tie_broken_by_length is a pair whose two orders disagreed, and counts as a tie.

A training is an artifact of ROOT (`anmi show transfer-npl-0`), a cell's values are a file under ROOT/studies/transfer:
what is there is not made again, after Ctrl-C or kill -9 or by another study of the same settings.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import yaml
from pydantic import Field, ValidationError
from rich.console import Console

from anmi_ray import environment, experiment, identity
from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment, validate
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.errors import AnmiError, ConfigError, DataError
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family, smallest_difference
from anmi_ray.models import loading
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.records import QREL, RUN, TEXT_OF
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


@dataclass(frozen=True)
class System:
    """Something that scores a query with a document, what it is exactly, and on which part it was trained."""

    name: str
    identity: Mapping[str, Any]
    folder: str
    max_tokens: int | None = None
    seed: int = 0
    trained: Part | None = None

    def load(self, threads: int) -> CrossEncoder:
        """The model. Raises ConfigError."""
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "seed": self.seed}
        return CrossEncoder.load(self.folder, dtype="auto", threads=threads, **options)


@dataclass(frozen=True)
class Plan:
    """What is trained and tested, and where the results go."""

    study: Study
    parts: tuple[Part, ...]
    peers: Mapping[str, str]
    out: Store
    workers: int

    @property
    def collections(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(dict.fromkeys(part.collection for part in self.parts))

    @property
    def comparisons(self) -> int:
        """Of the largest family."""
        return (len(self.collections) + len(self.peers)) * len(self.collections)


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
    folders, peers = pairs(given.data, "--data"), pairs(given.peer, "--peer")
    if strangers := sorted(set(folders) - set(study.collections)):
        known = ", ".join(study.collections)
        raise ConfigError(f"no collection is called {', '.join(strangers)}", "--data", f"choose from {known}")
    if taken := sorted(set(peers) & {*study.collections, *STARTS, UNTRAINED}):
        raise ConfigError(f"the names {', '.join(taken)} are taken", "--peer", "give others")
    out = Path(given.out or Path(given.root) / "studies" / "transfer")
    parts: list[Part] = []
    for name, one in study.collections.items():
        folder = folders.get(name)
        own_reader = one.settings.get("corpus", {}).get("reader", "beir") != "beir"
        if (folder is None and not own_reader) or (one.preferences and given.preferences is None):
            continue
        more: dict[str, Any] = {}
        if one.preferences:
            file = str(imported(Path(given.preferences), out / "preferences.csv"))
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
    return Plan(study, tuple(parts), peers, Store(str(out)), given.workers)


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


@dataclass(frozen=True)
class Tested:
    """The test queries of a part: the hybrid's top, what is needed to score it, and grades."""

    run: pa.Table
    top: pa.Table
    queries: pa.Table
    texts: pa.Table
    qrels: pa.Table

    def values(self, run: pa.Table, system: str) -> dict[str, float]:
        """nDCG@10 by test query (hexadecimal)."""
        metrics = measures.evaluate(run, self.qrels, [MEASURE], [system])
        return {row["query_id"].hex(): row["value"] for row in metrics.to_pylist() if row["system"] == system}


def tested(part: Part, record: Mapping[str, Any], depth: int) -> Tested:
    """Read from the run's artifacts what its test queries need."""
    from anmi_ray.stages.ingest import of_queries, queries_of

    store = Store(part.experiment.execution.root)
    stages = {name: Artifact(store, name, record["stages"][name]["fingerprint"]) for name in ("ingest", "retrieve")}
    tables: list[list[pa.Table]] = []
    for bucket in range(store.buckets(part.experiment.execution.buckets)):
        asked = queries_of(stages["ingest"], bucket, "test")
        run = of_queries(stages["retrieve"].read_part("runs", bucket, RUN), asked)
        top = run.filter(pc.and_(pc.equal(run["system"], "hybrid"), pc.less_equal(run["rank"], depth)))
        texts = stages["retrieve"].read_part("texts", bucket, TEXT_OF)
        texts = texts.filter(pc.is_in(texts["doc_id"], value_set=pc.unique(top["doc_id"])))
        qrels = of_queries(stages["ingest"].read_part("qrels", bucket, QREL), asked)
        tables.append([run, top, asked, texts, qrels])
    run, top, asked, texts, qrels = (pa.concat_tables(column) for column in zip(*tables, strict=True))
    return Tested(run, top, asked, texts, qrels)


def systems(of: Plan, records: Mapping[str, Mapping[str, Any]]) -> list[System]:
    """The untrained model, peers, and what was trained."""
    from anmi_ray.stages.folders import local_folder

    config = of.parts[0].experiment.train
    source = loading.resolve(config.model)
    start = {"model": source.name, "revision": source.revision, "max_tokens": config.max_tokens, "seed": config.seed}
    found = [System(UNTRAINED, start, config.model, config.max_tokens, config.seed)]
    for name, model in of.peers.items():
        what = {"model": model, "revision": loading.resolve(model).revision}
        found.append(System(name, what, model))
    for part in of.parts:
        trained = Artifact(
            Store(part.experiment.execution.root),
            "train",
            records[part.experiment.name]["stages"]["train"]["fingerprint"],
        )
        name = part.experiment.name.removeprefix("transfer-")
        folder = str(local_folder(trained, "model"))
        found.append(System(name, {"train": trained.fingerprint}, folder, trained=part))
    return found


Cells = dict[tuple[str, int], dict[str, dict[str, float]]]  # (collection, part) -> system -> query -> nDCG@10


def score(of: Plan, records: Mapping[str, Mapping[str, Any]], console: Console) -> Cells:
    """Every system on the test queries of every part; what is known is read, what is new is published at once."""
    from anmi_ray.stages.rerank import rerank

    cells: Cells = {}
    on = {part: tested(part, records[part.experiment.name], of.study.depth) for part in of.parts}
    for part in of.parts:
        runs = on[part].run
        cells[part.collection, part.number] = {
            name: on[part].values(runs.filter(pc.equal(runs["system"], name)), name) for name in STARTS
        }
    for system in systems(of, records):
        model: CrossEncoder | None = None
        for part in of.parts:
            home = system.trained is not None and system.trained.collection == part.collection
            if home and system.trained != part:
                continue  # the other half holds what this one was trained on
            stages = records[part.experiment.name]["stages"]
            what = {
                **system.identity,
                "depth": of.study.depth,
                **{name: stages[name]["fingerprint"] for name in ("ingest", "retrieve")},
            }
            file = f"cells/{part.collection}-{part.number}/{system.name}.json"
            known = of.out.read_json(file)
            if known is None or known["what"] != what:
                model = model or system.load(of.workers)
                begun = time.monotonic()
                run = rerank(on[part].top, on[part].queries, on[part].texts, model, system.name)
                known = {"what": what, "values": on[part].values(run, system.name)}
                of.out.publish_json(file, {**known, "seconds": time.monotonic() - begun})
                console.print(f"  {system.name} on {part.collection}-{part.number}", highlight=False)
            cells[part.collection, part.number][system.name] = known["values"]
    return cells


Values = dict[tuple[str, str], np.ndarray]  # (system or source, target): float64[Q], queries by id


def values_of(of: Plan, cells: Cells) -> Values:
    """Per query and source; two halves elsewhere are averaged, at home each query has its own model's value."""
    found: Values = {}
    for target in of.collections:
        columns: dict[str, list[np.ndarray]] = {}
        for part in of.parts:
            if part.collection != target:
                continue
            cell = cells[target, part.number]
            ids = sorted(cell["hybrid"])
            for name in (*STARTS, UNTRAINED, *of.peers):
                columns.setdefault(name, []).append(np.array([cell[name][query] for query in ids]))
            for source in of.collections:
                models = [f"{one.collection}-{one.number}" for one in of.parts if one.collection == source]
                rows = [[cell[model][query] for query in ids] for model in models if model in cell]
                columns.setdefault(source, []).append(np.mean(rows, axis=0))
        found |= {(name, target): np.concatenate(values) for name, values in columns.items()}
    return found


Table = dict[tuple[str, str], Contrast]  # (system, target or scope)


def contrasts(of: Plan, values: Values) -> dict[str, Table]:
    """By reference: every trained model and peer against it, on every target, Holm over the whole table.

    Elsewhere: all targets but the source's own, queries alike, a family of its own.
    """
    found: dict[str, Table] = {}
    for reference in (UNTRAINED, "hybrid", "dense", "in-domain"):
        keys, rows = [], []
        for system in (*of.peers, *of.collections):
            for target in of.collections:
                if reference == "in-domain" and system == target:
                    continue
                other = values[target if reference == "in-domain" else reference, target]
                keys.append((system, target))
                rows.append(contrast(system, reference, [(values[system, target] - other)[None]]))
        found[reference] = dict(zip(keys, family(rows), strict=True))
    return found


def elsewhere(of: Plan, values: Values) -> Table:
    """Every source on all collections but its own, pooled: against the references, a family each."""
    found: Table = {}
    for reference in (UNTRAINED, "hybrid", "dense", "in-domain"):
        rows = []
        for source in of.collections:
            others = [target for target in of.collections if target != source]
            if not others:
                return {}
            references = [target if reference == "in-domain" else reference for target in others]
            strata = [(values[source, t] - values[r, t])[None] for t, r in zip(others, references, strict=True)]
            rows.append(contrast(source, reference, strata))
        found |= {(row.system, reference): row for row in family(rows)}
    return found


def print_plan(of: Plan, queries: Mapping[str, int]) -> None:
    """What will be trained and scored, how long it takes, and what it can detect."""
    print(f"{len(of.parts)} trainings, {len(of.collections)} collections; every system ranks the hybrid's top "
          f"{of.study.depth}\n")  # fmt: skip
    total = 0.0
    for name in of.collections:
        one = of.study.collections[name]
        count = sum(part.collection == name for part in of.parts)
        models = 1 + len(of.peers) + sum(part.collection != name for part in of.parts) + 1
        total += count * of.study.seconds_training
        total += models * queries[name] * of.study.depth * of.study.seconds_pair
        halves = "; two halves, a model each" if one.halves else ""
        print(f"{name}: {queries[name]} test queries{halves}. {one.note}")
    minutes = total / 60 / min(of.workers, environment.cores())
    print(f"\nAbout {minutes:.0f} minutes on {of.workers} core(s), if nothing is there yet.")
    print_detectable(of, {name: of.study.assumed_sd for name in of.collections}, queries, "as assumed before")


def print_detectable(of: Plan, sds: Mapping[str, float], queries: Mapping[str, int], said: str) -> None:
    """The smallest difference on each target that the paired test finds, for the largest family."""
    print(f"\nSmallest difference in {MEASURE} to be detected, {said}\n\n"
          "| target | test queries | sd of a query's difference | smallest difference |\n|---|---|---|---|")  # fmt: skip
    for name in of.collections:
        one = ({name: sds[name]}, {name: queries[name]}, of.comparisons, of.study.level, of.study.power)
        print(f"| {name} | {queries[name]} | {sds[name]:.3f} | {smallest_difference(*one):.3f} |")
    print(f"\nTwo-sided at {of.study.level:g}/{of.comparisons} (Holm's first step over a table), power "
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


def print_levels(of: Plan, values: Values) -> None:
    """Every system's nDCG@10 on every target with its interval; a model at home in brackets of its own."""
    print(f"\n{MEASURE}, 95 % over queries; (at home)\n\n| system | {' | '.join(of.collections)} |\n"
          f"|---|{'---|' * len(of.collections)}")  # fmt: skip
    for name in (*STARTS, UNTRAINED, *of.peers, *of.collections):
        cells = []
        for target in of.collections:
            level = contrast(name, "", [values[name, target][None]])
            text = f"{level.difference:.3f} [{level.low:.3f}, {level.high:.3f}]"
            cells.append(f"({text})" if name == target else text)
        label = f"trained on {name}" if name in of.collections else name
        print(f"| {label} | {' | '.join(cells)} |")


def print_table(of: Plan, reference: str, table: Table) -> None:
    """Differences from a reference; bold: told apart after Holm's correction over the table."""
    print(f"\nLess {reference}; bold: p < {of.study.level:g} after Holm's correction over the table\n\n"
          f"| system | {' | '.join(of.collections)} |\n|---|{'---|' * len(of.collections)}")  # fmt: skip
    for name in dict.fromkeys(system for system, _ in table):
        found = (table.get((name, target)) for target in of.collections)
        print(f"| {name} | {' | '.join(_cell(one, of.study.level) for one in found)} |")


def _cell(one: Contrast | None, level: float) -> str:
    if one is None:
        return ""
    return f"**{one}**" if one.p_holm < level else str(one)


def finish(of: Plan, values: Values) -> None:
    """Tables, and the results as study.json."""
    queries = {name: len(values["hybrid", name]) for name in of.collections}
    print_levels(of, values)
    tables, pooled = contrasts(of, values), elsewhere(of, values)
    for reference, table in tables.items():
        print_table(of, reference, table)
    if pooled:
        references = list(dict.fromkeys(reference for _, reference in pooled))
        print(f"\nOn all collections but its own, queries counted alike; Holm over a column\n\n| trained on | queries | "
              f"{' | '.join(f'less {name}' for name in references)} |\n|---|---|{'---|' * len(references)}")  # fmt: skip
        for source in of.collections:
            rows = [pooled[source, reference] for reference in references]
            cells = " | ".join(_cell(row, of.study.level) for row in rows)
            print(f"| {source} | {rows[0].queries} | {cells} |")
    sds = {
        target: float(np.sqrt(np.mean([one.query_sd**2 for (_, on), one in tables["hybrid"].items() if on == target])))
        for target in of.collections
    }
    print_detectable(of, sds, queries, "as observed, against the hybrid")
    of.out.publish_json("study.json", {
        "levels": {f"{name} on {target}": float(rows.mean()) for (name, target), rows in values.items()},
        "tables": {name: {f"{a} on {b}": asdict(one) for (a, b), one in rows.items()} for name, rows in tables.items()},
        "elsewhere": {f"{a} less {b}": asdict(one) for (a, b), one in pooled.items()},
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
    parser.add_argument("--peer", action="append", default=[], help="NAME=MODEL, a published reranker beside ours")
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
                finish(chosen, values_of(chosen, score(chosen, train(chosen, console), console)))
    except AnmiError as error:
        sys.exit(f"transfer: {error}")
    except KeyboardInterrupt:
        print("\ntransfer: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
