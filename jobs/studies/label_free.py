"""What do judges alone achieve, where no train query is labelled?

    python -m jobs.studies.label_free [--data scifact=FOLDER] [--data npl=FOLDER] ... [--dry-run]

Every condition trains the same student from the same weights on the same train queries, and ranks the hybrid's top
documents of the same test queries. `labels`: train queries have their known positives, negatives come from a window of
the retriever's ranks, no judge is heard: what most would do who have labels. `one-label`: the same with one positive a
query, drawn by hash, where the collection knows several: its others may become negatives, as in most collections that
are labelled by clicks or one document a query. `pseudo-labels`: the same, with the hybrid's first document taken for
relevant. `judges-N`: labels are hidden; a judge who puts N % of pairs of a relevant and another candidate right
compares and confirms, and half of the variance of its errors is a lasting misreading of documents, which no further
question averages away; `panel-N` are three such judges, each with errors of its own.
`untrained` is the start, bm25+dense the fusion of both retrievers. A collection of test queries alone (`halves`) is cut
in two, each half trained on for the other. Nothing is chosen on test; settings are the quickstart's. `fused` is the
mean of a system's score and of bm25+dense, weights fixed.

To read: Recovered is what a condition gains over the untrained start, as a share of what true labels gain; its interval
is over resamples of queries. Intervals of differences are over queries, and over queries and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.load import validate
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, JudgeError
from anmi_ray.core.identity import rng
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation import fusion, measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Store
from jobs.studies import harness
from jobs.studies.collected import Grade, Part, by_collection, exported, halves, judged_queries, view
from jobs.studies.harness import Results, Table
from jobs.studies.student_training import READ, Material, run_file, work
from jobs.studies.students import Collection

STUDY = harness.study("label_free", "Without labels", __doc__ or "")
FOLDER = "studies/label_free"
MEASURE = "nDCG@10"
CONTROL, UNTRAINED, LABELS, PSEUDO = "bm25+dense", "untrained", "labels", "pseudo-labels"
EVEN = (0.5, 0.25, 0.25)  # of the system, BM25 and dense
_ROUNDS = 10_000
Reals = NDArray[np.float64]


class Condition(Settings):
    """Where the train queries' positives come from."""

    positives: Literal["known", "one", "first", "judges"] = Field(
        description="known: the collection's labels; one: one of them; first: the hybrid's first document; judges: "
        "labels are hidden"
    )
    settings: dict[str, Any] = Field(default={}, description="settings of the experiment that are its own")


class Plan(Settings):
    """What the file says."""

    depth: int = Field(ge=1, description="documents of the hybrid's top that are ranked")
    train: dict[str, Any] = Field(description="settings of training, of every condition")
    conditions: dict[str, Condition]
    collections: dict[str, Collection]
    settings: dict[str, Any] = Field(description="settings that all experiments share")


