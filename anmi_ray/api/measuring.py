"""Measure TREC runs against the relevance grades of a collection or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import RUN

if TYPE_CHECKING:
    from anmi_ray.config.corpus import OwnDocument
    from anmi_ray.corpus.lookup import Grades
    from anmi_ray.tables.trec import NamedRun

Say = Callable[[str], None]


def evaluate(
    collection: Path | None,
    run_files: Sequence[Path],
    split: str,
    measured: list[str],
    say: Say | None = None,
    qrels_file: Path | None = None,
    own_document: OwnDocument = "same-text",
    root: str = "results",
) -> dict[str, Any]:
    """Measure TREC runs against the grades of a collection's split, or a qrels file; the first system is the baseline.

    Return measures, the name of the baseline, and systems, a row per measure and system.

    collection: a BEIR folder, or the name of a run under `root`

    A system is a tag of a file, named by the tag, or FILE:TAG if several files share it. Scores decide, with ties as in
    trec_eval.

    say: receives messages about ranks that contradict scores, unknown ids, grades that are left out (malformed, or of
        unknown queries and documents), and documents that `own_document` leaves out

    Raise DataError if more than one grade in a hundred is malformed, half or more of the ids are unknown, or a file has
    no ranking or none of a judged query; ConfigError without grades and collection, or if a file or a measure repeats.
    """
    from anmi_ray.api.runs import collection_of
    from anmi_ray.corpus import lookup, own_documents
    from anmi_ray.corpus.reader import qrel_table
    from anmi_ray.evaluation import measures, significance
    from anmi_ray.tables import formats, trec

    formats.check_outputs({}, [*run_files, *([qrels_file] if qrels_file else [])])
    files = None if collection is None else collection_of(collection, root)
    if qrels_file is not None:
        place, grades = trec.place_of(qrels_file), lookup.graded_file(qrels_file, say)
    elif files is not None:
        place, grades = f"{files.place}/qrels/{split}.tsv", lookup.graded_split(files, split, say)
    else:
        raise ConfigError("expected grades or a collection", "--qrels", "add --qrels FILE or --collection FOLDER")
    runs = _read_runs(run_files, say)
    has_documents = files is not None and files.find_optional("corpus.jsonl") is not None
    if files is not None:
        grades = lookup.check_ids(files, {trec.place_of(at): run for at, run in runs.items()}, grades, say)
    systems = _systems(runs)
    labels = list(systems)
    for label, run in systems.items():
        _check_judged(run, grades, f"run {label}", place, say, documents=not has_documents)
    table, qrels = pa.concat_tables(run.table for run in systems.values()), qrel_table(grades)
    has_texts = files is not None and has_documents and files.find_optional("queries.jsonl") is not None
    texts = partial(lookup.read_texts, files) if files is not None and has_texts else None
    names = (name for run in runs.values() for name in run.documents)
    own = own_documents.find_in_run(table, names, own_document, texts, qrels, say)
    table, qrels = own_documents.leave_out(table, own), own_documents.without(qrels, own)
    metrics = measures.evaluate(table, qrels, measured, labels)
    rows = [asdict(row) for name in measured for row in significance.compare(metrics, labels[0], labels, name)]
    return {"measures": measured, "baseline": labels[0], "systems": rows}


def _check_judged(run: NamedRun, grades: Grades, label: str, place: str, say: Say | None, documents: bool) -> None:
    """Raise DataError if a run ranks no judged query, or document (`documents`); report ids that look changed."""
    from anmi_ray.corpus.ids import likely_change

    for kind, names, judged in (
        ("queries", run.queries.keys(), {query for query, _ in grades}),
        ("documents", run.documents.keys(), {document for _, document in grades}),
    )[: 1 + documents]:
        unjudged = names - judged
        change = likely_change(unjudged, judged - names)
        if len(unjudged) == len(names):
            raise DataError(
                f"none of its {len(names):,} {kind} is judged in {place}{change and f' ({change})'}",
                label,
                "write the ids of the grades" if change else "give the grades or the collection of the run",
            )
        if change and say is not None:
            say(f"{label}: {len(unjudged):,} of {len(names):,} {kind} are not judged in {place} ({change})")


def _read_runs(run_files: Sequence[Path], say: Say | None) -> dict[Path, NamedRun]:
    """Return the run of each file."""
    from anmi_ray.tables import trec

    runs: dict[Path, NamedRun] = {}
    for path in run_files:
        if path.resolve() in [earlier.resolve() for earlier in runs]:
            raise ConfigError("--ranking names it twice", str(path), "name each file once")
        runs[path] = trec.read_run(path, "trec_eval", say)
        if not runs[path].table.num_rows:
            raise DataError("holds no ranking", str(path), "give a TREC run file")
    return runs


def _systems(runs: Mapping[Path, NamedRun]) -> dict[str, NamedRun]:
    """Return the run of each tag of each file, by the system's name."""
    tagged = [(path, tag) for path, run in runs.items() for tag in pc.unique(run.table["system"]).to_pylist()]
    files = Counter(tag for _, tag in tagged)
    names = [tag if files[tag] == 1 else f"{path.stem}:{tag}" for path, tag in tagged]
    if len(set(names)) < len(names):
        names = [f"{path}:{tag}" for path, tag in tagged]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"two systems would be named {twice[0]}", "--ranking", "rename a tag or a file")
    systems: dict[str, NamedRun] = {}
    for name, (path, tag) in zip(names, tagged, strict=True):
        run = runs[path]
        table = run.table.filter(pc.equal(run.table["system"], tag))
        ids = {*table["query_id"].to_pylist(), *table["doc_id"].to_pylist()}
        queries, documents = ({n: key for n, key in known.items() if key in ids} for known in run[1:])
        columns = {column: table[column] for column in table.column_names}
        named = RUN.table({**columns, "system": [name] * table.num_rows})
        systems[name] = run._replace(table=named, queries=queries, documents=documents)
    return systems
