"""What every collection reader gives: documents, queries with their split, qrels, and what it refused.

The ingest stage consumes a reader in this order: documents, queries, qrels, rejects. For each of the three kinds rows
in = rows out + rejects; queries that the settings leave out, and their grades, are none of these rows. A share of
malformed rows above `max_reject_fraction` is an error, not a smaller corpus.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.sparse import csgraph

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity, redaction
from anmi_ray.core.errors import DataError, visible
from anmi_ray.core.records import QREL, QUERY, REJECT
from anmi_ray.corpus.parsing import ENCODING, NOT_TEXT, LineError, TrimmedId
from anmi_ray.tables.streams import guessed_encoding

KINDS = ("documents", "queries", "qrels")
_SHOWN = 3  # malformed rows that a message names
_DETAIL = 80  # characters of a reject's detail that a message shows
_SAMPLE = 1 << 14  # bytes by which the encoding of a collection is guessed
_TOO_MANY = 50_000  # malformed rows at which, and at every so many more, their share is looked at before the end
SPLITS_BY_RANK = ("test", "dev", "train")  # a text found in two splits stays in the first of these


@dataclass(frozen=True)
class QueryRow:
    """A query on its way to a split; `place` is where it was read."""

    external_id: str
    text: str
    split: str
    place: str

    @property
    def text_key(self) -> bytes:
        """What identifies the same query in any spelling."""
        return text_key(self.text)


def text_key(text: str) -> bytes:
    """Hash of a query's text with white space collapsed and case folded."""
    return identity.text_hash(" ".join(text.split()).casefold())


