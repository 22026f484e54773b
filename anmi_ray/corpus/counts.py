"""How large a collection is, how many of its queries are labelled, and what is to be said of it before work begins."""

from __future__ import annotations

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

_SHOWN = 3  # reasons that are told of
_DETAIL = 80  # characters of a reject's detail that are


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
        """The queries by split, with how many are labelled where not all are.

        >>> CollectionCounts(9, {"train": 40, "dev": 0, "test": 7}, {"train": 0, "dev": 0, "test": 5}).in_words
        '40 train (none labelled), 0 dev, 7 test (5 labelled)'
        """
        return ", ".join(f"{self.queries[split]:,} {split}{self._share(split)}" for split in SPLITS)

    def notices(self, experiment: Experiment) -> Iterator[str]:
        """What the split of the queries means for a run of `experiment`, a sentence each."""
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
            yield "no test query is labelled: nothing will be measured; judges can (evaluate.judged: unlabelled)"
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
        """Where queries are that are not in train, and the settings that put them there."""
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
    known = (reader.left_out, reader.unread, hidden.num_rows, reader.over_maximum, reader.held_out)
    known = (*known, reader.repeated, reader.trimmed)
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
        held_out=manifest.get("held_out", {}),
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