@dataclass(frozen=True)
class LabelFree:
    """What is trained and compared: a part holds the true labels, and `folder` by its name the collection's files."""

    plan: Plan
    parts: tuple[Part, ...]
    folder: Mapping[str, Path]
    conditions: tuple[str, ...]
    seeds: int
    root: str
    refused: tuple[str, ...] = ()

    def experiment(self, part: Part, condition: str) -> Any:
        """The experiment that makes a condition's examples."""
        of = self.plan.conditions[condition]
        one = self.plan.collections[part.collection]
        own: dict[str, Any] = {"corpus": {"path": str(self.folder[part.name])}}
        if of.positives in ("judges", "first"):
            own["corpus"]["labels"] = ["dev", "test"]
        if of.positives == "first":
            own["retrieve"] = {"pseudo_labels": True}
        if of.positives == "one":
            own["corpus"]["path"] = str(self._one_label(part))
        content = merged([self.plan.settings, one.settings, of.settings, own, {"execution": {"root": self.root}}])
        return validate({**content, "name": f"label-free-{part.name}-{condition}"}, f"the study, {condition}")

    def _one_label(self, part: Part) -> Path:
        """The collection with one of its relevant documents of every train query, drawn by hash."""
        files = BeirFiles(str(self.folder[part.name]))
        splits = {split: list(files.grades(name)) for split in ("train", "dev", "test")
                  if (name := files.find_optional(f"qrels/{split}.tsv"))}  # fmt: skip
        drawn: dict[str, tuple[bytes, Grade]] = {}
        for query, document, grade in splits["train"]:
            key = identity.digest("label-free", "one-label", query, document)
            if grade > 0:
                drawn[query] = min(drawn.get(query, (key, (query, document, grade))), (key, (query, document, grade)))
        splits["train"] = [row for _, row in drawn.values()]
        return view(str(self.folder[part.name]), Path(self.root) / FOLDER / "one-label" / part.name, splits)

    def seeds_of(self, condition: str) -> int:
        """How often a condition is trained; the untrained has nothing drawn."""
        return 1 if condition == UNTRAINED else self.seeds

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Every training, seed after seed, so that a study that is stopped has all conditions."""
        found: dict[str, dict[str, Any]] = {}
        for seed in range(self.seeds):
            for part in self.parts:
                for condition in (UNTRAINED, *self.conditions):
                    if seed < self.seeds_of(condition):
                        mined = part.experiment if condition == UNTRAINED else self.experiment(part, condition)
                        found[task_name(part, condition, seed)] = {
                            "name": task_name(part, condition, seed),
                            "part": part.name,
                            "stages": stages_of(part, mined),
                            "system": {"train": self.plan.train, "peer": None},
                            "untrained": condition == UNTRAINED,
                            "max_tokens": self.plan.collections[part.collection].max_tokens,
                            "depth": self.plan.depth,
                            "retrieves": False,
                            "seed": seed,
                        }
        return found


def merged(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings, later layers over earlier ones, groups and their groups key by key."""
    content: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            groups = [cast("Mapping[str, Any]", one) for one in (content.get(key), value) if isinstance(one, Mapping)]
            content[key] = merged(groups) if len(groups) == 2 else value
    return content


def stages_of(part: Part, mined: Any) -> dict[str, str]:
    """What a training reads: examples of `mined`, all else of the part, whose labels are true."""
    stages = {name: resolve(part.experiment)[name].fingerprint for name in READ}
    return {**stages, "mine": resolve(mined)["mine"].fingerprint}


def task_name(part: Part, condition: str, seed: int) -> str:
    """Of one training."""
    return f"label-free-{part.name}-{condition}-s{seed}"


def prepare(plan: Plan, given: argparse.Namespace) -> LabelFree:
    """What the command line leaves of the plan, every experiment with true labels validated. Raises ConfigError."""
    folders = harness.folders(given.data, plan.collections)
    conditions = tuple(filter(None, (given.conditions or "").split(","))) or tuple(plan.conditions)
    if strangers := [name for name in conditions if name not in plan.conditions]:
        raise ConfigError(
            f"no condition is called {', '.join(strangers)}",
            "--conditions",
            f"choose from {', '.join(plan.conditions)}",
        )
    chosen = set(filter(None, (given.collections or "").split(",")))
    parts: list[Part] = []
    folder: dict[str, Path] = {}
    for name, one in plan.collections.items():
        corpus_settings = one.settings.get("corpus", {})
        if (name not in folders and corpus_settings.get("reader") is None) or (chosen and name not in chosen):
            continue
        place = Path(given.root) / FOLDER / "collections" / name
        if name in folders:
            paths = halves(str(folders[name]), place) if one.halves else [Path(folders[name])]
            paths = [judged_queries(path, place / f"judged-{number}") for number, path in enumerate(paths)]
        else:
            paths = [exported(validate({"corpus": corpus_settings}, f"the study, {name}").corpus, place)]
        settings = {key: value for key, value in one.settings.items() if key != "corpus"}
        plan.collections[name] = one.model_copy(update={"settings": settings})
        for number, path in enumerate(paths):
            own = {"corpus": {"reader": "beir", "path": str(path)}, "execution": {"root": given.root}}
            content = merged([plan.settings, settings, own])
            part = Part(
                name, number, validate({**content, "name": f"label-free-{name}-{number}"}, f"the study, {name}")
            )
            parts.append(part)
            folder[part.name] = path
    if not parts:
        raise ConfigError("no collection is left", "--data", "give --data NAME=FOLDER")
    return LabelFree(plan, tuple(parts), folder, conditions, given.seeds, str(given.root))