class Reader(ABC):
    """One collection, read once: `documents()`, then `queries()`, then `qrels()`; then `rejects()` is complete."""

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config
        self._seen: Counter[str] = Counter()
        self._malformed: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {kind: [] for kind in KINDS}  # of what is malformed
        self._rejects: list[tuple[str, str, str, str]] = []
        self._sample = b""  # of records that are not UTF-8
        self.held_out: dict[str, int] = {}  # unlabelled queries that became dev and test; complete after `queries()`
        self._left_out = 0
        self._repeated = 0
        self._trimmed: Counter[str] = Counter()
        self._beyond: dict[str, str] = {}  # queries beyond a maximum of the settings, with their split
        self._grades_beyond = 0  # of these

    @property
    @abstractmethod
    def unread(self) -> tuple[str, ...]:
        """What names the relevance grades that are there and are not read; they are not looked into."""

    @property
    def left_out(self) -> int:
        """Unlabelled queries that were met and left out, as `unlabelled` says; complete after `queries()`."""
        return self._left_out

    @property
    def repeated(self) -> int:
        """Repeats of queries in logs without ids, which are read once; complete after `queries()`."""
        return self._repeated

    @property
    def trimmed(self) -> dict[str, int]:
        """By kind, ids that had white space or invisible characters around them; complete after `qrels()`."""
        return {kind: count for kind, count in self._trimmed.items() if count}

    @property
    def over_maximum(self) -> dict[str, int]:
        """By split the queries beyond its maximum, where there are any; complete after `queries()`."""
        return dict(Counter(self._beyond.values()))

    def place_of(self, kind: str) -> str:
        """What messages about all of a kind (documents, queries) name: its files where they are its own."""
        return self._place()

    @abstractmethod
    def content_fingerprint(self) -> str:
        """Hash of the source's content, without parsing it: the input fingerprint of ingest."""

    @abstractmethod
    def documents(self) -> Iterator[pa.Table]:
        """Document tables of at most `shard_documents` rows; one pass. Raises DataError."""

    @abstractmethod
    def queries(self) -> pa.Table:
        """The Query table, each text in one split only; call after `documents()` is consumed. Raises DataError."""

    @abstractmethod
    def qrels(self) -> pa.Table:
        """The Qrel table over documents and queries that were read; call after `queries()`. Raises DataError."""

    @abstractmethod
    def hidden_qrels(self) -> pa.Table:
        """The Qrel table of unlabelled queries by the splits that the settings hide; call after `qrels()`.

        What is malformed there is passed over: nothing but a simulated panel is told of it.
        """

    def rejects(self) -> pa.Table:
        """The Reject table; a place begins with the kind: "documents corpus.jsonl:17"."""
        columns = zip(*self._rejects, strict=True) if self._rejects else ((), (), (), ())
        return REJECT.table(dict(zip(REJECT.schema.names, map(list, columns), strict=True)))

    def rows_in(self) -> dict[str, int]:
        """Rows met so far: documents, queries and qrels, but for those that the settings leave out."""
        passed = {"queries": self._left_out + len(self._beyond), "qrels": self._grades_beyond}
        return {kind: self._seen[kind] - passed.get(kind, 0) for kind in KINDS}

    def _refuse_line(self, kind: str, where: str, error: LineError) -> None:
        """Record a record that cannot be used."""
        self._sample += error.sample[: max(0, _SAMPLE - len(self._sample))]
        self._refuse(kind, where, error.key, error.reason, error.detail)

    def _count_trimmed(self, kind: str, *ids: str) -> None:
        """Count ids that were written with white space or invisible characters around them."""
        self._trimmed[kind] += sum(isinstance(one, TrimmedId) for one in ids)

    def _refuse(self, kind: str, where: str, key: str, reason: str, detail: str = "", malformed: bool = True) -> None:
        """Record a reject; only `malformed` ones count towards max_reject_fraction."""
        place = f"{kind} {where}"
        self._rejects.append((place, _valid(key), reason, _valid(detail)))
        if not malformed:
            return
        self._malformed[kind] += 1
        if len(self._examples[kind]) < _SHOWN:
            shown = f": {_valid(detail)[:_DETAIL]}" if detail else ""
            self._examples[kind].append(f"{where} ({reason}{shown})")
        if self._malformed[kind] % _TOO_MANY == 0:  # rather than to remember each line of a file that is none of ours
            self._check_fraction(kind, "the first ")

    def _check_fraction(self, kind: str, of: str = "") -> None:
        """Raise DataError where more than max_reject_fraction of the rows of `kind`, all or so far, were malformed."""
        if kind == "qrels" and self._seen["documents"] == self._malformed["documents"]:
            return  # they grade documents that are not there: `counted` tells of these
        bad = self._malformed[kind]
        seen = self._seen[kind]
        limit = self.config.max_reject_fraction
        if seen and bad > limit * seen:
            share = bad / seen
            examples = "; ".join(self._examples[kind])
            guess = guessed_encoding(self._sample) if NOT_TEXT in examples else ""
            others = f", or set corpus.max_reject_fraction to {_round_up(share)} to leave them out"
            remedy = f"correct these rows{others if of or bad < seen else '; no others are left'}"
            raise DataError(
                f"{bad} of {of}{seen} {kind} are malformed ({share:.1%}, allowed {limit:.1%}): {examples}",
                self._place(),
                f"set {ENCODING}: {guess}, the likely encoding" if guess else remedy,
            )

    def _held_out(self, text_keys: Mapping[str, bytes], labelled: Container[str]) -> dict[str, str]:
        """Unlabelled queries (text by id) that the settings hold out, with their split.

        By a salted hash of their texts, some become test, some others dev; a text that a labelled query has too does
        not.
        """
        taken = {key for name, key in text_keys.items() if name in labelled}
        free = set(text_keys.values()) - taken
        test, dev = self.config.held_out("test", len(free)), self.config.held_out("dev", len(free))
        if not test + dev:
            return {}
        salted = {key: identity.digest("sample", "held out", self.config.split_seed, key) for key in free}
        order = sorted(free, key=salted.__getitem__)
        split = {key: "test" if place < test else "dev" for place, key in enumerate(order[: test + dev])}
        found = {name: split[key] for name, key in text_keys.items() if name not in labelled and key in split}
        self.held_out = dict(Counter(found.values()))
        return found

    def _place(self) -> str:
        return f"corpus {redaction.scrub(self.config.name)}"

    def _query_table(self, rows: list[QueryRow]) -> pa.Table:
        """Keep each text in one split, the others become rejects, and each split within its maximum."""
        rows = self._one_split_per_text(rows)
        rows = [row for split in ("train", "dev", "test") for row in self._within_maximum(rows, split)]
        rows.sort(key=lambda row: identity.query_id(row.external_id))
        return QUERY.table(
            {
                "query_id": identity.id_array(identity.query_id(row.external_id) for row in rows),
                "external_id": [row.external_id for row in rows],
                "text": [row.text for row in rows],
                "text_hash": identity.id_array(identity.text_hash(row.text) for row in rows),
                "split": [row.split for row in rows],
            }
        )

    def _one_split_per_text(self, rows: list[QueryRow]) -> list[QueryRow]:
        best: dict[bytes, str] = {}
        for row in rows:
            best[row.text_key] = min(row.split, best.get(row.text_key, row.split), key=SPLITS_BY_RANK.index)
        kept = []
        for row in rows:
            if row.split == best[row.text_key]:
                kept.append(row)
            else:
                detail = f"{row.split} query whose text is also in {best[row.text_key]}"
                self._refuse("queries", row.place, row.external_id, "text in two splits", detail, malformed=False)
        return kept

    def _within_maximum(self, rows: list[QueryRow], split: str) -> list[QueryRow]:
        mine = [row for row in rows if row.split == split]
        limit = self.config.max_queries(split)
        if limit is None or len(mine) <= limit:
            return mine
        # Salted: the splits and buckets are chosen by this hash too, and its smallest values would not be a sample.
        mine.sort(key=lambda row: (identity.digest("sample", "max_queries", row.text_key), row.external_id))
        self._beyond |= dict.fromkeys((row.external_id for row in mine[limit:]), split)
        return mine[:limit]


