"""Recognize a user's documents, queries and labels: format, encoding, columns.

Files stay where they are. Only what the table reader cannot take is copied: pages of a folder, rows without an id,
queries without a header, and text that is not UTF-8.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from anmi_ray.api import pages
from anmi_ray.api.examples import examples
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import DataError, from_file_error
from anmi_ray.core.identity import digest
from anmi_ray.corpus import table
from anmi_ray.corpus.sources import File, files_of
from anmi_ray.tables.streams import COMPRESSIONS, LineError, guessed_encoding

# By role, a setting of corpus.columns, names of columns in lower case, the first one that exists.
NAMES = {
    "doc_id": (
        "_id", "id", "doc_id", "docid", "docno", "document_id", "uuid", "guid", "key", "sku", "product_id", "url",
    ),
    "title": ("title", "name", "headline", "subject", "heading", "product_title", "product_name"),
    "text": (
        "text", "body", "content", "contents", "passage", "description", "abstract", "document", "article", "answer",
    ),
    "query_id": ("query_id", "qid", "_id", "id"),
    "query": (
        "query", "text", "question", "search", "search_term", "search_query", "search_terms", "term", "keyword",
        "keywords", "q", "phrase",
    ),
}  # fmt: skip
_KINDS = table.TableReader.kinds + table.TableReader.query_kinds
_DOCUMENT = ("doc_id", "title", "text")
_QUERY = ("query_id", "query")
_SAMPLE = 1000  # rows that columns are recognized by
_HEAD = 1 << 20  # bytes that an encoding is recognized by
_SHOWN = 5  # rows
_WIDTH = 60  # characters of a cell
_HEADERS = (*NAMES["query"], "queries", "searches")  # of a log with one column
_TITLE = 200  # characters, and more than any title
_MEASURING = 300  # labelled queries that are all kept to measure
Skipped = dict[str, tuple[int, str]]  # by reason: number of rows, place of the first


@dataclass(frozen=True)
class Recognized:
    """A table as it was understood.

    path: of the file or folder to read, perhaps a copy.
    rows: the first ones, by role.
    columns: of the file, by role; unused: its other columns.
    copied: why it was copied, "" if it was not.
    skipped: rows that a copy lacks.
    """

    path: Path
    rows: list[dict[str, Any]]
    columns: dict[str, str] = field(default_factory=dict[str, str])
    unused: Sequence[str] = ()
    copied: str = ""
    skipped: Skipped = field(default_factory=dict[str, tuple[int, str]])

    def described(self, name: str) -> str:
        """Return a line about it, and one for each reason to skip rows."""
        columns = ", ".join(f"{role} = {column}" for role, column in self.columns.items() if role != column)
        why = f"copied to {self.path}, since {self.copied}" if self.copied else str(self.path)
        unused = f"not used: {', '.join(self.unused)} (--column ROLE=NAME uses one)" if self.unused else ""
        parts = filter(None, (f"{name}: {why}", columns, unused))
        return "\n".join(["; ".join(parts), *skipped_lines(name, self.skipped)])

    @property
    def shown(self) -> list[dict[str, str]]:
        """The first rows, each cell short."""
        return [{name: " ".join(str(value or "").split())[:_WIDTH] for name, value in row.items()} for row in self.rows]


def skipped_lines(name: str, skipped: Skipped) -> list[str]:
    """Return a line for each reason to skip rows of the table `name`."""
    return [f"{name}: rows skipped: {rows:,}, {why}; the first: {place}" for why, (rows, place) in skipped.items()]


def _readable(records: Iterable[tuple[str, Any]], skipped: Skipped) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of the rows that can be read; count the others."""
    for place, row in records:
        if isinstance(row, LineError):
            _skip(skipped, row.reason, place)
        else:
            yield place, row


def _skip(skipped: Skipped, why: str, place: str) -> None:
    rows, first = skipped.get(why, (0, place))
    skipped[why] = rows + 1, first


def beir(folder: Path) -> dict[str, Recognized]:
    """Return the first documents and queries of a folder in BEIR layout."""
    found: dict[str, Recognized] = {}
    for name, file in (("documents", "corpus.jsonl"), ("queries", "queries.jsonl")):
        if (folder / file).is_file():
            _, rows = _sampled(_file(folder / file, "utf-8"))
            rows = [{key: row[key] for key in ("_id", "title", "text") if key in row} for row in rows[:_SHOWN]]
            found[name] = Recognized(folder / file, rows)
    return found


