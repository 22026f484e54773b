"""The data dictionary: one Arrow schema per boundary between stages, with its key and what must hold.

A table is checked where it crosses a boundary (`schema.Record.check`), on writing and on reading. Ids are binary(16)
digests (`identity`); `external_id` is the collection's own id and is carried only where a person reads it.
Letters in the invariants: a comparison is stored with doc_a < doc_b, and p_a always speaks about doc_a.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.identity import ID, id_matrix, mix
from anmi_ray.core.schema import Record, between, constant, every, finite, one_of, schema_of

SPLITS = ("train", "dev", "test")
FORECASTS = ("p_a", "p_b", "p_tie", "mean", "decided")  # columns of Prediction


def _ranks(table: pa.Table) -> str | None:
    """Ranks are 1..n per query and system."""
    if not table.num_rows:
        return None
    groups = table.group_by(["query_id", "system"]).aggregate(
        [("rank", "min"), ("rank", "max"), ("rank", "count_distinct"), ("rank", "count")]
    )
    ok = pc.and_(
        pc.and_(pc.equal(groups["rank_min"], 1), pc.equal(groups["rank_max"], groups["rank_count"])),
        pc.equal(groups["rank_count_distinct"], groups["rank_count"]),
    )
    bad = groups.num_rows - pc.sum(ok).as_py()
    return f"{bad} rankings whose ranks are not 1..n" if bad else None


def _mean_zero(table: pa.Table) -> str | None:
    """Ratings have mean zero in every component of every query (to 1e-6 latent units)."""
    if not table.num_rows:
        return None
    means = table.group_by(["query_id", "component"]).aggregate([("latent", "mean")])
    worst = pc.max(pc.abs(means["latent_mean"])).as_py()
    return f"ratings of a component have mean {worst:.2g}, not zero" if worst > 1e-6 else None


def _equal_lengths(table: pa.Table) -> str | None:
    """The lists of an example are equally long."""
    lists = ("doc_ids", "ratings", "rating_errors", "weights", "categories", "tiers", "gaps", "gap_errors")
    if not table.num_rows:
        return None
    lengths = [pc.list_value_length(table[name]) for name in lists]
    same = all(pc.all(pc.equal(lengths[0], other)).as_py() for other in lengths[1:])
    return None if same else f"the lists {', '.join(lists)} differ in length"


def _members(table: pa.Table) -> str | None:
    """The anchor is first, with weight 1; random documents, and only they, have no rating; weights are finite."""
    if not table.num_rows:
        return None
    first = pc.list_flatten(pc.list_slice(table["categories"], 0, 1))
    weight = pc.list_flatten(pc.list_slice(table["weights"], 0, 1))
    if len(first) < table.num_rows or not pc.all(pc.equal(first, "anchor"), skip_nulls=False).as_py():
        return "an example does not start with its anchor"
    if not pc.all(pc.equal(weight, 1.0), skip_nulls=False).as_py():
        return "an anchor's weight is not 1"
    weights = pc.list_flatten(table["weights"])
    categories = pc.list_flatten(table["categories"])
    if weights.null_count or not pc.all(pc.is_finite(weights)).as_py():
        return "weights must be finite"
    unrated = pc.is_null(pc.list_flatten(table["ratings"]))
    if not pc.all(pc.equal(unrated, pc.equal(categories, "random")), skip_nulls=False).as_py():
        return "random documents, and only they, have no rating"
    if not pc.all(pc.equal(unrated, pc.is_null(pc.list_flatten(table["rating_errors"])))).as_py():
        return "a rating without its error, or an error without a rating"
    return None


def _ordered_pair(table: pa.Table) -> str | None:
    """doc_a < doc_b."""
    bad = pc.sum(pc.greater_equal(table["doc_a"], table["doc_b"])).as_py()
    return f"{bad} pairs are not stored with doc_a < doc_b" if bad else None


def _one_forecast(table: pa.Table) -> pa.ChunkedArray:
    """Two-head rows have mean and decided, the others three probabilities that sum to 1 (to 1e-5: float32)."""
    heads = pc.equal(table["target"], "two-head")
    valid = {name: pc.is_valid(table[name]) for name in FORECASTS}
    right = pc.less(pc.abs(pc.subtract(pc.add(pc.add(table["p_a"], table["p_b"]), table["p_tie"]), 1.0)), 1e-5)
    right = pc.or_(heads, pc.fill_null(right, False))
    for name, there in valid.items():
        wanted = heads if name in ("mean", "decided") else pc.invert(heads)
        right = pc.and_(right, pc.equal(there, wanted))
    return right


def _split_by_text(table: pa.Table) -> str | None:
    """A query text belongs to one split only."""
    counts = table.select(["text_hash", "split"]).group_by("text_hash").aggregate([("split", "count_distinct")])
    bad = pc.sum(pc.greater(counts["split_count_distinct"], 1)).as_py() or 0
    return f"{bad} query texts are in more than one split" if bad else None


_ANSWERED = (
    one_of("order", ("ab", "ba")),
    between("p_a", 0.0, 1.0),
    every(lambda t: pc.xor(pc.is_null(t["p_a"]), pc.is_null(t["error"])), "must have exactly one of p_a and error"),
)

# A document of the collection; external_id is the collection's own id.
DOCUMENT = Record(
    "Document",
    1,
    ("doc_id",),
    schema_of("id doc_id", "text external_id title text"),
    (every(lambda t: pc.greater(pc.add(pc.utf8_length(t["title"]), pc.utf8_length(t["text"])), 0), "empty text"),),
)
# A query with its split. Train queries are compared, rated and mined; dev queries without labels are rated where judges
# choose on them; of test judges may measure.
QUERY = Record(
    "Query",
    1,
    ("query_id",),
    schema_of("id query_id", "text external_id text", "id text_hash", "text split"),
    (one_of("split", SPLITS), _split_by_text),
)
# A relevance grade of the collection; 1 and above is a known positive, what is missing is not judged.
QREL = Record("Qrel", 1, ("query_id", "doc_id"), schema_of("id query_id doc_id", "int grade"))
# The ranking of a query by one system, a retriever, a fusion or a reranker. Evaluation reads runs and qrels alone.
RUN = Record(
    "Run",
    1,
    ("query_id", "doc_id", "system"),
    schema_of("id query_id doc_id", "text system", "int rank", "real score"),
    (_ranks, finite("score")),
)
# source: retrieved = in the fused top; added = a known positive that retrieval missed; random = a corpus negative
# that is trained on but never compared. rank, fused_score and retriever_ranks speak of the retrieved only.
CANDIDATE = Record(
    "Candidate",
    1,
    ("query_id", "doc_id"),
    schema_of(
        "id query_id doc_id",
        "text source",
        "flag is_positive",
        "int? rank",
        "real? fused_score",
        "ranks retriever_ranks",
        "real similarity",
    ),
    (
        one_of("source", ("retrieved", "added", "random")),
        finite("similarity", "fused_score"),
        every(lambda t: pc.xor(pc.equal(t["source"], "retrieved"), pc.is_null(t["rank"])), "ranked are the retrieved"),
        every(lambda t: pc.equal(pc.is_null(t["rank"]), pc.is_null(t["fused_score"])), "a rank or a fused score alone"),
        every(lambda t: pc.or_(pc.not_equal(t["source"], "added"), t["is_positive"]), "added but not a known positive"),
        every(lambda t: pc.or_(pc.not_equal(t["source"], "random"), pc.invert(t["is_positive"])), "a random positive"),
    ),
)
# The text of a document that judging, training or reranking reads, once per bucket of queries.
TEXT_OF = Record(
    "Text",
    1,
    ("doc_id",),
    schema_of("id doc_id", "text external_id", "id text_hash", "text title text"),
)
# A pair of a query's documents that judges are asked about; round 1 is of borderline documents, or of a document and
# nothing (confirmation, pool): doc_b is 16 bytes of ff, and p_a is P(doc_a answers the query).
COMPARISON = Record(
    "Comparison",
    1,
    ("comparison_id",),
    schema_of("id comparison_id query_id doc_a doc_b", "int round", "text design"),
    (_ordered_pair,),
)
# One judge's answer about a pair in one order (ab: doc_a was shown first), or the reason of failure; never a default.
JUDGMENT = Record(
    "Judgment",
    1,
    ("comparison_id", "judge", "order"),
    schema_of("id comparison_id query_id", "text judge order", "real? p_a", "text? error"),
    _ANSWERED,
)
# A preference of a user's file: `place` is file and line, `key` the query and documents as written there.
IMPORTED = Record(
    "Imported",
    1,
    ("comparison_id", "judge", "order"),
    schema_of(
        "id comparison_id query_id doc_a doc_b",
        "int round",
        "text judge order",
        "real? p_a",
        "text? error",
        "text place key",
    ),
    (_ordered_pair, *_ANSWERED),
)
# An answer of a judge, unprocessed; a question is identified by the hashes of its three texts, so runs share it.
# Either the judge's words, or log probabilities of its answers (the first document, the second, a tie), or an error.
# A transient error may go away when asked again; every other row is final. p_a is derived on reading.
ANSWER = Record(
    "Answer",
    1,
    ("query_hash", "first_hash", "second_hash"),
    schema_of(
        "id query_hash first_hash second_hash",
        "text? text",
        "real? log_first log_second log_tie",
        "text? error",
        "flag transient",
        "int prompt_tokens cached_tokens answer_tokens",
        "real dollars seconds",
        "int attempts",
    ),
    (
        every(
            lambda t: pc.xor(
                pc.or_(pc.is_valid(t["text"]), pc.and_(pc.is_valid(t["log_first"]), pc.is_valid(t["log_second"]))),
                pc.is_valid(t["error"]),
            ),
            "must have an answer or an error, not both",
        ),
        every(lambda t: pc.or_(pc.invert(t["transient"]), pc.is_valid(t["error"])), "transient but no error"),
        finite("dollars", "seconds"),
    ),
)
# Latent relevance in probits, as seen by a simulated panel; only with simulated judges.
TRUTH = Record("Truth", 1, ("query_id", "doc_id"), schema_of("id query_id doc_id", "real latent"), (finite("latent"),))
# The rating of a document within its query, in Elo points, with its standard error.
RATING = Record(
    "Rating",
    1,
    ("query_id", "doc_id"),
    schema_of("id query_id doc_id", "real rating_elo std_err_elo latent games", "int component"),
    (finite("rating_elo", "std_err_elo", "latent", "games"), _mean_zero),
)
# estimate is what the ratings are, the posterior's mean or its mode; deviance is minus twice the log-likelihood ratio
# to the saturated model; spread_elo the standard deviation of the query's ratings; lambda2 the algebraic connectivity
# of its comparison graph, NaN if too large; equal_ratings_p the p-value of the score test of "all documents are equally
# good" (the deviance test to first order). A degree counts opponents; the diameter is the largest component's;
# never_won and never_lost count documents; a triad is three documents of which every two were judged and no two tied,
# and cycle_rate the share of those in which each beat one: 1/4 by coins.
FIT = Record(
    "Fit",
    3,
    ("query_id",),
    schema_of(
        "id query_id",
        "int documents comparisons iterations",
        "real gradient_norm",
        "flag converged",
        "text estimate",
        "int components min_degree max_degree diameter never_won never_lost",
        "long triads",
        "real? cycle_rate",
        "real lambda2 deviance spread_elo equal_ratings_p",
    ),
    (
        finite("gradient_norm", "deviance", "spread_elo"),
        one_of("estimate", ("mean", "mode")),
        between("cycle_rate", 0.0, 1.0),
        every(lambda t: pc.equal(pc.is_null(t["cycle_rate"]), pc.equal(t["triads"], 0)), "a cycle rate without triads"),
    ),
)
# Gap of a document to an anchor (anchor minus document, Elo points), with its standard error.
# Anchors are known positives; in a query without one its four top-rated documents, which mining may or may not take.
GAP = Record(
    "Gap",
    1,
    ("query_id", "anchor_id", "doc_id"),
    schema_of("id query_id anchor_id doc_id", "real gap_elo gap_se_elo", "text anchor_kind"),
    (finite("gap_elo", "gap_se_elo"), one_of("anchor_kind", ("known", "top-rated"))),
)
# P(relevant) of a document of a query without a known positive; by_judges: without its rank; answer: the mean of the
# judges who were asked about it directly, null if none answered; may_anchor: it may anchor an example.
RELEVANCE = Record(
    "Relevance",
    3,
    ("query_id", "doc_id"),
    schema_of("id query_id doc_id", "real probability by_judges", "real? answer", "flag may_anchor"),
    (between("probability", 0.0, 1.0), between("by_judges", 0.0, 1.0), between("answer", 0.0, 1.0)),
)
# The anchor comes first in every list with weight 1, gap 0 and category "anchor". Documents of category "positive" may
# be relevant instead of it; their weight is P(relevant) in relation to the anchor's. Random documents have a null
# rating, gap and error of both, category "random". Errors are standard errors in Elo points. rating_mean and rating_sd
# are the query's, over all rated candidates.
EXAMPLE = Record(
    "Example",
    2,
    ("query_id", "example_id"),
    schema_of(
        "id query_id example_id",
        "ids doc_ids",
        "reals ratings rating_errors weights",
        "texts categories",
        "ints tiers",
        "reals gaps gap_errors",
        "real rating_mean rating_sd",
    ),
    (_equal_lengths, _members, finite("rating_mean", "rating_sd")),
)
# One measure of one system on one query.
METRIC = Record(
    "Metric",
    1,
    ("query_id", "system", "measure"),
    schema_of("id query_id", "text system measure", "real value"),
    (finite("value"),),
)
# A pairwise model's predictions for held-out pairs at a checkpoint, and the judges' answers. score is the judges' mean
# vote, 0 for doc_a, 1 for doc_b. Models of one probability each write p_a, p_b and p_tie (binary: no tie); a two-head
# model writes mean, its E[score], and decided, its E|2 score - 1|. A model that does not train has one step.
PREDICTION = Record(
    "Prediction",
    1,
    ("model", "step", "comparison_id"),
    schema_of(
        "text model target", "long step", "id comparison_id query_id", "real score", "real? p_a p_b p_tie mean decided"
    ),
    (
        one_of("target", ("binary", "ternary", "two-head")),
        every(lambda t: pc.greater_equal(t["step"], 0), "a step below 0"),
        *(between(column, 0.0, 1.0) for column in ("score", *FORECASTS)),
        every(
            _one_forecast,
            "must have p_a, p_b and p_tie that sum to 1, or mean and decided of a two-head target",
        ),
        every(lambda t: pc.or_kleene(pc.not_equal(t["target"], "binary"), pc.equal(t["p_tie"], 0)), "a binary tie"),
        constant("comparison_id", "score", "query_id"),
        constant("model", "target"),
    ),
)
# place: file and line, or stage and query; key: the id refused; several rejects may share both.
REJECT = Record("Reject", 1, (), schema_of("text place key reason detail"))

_ALL = (DOCUMENT, QUERY, QREL, RUN, CANDIDATE, TEXT_OF, COMPARISON, JUDGMENT, IMPORTED, ANSWER)
_ALL += (TRUTH, RATING, FIT, GAP, RELEVANCE, EXAMPLE, METRIC, PREDICTION, REJECT)
RECORDS: dict[str, Record] = {record.name: record for record in _ALL}


def rejects(place: str, rows: list[tuple[str, str, str]]) -> pa.Table:
    """A Reject table of (key, reason, detail) rows refused at `place`."""
    return reject_rows((place, *row) for row in rows)


def reject_rows(rows: Iterable[tuple[str, str, str, str]]) -> pa.Table:
    """A Reject table of (place, key, reason, detail) rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(REJECT.schema)
    return REJECT.table(dict(zip(REJECT.schema.names, columns, strict=True)))