def qrel_table(grades: Mapping[tuple[str, str], int]) -> pa.Table:
    """The Qrel table of grades by (query, document), in their order; both are the collection's own ids."""
    return QREL.table(
        {
            "query_id": identity.id_array(identity.query_id(query) for query, _ in grades),
            "doc_id": identity.id_array(identity.doc_id(document) for _, document in grades),
            "grade": list(grades.values()),
        }
    )


def split_of(text_keys: list[bytes], dev: float, test: float, seed: int = 0) -> list[str]:
    """Split of each query by a hash of its text, salted with `seed`: shares `dev` and `test`, the rest train."""
    if not text_keys:
        return []
    ids = np.frombuffer(b"".join(text_keys), dtype=np.uint8).reshape(-1, identity.ID_BYTES)
    u = identity.uniforms(ids, "split", *([seed] if seed else []))
    return np.where(u < test, "test", np.where(u < test + dev, "dev", "train")).tolist()


def dev_by_group(text_keys: list[bytes], members: list[list[bytes]], share: float, seed: int = 0) -> list[bool]:
    """Which queries become dev: about `share` of them, in whole groups of queries with a member in common.

    `members[i]` are ids that query i holds on to: its text, its relevant documents. Groups come in the order of a hash
    of their texts, salted with `seed`, and one that would make dev too large is passed over. Where that leaves nothing,
    because almost all queries hang together, every query is on its own.
    """
    if not text_keys or not share:
        return [False] * len(text_keys)
    row = np.repeat(np.arange(len(members)), [len(ids) for ids in members])
    column = np.unique(np.array([key for ids in members for key in ids]), return_inverse=True)[1] + len(members)
    size = len(members) + len(row)
    graph = sparse.coo_array((np.ones(len(row)), (row, column)), shape=(size, size))
    group = np.unique(csgraph.connected_components(graph, directed=False)[1][: len(members)], return_inverse=True)[1]
    ids = np.frombuffer(b"".join(text_keys), dtype=np.uint8).reshape(-1, identity.ID_BYTES)
    u = identity.uniforms(ids, "split", *([seed] if seed else []))
    first = np.full(int(group.max()) + 1, np.inf)
    count = np.bincount(group)
    np.minimum.at(first, group, u)
    dev = np.zeros(len(first), dtype=bool)
    left = round(share * len(text_keys))
    for g in np.argsort(first, kind="stable"):
        if count[g] <= left:
            dev[g] = True
            left -= int(count[g])
    return (dev[group] if dev.any() else u < share).tolist()


def _valid(text: str) -> str:
    return visible(text[:500].replace("\n", " "))


def _round_up(share: float) -> float:
    return min(1.0, float(np.ceil(share * 1000 + 1e-9) / 1000))
