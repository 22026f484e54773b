"""What do judges alone achieve, where no train query is labelled?

    python -m jobs.studies.label_free [--data scifact=FOLDER] [--data npl=FOLDER] ... [--dry-run]

Every condition trains the same student from the same weights on the same train queries, and ranks the hybrid's top
documents of the same test queries. `labels`: train queries have their known positives, negatives come from a window of
the retriever's ranks, no judge is heard: what most would do who have labels. `pseudo-labels`: P(relevant) from rank and
similarity alone (`mine.anchors: retrieved`). `judges-N`: labels are hidden; a judge who puts N % of pairs of a relevant
and another candidate right compares and confirms, and half of the variance of its errors is a lasting misreading of
documents, which no further question averages away; `panel-N` are three such judges, each with errors of its own.
`untrained` is the start, bm25+dense the fusion of both retrievers. A collection of test queries alone (`halves`) is cut
in two, each half trained on for the other. Nothing is chosen on test; settings are the quickstart's. `fused` is the
mean of a system's score and of bm25+dense, weights fixed.

To read: Recovered is what a condition gains over the untrained start, as a share of what true labels gain; its interval
is over resamples of queries. Intervals of differences are over queries, and over queries and seeds. Questions are what
judges were asked, each about a pair in one order or about one document: what a panel costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anmi_ray.core.identity import rng
from anmi_ray.evaluation import fusion, measures
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Artifact, Store
from jobs.studies import harness
from jobs.studies.collected import Part, by_collection
from jobs.studies.conditions import (
    LABELS,
    UNTRAINED,
    LabelFree,
    Plan,
    arguments,
    prepare,
    stages_of,
    task_name,
    trained,
)
from jobs.studies.harness import Results, Table
from jobs.studies.student_training import Material, run_file

STUDY = harness.study("label_free", "Without labels", __doc__ or "")
MEASURE = "nDCG@10"
CONTROL, PSEUDO = "bm25+dense", "pseudo-labels"
EVEN = (0.5, 0.25, 0.25)  # of the system, BM25 and dense
_ROUNDS = 10_000
Reals = NDArray[np.float64]


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
        read = [Material(of.root, stages_of(part.experiment)) for part in parts]
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
        for condition in of.conditions:
            truth = of.truth(part, condition)
            train = pc.sum(pc.equal(truth.queries["split"], "train")).as_py()
            read = Material(of.root, stages_of(part.experiment, of.experiment(part, condition)))
            queries = read.examples["query_id"].to_pylist()
            lists = read.examples["doc_ids"].to_pylist()
            weights = read.examples["weights"].to_pylist()
            right = np.mean([(query, docs[0]) in truth.relevant for query, docs in zip(queries, lists, strict=True)])
            share = len(set(queries)) / train
            negatives = [(weight, (query, doc) in truth.relevant)
                         for query, docs, own in zip(queries, lists, weights, strict=True)
                         for doc, weight in zip(docs[1:], own[1:], strict=True)]  # fmt: skip
            weight, false = np.array(negatives).T
            cells = (
                f"{train:,}",
                f"{share:.0%}",
                f"{len(queries):,}",
                f"{right:.0%}",
                f"{weight @ false / weight.sum():.1%}",
                f"{questions(of, part, condition):,}",
            )
            rows.append((part.name, condition, *cells))
    columns = ("part", "condition", "train queries", "of them with an anchor", "anchors", "of them labelled relevant",
               "weight of negatives that is", "questions")  # fmt: skip
    return Table("What was learned from", columns, rows)


def questions(of: LabelFree, part: Part, condition: str) -> int:
    """How many judges were asked, about pairs and about documents; none where no judge is heard."""
    if of.plan.conditions[condition].positives != "judges":
        return 0
    stages = resolve(of.experiment(part, condition))
    asked = [Artifact(Store(of.root), one, stages[one].fingerprint) for one in ("judge", "confirm") if one in stages]
    flows = [flow for one in asked for flow in (one.manifest() or {})["flows"]]
    return sum(int(flow["rows_in"]) for flow in flows if flow["unit"] == "judgments")


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
    """The share of labels' gain over the untrained start, with a 95 % interval over resampled queries.

    Of a gain that is not told from nothing there is no share.
    """
    names = (condition, LABELS, UNTRAINED)
    mean_CQ = [np.concatenate([values[one, name].mean(0) for one in within]) for name in names]
    own, labels = mean_CQ[0] - mean_CQ[2], mean_CQ[1] - mean_CQ[2]
    generator = rng("label-free", *within, condition)
    drawn = generator.integers(0, len(own), (2000, len(own)))
    gains = labels[drawn].mean(1)
    if np.quantile(gains, 0.025) <= 0:
        return "labels gain nothing that is told"
    low, high = np.quantile(own[drawn].mean(1)[gains > 0] / gains[gains > 0], [0.025, 0.975])
    return f"{own.mean() / labels.mean():.0%} [{low:.0%}, {high:.0%}]"


def results(of: LabelFree, values: Values, found: Mapping[str, Mapping[str, Any]]) -> Results:
    """Levels, differences from the untrained start, from pseudo-labels and from labels, shares recovered."""
    collections = list(by_collection(of.parts))
    tables = [levels_table(of, values, name) for name in collections]
    scopes = harness.scopes_of(collections)
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


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = arguments(STUDY, seeds=5)
    parser.add_argument("--conditions", help="some of the conditions, by commas")
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
        of, found = trained(of, given.workers)
        return results(of, values_of(of), found)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
