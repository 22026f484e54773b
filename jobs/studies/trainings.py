"""Which settings train the better reranker? The same training under every variant, with several seeds.

    python jobs/studies/trainings.py jobs/studies/rules.yaml [--scifact FOLDER] [--root results] [--dry-run]
    python jobs/studies/trainings.py jobs/studies/recipes.yaml [--scifact FOLDER] [--root results] [--dry-run]

The file names what is compared, and was written before any test query was measured: variants, sizes, the claim, and
what is known of the test queries. Tested, variant by variant: the model trained so has another nDCG@10, reranking
alone, than that of the reference. A difference is called real where two p-values, corrected by Holm over the family,
are below .05: of sign flips over the test queries, seeds averaged (these very models), and of a t test with queries and
seeds both random (such trainings). Before anything is trained the smallest difference that could be detected is
printed, and afterwards again.

Whatever variants share is computed once; seeds differ in `train.seed` alone: the first weights of the scoring head, the
order of the lists, and what a curriculum draws, not the draw of negatives. One process per core trains, pinned to its
core, with a Ray of its own. Every training is a run (`anmi show rules-quickstart-table2-s0`): what is finished is never
repeated, after Ctrl-C, after kill -9 or by another study of the same settings.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import yaml
from pydantic import Field, ValidationError
from rich.console import Console

from anmi_ray import corpus, environment, experiment
from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment, apply, validate
from anmi_ray.config.rules import NAMED
from anmi_ray.console import ConsoleReporter
from anmi_ray.errors import AnmiError, ConfigError
from anmi_ray.evaluation import forest
from anmi_ray.evaluation.replicates import Contrast, contrast, family, markdown, smallest_difference
from anmi_ray.store import Artifact, Store

MEASURE, POOLED = "nDCG@10", "pooled"
STARTS = ("bm25", "dense", "hybrid")


class Collection(Settings):
    """One collection of the study: what is said of it, its settings, and what was measured on its dev queries."""

    note: str = Field(description="how often its test queries were looked at before")
    assumed_sd: float = Field(gt=0, description="sd of per-query differences between two variants, seeds averaged")
    seconds: float = Field(gt=0, description="core seconds of one training with its reranking")
    needs_path: bool = Field(default=False, description="it is read from a folder given on the command line")
    settings: dict[str, Any] = Field(description="settings of the experiment that are its own")


class Claimed(Settings):
    """A gain that somebody published, as shares of the reference's level."""

    system: str
    reference: str
    gain: tuple[float, float] = Field(description="least and largest, such as [.10, .18]")


class Study(Settings):
    """The whole plan."""

    name: str = Field(pattern="^[a-z][a-z-]{0,30}$", description="of its runs, its folder and its figure")
    title: str = Field(min_length=1, description="of the figure")
    claim: str = Field(min_length=1, description="the sentence that is tested")
    seeds: int = Field(ge=1, description="trainings of every variant on every collection")
    level: float = Field(gt=0, lt=0.5, description="level of the tests, after Holm's correction")
    power: float = Field(gt=0, lt=1, description="of the smallest difference that is promised to be detected")
    references: tuple[str, ...] = Field(min_length=1, description="variants that every other one is compared with")
    pairs: tuple[tuple[str, str], ...] = Field(default=(), description="further comparisons, each a family of its own")
    claimed: Claimed | None = Field(default=None, description="a published gain that is looked at")
    variants: dict[str, dict[str, Any]] = Field(
        min_length=2, description="by name: recipe, and settings by group; mine may name a composition"
    )
    settings: dict[str, Any] = Field(description="settings that all experiments share")
    collections: dict[str, Collection]


class Key(NamedTuple):
    """One training."""

    collection: str
    variant: str
    seed: int


@dataclass(frozen=True)
class Plan:
    """What is trained and compared, and where the results go."""

    study: Study
    experiments: Mapping[Key, Experiment]
    collections: tuple[str, ...]
    variants: tuple[str, ...]
    out: Store

    @property
    def families(self) -> dict[str, list[tuple[str, str]]]:
        """(system, reference) pairs by the family that Holm's correction covers, of what is trained."""
        found = {one: [(variant, one) for variant in self.variants if variant != one] for one in self.study.references}
        found |= {f"{a} and {b}": [(a, b)] for a, b in self.study.pairs}
        known = {name: [pair for pair in pairs if set(pair) <= set(self.variants)] for name, pairs in found.items()}
        return {name: pairs for name, pairs in known.items() if pairs}