def documents(path: Path, copies: Path, columns: Mapping[str, str], given: str | None) -> Recognized:
    """Recognize a table of documents or a folder of pages.

    copies: folder for what has to be copied.
    columns: the user's, by role.
    given: the user's encoding.
    Raises DataError.
    """
    if pages.is_folder_of_pages(path):
        return _copied(pages.documents(path, given), copies / "documents.jsonl", "its pages were split at headings", {})
    file = _file(path, given)
    names, rows = _sampled(file)
    chosen = _columns(names, rows, _DOCUMENT, columns, str(path))
    why = _unreadable(file) or ("" if "doc_id" in chosen else "its rows had no id")
    if not why:
        return _kept(path, names, rows, chosen)
    skipped: Skipped = {}
    rows_with_ids = _with_ids(_all(path, file.encoding, skipped), chosen, skipped)
    return _copied(rows_with_ids, copies / "documents.jsonl", why, skipped, _others(names, chosen))


def queries(path: Path, copies: Path, columns: Mapping[str, str], given: str | None) -> Recognized:
    """Recognize a table of queries or one query a line, as `documents` does."""
    file = _file(path, given)
    to = copies / "queries.jsonl"
    skipped: Skipped = {}
    if file.kind in (".csv", ".tsv"):
        lines = _readable(_searches(path, file.encoding), skipped)
        header = next((text for _, text in lines), "")
        if not re.search(r"[,;\t|]", header):
            is_query = header.lower() not in _HEADERS
            texts = ({"query": text} for text in chain([header] * is_query, (text for _, text in lines)) if text)
            return _copied(texts, to, "it had no header" if is_query else "searches may hold commas", skipped)
    names, rows = _sampled(file)
    records = _all(path, file.encoding, skipped)
    is_text = file.kind == ".txt"
    chosen = {"query": "query"} if is_text else _columns(names, rows, _QUERY, columns, str(path))
    why = _unreadable(file)
    if "query_id" not in chosen and any(name in NAMES["query_id"] for name in names):
        why = why or "its ids repeat"  # the reader would take them for the queries'
    if not why:
        return _kept(path, names, rows, {} if is_text else chosen)
    renamed = ({role: row[name] for role, name in chosen.items()} for _, row in records)
    return _copied(renamed, to, why, skipped, _others(names, chosen))


def _searches(path: Path, encoding: str) -> Iterator[tuple[str, str | LineError]]:
    """Yield the lines of a log with one column, without quotes around them; a search may hold the separator."""
    for file in files_of([str(path)], "documents", _KINDS, encoding):
        for place, line in file.lines():
            text = line if isinstance(line, LineError) else line.decode("utf-8", "replace").strip()
            yield place, ",".join(next(csv.reader([text]), [])) if isinstance(text, str) else text


def _unreadable(file: File) -> str:
    """Return why a file must be copied to be read as UTF-8; "" if it need not."""
    return "" if file.kind == ".parquet" or file.encoding == "utf-8" else f"it was in {file.encoding}"


def _kept(path: Path, names: Sequence[str], rows: list[dict[str, Any]], chosen: dict[str, str]) -> Recognized:
    shown = [{role: row[name] for role, name in chosen.items()} if chosen else row for row in rows[:_SHOWN]]
    return Recognized(path, shown, chosen, _others(names, chosen) if chosen else ())


def _others(names: Sequence[str], chosen: Mapping[str, str]) -> list[str]:
    return [name for name in names if name not in chosen.values()]


def labels(path: Path, copies: Path, skipped: Skipped) -> dict[str, str]:
    """Write grades of at most `_MEASURING` queries to test, else those of half of the queries, by hash, to train.

    Return files by split; count rows that cannot be read in `skipped`.
    """
    file = _file(path, None, any_file=True)
    reader = table.TableReader(
        CorpusConfig(reader="table", documents=(str(path),), queries=(str(path),)), documents_alone=True
    )
    grades = [row for _, row in _readable(reader.grades(file), skipped)]
    if not grades:
        raise DataError("expected rows of query, document and grade, got none", str(path), "see corpus.qrels")
    few = len({query for query, _, _ in grades}) <= _MEASURING
    splits = {query: "test" if few or digest("query", query)[0] < 128 else "train" for query, _, _ in grades}
    written: dict[str, str] = {}
    for split in sorted(set(splits.values())):
        rows = [f"{query}\t{document}\t{grade}" for query, document, grade in grades if splits[query] == split]
        written[split] = str(_write(copies / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *rows]))
    return written


def _file(path: Path, given: str | None, any_file: bool = False) -> File:
    """Return the first file of `path`, in the encoding that it is recognized to have."""
    if not path.exists():
        example = f"anmi init --example {path} writes that example" if str(path) in examples() else "check its name"
        raise DataError("no such file or folder", str(path), example)
    file = files_of([str(path)], "documents", _KINDS, given or "utf-8", any_file)[0]
    if given is not None or file.kind == ".parquet":
        return file
    with file.open(COMPRESSIONS.get(PurePosixPath(file.path).suffix.lower())) as stream:
        head = stream.read(_HEAD)
    try:
        (head if len(head) < _HEAD else head[: head.rfind(b"\n") + 1]).decode("utf-8")
        return file
    except UnicodeDecodeError:
        guess = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else guessed_encoding(head)
    if not guess:
        raise DataError("its encoding is not recognized", str(path), "add --encoding NAME")
    return files_of([str(path)], "documents", _KINDS, guess, any_file)[0]


