"""Pairs for a judge to learn from: queries alike, two random candidates a pair, and no document in two pairs.

Pairs that share nothing but their query are as independent as a query's pairs can be, and no text is learned by heart.
A query's documents stand in the order of a hash, so who gets which document follows from the seed alone: queries take
theirs one after another, in the order of a hash too, and pass by what another has. What a query that runs dry cannot
take is given to those that have fewest pairs. Nothing is held but the sample's queries and what they may take.
Letters: Q queries, D documents.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.comparisons.compare import TOO_FEW, retrieved, rows
from anmi_ray.core import identity
from anmi_ray.core.arrays import rank_within
from anmi_ray.core.records import rejects

PLACE = "sample"
DESIGN = "sample"
DRY = "no two candidates that are in no other pair"
RESERVE = 2  # times as many queries as pairs are kept, where there are so many: some run dry

Salt = tuple[str | int, ...]
Propose = Callable[[pa.Table], pa.Table]  # rows of (query_id, bucket, start, stop) -> rows of (query_id, doc_id)


def salt_of(seed: int, own: int) -> Salt:
    """What every hash of a sample is salted with: the run's seed and the sample's."""
    return "sample", seed, own


def queries(candidates: pa.Table, salt: Salt) -> tuple[pa.Table, pa.Table]:
    """(query_id, documents, chance of every query of at least two documents that are not random; Rejects of others).

    Needs of the Candidates the columns query_id and source.
    """
    compared = retrieved(candidates.select(["query_id", "source"]))
    known = compared.group_by("query_id", use_threads=False).aggregate([([], "count_all")])
    found = known.filter(pc.greater_equal(known["count_all"], 2))
    chance = identity.uniforms(identity.id_matrix(found["query_id"]), *salt, "query")
    columns = {"query_id": found["query_id"], "documents": found["count_all"], "chance": pa.array(chance)}
    ids = pc.unique(candidates["query_id"])
    left = sorted(ids.filter(pc.invert(pc.is_in(ids, value_set=found["query_id"].combine_chunks()))).to_pylist())
    counts = dict(zip(known["query_id"].to_pylist(), known["count_all"].to_pylist(), strict=True))
    why = [(query.hex(), TOO_FEW, f"{counts.get(query, 0)} candidates that are not random") for query in left]
    return pa.table(columns), rejects(PLACE, why)


def first(tables: Iterable[pa.Table], pairs: int) -> pa.Table:
    """Of several buckets' queries those that a sample may be of, in the order in which they take documents."""
    table = pa.concat_tables(list(tables)).combine_chunks()
    words = identity.id_matrix(table["query_id"]).view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], table["chance"].to_numpy()))
    return table.take(pa.array(order[: RESERVE * pairs])).combine_chunks()


def propose(candidates: pa.Table, wanted: pa.Table, salt: Salt) -> pa.Table:
    """(query_id, doc_id): of every query of `wanted` its documents `start` to `stop` in the order of their hash.

    Needs of the Candidates the columns query_id, doc_id and source.
    """
    ids = wanted["query_id"].combine_chunks()
    known = retrieved(candidates).select(["query_id", "doc_id"])
    known = known.filter(pc.is_in(known["query_id"], value_set=ids)).combine_chunks()
    at = pc.index_in(known["query_id"], value_set=ids).to_numpy().astype(np.int64)
    query_ids, doc_ids = (identity.id_matrix(known[name]) for name in ("query_id", "doc_id"))
    chance = identity.uniforms(identity.mix_ids(query_ids, doc_ids), *salt, "document")
    words = doc_ids.view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], chance, at))
    place = np.arange(len(order)) - np.searchsorted(at[order], at[order])
    start, stop = (wanted[name].to_numpy()[at[order]] for name in ("start", "stop"))
    return known.take(pa.array(order[(place >= start) & (place < stop)])).combine_chunks()


