"""Which rule of mining holds where unlabelled documents are relevant, 0, 10 and 30 % of a query's candidates?

    python -m jobs.studies.copies [--seeds 5]

Worlds are made of the quickstart's collection: 300 train queries have one known document each, and beside it stand 0, 4
or 12 copies of it that nobody labelled, each with 30 to 70 % of its words, drawn by hash. They are as relevant as the
known one: what nobody's labels say and judges may find out. Test queries, their labels and the documents that are
ranked for them are the collection's own in every world, so that worlds differ in what is learned alone.

`top`, `window`, `random`: the known document is the positive, no judge is heard, negatives are the retriever's first,
its ranks from 11 on (what most libraries do), or random documents. `judged-...`: no label is known; three simulated
judges of 80 % compare and confirm, positives are what they confirm, and negatives come from ranks from 11 on
(`judged-window`) or by ratings: the gate of P(false negative) at most .05, and the recipes `anmi2` and
`anmi2-extended` with their losses and curricula. Every training reads equally many lists, from the same start; nothing
is chosen on test.

To read: `copies-30` is the world with twelve copies a query, of which not all are among its candidates. What planted
documents take is told of the same condition, queries and seeds. Weight of negatives that is labelled relevant counts
copies, which training did not know: false negatives. A difference below the smallest to be detected says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, QREL
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.stages.ingest import HIDDEN
from anmi_ray.store import Artifact, Store
from jobs.studies import conditions, harness, label_free
from jobs.studies.collected import Grade, Part, all_parts, view
from jobs.studies.conditions import UNTRAINED, LabelFree, stages_of
from jobs.studies.harness import Results, Table
from jobs.studies.label_free import Values
from jobs.studies.student_training import Material

STUDY = harness.study("copies", "Rules of mining among relevant copies", __doc__ or "")
FOLDER = "studies/copies"
Reals = NDArray[np.float64]


class CopiesPlan(conditions.Plan):
    """What copies.yaml says."""

    queries: int = Field(ge=1, description="train queries, drawn by hash")
    kept: tuple[float, float] = Field(description="least and largest share of its words that a copy has")
    shares: tuple[float, ...] = Field(min_length=1, description="of candidates that are relevant and unlabelled")
    references: tuple[str, ...] = Field(description="conditions that others of a world are compared with")


@dataclass(frozen=True)
class Copies(LabelFree):
    """A part is a world: `worlds` by its name has all documents that are relevant, `known` one of each query."""

    plan: CopiesPlan
    worlds: Mapping[str, Path] = field(default_factory=dict[str, Path])
    known: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def learned_from(self, part: Part, condition: str) -> Path:
        return self.worlds[part.name]

    def one_label(self, part: Part) -> Path:
        return self.known[part.name]

    def truth(self, part: Part, condition: str) -> Material:
        """All that is relevant: what the panel of the world is told."""
        return _Told(self.root, stages_of(self.experiment(part, self.judged)))

    @property
    def judged(self) -> str:
        """A condition whose labels are hidden."""
        return next(name for name in self.conditions if self.plan.conditions[name].positives == "judges")


class _Told(Material):
    """A collection whose labels only a simulated panel is told."""

    @cached_property
    def qrels(self) -> pa.Table:
        return self._all("ingest", HIDDEN, QREL)


def copies_of(share: float, candidates: int) -> int:
    """Copies of a query's known document that make up a share of its other candidates."""
    return round(share * (candidates - 1))


def world(source: Path, place: Path, copies: int, plan: CopiesPlan) -> tuple[Path, Path]:
    """The collection with copies, all of them labelled, and the same with the known documents alone.

    Neither has a query or a label of dev or test.
    """
    files = BeirFiles(str(source))
    known: dict[bytes, Grade] = {}
    for query, document, grade in files.grades("qrels/train.tsv"):
        if grade > 0:
            known.setdefault(identity.query_id(query), (query, document, 1))
    sampled = [known[one] for one in identity.hash_sample(sorted(known), plan.queries, "copies")]
    copied = {document: [f"{document}~copy-{number}" for number in range(copies)] for _, document, _ in sampled}
    asked = {query for query, _, _ in sampled}
    documents: list[dict[str, str]] = []
    for name, title, text in files.documents():
        documents.append({"_id": name, "title": title, "text": text})
        for copy in copied.get(name, ()):
            documents.append({"_id": copy, "title": title, "text": thinned(text, copy, plan.kept)})
    _write(place / "corpus.jsonl", documents)
    _write(place / "queries.jsonl", ({"_id": name, "text": text} for name, text in files.queries() if name in asked))
    every = [(query, name, 1) for query, document, _ in sampled for name in (document, *copied[document])]
    alone = place.with_name(f"{place.name}-known")
    return view(str(place), place, {"train": every}), view(str(place), alone, {"train": sampled})


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def thinned(text: str, name: str, kept: tuple[float, float]) -> str:
    """A share of a text's words in their order, drawn by the copy's name; the whole text where no word is left."""
    draw = identity.rng("copies", name)
    share = draw.uniform(*kept)
    words = text.split()
    return " ".join(word for word, drawn in zip(words, draw.random(len(words)), strict=True) if drawn < share) or text


