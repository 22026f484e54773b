"""Sample training pairs for a distilled judge: equal numbers per query, random candidates, no document in two pairs.

Pairs that share only their query are as independent as possible, and no document's text can be memorized.
Queries, in hash order, take their documents in hash order and skip those already used, so the sample depends on the
seed alone. If a query runs out of documents, its missing pairs go to the queries that have fewest. Only the sample's
queries and their proposed documents are held in memory.
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
from anmi_ray.core.records import rejects

PLACE = "sample"
DESIGN = "sample"
DRY = "fewer than two unused candidates left"
RESERVE = 2  # queries kept per wanted pair, since some run out of documents

Salt = tuple[str | int, ...]
Propose = Callable[[pa.Table], pa.Table]  # rows of (query_id, bucket, start, stop) -> rows of (query_id, doc_id)


def salt_of(seed: int, own: int) -> Salt:
    """Return the salt of a sample's hashes: the run's seed and the sample's own."""
    return "sample", seed, own


def queries(candidates: pa.Table, salt: Salt) -> tuple[pa.Table, pa.Table]:
    """Return (query_id, documents, chance) of queries with two or more non-random candidates, and Rejects of the rest.

    Reads the columns query_id and source of Candidates.
    """
    compared = retrieved(candidates.select(["query_id", "source"]))
    known = compared.group_by("query_id", use_threads=False).aggregate([([], "count_all")])
    eligible = known.filter(pc.greater_equal(known["count_all"], 2))
    chance = identity.uniforms(identity.id_matrix(eligible["query_id"]), *salt, "query")
    columns = {"query_id": eligible["query_id"], "documents": eligible["count_all"], "chance": pa.array(chance)}
    ids = pc.unique(candidates["query_id"])
    left = sorted(ids.filter(pc.invert(pc.is_in(ids, value_set=eligible["query_id"].combine_chunks()))).to_pylist())
    counts = dict(zip(known["query_id"].to_pylist(), known["count_all"].to_pylist(), strict=True))
    why = [(query.hex(), TOO_FEW, f"{counts.get(query, 0)} non-random candidates") for query in left]
    return pa.table(columns), rejects(PLACE, why)


def first(tables: Iterable[pa.Table], pairs: int) -> pa.Table:
    """Return the queries that a sample may use, over all buckets, in the order in which they take documents."""
    table = pa.concat_tables(list(tables)).combine_chunks()
    words = identity.id_matrix(table["query_id"]).view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], table["chance"].to_numpy()))
    return table.take(pa.array(order[: RESERVE * pairs])).combine_chunks()


def propose(candidates: pa.Table, wanted: pa.Table, salt: Salt) -> pa.Table:
    """Return (query_id, doc_id): documents `start` to `stop`, in hash order, of each query in `wanted`.

    Reads the columns query_id, doc_id and source of Candidates.
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


@dataclass(frozen=True)
class Drawn:
    """A sample: Comparisons with their `bucket`, and how many pairs exhausted queries are missing."""

    pairs: pa.Table
    dry: pa.Table  # query_id, bucket, missing


@dataclass(slots=True)
class _Query:
    """A query's state while pairs are drawn.

    documents: candidates it has.
    share: pairs it should get.
    seen: number of candidates read.
    held: an unused document that waits for a partner.
    """

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
        """End of its next proposal: more documents than needed, growing while others have taken them."""
        return min(self.documents, self.seen + max(4 * self.missing + 8, self.seen))

    def take(self, proposed: list[bytes], used: set[bytes]) -> None:
        """Pair unused documents until no pair is missing, and mark them as used."""
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
    """Draw `pairs` pairs from `total` queries, of which `known` (query_id, bucket, documents) are the first.

    Each query gets pairs // total, the first ones one more; `ask` proposes documents (`propose`, per bucket).
    """
    share, more = divmod(pairs, total)
    rows = zip(*(known[name].to_pylist() for name in ("query_id", "bucket", "documents")), strict=True)
    states = [_Query(query, at, size, share + (place < more)) for place, (query, at, size) in enumerate(rows)]
    used: set[bytes] = set()
    while True:
        if short := [state for state in states if state.missing and not state.dry]:
            _settle(short, ask, used)
        elif not _give_away(states):
            return _drawn(states)


def _settle(short: list[_Query], ask: Propose, used: set[bytes]) -> None:
    wanted = {
        "query_id": identity.id_array(state.query for state in short),
        "bucket": [state.bucket for state in short],
        "start": [state.seen for state in short],
        "stop": [state.window for state in short],
    }
    proposed: dict[bytes, list[bytes]] = {state.query: [] for state in short}
    answer = ask(pa.table(wanted))
    for query, doc in zip(answer["query_id"].to_pylist(), answer["doc_id"].to_pylist(), strict=True):
        proposed[query].append(doc)
    for state in short:
        state.take(proposed[state.query], used)


def _give_away(states: list[_Query]) -> bool:
    """Reassign missing pairs of exhausted queries to those with the smallest share; False if none is left."""
    dry = [state for state in states if state.missing]
    takers = [(state.share, place) for place, state in enumerate(states) if not state.dry]
    if not dry or not takers:
        return False
    missing = sum(state.missing for state in dry)
    for state in dry:
        state.share = len(state.pairs)
    heapq.heapify(takers)
    for _ in range(missing):
        share, place = takers[0]
        states[place].share = share + 1
        heapq.heapreplace(takers, (share + 1, place))
    return True


def _drawn(states: list[_Query]) -> Drawn:
    asked = [state.query for state in states for _ in state.pairs]
    a, b = ([pair[side] for state in states for pair in state.pairs] for side in (0, 1))
    table = rows(asked, a, b, DESIGN)
    table = table.append_column("bucket", pa.array([state.bucket for state in states for _ in state.pairs], pa.int64()))
    order = identity.id_order(*(identity.id_matrix(table[name]) for name in ("query_id", "doc_a", "doc_b")))
    dry = [state for state in states if state.missing]
    short = {
        "query_id": identity.id_array(state.query for state in dry),
        "bucket": pa.array([state.bucket for state in dry], pa.int64()),
        "missing": pa.array([state.missing for state in dry], pa.int64()),
    }
    return Drawn(table.take(pa.array(order)).combine_chunks(), pa.table(short))


def dry_rejects(dry: pa.Table) -> pa.Table:
    """Return a Reject for every missing pair."""
    rows = zip(dry["query_id"].to_pylist(), dry["missing"].to_pylist(), strict=True)
    return rejects(PLACE, [(query.hex(), DRY, "") for query, missing in rows for _ in range(missing)])