def read(path: Path) -> Study:
    """The study's settings. Raises ConfigError."""
    try:
        return Study.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"cannot be read: {error}", str(path), "see jobs/studies/rules.yaml") from None


def plan(study: Study, given: argparse.Namespace) -> Plan:
    """What the command line leaves of the study, every experiment validated. Raises ConfigError."""
    folders = {name for name, one in study.collections.items() if one.needs_path}
    default = [name for name in study.collections if name not in folders or given.scifact]
    collections = _chosen(given.collections, study.collections, "--collections") or tuple(default)
    if lacking := sorted(folders.intersection(collections)) if not given.scifact else []:
        raise ConfigError("the folder of the collection is missing", ", ".join(lacking), "give --scifact FOLDER")
    variants = _chosen(given.variants, study.variants, "--variants") or tuple(study.variants)
    seeds = range(given.seeds or study.seeds)
    # seed after seed, so that a study that is stopped has all variants
    keys = [Key(collection, variant, seed) for seed in seeds for collection in collections for variant in variants]
    built = {key: _experiment(study, key, given) for key in keys}
    return Plan(study, built, collections, variants, Store(str(given.out or Path(given.root) / "studies" / study.name)))


def _chosen(text: str | None, known: Mapping[str, Any], option: str) -> tuple[str, ...]:
    names = tuple(filter(None, (text or "").split(",")))
    if strangers := [name for name in names if name not in known]:
        raise ConfigError(f"unknown: {', '.join(strangers)}", option, f"choose from {', '.join(known)}")
    return names


def _experiment(study: Study, key: Key, given: argparse.Namespace) -> Experiment:
    """The settings of one training: all that is shared, the collection's own, the variant's, the seed."""
    content: dict[str, Any] = {}
    for layer in (study.settings, study.collections[key.collection].settings):
        for group, values in layer.items():
            content[group] = {**content.get(group, {}), **values}
    if study.collections[key.collection].needs_path:
        content["corpus"]["path"] = str(given.scifact)
    for group, own in study.variants[key.variant].items():
        if group == "recipe":
            apply(content, f"recipe={own}")
            continue
        # the study's sample stands where a composition says nothing of the draw
        named = NAMED.get(own.get("rule"), {}) if group == "mine" else {}
        content[group] = {**content.get(group, {}), **named, **own}
    content["train"] = {**content.get("train", {}), "seed": key.seed}
    content["execution"] = {**content.get("execution", {}), "root": str(given.root)}
    content["name"] = f"{study.name}-{key.collection}-{key.variant}-s{key.seed}"
    return validate(content, f"the study, {content['name']}")


def count_test_queries(of: Plan) -> dict[str, int]:
    """How many test queries every collection has; reads the collections, computes nothing."""
    found = {}
    for name in of.collections:
        reader = corpus.read(of.experiments[Key(name, of.variants[0], 0)].corpus)
        for _ in reader.documents():
            pass
        found[name] = pc.sum(pc.equal(reader.queries()["split"], "test")).as_py() or 0
    return found


def measure(one: Experiment, record: Mapping[str, Any], system: str = "reranked") -> dict[str, float]:
    """nDCG@10 of one system of a run by test query, in hexadecimal; not fused with anything."""
    from anmi_ray.stages.measured import per_query

    return per_query(one, record, MEASURE, system)


def train(of: Plan, console: Console, workers: int) -> dict[str, Any]:
    """Do what is missing; the study's record, which is published after every training.

    A training is done when the record holds its values under the fingerprint that its settings have now.
    """
    from anmi_ray.stages.side_by_side import alone, run_all

    store = Store(next(iter(of.experiments.values())).execution.root)
    with alone(store, of.study.name):
        record = {"trainings": (of.out.read_json("study.json") or {}).get("trainings", {}), **environment.describe()}
        done = {name: found["rerank"] for name, found in record["trainings"].items()}
        missing = [
            one
            for one in of.experiments.values()
            if done.get(one.name) != experiment.resolve(one)["rerank"].fingerprint
        ]
        count = len(of.experiments) - len(missing)
        console.print(f"\n{count} of {len(of.experiments)} trainings are done", highlight=False)
        _share(missing, store, console)
        for found in run_all(missing, "rerank", workers):
            name, values = found.experiment.name, measure(found.experiment, found.record)
            fingerprint = found.record["stages"]["rerank"]["fingerprint"]
            record["trainings"][name] = {"rerank": fingerprint, "seconds": found.seconds, "values": values}
            of.out.publish_json("study.json", record)
            count += 1
            console.print(f"✓ {count} of {len(of.experiments)}  {name}  {found.seconds:.0f} s", highlight=False)
        return record