def _sampled(file: File) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Return the columns and the first rows. Raises DataError if there is no row, or a column occurs twice."""
    names, records = table.all_columns(file)
    rows = [row for _, row in islice(records, _SAMPLE) if not isinstance(row, LineError)]
    if not rows:
        raise DataError("expected rows, got none that can be read", file.place, "check the file and --encoding")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"column {twice[0]!r} occurs {names.count(twice[0])} times", file.place, "rename one of them")
    return names, rows


def _all(path: Path, encoding: str, skipped: Skipped) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) of all rows of all files of `path` that can be read."""
    for file in files_of([str(path)], "documents", _KINDS, encoding):
        yield from _readable(table.all_columns(file)[1], skipped)


def _columns(
    names: Sequence[str], rows: list[dict[str, Any]], roles: Sequence[str], given: Mapping[str, str], place: str
) -> dict[str, str]:
    """Return columns by role: those that are given, else by name, else by what they hold. DataError without a text.

    The longest column is the text. Of documents, a first column of ids is the id, and the first other column of short
    texts, most of them different, the title.
    """
    chosen = {role: given[role] for role in roles if role in given}
    if missing := [name for name in chosen.values() if name not in names]:
        raise DataError(f"no column {missing[0]!r}; there are {', '.join(names)}", place, "correct --column")
    lower = {name.lower().strip(): name for name in names}
    for role in roles:
        usual = [lower[name] for name in NAMES[role] if name in lower and lower[name] not in chosen.values()]
        if role.endswith("_id"):  # of a query log it may be the user's
            usual = [name for name in usual if _is_id([row.get(name) for row in rows])]
        if role not in chosen and usual:
            chosen[role] = usual[0]
    main = roles[-1]
    if main not in chosen:
        free = [name for name in names if name not in chosen.values()]
        texts = {name: [row[name] for row in rows if isinstance(row.get(name), str)] for name in free}
        lengths = {
            name: sum(map(len, values)) for name, values in texts.items() if any(map(str.isalpha, "".join(values)))
        }
        best = max(lengths, key=lambda name: lengths[name], default=None)
        if best is None:
            raise DataError(
                f"no column holds the {main}; there are {', '.join(names)}", place, f"add --column {main}=NAME"
            )
        chosen[main] = best
    if roles is _DOCUMENT:
        columns = {name: [row.get(name) for row in rows] for name in _others(names, chosen)}
        if "doc_id" not in chosen and names[0] in columns and len(rows) > 1 and _is_id(columns[names[0]]):
            chosen["doc_id"] = names[0]
        titles = (name for name in columns if name not in chosen.values() and _are_titles(columns[name]))
        if "title" not in chosen and (title := next(titles, None)):
            chosen["title"] = title
    return {role: chosen[role] for role in roles if role in chosen}


def _is_id(values: list[Any]) -> bool:
    texts = [str(value) for value in values if value is not None]
    return len(texts) == len(values) == len(set(texts)) and not any(" " in text.strip() for text in texts)


def _are_titles(values: list[Any]) -> bool:
    texts = [value for value in values if isinstance(value, str) and " " in value.strip() and len(value) < _TITLE]
    return 2 * len(set(texts)) > len(values) and any(map(str.isalpha, "".join(texts)))


def _with_ids(
    records: Iterable[tuple[str, dict[str, Any]]], chosen: Mapping[str, str], skipped: Skipped
) -> Iterator[dict[str, Any]]:
    """Yield documents with their id, or a hash of their text, and then each text once."""
    seen: set[str] = set()
    for place, row in records:
        document = {role: str(row.get(name) or "") for role, name in chosen.items()}
        if key := document.pop("doc_id", ""):
            yield {"id": key, **document}
            continue
        key = digest("text", *(text.encode("utf-8", "surrogatepass") for text in document.values())).hex()[:16]
        if key in seen:
            _skip(skipped, "their text is that of another row", place)
            continue
        seen.add(key)
        yield {"id": key, **document}


def _copied(
    rows: Iterator[dict[str, Any]], to: Path, why: str, skipped: Skipped, unused: Sequence[str] = ()
) -> Recognized:
    first = list(islice(rows, _SHOWN))
    if not first:
        raise DataError("expected documents, got none", str(to), "name a file or folder that holds text")
    lines = (json.dumps(row, ensure_ascii=False) for part in (first, rows) for row in part)
    return Recognized(_write(to, lines), first, unused=unused, copied=why, skipped=skipped)


def _write(to: Path, lines: Iterable[str]) -> Path:
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise from_file_error(error, str(to)) from None
    return to