def by_query(table: pa.Table) -> Iterator[tuple[bytes, pa.Table]]:
    """Split a table into (query_id, rows of that query), in order of query_id; row order inside is kept."""
    if not table.num_rows:
        return
    encoded = table["query_id"].combine_chunks().dictionary_encode()
    ids: list[bytes] = sorted(encoded.dictionary.to_pylist())
    rank = np.empty(len(ids), dtype=np.int64)
    rank[pc.index_in(pa.array(ids, type=ID), value_set=encoded.dictionary).to_numpy()] = np.arange(len(ids))
    rank_of_row = rank[encoded.indices.to_numpy()]
    if np.any(rank_of_row[1:] < rank_of_row[:-1]):
        order = np.argsort(rank_of_row, kind="stable")
        table = table.take(pa.array(order))
        rank_of_row = rank_of_row[order]
    bounds = np.searchsorted(rank_of_row, np.arange(len(ids) + 1))
    for query_id, start, stop in zip(ids, bounds, bounds[1:], strict=False):
        yield query_id, table.slice(start, stop - start)


def find_rows(table: pa.Table, keys: Mapping[str, pa.ChunkedArray | pa.Array]) -> NDArray[np.int64]:
    """Row of `table` with each tuple of `keys` (id columns by name), or -1.

    The columns named in `keys` are together a key of `table`. Joins on a 64-bit mix of the ids and compares them whole.
    """
    columns = [id_matrix(table[name]) for name in keys]
    wanted = [id_matrix(column) for column in keys.values()]
    held_key = mix(*columns)
    wanted_key = mix(*wanted)
    if not len(held_key):
        return np.full(len(wanted_key), -1, dtype=np.int64)
    order = np.argsort(held_key, kind="stable")
    held_key = held_key[order]
    if (held_key[1:] == held_key[:-1]).any():
        raise AssertionError(f"{', '.join(keys)} are not a key: the table contains a tuple twice")
    rows = order[np.minimum(np.searchsorted(held_key, wanted_key), len(order) - 1)]
    same = np.ones(len(rows), dtype=bool)
    for a, b in zip(columns, wanted, strict=True):
        same &= (a[rows] == b).all(axis=1)
    return np.where(same, rows, -1)
