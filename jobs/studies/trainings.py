"""Which settings train the better reranker? The same training under every variant, with several seeds.

    python -m jobs.studies.trainings jobs/studies/rules.yaml [--data scifact=FOLDER] [--dry-run]
    python -m jobs.studies.trainings jobs/studies/recipes.yaml [--data scifact=FOLDER] [--dry-run]

The file names what is compared, and was written before any test query was measured: variants, sizes, the claim, and
what is known of the test queries. Tested, variant by variant: the model trained so has another nDCG@10, reranking
alone, than that of the reference. A difference is called real where two p-values, corrected by Holm over the family,
are below .05: of sign flips over the test queries, seeds averaged (these very models), and of a t test with queries and
seeds both random (such trainings). Before anything is trained the smallest difference that could be detected is
printed, and afterwards again.

Seeds differ in `train.seed` alone: the first weights of the scoring head, the order of the lists, and what a curriculum
draws, not the draw of negatives. Every training is a run (`anmi show rules-quickstart-table2-s0`): what is finished is
never repeated, after Ctrl-C, after kill -9 or by another study of the same settings.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import apply, validate
from anmi_ray.config.rules import NAMED
from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.tuning.run import per_query
from jobs.studies import harness
from jobs.studies.collected import count_test_queries
from jobs.studies.harness import Results, Table

MEASURE = "nDCG@10"
POOLED = "pooled"
STARTS = ("bm25", "dense", "hybrid")  # systems of the first stage
METHOD = (
    "Every variant is trained on every collection with every seed; all else is the same. The model alone reranks the "
    "hybrid's first documents of the test queries. Differences are paired by query, Holm's correction is over a family."
)
READS = (
    "`real`: told apart over queries and over queries and seeds, so it holds for such trainings. `these models`: told "
    "apart over queries alone. A difference below the smallest detectable one says nothing."
)


class Collection(Settings):
    """One collection of the study: what is said of it, its settings, and what was measured on its dev queries."""

    note: str = Field(description="how often its test queries were looked at before")
    assumed_sd: float = Field(gt=0, description="sd of per-query differences between two variants, seeds averaged")
    seconds: float = Field(gt=0, description="core seconds of one training with its reranking")
    needs_path: bool = Field(default=False, description="it is read from a folder given by --data")
    settings: dict[str, Any] = Field(description="settings of the experiment that are its own")


class Plan(Settings):
    """What a file says."""

    name: str = Field(pattern="^[a-z][a-z-]{0,30}$", description="of its runs and its page")
    title: str = Field(min_length=1, description="of the page")
    claim: str = Field(min_length=1, description="the sentence that is tested")
    seeds: int = Field(ge=1, description="trainings of every variant on every collection")
    level: float = Field(gt=0, lt=0.5, description="level of the tests, after Holm's correction")
    power: float = Field(gt=0, lt=1, description="of the smallest difference that is promised to be detected")
    references: tuple[str, ...] = Field(min_length=1, description="variants that others are compared with")
    only: dict[str, tuple[str, ...]] = Field(default={}, description="by reference: these variants, not all")
    pairs: tuple[tuple[str, str], ...] = Field(default=(), description="further comparisons, each a family of its own")
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


Families = dict[str, dict[str, tuple[Contrast, ...]]]  # by family and scope
Values = dict[tuple[str, str], np.ndarray]  # (collection, variant): float64[S, Q], queries by id


@dataclass(frozen=True)
class Trainings:
    """What is trained and compared."""

    plan: Plan
    experiments: Mapping[Key, Experiment]
    collections: tuple[str, ...]
    variants: tuple[str, ...]
    seeds: int

    @property
    def families(self) -> dict[str, list[tuple[str, str]]]:
        """(system, reference) pairs by the family that Holm's correction covers, of what is trained."""
        found = {
            one: [(name, one) for name in self.plan.only.get(one, self.variants) if name != one]
            for one in self.plan.references
        }
        found |= {f"{a} and {b}": [(a, b)] for a, b in self.plan.pairs}
        known = {name: [pair for pair in pairs if set(pair) <= set(self.variants)] for name, pairs in found.items()}
        return {name: pairs for name, pairs in known.items() if pairs}

    @property
    def scopes(self) -> dict[str, tuple[str, ...]]:
        """All collections together, and each for itself."""
        together = {POOLED: self.collections} if len(self.collections) > 1 else {}
        return together | {name: (name,) for name in self.collections}

    def runs(self, collection: str, variant: str) -> list[str]:
        """The names of the runs of all seeds."""
        return [self.experiments[Key(collection, variant, seed)].name for seed in range(self.seeds)]

    def detectable(self, said: str, sds: Mapping[str, float], queries: Mapping[str, int]) -> Table:
        """The smallest difference of every scope, for the largest family."""
        count = max((len(pairs) for pairs in self.families.values()), default=1)
        return harness.detectable_table(said, self.scopes, sds, queries, count, self.plan.level, self.plan.power)