def _share(missing: Sequence[Experiment], store: Store, console: Console) -> None:
    """What several trainings read, up to the negatives of every variant, in this process alone."""
    mined = {experiment.resolve(one)["mine"].fingerprint: one for one in reversed(missing)}
    wanted = [one for name, one in mined.items() if Artifact(store, "mine", name).manifest() is None]
    if not wanted:
        return
    from anmi_ray.stages.runtime import ray_session

    with ray_session(wanted[0].execution):
        for one in reversed(wanted):
            console.print(f"\n{one.name}, as far as it is shared", highlight=False)
            experiment.run(one, ConsoleReporter(console), last="mine")


Values = dict[tuple[str, str], np.ndarray]  # (collection, variant): float64[S, Q], queries by id


def values_of(of: Plan, record: Mapping[str, Any]) -> Values:
    """All trainings' nDCG@10, and the first stage's under its systems' names, one row each."""
    found: Values = {}
    for collection in of.collections:
        for variant in of.variants:
            names = [one.name for key, one in of.experiments.items() if key[:2] == (collection, variant)]
            rows = [record["trainings"][name]["values"] for name in names]
            found[collection, variant] = np.array([[row[query] for query in sorted(rows[0])] for row in rows])
        one = of.experiments[Key(collection, of.variants[0], 0)]
        stages = (Store(one.execution.root).read_json(f"runs/{one.name}.json") or {})["stages"]
        for system in STARTS:
            values = measure(one, {"stages": stages}, system)
            found[collection, system] = np.array([[values[query] for query in sorted(values)]])
    return found


def scopes(of: Plan) -> dict[str, tuple[str, ...]]:
    """All collections together, and each for itself."""
    return ({POOLED: of.collections} if len(of.collections) > 1 else {}) | {name: (name,) for name in of.collections}


def contrasts(of: Plan, values: Values) -> dict[str, dict[str, tuple[Contrast, ...]]]:
    """By family and scope, corrected by Holm within."""
    return {
        name: {
            scope: family([contrast(a, b, [values[one, a] - values[one, b] for one in within]) for a, b in pairs])
            for scope, within in scopes(of).items()
        }
        for name, pairs in of.families.items()
    }


def detectable(of: Plan, sds: Mapping[str, float], queries: Mapping[str, int]) -> dict[str, float]:
    """The smallest difference of every scope, for the largest family."""
    study, count = of.study, max((len(pairs) for pairs in of.families.values()), default=1)
    return {
        scope: smallest_difference({name: sds[name] for name in within}, queries, count, study.level, study.power)
        for scope, within in scopes(of).items()
    }


def print_detectable(of: Plan, sds: Mapping[str, float], queries: Mapping[str, int], title: str) -> None:
    """The smallest difference of every scope, and what it rests on."""
    count = max((len(pairs) for pairs in of.families.values()), default=1)
    print(f"\n{title}\n\n| scope | test queries | sd of a query's difference | smallest difference |\n"
          "|---|---|---|---|")  # fmt: skip
    for scope, smallest in detectable(of, sds, queries).items():
        within = scopes(of)[scope]
        said = ", ".join(f"{sds[name]:.3f}" for name in within)
        print(f"| {scope} | {sum(queries[name] for name in within)} | {said} | {smallest:.4f} |")
    print(f"\nTwo-sided at {of.study.level:g}/{count} (Holm's first step over {count} comparisons), power "
          f"{of.study.power:g}, seeds averaged; the noise of the seeds comes on top.")  # fmt: skip


