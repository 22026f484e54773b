"""How large a collection is, how many of its queries are labelled, and what is to be said of it before work begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import DataError
from anmi_ray.core.records import SPLITS
from anmi_ray.corpus.reader import Reader

_WITHOUT_LABELS = {
    "dev": "nothing is chosen on dev, the weights of fusions are even",
    "test": "nothing will be measured",
}


_SHOWN = 3  # reasons that are told of
_DETAIL = 80  # characters of a reject's detail that are


@dataclass(frozen=True)
class CollectionCounts:
    """Documents, and by split the queries and those of them that have a relevant document (grade 1 or more).

    labelled: empty where nobody counted. left_out: unlabelled queries that are no part of the collection. unread: names
    of relevance grades that are there and were not read. hidden: grades that only a simulated panel may be told.
    over_maximum: by split the queries that its maximum leaves out. repeated: repeats of queries in logs without ids.
    trimmed: by kind, ids that had white space or invisible characters around them.
    """

    documents: int
    queries: Mapping[str, int]
    labelled: Mapping[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0
    unread: tuple[str, ...] = ()
    hidden: int = 0
    over_maximum: Mapping[str, int] = field(default_factory=dict[str, int])
    repeated: int = 0
    trimmed: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def in_words(self) -> str:
        """The queries by split, with how many are labelled where not all are.

        >>> CollectionCounts(9, {"train": 40, "dev": 0, "test": 7}, {"train": 0, "dev": 0, "test": 5}).in_words
        '40 train (none labelled), 0 dev, 7 test (5 labelled)'
        """
        return ", ".join(f"{self.queries[split]:,} {split}{self._share(split)}" for split in SPLITS)

    def notices(self) -> Iterator[str]:
        """What follows from labels that are missing, a sentence each; nothing where every query is labelled."""
        if self.unread:
            yield f"relevance grades that are there and are not read: {', '.join(self.unread)} (corpus.labels)"
        if self.hidden:
            yield f"{self.hidden:,} relevance grades are kept for the simulated panel alone (corpus.labels)"
        if self.left_out:
            yield f"{self.left_out:,} unlabelled queries are left out (corpus.unlabelled)"
        if self.repeated:
            yield f"{self.repeated:,} lines repeat another query without an id, and are read once"
        for kind, count in self.trimmed.items():
            yield f"white space or invisible characters around {count:,} ids of {kind} were removed"
        for split, count in self.over_maximum.items():
            yield f"{count:,} {split} queries are left out (corpus.max_{split}_queries)"
        if not self.labelled:
            return
        for split, what in _WITHOUT_LABELS.items():
            if not self.labelled[split] and not self.queries[split]:
                yield f"no {split} query is labelled: {what}"
            elif not self.labelled[split]:
                yield f"no {split} query is labelled: {what}, unless by judges (evaluate.judged)"

    def _share(self, split: str) -> str:
        count = self.queries[split]
        labelled = self.labelled.get(split, count)
        return "" if labelled == count else f" ({f'{labelled:,}' if labelled else 'none'} labelled)"


def counted(reader: Reader, documents: int, queries: pa.Table, qrels: pa.Table, hidden: pa.Table) -> CollectionCounts:
    """The counts of what a reader gave. DataError where there are too few documents for a ranking, or no queries."""
    if documents < 2:
        place = reader.place_of("documents")
        raise DataError(f"holds {documents} document(s)", place, "a ranking needs at least two documents")
    if not queries.num_rows:
        counts = _by_reason(reader.rejects()).slice(0, _SHOWN).to_pylist()
        reasons = ", ".join(f"{row['reason']} ({row['count_all']})" for row in counts) or "none"
        left = f", left out by the settings: {reader.left_out + sum(reader.over_maximum.values()):,}"
        place = reader.place_of("queries")
        raise DataError("holds no usable query", place, f"check the queries; rejects were: {reasons}{left}")
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"]
    labelled = queries.filter(pc.is_in(queries["query_id"], value_set=relevant.combine_chunks()))
    splits = _by_split(queries)
    known = (reader.left_out, reader.unread, hidden.num_rows, reader.over_maximum, reader.repeated, reader.trimmed)
    return CollectionCounts(documents, splits, _by_split(labelled), *known)


def of_manifest(manifest: Mapping[str, Any]) -> CollectionCounts:
    """The counts that the manifest of a complete ingest holds; before it counted labels it named none."""
    documents = next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "documents")
    return CollectionCounts(
        documents=documents,
        queries=manifest["splits"],
        labelled=manifest.get("labelled", {}),
        left_out=manifest.get("left_out", 0),
        unread=tuple(manifest.get("unread", ())),
        hidden=manifest.get("hidden", 0),
        over_maximum=manifest.get("over_maximum", {}),
        repeated=manifest.get("repeated", 0),
        trimmed=manifest.get("trimmed", {}),
    )


def _by_split(queries: pa.Table) -> dict[str, int]:
    return {split: pc.sum(pc.equal(queries["split"], split)).as_py() or 0 for split in SPLITS}


def examples(rejects: pa.Table) -> list[str]:
    """The most frequent reasons of Reject rows, a line each: how many, and the first of them with its place."""
    said: list[str] = []
    for row in _by_reason(rejects).slice(0, _SHOWN).to_pylist():
        first = rejects.filter(pc.equal(rejects["reason"], row["reason"])).slice(0, 1).to_pylist()[0]
        detail = f" ({first['detail'][:_DETAIL]})" if first["detail"] else ""
        said.append(f"{row['count_all']:,} rejected: {row['reason']}{detail}, first {first['place']}")
    return said


def _by_reason(rejects: pa.Table) -> pa.Table:
    counts = rejects.group_by("reason", use_threads=False).aggregate([([], "count_all")])
    return counts.sort_by([("count_all", "descending"), ("reason", "ascending")])
