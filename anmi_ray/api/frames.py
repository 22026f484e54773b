"""Experiments over tables in memory: a notebook's documents, queries and labels, and a function as judge.

Tables are written below the root, where runs read them and find them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from numbers import Real
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

from anmi_ray.core.errors import ConfigError, DataError, from_file_error
from anmi_ray.core.identity import digest

if TYPE_CHECKING:
    from anmi_ray.api.runs import Run
    from anmi_ray.config.experiment import Experiment

# (query, first document, second document) -> preference for the first, 0 to 1.
JudgeFunction: TypeAlias = Callable[[str, str, str], float]
_KEYS = ("query_id", "doc_a", "doc_b", "order")


def experiment_of(
    documents: Any, queries: Any, labels: Any, judge: str | JudgeFunction, root: str, settings: Mapping[str, Any]
) -> Experiment:
    """Return the experiment over tables whose columns are recognized as `anmi init` does.

    A function as judge is asked about the pairs of the experiment (`answered_by`). Raise ConfigError or DataError.
    """
    from anmi_ray.api import starting
    from anmi_ray.config.load import with_settings

    name = str(settings.get("name", "search"))
    if "://" in root or not re.fullmatch(r"[\w-]+", name):
        what = f"expected a local root and a name of letters, digits and hyphens, got {root} and {name}"
        raise ConfigError(what, "anmi_ray.run", "anmi_ray.run(..., name='search', root='results')")
    folder = Path(root).absolute() / "tables" / name
    tables = {"documents": ("text", documents), "queries": ("query", queries), "labels": ("", labels)}
    files = [_write(folder / f"{part}.parquet", table, column) for part, (column, table) in tables.items()]
    if files[0] is None or files[1] is None:
        raise ConfigError("expected documents and queries", "anmi_ray.run", "anmi_ray.run(documents=..., queries=...)")
    corpus, _ = starting.corpus_of(files[0], files[1], files[2], folder, {}, None, {})
    panel = starting.judge_of(judge, None) if isinstance(judge, str) else {"kind": "similarity", "name": "similarity"}
    content = starting.settings_of(name, corpus, panel, None)
    content["execution"] = {"root": root}
    if not isinstance(judge, str):
        content["mine"]["anchors"] = "rated"  # it compares, and is asked about no document alone
        content.pop("evaluate", None)
    return with_settings(content, settings, "anmi_ray.run")


def _write(file: Path, table: Any, column: str) -> Path | None:
    """Write a table as Parquet; a list of texts as its only column."""
    from anmi_ray.tables import formats
    from anmi_ray.tables.rows import rows_of

    if table is None:
        return None
    if isinstance(table, list | tuple):
        table = {column: [str(text) for text in table]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_file_error(error, str(file)) from None
    formats.write_table(rows_of(table).table, file)
    return file


def answered_by(judge: JudgeFunction, experiment: Experiment, compared: Run) -> Experiment:
    """Ask `judge` about each pair of the run `compared`, both ways, and return the experiment with its answers.

    Answers are appended to a file as they come: a function of the same code is not asked again, also after an
    interruption. Raise DataError for an answer other than a number from 0 to 1.
    """
    from anmi_ray.config.load import with_settings

    name = getattr(judge, "__name__", type(judge).__name__)
    content = digest("judge", name, _text_of(getattr(judge, "__code__", None))).hex()[:8]
    named = re.sub(r"\W+", "-", name).strip("-") or "judge"
    file = Path(experiment.execution.root).absolute() / "tables" / experiment.name / f"{named}-{content}.jsonl"
    _ask(judge, f"judge {name}", compared, file)
    imported = {"kind": "imported", "name": named, "path": str(file)}
    return with_settings(experiment.model_dump(exclude_unset=True), {"judge": {"judges": [imported]}}, f"judge {name}")


def _text_of(constant: object) -> str:
    """Return a text of code or of a constant in it that is the same in every process."""
    if isinstance(constant, CodeType):
        return repr((constant.co_code, constant.co_names, [_text_of(one) for one in constant.co_consts]))
    return repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


def _ask(judge: JudgeFunction, place: str, compared: Run, file: Path) -> None:
    known: set[tuple[str, ...]] = set()
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError):  # of a line that was cut off
            known.add(tuple(json.loads(line)[name] for name in _KEYS))
    tables = zip(*(compared.buckets(name) for name in ("comparisons", "queries", "texts")), strict=True)
    with file.open("a", encoding="utf-8") as out:
        out.write("\n")
        for pairs, queries, texts in tables:
            query = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
            shown = {row["doc_id"]: f"{row['title']}\n{row['text']}".strip() for row in texts.to_pylist()}
            for pair, order in product(pairs.select(_KEYS[:3]).to_pylist(), ("ab", "ba")):
                row = {**pair, "order": order}
                if tuple(row.values()) in known:
                    continue
                a, b = shown[row["doc_a"]], shown[row["doc_b"]]
                preference = judge(query[row["query_id"]], *((a, b) if order == "ab" else (b, a)))
                if not isinstance(preference, Real) or not 0 <= preference <= 1:
                    what = f"expected a number from 0 to 1, got {preference!r}"
                    raise DataError(what, place, "return the preference for the first document; 0.5 is a tie")
                row["preference"] = float(preference if order == "ab" else 1 - preference)
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                out.flush()