def prepare(plan: Plan, given: argparse.Namespace) -> Trainings:
    """What the command line leaves of the plan, every experiment validated. Raises ConfigError."""
    needed = [name for name, one in plan.collections.items() if one.needs_path]
    folders = harness.folders(given.data, needed)
    default = [name for name in plan.collections if name not in needed or name in folders]
    collections = _chosen(given.collections, plan.collections, "--collections") or tuple(default)
    if lacking := sorted(set(needed) & set(collections) - set(folders)):
        raise ConfigError("the folder of the collection is missing", lacking[0], f"give --data {lacking[0]}=FOLDER")
    variants = _chosen(given.variants, plan.variants, "--variants") or tuple(plan.variants)
    seeds = given.seeds or plan.seeds
    # seed after seed, so that a study that is stopped has all variants
    keys = [Key(name, variant, seed) for seed in range(seeds) for name in collections for variant in variants]
    built = {key: _experiment(plan, key, folders.get(key.collection), given.root) for key in keys}
    return Trainings(plan, built, collections, variants, seeds)


def _chosen(text: str | None, known: Mapping[str, Any], option: str) -> tuple[str, ...]:
    names = tuple(filter(None, (text or "").split(",")))
    if strangers := [name for name in names if name not in known]:
        raise ConfigError(f"unknown: {', '.join(strangers)}", option, f"choose from {', '.join(known)}")
    return names


def _experiment(plan: Plan, key: Key, folder: str | None, root: str) -> Experiment:
    """The settings of one training: all that is shared, the collection's own, the variant's, the seed."""
    place = {"corpus": {"path": folder}} if folder is not None else {}
    content: dict[str, Any] = harness.merged([plan.settings, plan.collections[key.collection].settings, place])
    for group, own in plan.variants[key.variant].items():
        if group == "recipe":
            apply(content, f"recipe={own}")
            continue
        # the study's sample stands where a composition says nothing of the draw
        named = NAMED.get(own.get("rule"), {}) if group == "mine" else {}
        content[group] = {**content.get(group, {}), **named, **own}
    content["train"] = {**content.get("train", {}), "seed": key.seed}
    content["execution"] = {**content.get("execution", {}), "root": str(root)}
    content["name"] = f"{plan.name}-{key.collection}-{key.variant}-s{key.seed}"
    return validate(content, f"the study, {content['name']}")


def print_plan(of: Trainings, workers: int) -> None:
    """What will be trained, what is known of the test queries, how long it takes, and what it can detect."""
    queries = {name: count_test_queries(of.experiments[Key(name, of.variants[0], 0)]) for name in of.collections}
    print(f"{of.plan.claim}\n\n{len(of.experiments)} trainings: {len(of.variants)} variants, {of.seeds} seeds\n")
    rows = []
    for variant in of.variants:
        one = of.experiments[Key(of.collections[0], variant, 0)]
        negatives = f"{one.mine.composition}; {one.mine.negatives} rated at most, {one.mine.random_negatives} random"
        rows.append((variant, negatives, _training(one)))
    print(Table("What is trained", ("variant", "negatives", "training"), rows).markdown())
    total = 0.0
    for name in of.collections:
        one = of.plan.collections[name]
        total += one.seconds * of.seeds * len(of.variants)
        print(f"\n{name}: {queries[name]} test queries; {one.seconds:g} core seconds a training. {one.note}")
    print(f"\nAbout {total / 60 / workers:.0f} minutes on {workers} cores, and what is shared before.\n")
    assumed = {name: of.plan.collections[name].assumed_sd for name in of.collections}
    print(f"{of.detectable('as assumed before training', assumed, queries).markdown()}\n")


def _training(one: Experiment) -> str:
    """The loss and the curriculum in words."""
    loss = one.train.loss
    balance = one.train.balance
    rule = one.train.curriculum.rule
    scheduled = balance.rule == "fixed" and rule in ("table3", "algorithm3")
    alpha = "scheduled" if scheduled else f"{balance.alpha:g}" if balance.rule == "fixed" else balance.rule
    temperature = f"temperature {one.train.start_temperature:g}{' at first' if loss.learn_temperature else ''}"
    return f"{loss.ranking}, {temperature}, {loss.regression} {loss.target}, alpha {alpha}, curriculum {rule}"