def planted_table(of: Copies) -> Table:
    """What stands in the candidates of train queries whose labels are hidden."""
    rows = []
    for part in of.parts:
        stages = resolve(of.experiment(part, of.judged))
        store = Store(of.root)
        count = int((Artifact(store, "ingest", stages["ingest"].fingerprint).manifest() or {})["buckets"])
        found = all_parts(Artifact(store, "retrieve", stages["retrieve"].fingerprint), "candidates", CANDIDATE, count)
        found = found.filter(pc.is_valid(found["rank"]))
        truth = of.truth(part, of.judged)
        labels = truth.qrels
        relevant = set(zip(labels["query_id"].to_pylist(), labels["doc_id"].to_pylist(), strict=True))
        pairs = zip(found["query_id"].to_pylist(), found["doc_id"].to_pylist(), strict=True)
        right = np.array([pair in relevant for pair in pairs])
        queries = len(set(found["query_id"].to_pylist()))
        others = (right.sum() - queries) / (len(right) - queries)
        rows.append((part.name, f"{truth.documents.num_rows:,}", f"{queries:,}", f"{len(right) / queries:.1f}",
                     f"{max(0.0, others):.1%}"))  # fmt: skip
    columns = ("world", "documents", "train queries", "candidates each", "of the others relevant")
    return Table("What was planted, the known document of every query aside", columns, rows)


def by_world(of: Copies, values: Values, less: str) -> list[Contrast]:
    """Every condition less another, world by world, and of their mean over the worlds."""
    compared = [name for name in of.conditions if name != less]
    scopes = {part.name: [part] for part in of.parts}
    if len(of.parts) > 1:
        scopes["mean of all worlds"] = list(of.parts)
    rows = []
    for scope, parts in scopes.items():
        for name in compared:
            each = [_difference(values, part, name, part, less) for part in parts]
            rows.append(contrast(f"{scope}: {name}", less, [np.mean(each, axis=0)]))
    return rows


def _difference(values: Values, part: Part, name: str, other: Part, less: str) -> Reals:
    """Seed by seed, float64[S, Q]; what is trained once is taken from every seed."""
    difference: Reals = values.alone[part.collection, name] - values.alone[other.collection, less]
    return difference


def results(of: Copies, values: Values, found: Mapping[str, Mapping[str, object]]) -> Results:
    """Levels, differences within the worlds, what planted documents take, and what was learned from."""
    tables = [label_free.levels_table(of, values, part.collection) for part in of.parts]
    differences: dict[str, list[dict[str, object]]] = {}
    families = {f"Less {name}": by_world(of, values, name) for name in (UNTRAINED, *of.plan.references)}
    clean, *others = of.parts
    families["What planted documents take"] = [
        contrast(f"{name}: {part.name}", clean.name, [_difference(values, part, name, clean, name)])
        for part in others
        for name in of.conditions
    ]
    sds: dict[str, float] = {}
    for title, rows in families.items():
        corrected = family(rows)
        tables.append(harness.contrasts_table(title, corrected))
        differences[title] = [asdict(one) for one in corrected]
        sds[title] = float(np.mean([one.query_sd for one in corrected]))
    queries = int(values.alone[clean.collection, UNTRAINED].shape[1])
    most = max(len(rows) for rows in families.values())
    scopes = {title: [title] for title in families}
    tables.append(harness.detectable_table("as observed", scopes, sds, dict.fromkeys(families, queries), most))
    tables += [planted_table(of), label_free.mined_counts(of)]
    levels = {f"{part.name} {name}": values.alone[part.collection, name].mean(1).tolist()
              for part in of.parts for name in (UNTRAINED, *of.conditions)}  # fmt: skip
    return Results(tables, of.refused, {"levels": levels, "differences": differences, "costs": dict(found)})


def worlds(whole: LabelFree, plan: CopiesPlan) -> Copies:
    """A world for every share, each tested on the collection's own test queries."""
    [source] = whole.parts
    candidates = source.experiment.retrieve.candidates
    parts, made = [], {}
    for share in plan.shares:
        part = replace(source, collection=f"copies-{round(100 * share)}")
        parts.append(part)
        place = Path(whole.root) / FOLDER / part.name
        made[part.name] = world(whole.folder[source.name], place, copies_of(share, candidates), plan)
    collections = {part.collection: whole.plan.collections[source.collection] for part in parts}
    return Copies(
        **{
            **vars(whole),
            "plan": plan.model_copy(update={"collections": collections}),
            "parts": tuple(parts),
            "folder": {part.name: whole.folder[source.name] for part in parts},
            "worlds": {name: both[0] for name, both in made.items()},
            "known": {name: both[1] for name, both in made.items()},
        }
    )


def main(words: Sequence[str] | None = None) -> None:
    """Make the worlds, train what is missing, print the tables."""
    parser = conditions.arguments(STUDY, seeds=5)
    parser.set_defaults(config=Path(__file__).with_suffix(".yaml"))
    given = parser.parse_args(words)

    def run() -> Results:
        plan = harness.read_settings(CopiesPlan, given.config)
        of = worlds(conditions.prepare(plan, given), plan)
        of, found = conditions.trained(of, given.workers)
        return results(of, label_free.values_of(of), found)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
