"""TREC runs of anyone's, measured against a collection's qrels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import RUN


@dataclass(frozen=True)
class Evaluation:
    """Comparison rows of every run, the first being the baseline."""

    comparisons: list[dict[str, Any]]
    measures: list[str]
    baseline: str


def evaluate(
    collection: Path, run_files: Sequence[Path], split: str, names: list[str], say: Callable[[str], None] | None = None
) -> Evaluation:
    """Measure TREC runs against `qrels/<split>.tsv`; the first system is what the others are compared with.

    A system is a tag of a file, called by the tag, or FILE:TAG where several files have it. Scores decide, and equal
    ones go as in trec_eval. `say` is told once of each file whose ranks contradict its scores, and of malformed
    qrels, which are left out. Raises DataError where these are more than one in a hundred, and where a file holds no
    ranking or none of a judged query, ConfigError where a file or a measure is given twice.
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.evaluation import measures, significance

    qrels = lookup.read_qrels(str(collection), split, say)
    tables = _systems(run_files, say)
    labels = list(tables)
    judged = pc.unique(qrels["query_id"])
    for label, table in tables.items():
        if not pc.any(pc.is_in(table["query_id"], value_set=judged)).as_py():
            queries = len(pc.unique(table["query_id"]))
            raise DataError(
                f"none of its {queries:,} queries is judged in {collection}/qrels/{split}.tsv",
                f"run {label}",
                "give the collection that the run was made on, or another --split: ids must agree",
            )
    metrics = measures.evaluate(pa.concat_tables(tables.values()), qrels, names, labels)
    rows = [asdict(row) for name in names for row in significance.compare(metrics, labels[0], labels, name)]
    return Evaluation(rows, names, labels[0])


def _systems(run_files: Sequence[Path], say: Callable[[str], None] | None) -> dict[str, pa.Table]:
    """The Run table of every tag of every file, by the system's name."""
    from anmi_ray.tables import trec

    tagged: list[tuple[Path, str, pa.Table]] = []
    for at, path in enumerate(run_files):
        if path.resolve() in [earlier.resolve() for earlier in run_files[:at]]:
            raise ConfigError("--run names it twice", str(path), "name each file once")
        run = trec.read_run(path, "trec_eval", say)
        if not run.num_rows:
            raise DataError("holds no ranking", str(path), "give a TREC run file")
        tags = pc.unique(run["system"]).to_pylist()
        tagged += [(path, tag, run.filter(pc.equal(run["system"], tag))) for tag in tags]
    files = Counter(tag for _, tag, _ in tagged)
    names = [tag if files[tag] == 1 else f"{path.stem}:{tag}" for path, tag, _ in tagged]
    if len(set(names)) < len(names):
        names = [f"{path}:{tag}" for path, tag, _ in tagged]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"two systems would be called {twice[0]}", "--run", "rename a tag or a file")
    return {
        name: RUN.table({**{c: run[c] for c in run.column_names}, "system": [name] * run.num_rows})
        for name, (_, _, run) in zip(names, tagged, strict=True)
    }