def print_plan(of: Plan, queries: Mapping[str, int], workers: int) -> None:
    """What will be trained, what is known of the test queries, and how long it takes."""
    seeds = len(of.experiments) // (len(of.collections) * len(of.variants))
    print(f"{of.study.claim}\n\n{len(of.experiments)} trainings: {len(of.variants)} variants, {seeds} seeds, "
          f"{', '.join(of.collections)}\n\n| variant | negatives | training |\n|---|---|---|")  # fmt: skip
    for variant in of.variants:
        one = of.experiments[Key(of.collections[0], variant, 0)]
        print(f"| {variant} | {one.mine.composition}; {one.mine.negatives} rated at most, "
              f"{one.mine.random_negatives} random | {_training(one)} |")  # fmt: skip
    total = 0.0
    for name in of.collections:
        one = of.study.collections[name]
        total += one.seconds * seeds * len(of.variants)
        print(f"\n{name}: {queries[name]} test queries; {one.seconds:g} core seconds a training. {one.note}")
    print(f"\nAbout {total / 60 / workers:.0f} minutes on {workers} cores, and what is shared before.")
    assumed = {name: of.study.collections[name].assumed_sd for name in of.collections}
    print_detectable(of, assumed, queries, "Smallest difference in nDCG@10 to be detected, as assumed before training")


def print_levels(of: Plan, values: Values) -> None:
    """Every system's nDCG@10, and whether training has come above the ranking that it starts from."""
    for collection in of.collections:
        print(f"\n{collection}: nDCG@10 of what is reranked, alone\n\n| system | nDCG@10 | by seed | less hybrid |"
              "\n|---|---|---|---|")  # fmt: skip
        hybrid = values[collection, "hybrid"]
        for name in (*STARTS, *of.variants):
            rows = values[collection, name]
            by_seed = " ".join(f"{value:.3f}" for value in rows.mean(1)) if name in of.variants else ""
            less = "" if name == "hybrid" else str(contrast(name, "hybrid", [rows - hybrid]))
            level = contrast(name, "", [rows])
            print(f"| {name} | {level.difference:.3f} [{level.low:.3f}, {level.high:.3f}] | {by_seed} | {less} |")
        below = sum(values[collection, name].mean() <= hybrid.mean() for name in of.variants)
        print(f"\n{below} of {len(of.variants)} variants' models rank no better than the hybrid that they rerank.")


def _training(one: Experiment) -> str:
    """The loss and the curriculum in words."""
    loss, balance, rule = one.train.loss, one.train.balance, one.train.curriculum.rule
    scheduled = balance.rule == "fixed" and rule in ("table3", "algorithm3")
    alpha = "scheduled" if scheduled else f"{balance.alpha:g}" if balance.rule == "fixed" else balance.rule
    temperature = f"temperature {one.train.start_temperature:g}{' at first' if loss.learn_temperature else ''}"
    return f"{loss.ranking}, {temperature}, {loss.regression} {loss.target}, alpha {alpha}, curriculum {rule}"


def print_claimed(of: Plan, values: Values, found: Mapping[str, Mapping[str, Sequence[Contrast]]]) -> None:
    """The published gain beside the measured one, both as shares of the reference's level."""
    said = of.study.claimed
    if said is None or said.reference not in found:
        return
    print(f"\nPublished: {said.system} above {said.reference} by {said.gain[0]:+.0%} to {said.gain[1]:+.0%}. Measured, "
          "as shares of the reference's level:\n")  # fmt: skip
    for scope, rows in found[said.reference].items():
        one = next((row for row in rows if row.system == said.system), None)
        if one is not None:
            level = np.concatenate([values[name, said.reference].mean(0) for name in scopes(of)[scope]]).mean()
            low, high = (one.low, one.high) if one.wide_low is None else (one.wide_low, one.wide_high)
            inside = low / level <= said.gain[1] and high / level >= said.gain[0]
            print(f"- {scope}: {one.difference / level:+.1%} [{low / level:+.1%}, {high / level:+.1%}]; the interval "
                  f"{'reaches into' if inside else 'excludes'} what was published")  # fmt: skip


def print_contrasts(found: Mapping[str, Mapping[str, Sequence[Contrast]]]) -> None:
    """A table a family and scope, the largest difference first."""
    for name, by_scope in found.items():
        for scope, rows in by_scope.items():
            first = rows[0]
            print(f"\nAgainst {first.reference}, {scope}: {first.queries} queries, {first.seeds} seeds ({name})\n")
            print(markdown(sorted(rows, key=lambda one: -one.difference)))