def some_of_each(pairs: pa.Table, share: float, salt: Salt) -> pa.Table:
    """Of every query's Comparisons `share` on average at most, by hash: 1.5 are two of half the queries, one of others.

    Their order is kept.
    """
    query = pairs["query_id"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    chance = identity.uniforms(identity.id_matrix(pairs["comparison_id"]), *salt, "pair")
    most = np.floor(share + identity.uniforms(identity.id_matrix(pairs["query_id"]), *salt, "query"))
    return pairs.filter(pa.array(rank_within(query, chance) < most))


@dataclass(frozen=True)
class Drawn:
    """A sample: Comparison rows with their `bucket`, and of queries that ran dry how many pairs are missing."""

    pairs: pa.Table
    dry: pa.Table  # query_id, bucket, missing


@dataclass(slots=True)
class _Query:
    """A query while pairs are drawn: its documents and those seen, its share of pairs, a document without another."""

    query: bytes
    bucket: int
    documents: int
    share: int
    seen: int = 0
    held: bytes | None = None
    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.share - len(self.pairs)

    @property
    def dry(self) -> bool:
        return self.seen >= self.documents

    @property
    def window(self) -> int:
        """Where its next proposal ends: some documents more than it needs, ever more where others have them."""
        return min(self.documents, self.seen + max(4 * self.missing + 8, self.seen))

    def take(self, proposed: list[bytes], used: set[bytes]) -> None:
        """Pair documents that are free, as many as are missing, and mark them as used."""
        if self.held in used:
            self.held = None
        for doc in proposed:
            if not self.missing:
                return
            self.seen += 1
            if doc in used:
                continue
            if self.held is None:
                self.held = doc
                continue
            self.pairs.append((min(self.held, doc), max(self.held, doc)))
            used.update((self.held, doc))
            self.held = None


def draw(known: pa.Table, total: int, pairs: int, ask: Propose) -> Drawn:
    """A sample of `pairs` pairs of `total` queries, of which `known` (query_id, bucket, documents) are the first.

    Queries get pairs // total each, the first ones one more; `ask` proposes documents (`propose`, bucket by bucket).
    """
    share, more = divmod(pairs, total)
    rows = zip(*(known[name].to_pylist() for name in ("query_id", "bucket", "documents")), strict=True)
    found = [_Query(query, at, size, share + (place < more)) for place, (query, at, size) in enumerate(rows)]
    used: set[bytes] = set()
    while True:
        if short := [one for one in found if one.missing and not one.dry]:
            _settle(short, ask, used)
        elif not _give_away(found):
            return _drawn(found)


def _settle(short: list[_Query], ask: Propose, used: set[bytes]) -> None:
    wanted = {
        "query_id": identity.id_array(one.query for one in short),
        "bucket": [one.bucket for one in short],
        "start": [one.seen for one in short],
        "stop": [one.window for one in short],
    }
    proposed: dict[bytes, list[bytes]] = {one.query: [] for one in short}
    answer = ask(pa.table(wanted))
    for query, doc in zip(answer["query_id"].to_pylist(), answer["doc_id"].to_pylist(), strict=True):
        proposed[query].append(doc)
    for one in short:
        one.take(proposed[one.query], used)


def _give_away(found: list[_Query]) -> bool:
    """Give what queries that ran dry are missing to those that have least to draw; False where nobody can take it."""
    dry = [one for one in found if one.missing]
    takers = [(one.share, place) for place, one in enumerate(found) if not one.dry]
    if not dry or not takers:
        return False
    missing = sum(one.missing for one in dry)
    for one in dry:
        one.share = len(one.pairs)
    heapq.heapify(takers)
    for _ in range(missing):
        share, place = takers[0]
        found[place].share = share + 1
        heapq.heapreplace(takers, (share + 1, place))
    return True


def _drawn(found: list[_Query]) -> Drawn:
    asked = [one.query for one in found for _ in one.pairs]
    a, b = ([pair[side] for one in found for pair in one.pairs] for side in (0, 1))
    table = rows(asked, a, b, DESIGN)
    table = table.append_column("bucket", pa.array([one.bucket for one in found for _ in one.pairs], pa.int64()))
    order = identity.id_order(*(identity.id_matrix(table[name]) for name in ("query_id", "doc_a", "doc_b")))
    dry = [one for one in found if one.missing]
    short = {
        "query_id": identity.id_array(one.query for one in dry),
        "bucket": pa.array([one.bucket for one in dry], pa.int64()),
        "missing": pa.array([one.missing for one in dry], pa.int64()),
    }
    return Drawn(table.take(pa.array(order)).combine_chunks(), pa.table(short))


def dry_rejects(dry: pa.Table) -> pa.Table:
    """A Reject row for every pair that is missing."""
    rows = zip(dry["query_id"].to_pylist(), dry["missing"].to_pylist(), strict=True)
    return rejects(PLACE, [(query.hex(), DRY, "") for query, missing in rows for _ in range(missing)])
