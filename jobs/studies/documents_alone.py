"""What does a reranker learn from documents alone, without one query or label?

    python -m jobs.studies.documents_alone --data scifact=FOLDER [--collections quickstart,scifact] [--seeds 2]

`made`: train queries are made of the documents (`anmi queries`, without a language model), each with the document that
it stands in, where it is masked, as the one that is relevant. `made-judged`: the same queries with that hidden; the
panel of 80 % of `panel-80` compares and confirms, and its truth is that document. `labels`: the collection's own train
queries with their true labels. Student, start, settings and the documents that are ranked are those of the study
without labels (jobs/studies/label_free.yaml), `made` being trained as `labels`. Made queries learn from a folder of
their own, which holds no query and no label of the collection; every condition ranks the documents as they are, of the
same test queries. `untrained` is the start, bm25+dense the fusion of both retrievers; `fused` is the mean of a system's
score and of bm25+dense, weights fixed. Nothing is chosen on test. The round trip asks that BM25 has a query's document,
the query masked in it, among its first ten.

To read: Recovered is what a condition gains over the untrained start, as a share of what true labels gain; its interval
is over resamples of queries. Of made queries "labelled relevant" means that the document is the query's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anmi_ray.api.queries import DEPTH, MadeQueries, make_queries
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.replicates import contrast, family
from jobs.studies import conditions, harness, label_free
from jobs.studies.collected import Part, view
from jobs.studies.conditions import LABELS, UNTRAINED, LabelFree, stages_of
from jobs.studies.harness import Results, Table
from jobs.studies.label_free import CONTROL, Values
from jobs.studies.student_training import Material

STUDY = harness.study("documents_alone", "Documents alone", __doc__ or "")
FOLDER = "studies/documents_alone"
MADE, MADE_JUDGED = "made", "made-judged"
_LIKE = {LABELS: "labels", MADE: "labels", MADE_JUDGED: "panel-80"}  # conditions of the study without labels


@dataclass(frozen=True)
class DocumentsAlone(LabelFree):
    """Conditions some of which learn from queries that were made, the collection in `made` by the part's name."""

    made: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def learned_from(self, part: Part, condition: str) -> Path:
        return super().learned_from(part, condition) if condition == LABELS else self.made[part.name]

    def truth(self, part: Part, condition: str) -> Material:
        experiment = part.experiment if condition == LABELS else self.experiment(part, MADE)
        return Material(self.root, stages_of(experiment))


def made_collection(source: Path, place: Path, number: int) -> Path:
    """Queries made of the documents in `source`, each labelled with its own; beside the folder stands what was made.

    Raises DataError where the documents give no query.
    """
    if (place / "qrels" / "train.tsv").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    alone = Experiment(corpus=CorpusConfig(reader="beir", path=str(source.resolve())))
    made = make_queries(alone, place, number, lambda _: None)
    record(place).write_text(json.dumps(counted(made)), encoding="utf-8")
    return view(str(place), place, {"train": [(one.query_id, one.source, 1) for one in made.queries]})


def record(place: Path) -> Path:
    """Where it stands what became of the candidates of a collection that was made."""
    return place.with_suffix(".json")


def counted(made: MadeQueries) -> dict[str, list[int]]:
    """By kind: candidates, those that BM25 searched, those whose document it found, those that are kept."""
    return {
        kind: [
            sum(counts.values()),
            sum(one.kind == kind for one in made.searched),
            sum(one.kind == kind and rank > 0 for one, rank in made.searched.items()),
            counts["kept"],
        ]
        for kind, counts in made.counts().items()
    }


def yield_table(of: DocumentsAlone) -> Table:
    """What the filter leaves, and what of it makes the round trip."""
    rows = []
    for part in of.parts:
        by_kind: dict[str, list[int]] = json.loads(record(of.made[part.name]).read_text(encoding="utf-8"))
        total = [sum(column) for column in zip(*by_kind.values(), strict=True)]
        for kind, (candidates, searched, found, kept) in {**by_kind, "all": total}.items():
            share = f"{found / searched:.0%}" if searched else ""
            rows.append((part.collection, kind, f"{candidates:,}", f"{searched:,}", share, f"{kept:,}"))
    columns = ("collection", "kind", "candidates", "searched", f"document in the first {DEPTH}", "kept")
    return Table("What was made, and the round trip", columns, rows)


def over_retrievers(of: DocumentsAlone, values: Values) -> Table:
    """Is the fused ranking better than that of both retrievers, which needs no training?"""
    found = [
        contrast(f"{part.collection}: {name}", CONTROL, [values.fused[part.collection, name]
                 - values.alone[part.collection, CONTROL]])
        for part in of.parts if part.number == 0
        for name in (UNTRAINED, *of.conditions)
    ]  # fmt: skip
    return harness.contrasts_table(f"Fused, less {CONTROL}", family(found))


def main(words: Sequence[str] | None = None) -> None:
    """Make queries, train what is missing, print the tables."""
    parser = conditions.arguments(STUDY, seeds=2)
    parser.add_argument("--number", type=int, default=1900, help="queries to make of each collection")
    given = parser.parse_args(words)

    def run() -> Results:
        plan = harness.read_settings(conditions.Plan, given.config)
        if missing := sorted(set(_LIKE.values()) - set(plan.conditions)):
            raise ConfigError(f"has no condition {', '.join(missing)}", str(given.config), "see label_free.yaml")
        plan = plan.model_copy(update={"conditions": {name: plan.conditions[like] for name, like in _LIKE.items()}})
        whole = conditions.prepare(plan, given)
        made = {name: made_collection(folder, Path(given.root) / FOLDER / f"{name}-{given.number}", given.number)
                for name, folder in whole.folder.items()}  # fmt: skip
        of, found = conditions.trained(DocumentsAlone(**vars(whole), made=made), given.workers)
        values = label_free.values_of(of)
        results = label_free.results(of, values, found)
        tables = [*results.tables, over_retrievers(of, values), yield_table(of)]
        return Results(tables, results.notes, results.values)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