def observed_sds(of: Plan, found: Mapping[str, Mapping[str, Sequence[Contrast]]]) -> dict[str, float]:
    """Root mean square over the first family's comparisons of the sd of per-query differences, by collection."""
    by_scope = next(iter(found.values()))
    return {name: math.sqrt(np.mean([one.query_sd**2 for one in by_scope[name]])) for name in of.collections}


def picture(
    of: Plan, found: Mapping[str, Sequence[Contrast]], sds: Mapping[str, float], queries: Mapping[str, int]
) -> str:
    """Differences from one reference, pooled and by collection, as SVG."""
    first = next(iter(found.values()))
    order = sorted(range(len(first)), key=lambda row: -first[row].difference)
    smallest = detectable(of, sds, queries)
    panels = [
        forest.Panel(f"{scope}, {rows[0].queries} queries", [_estimate(rows[row]) for row in order], smallest[scope])
        for scope, rows in found.items()
    ]
    notes = (
        "thick: 95 % over queries; thin: over queries and seeds; colour: told apart after Holm's correction",
        f"grey: below what could be detected with power {of.study.power:g}; {first[0].seeds} seeds averaged",
    )
    title = f"{of.study.title} against {first[0].reference}"
    return forest.figure(title, notes, [first[row].system for row in order], panels, "difference in nDCG@10")


def _estimate(one: Contrast) -> forest.Estimate:
    wide = None if one.wide_low is None or one.wide_high is None else (one.wide_low, one.wide_high)
    return forest.Estimate(one.difference, one.low, one.high, wide, one.verdict() == "real")


def finish(of: Plan, record: dict[str, Any]) -> None:
    """Tables, the figure, and the results beside the trainings in the record."""
    values = values_of(of, record)
    queries = {name: values[name, of.variants[0]].shape[1] for name in of.collections}
    print_levels(of, values)
    found = contrasts(of, values)
    if not found:
        return
    print_contrasts(found)
    print_claimed(of, values, found)
    sds = observed_sds(of, found)
    print_detectable(of, sds, queries, "Smallest difference in nDCG@10 that could be detected, as observed")
    for scope, rows in next(iter(found.values())).items():
        if slacks := [one.wide_high - one.difference for one in rows if one.wide_high is not None]:
            print(f"{scope}: with the noise of the seeds a 95 % interval is ±{np.median(slacks):.4f} (median)")
    results = {
        name: {scope: [asdict(one) | {"verdict": one.verdict()} for one in rows] for scope, rows in by_scope.items()}
        for name, by_scope in found.items()
    }
    levels = {f"{collection} {name}": rows.mean(1).tolist() for (collection, name), rows in values.items()}
    of.out.publish_json("study.json", {**record, "results": results, "levels": levels, "observed_sd": sds})
    name, by_scope = next(iter(found.items()))
    figure = f"{of.study.name}.svg"
    of.out.publish(figure, picture(of, by_scope, sds, queries).encode())
    print(f"\n-> {of.out.where('study.json')}, {of.out.where(figure)} (against {name})")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="what is compared, such as jobs/studies/recipes.yaml")
    parser.add_argument("--scifact", type=Path, help="folder with SciFact in BEIR layout; without it it is left out")
    parser.add_argument("--root", default="results", help="folder of artifacts and runs")
    parser.add_argument("--out", help="folder of study.json and the figure; default: ROOT/studies/NAME")
    parser.add_argument("--collections", help="some of the collections, such as quickstart")
    parser.add_argument("--variants", help="some of the variants, such as posterior,rank-window")
    parser.add_argument("--seeds", type=int, help="so many seeds")
    parser.add_argument("--workers", type=int, default=environment.cores(), help="trainings at once, a core each")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it can detect; train nothing")
    given = parser.parse_args(arguments)
    try:
        chosen = plan(read(given.config), given)
        print_plan(chosen, count_test_queries(chosen), given.workers)
        if not given.dry_run:
            finish(chosen, train(chosen, Console(), given.workers))
    except AnmiError as error:
        sys.exit(f"trainings: {error}")
    except KeyboardInterrupt:
        print("\ntrainings: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