@dataclass(frozen=True)
class Values:
    """nDCG@10 by (collection, condition), float64[S, Q], queries by part and id: alone, and fused by even weights."""

    alone: Mapping[tuple[str, str], Reals]
    fused: Mapping[tuple[str, str], Reals]


def values_of(of: LabelFree) -> Values:
    """Measure every run."""
    alone: dict[tuple[str, str], Reals] = {}
    fused: dict[tuple[str, str], Reals] = {}
    for collection, parts in by_collection(of.parts).items():
        read = [Material(of.root, stages_of(part, part.experiment)) for part in parts]
        for condition in (UNTRAINED, *of.conditions):
            rows = []
            for seed in range(of.seeds_of(condition)):
                names = [task_name(part, condition, seed) for part in parts]
                each = [_measured(one, name, of) for one, name in zip(read, names, strict=True)]
                rows.append([np.concatenate(values) for values in zip(*each, strict=True)])
            single, both, control = (np.stack(values) for values in zip(*rows, strict=True))
            alone[collection, condition] = single
            fused[collection, condition] = both
            alone[collection, CONTROL] = control[:1]
    return Values(alone, fused)


def _measured(of: Material, name: str, study: LabelFree) -> tuple[Reals, ...]:
    """Its test queries' values of the system alone, fused by even weights, and of both retrievers without it."""
    run = of.of_split(pq.read_table(run_file(study.root, name)), "test")
    hybrid, *partners = (of.system(system, "test") for system in ("hybrid", "bm25", "dense"))
    without = (0.0, 0.5, 0.5)
    both, control = (fusion.fuse(run, hybrid, one, study.plan.depth, "fused", partners) for one in (EVEN, without))
    judged = of.of_split(of.qrels, "test")
    return tuple(measures.evaluate(one, judged, [MEASURE])["value"].to_numpy() for one in (run, both, control))


def mined_counts(of: LabelFree) -> Table:
    """What judges confirmed: of a condition's examples how many anchors are truly relevant."""
    rows = []
    for part in of.parts:
        truth = Material(of.root, stages_of(part, part.experiment))
        known = truth.qrels.filter(pc.greater(truth.qrels["grade"], 0))
        relevant = set(zip(known["query_id"].to_pylist(), known["doc_id"].to_pylist(), strict=True))
        train = pc.sum(pc.equal(truth.queries["split"], "train")).as_py()
        for condition in of.conditions:
            read = Material(of.root, stages_of(part, of.experiment(part, condition)))
            queries = read.examples["query_id"].to_pylist()
            lists = read.examples["doc_ids"].to_pylist()
            weights = read.examples["weights"].to_pylist()
            right = np.mean([(query, docs[0]) in relevant for query, docs in zip(queries, lists, strict=True)])
            share = len(set(queries)) / train
            negatives = [(weight, (query, doc) in relevant)
                         for query, docs, own in zip(queries, lists, weights, strict=True)
                         for doc, weight in zip(docs[1:], own[1:], strict=True)]  # fmt: skip
            weight, false = np.array(negatives).T
            cells = (
                f"{train:,}",
                f"{share:.0%}",
                f"{len(queries):,}",
                f"{right:.0%}",
                f"{weight @ false / weight.sum():.1%}",
            )
            rows.append((part.name, condition, *cells))
    columns = ("part", "condition", "train queries", "of them with an anchor", "anchors", "of them labelled relevant",
               "weight of negatives that is")  # fmt: skip
    return Table("What was learned from", columns, rows)


def levels_table(of: LabelFree, values: Values, collection: str) -> Table:
    """Every condition of a collection."""
    rows = [(CONTROL, harness.interval(contrast(CONTROL, "", [values.alone[collection, CONTROL]])), "", "", "")]
    for condition in (UNTRAINED, *of.conditions):
        cells = []
        for every in (values.alone, values.fused):
            one = every[collection, condition]
            cells += [
                harness.interval(contrast(condition, "", [one])),
                " ".join(f"{value:.3f}" for value in one.mean(1)),
            ]
        rows.append((condition, *cells))
    queries = values.alone[collection, CONTROL].shape[1]
    columns = ("condition", "alone", "by seed", "fused", "by seed")
    return Table(f"{collection}, {MEASURE}, {queries} test queries, depth {of.plan.depth}", columns, rows)


