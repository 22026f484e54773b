"""What must hold in the tables of `records` besides their columns and keys: a function for each, None where it holds.

Letters: a comparison is stored with doc_a < doc_b, and p_a always speaks about doc_a.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.schema import Invariant

FORECASTS = ("p_a", "p_b", "p_tie", "mean", "decided")  # columns of Prediction


def ranks(table: pa.Table) -> str | None:
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


def mean_zero(table: pa.Table) -> str | None:
    """Ratings have mean zero in every component of every query (to 1e-6 latent units)."""
    if not table.num_rows:
        return None
    means = table.group_by(["query_id", "component"]).aggregate([("latent", "mean")])
    worst = pc.max(pc.abs(means["latent_mean"])).as_py()
    return f"ratings of a component have mean {worst:.2g}, not zero" if worst > 1e-6 else None


def equal_lengths(table: pa.Table) -> str | None:
    """The lists of an example are equally long."""
    lists = ("doc_ids", "ratings", "rating_errors", "weights", "categories", "tiers", "gaps", "gap_errors")
    if not table.num_rows:
        return None
    lengths = [pc.list_value_length(table[name]) for name in lists]
    same = all(pc.all(pc.equal(lengths[0], other)).as_py() for other in lengths[1:])
    return None if same else f"the lists {', '.join(lists)} differ in length"


def members(table: pa.Table) -> str | None:
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


def ordered_pair(table: pa.Table) -> str | None:
    """doc_a < doc_b."""
    bad = pc.sum(pc.greater_equal(table["doc_a"], table["doc_b"])).as_py()
    return f"{bad} pairs are not stored with doc_a < doc_b" if bad else None


def constant(by: str, *columns: str) -> Invariant:
    """Rows with the same `by` have the same value in each of `columns`."""

    def invariant(table: pa.Table) -> str | None:
        counts = table.group_by([by]).aggregate([(column, "count_distinct") for column in columns])
        for column in columns:
            bad = pc.sum(pc.greater(counts[f"{column}_count_distinct"], 1)).as_py() or 0
            if bad:
                return f"{bad} values of {by} have more than one {column}"
        return None

    invariant.__doc__ = f"Rows with the same {by} have the same {', '.join(columns)}."
    return invariant


def one_forecast(table: pa.Table) -> pa.ChunkedArray:
    """Two-head rows have mean and decided, the others three probabilities that sum to 1 (to 1e-5: float32)."""
    heads = pc.equal(table["target"], "two-head")
    valid = {name: pc.is_valid(table[name]) for name in FORECASTS}
    right = pc.less(pc.abs(pc.subtract(pc.add(pc.add(table["p_a"], table["p_b"]), table["p_tie"]), 1.0)), 1e-5)
    right = pc.or_(heads, pc.fill_null(right, False))
    for name, there in valid.items():
        wanted = heads if name in ("mean", "decided") else pc.invert(heads)
        right = pc.and_(right, pc.equal(there, wanted))
    return right


def split_by_text(table: pa.Table) -> str | None:
    """A query text belongs to one split only."""
    counts = table.select(["text_hash", "split"]).group_by("text_hash").aggregate([("split", "count_distinct")])
    bad = pc.sum(pc.greater(counts["split_count_distinct"], 1)).as_py() or 0
    return f"{bad} query texts are in more than one split" if bad else None
