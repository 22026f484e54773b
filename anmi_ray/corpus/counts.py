"""Count a collection's documents, queries and labels, and describe them before a run begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import SPLITS
from anmi_ray.corpus.reader import Reader

_SHOWN = 3  # reasons in a message
_DETAIL = 80  # characters of a reject's detail in a message


@dataclass(frozen=True)
class CollectionCounts:
    """Documents, and by split the queries and those of them that have a relevant document (grade 1 or more).

    labelled: empty if labels were not counted.
    left_out: unlabelled queries that are excluded from the collection.
    unread: names of relevance grades that exist and were not read.
    hidden: grades that only a simulated panel may see.
    over_maximum: by split, queries beyond its maximum.
    held_out: by split, unlabelled queries that corpus.unlabelled_dev and corpus.unlabelled_test keep from training.
    repeated: repeats of queries in logs without ids.
    trimmed: by kind, ids that had white space or invisible characters around them.
    """

    documents: int
    queries: Mapping[str, int]
    labelled: Mapping[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0
    unread: tuple[str, ...] = ()
    hidden: int = 0
    over_maximum: Mapping[str, int] = field(default_factory=dict[str, int])
    held_out: Mapping[str, int] = field(default_factory=dict[str, int])
    repeated: int = 0
    trimmed: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def in_words(self) -> str:
        """The queries by split, with how many are labelled unless all are.

        >>> CollectionCounts(9, {"train": 40, "dev": 0, "test": 7}, {"train": 0, "dev": 0, "test": 5}).in_words
        '40 train (none labelled), 0 dev, 7 test (5 labelled)'
        """
        return ", ".join(f"{self.queries[split]:,} {split}{self._share(split)}" for split in SPLITS)

    def notices(self, experiment: Experiment) -> Iterator[str]:
        """Yield sentences about what the splits mean for a run of `experiment`."""
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
        if 0 < self.queries["train"] < sum(self.held_out.values()):
            yield f"fewer train queries than held-out ones: {'; '.join(self._taken(experiment.corpus))}"
        unlabelled = [split for split in ("dev", "test") if self.labelled and not self.labelled[split]]
        judged = experiment.evaluate.judged
        if "dev" in unlabelled and not (self.queries["dev"] and (judged != "none" or experiment.rates_dev)):
            yield "no dev query is labelled: nothing is chosen on dev, the weights of fusions are even"
        if "test" in unlabelled and judged == "none":
            yield "no test query is labelled: nothing will be measured; your judges can (evaluate.judged: unlabelled)"
        elif "test" in unlabelled and self.queries["test"]:
            yield f"no test query is labelled: judges measure (evaluate.judged: {judged})"

    def missing(self, stage: str, split: str, remedy: str, corpus: CorpusConfig) -> DataError:
        """Build the error of a stage without the queries of `split` it needs, naming the settings that took them."""
        taken = "; ".join(self._taken(corpus))
        if split in self.over_maximum:
            remedy = f"raise corpus.max_{split}_queries"
        elif self.left_out:
            remedy = "keep unlabelled queries: corpus.unlabelled=train"
        elif split == "train" and self.held_out:
            remedy = "hold out fewer: corpus.unlabelled_dev=0.2 corpus.unlabelled_test=0.2, or give more queries"
        return DataError(f"there is no {split} query{taken and f': {taken}'}", f"stage {stage}", remedy)

    def _taken(self, corpus: CorpusConfig) -> Iterator[str]:
        """Yield where queries went that are not in train, with the settings responsible."""
        for split, count in self.held_out.items():
            size = getattr(corpus, f"unlabelled_{split}")
            yield f"{count:,} are held out for {split} (corpus.unlabelled_{split}{'' if size is None else f': {size}'})"
        for split in ("dev", "test"):
            if labelled := self.labelled.get(split):
                yield f"{labelled:,} {split} queries are labelled"
        if self.left_out:
            yield f"{self.left_out:,} unlabelled ones are left out (corpus.unlabelled)"
        for split, count in self.over_maximum.items():
            yield f"{count:,} of {split} are left out (corpus.max_{split}_queries)"

    def _share(self, split: str) -> str:
        count = self.queries[split]
        labelled = self.labelled.get(split, count)
        return "" if labelled == count else f" ({f'{labelled:,}' if labelled else 'none'} labelled)"


def counted(reader: Reader, documents: int, queries: pa.Table, qrels: pa.Table, hidden: pa.Table) -> CollectionCounts:
    """Return the counts of what was read. DataError if there are too few documents for a ranking, or no queries."""
    if documents < 2:
        place = reader.place_of("documents")
        raise DataError(f"holds {documents} document(s)", place, "a ranking needs at least two documents")
    if not queries.num_rows:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in _by_reason(reader.rejects())) or "none"
        left = f", left out by the settings: {reader.left_out + sum(reader.over_maximum.values()):,}"
        place = reader.place_of("queries")
        raise DataError("holds no usable query", place, f"check the queries; rejects were: {reasons}{left}")
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))["query_id"]
    labelled = queries.filter(pc.is_in(queries["query_id"], value_set=relevant.combine_chunks()))
    return CollectionCounts(
        documents,
        *({split: rows["split"].to_pylist().count(split) for split in SPLITS} for rows in (queries, labelled)),
        left_out=reader.left_out,
        unread=reader.unread,
        hidden=hidden.num_rows,
        over_maximum=reader.over_maximum,
        held_out=reader.held_out,
        repeated=reader.repeated,
        trimmed=dict(reader.trimmed),
    )


def of_manifest(manifest: Mapping[str, Any]) -> CollectionCounts:
    """Return the counts in the manifest of a complete ingest; manifests of earlier versions lack some."""
    documents = next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "documents")
    names = ("labelled", "left_out", "hidden", "over_maximum", "held_out", "repeated", "trimmed")
    others = {name: manifest[name] for name in names if name in manifest}
    return CollectionCounts(documents, manifest["splits"], unread=tuple(manifest.get("unread", ())), **others)


def examples(rejects: pa.Table) -> list[str]:
    """Return the most frequent reasons of Reject rows, one per line, with the count and the first place."""
    lines: list[str] = []
    for reason, count in _by_reason(rejects):
        first = rejects.filter(pc.equal(rejects["reason"], reason)).slice(0, 1).to_pylist()[0]
        detail = f" ({first['detail'][:_DETAIL]})" if first["detail"] else ""
        lines.append(f"{count:,} rejected: {reason}{detail}, first {first['place']}")
    return lines


def _by_reason(rejects: pa.Table) -> list[tuple[str, int]]:
    counts = Counter(rejects["reason"].to_pylist())
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