def recovered(values: Mapping[tuple[str, str], Reals], within: Sequence[str], condition: str) -> str:
    """The share of labels' gain over the untrained start, with a 95 % interval over resampled queries."""
    names = (condition, LABELS, UNTRAINED)
    mean_CQ = [np.concatenate([values[one, name].mean(0) for one in within]) for name in names]
    own, labels = mean_CQ[0] - mean_CQ[2], mean_CQ[1] - mean_CQ[2]
    generator = rng("label-free", *within, condition)
    drawn = generator.integers(0, len(own), (2000, len(own)))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = own[drawn].mean(1) / labels[drawn].mean(1)
    low, high = np.nanquantile(shares, [0.025, 0.975])
    return f"{own.mean() / labels.mean():.0%} [{low:.0%}, {high:.0%}]" if labels.mean() > 0 else "labels gain nothing"


def results(of: LabelFree, values: Values, found: Mapping[str, Mapping[str, Any]]) -> Results:
    """Levels, differences from the untrained start, from pseudo-labels and from labels, shares recovered."""
    collections = list(by_collection(of.parts))
    tables = [levels_table(of, values, name) for name in collections]
    scopes = {"all collections": collections} if len(collections) > 1 else {}
    scopes |= {name: [name] for name in collections}
    differences: dict[str, Any] = {}
    for kind, every in (("alone", values.alone), ("fused", values.fused)):
        for reference in (UNTRAINED, PSEUDO, LABELS):
            compared = [name for name in of.conditions if name != reference]
            if reference != UNTRAINED and reference not in of.conditions:
                continue
            rows: list[Contrast] = []
            for scope, within in scopes.items():
                for name in compared:
                    strata = [_less(every[one, name], every[one, reference]) for one in within]
                    rows.append(contrast(f"{scope}: {name}", reference, strata, _ROUNDS))
            corrected = family(rows)
            title = f"{kind.capitalize()}, less {reference}"
            differences[title] = [asdict(one) for one in corrected]
            tables.append(harness.contrasts_table(title, corrected))
    if LABELS in of.conditions:
        others = [name for name in of.conditions if name != LABELS]
        rows_of = [
            (scope, *(recovered(values.alone, within, name) for name in others)) for scope, within in scopes.items()
        ]
        tables.append(Table("Recovered of what labels gain, alone", ("", *others), rows_of))
    tables.append(mined_counts(of))
    levels = {f"{kind}: {collection} {name}": rows.mean(1).tolist()
              for kind, every in (("alone", values.alone), ("fused", values.fused))
              for (collection, name), rows in every.items()}  # fmt: skip
    return Results(tables, of.refused, {"levels": levels, "differences": differences, "costs": dict(found)})


def _less(rows: Reals, other: Reals) -> Reals:
    """Seed by seed; a reference that is trained once is taken from every seed."""
    if len(other) == 1:
        return rows - other
    seeds = min(len(rows), len(other))
    return rows[:seeds] - other[:seeds]


def _judged(of: LabelFree) -> LabelFree:
    """Every condition's examples are made; a condition that a run refuses, for its judges tell nothing, is left out."""
    refused: dict[str, str] = {}
    for part in of.parts:
        for name in of.conditions:
            try:
                harness.make_mined([of.experiment(part, name)])
            except JudgeError as error:
                refused.setdefault(name, f"{part.name}: {name} is refused, {error.message}")
    kept = tuple(name for name in of.conditions if name not in refused)
    return replace(of, conditions=kept, refused=tuple(refused.values()))


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = harness.parser(STUDY, seeds=5, data=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--conditions", help="some of the conditions, by commas")
    parser.add_argument("--collections", help="some of the collections, by commas")
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained; train nothing")
    given = parser.parse_args(words)

    def run() -> Results | None:
        of = prepare(harness.read_settings(Plan, given.config), given)
        count = sum(of.seeds_of(name) for name in (UNTRAINED, *of.conditions)) * len(of.parts)
        print(
            f"{count} trainings of {', '.join((UNTRAINED, *of.conditions))} on {len(of.parts)} collections and halves\n"
        )
        if given.dry_run:
            return None
        harness.make_mined([part.experiment for part in of.parts])
        of = _judged(of)
        out = Store(str(Path(given.root) / FOLDER / "trainings"))
        found = harness.work_side_by_side(of.tasks(), partial(work, of.root), out, given.workers)
        return results(of, values_of(of), found)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