def values_of(of: Trainings, records: Mapping[str, Mapping[str, Any]]) -> Values:
    """All trainings' nDCG@10 by test query, and the first stage's under its systems' names, one row each."""
    found: Values = {}
    for collection in of.collections:
        for variant in of.variants:
            of_seeds = [of.experiments[Key(collection, variant, seed)] for seed in range(of.seeds)]
            rows = [per_query(one, records[one.name], MEASURE) for one in of_seeds]
            found[collection, variant] = np.array([[row[query] for query in sorted(row)] for row in rows])
        one = of.experiments[Key(collection, of.variants[0], 0)]
        for system in STARTS:
            row = per_query(one, records[one.name], MEASURE, system)
            found[collection, system] = np.array([[row[query] for query in sorted(row)]])
    return found


def contrasts(of: Trainings, values: Values) -> Families:
    """By family and scope, corrected by Holm within."""
    return {
        name: {
            scope: family([contrast(a, b, [values[one, a] - values[one, b] for one in within]) for a, b in pairs])
            for scope, within in of.scopes.items()
        }
        for name, pairs in of.families.items()
    }


def levels_table(of: Trainings, values: Values, collection: str) -> Table:
    """Every system's nDCG@10, and whether training has come above the ranking that it starts from."""
    hybrid = values[collection, "hybrid"]
    cells = []
    for name in (*STARTS, *of.variants):
        rows = values[collection, name]
        by_seed = " ".join(f"{value:.3f}" for value in rows.mean(1)) if name in of.variants else ""
        less = "" if name == "hybrid" else str(contrast(name, "hybrid", [rows - hybrid]))
        cells.append((name, harness.interval(contrast(name, "", [rows])), by_seed, less))
    return Table(
        f"{collection}, nDCG@10 of what is reranked, alone", ("system", "nDCG@10", "by seed", "less hybrid"), cells
    )


def observed_sds(of: Trainings, found: Families) -> dict[str, float]:
    """Root mean square over the first family's comparisons of the sd of per-query differences, by collection."""
    by_scope = next(iter(found.values()))
    return {name: math.sqrt(np.mean([one.query_sd**2 for one in by_scope[name]])) for name in of.collections}


def results(of: Trainings, values: Values) -> Results:
    """Tables of levels and differences."""
    tables = [levels_table(of, values, collection) for collection in of.collections]
    found = contrasts(of, values)
    for name, by_scope in found.items():
        for scope, rows in by_scope.items():
            title = f"Against {rows[0].reference}, {scope}, {rows[0].queries} queries, {rows[0].seeds} seeds ({name})"
            reference = np.concatenate([values[one, rows[0].reference].mean(0) for one in of.scopes[scope]]).mean()
            ordered = sorted(rows, key=lambda one: -one.difference)
            tables.append(harness.contrasts_table(title, ordered, float(reference)))
    if found:
        queries = {name: values[name, of.variants[0]].shape[1] for name in of.collections}
        tables.append(of.detectable("as observed", observed_sds(of, found), queries))
    levels = {f"{collection} {name}": rows.mean(1).tolist() for (collection, name), rows in values.items()}
    differences = {
        name: {scope: [asdict(one) | {"verdict": one.verdict()} for one in rows] for scope, rows in by_scope.items()}
        for name, by_scope in found.items()
    }
    return Results(tables, values={"levels": levels, "differences": differences})


def study_of(plan: Plan) -> harness.Study:
    """What a page says of a plan."""
    return harness.Study(plan.name, plan.title, plan.claim, METHOD, READS)


def arguments(of: harness.Study) -> argparse.ArgumentParser:
    """The command line of a study that trains."""
    parser = harness.parser(of, seeds=0, data=True)
    parser.add_argument("--collections", help="some of the collections, such as quickstart")
    parser.add_argument("--variants", help="some of the variants, such as posterior,rank-window")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it can detect; train nothing")
    return parser


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = arguments(harness.Study("trainings", "", "Which settings train the better reranker?", "", ""))
    parser.add_argument("config", type=Path, help="what is compared, such as jobs/studies/recipes.yaml")
    given = parser.parse_args(words)

    def run() -> Results | None:
        of = prepare(plan, given)
        print_plan(of, given.workers)
        if given.dry_run:
            return None
        records = harness.run_side_by_side(list(of.experiments.values()), "rerank", given.workers)
        return results(of, values_of(of, records))

    plan = harness.read_settings(Plan, given.config)
    harness.carry_out(study_of(plan), given, run)


if __name__ == "__main__":
    main()
