"""Ratings of a table of preferences in the user's own ids: the library's way in, and what `anmi rate` calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import ConfigError, FitError, NoMaximumError
from anmi_ray.core.identity import query_id
from anmi_ray.rating.bucket import rate_games
from anmi_ray.rating.outcomes import Outcomes, Preferences, outcomes_of, with_anchors
from anmi_ray.rating.shared_parameters import SAMPLE_QUERIES, Globals, globals_of, sample_queries
from anmi_ray.tables.preferences import GAMES, check_preferences
from anmi_ray.tables.rows import rows_of


class NamedRatings(NamedTuple):
    """Rating, Fit and Gap tables with ids as text, what all queries share, and what was read and refused.

    ratings are sorted by query_id, rating_elo (descending) and doc_id; fits by query_id; gaps by query_id, anchor_id
    and doc_id. Ids sort as text.
    """

    ratings: pa.Table
    fits: pa.Table
    gaps: pa.Table
    globals_: Globals
    preferences: Preferences


def rate_preferences(
    table: Any,
    config: RateConfig | None = None,
    *,
    anchors: Any = None,
    one_query: bool = False,
    max_reject_fraction: float = 0.1,
    threads: int = 1,
) -> NamedRatings:
    """Rate the documents of a table: query_id, doc_a, doc_b, preference [games] [judge] [order] [error].

    preference in [0, 1] is of doc_a; `tables.preferences` says what the columns hold. A table is an Arrow table or what
    Arrow makes one of: columns by name, a data frame. `anchors` (query_id, doc_id) are known positives, to which gaps
    are measured and which get a positive's prior. ConfigError: `config` is not a RateConfig. DataError: a column is
    missing, more than `max_reject_fraction` of the rows cannot be used, or no anchor is rated. FitError: there is
    nothing to rate, or plain maximum likelihood was asked for and a query has no finite maximum; it names documents by
    the table's ids.

    >>> table = pa.table({"query_id": ["q"] * 2, "doc_a": ["x", "y"], "doc_b": ["y", "z"], "preference": [0.9, 0.8]})
    >>> rate_preferences(table, RateConfig(prior=1.0)).ratings["doc_id"].to_pylist()
    ['x', 'y', 'z']
    """
    if config is not None and not isinstance(config, RateConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"expected a RateConfig, got {type(config).__name__}", "config", "give RateConfig(prior=1.0)")
    preferences = outcomes_of(check_preferences(table, GAMES, one_query))
    preferences.refuse_rejects(max_reject_fraction)
    if anchors is not None:
        preferences, _ = with_anchors(preferences, rows_of(anchors), one_query)
    return rate_read(preferences, config or RateConfig(), threads)


def rate_read(preferences: Preferences, config: RateConfig, threads: int = 1) -> NamedRatings:
    """`rate_preferences` on what was read and checked already."""
    if not len(preferences.outcomes.w):
        raise FitError(
            f"nothing to rate: {preferences.rows:,} rows hold no comparison of two documents that counts for a game",
            preferences.place,
            "give rows in which two different documents are compared, with games above 0 and without an error",
        )
    judged = config.judge_offsets is True  # what a file names first is what was shown first only if its owner says so
    try:
        sample = preferences.games(_sample(preferences, SAMPLE_QUERIES), judged)
        globals_ = globals_of(sample, config, threads)
        result = rate_games(preferences.games(judged=judged), globals_, config, threads)
    except NoMaximumError as error:
        raise _named(error, preferences) from None
    ratings, fits, gaps = (_with_names(table, preferences) for table in result[:3])
    order = [("query_id", "ascending"), ("rating_elo", "descending"), ("doc_id", "ascending")]
    return NamedRatings(ratings.sort_by(order), fits, gaps, globals_, preferences)


def _sample(preferences: Preferences, size: int) -> Outcomes:
    """The outcomes of a hash sample of at most `size` queries."""
    o = preferences.outcomes
    ranks = np.unique(o.query)
    if len(ranks) <= size:
        return o
    hashed = {
        query_id(name): rank for rank, name in zip(ranks, preferences.queries.take(ranks).to_pylist(), strict=True)
    }
    return o.take(np.isin(o.query, [hashed[key] for key in sample_queries(hashed, size)]))


def _with_names(table: pa.Table, preferences: Preferences) -> pa.Table:
    columns = {
        name: preferences.names(name, table[name]) if name in ("query_id", "anchor_id", "doc_id") else table[name]
        for name in table.column_names
    }
    return pa.table(columns)


def _named(error: NoMaximumError, preferences: Preferences) -> NoMaximumError:
    """The same error in the user's ids."""
    ids = {name: pa.array([bytes.fromhex(name)], pa.binary(16)) for name in (error.query, *error.documents)}
    return NoMaximumError(
        error.message,
        preferences.place,
        "set the prior to empirical-bayes or to a standard deviation",
        preferences.names("query_id", ids[error.query])[0].as_py(),
        tuple(pc.unique(preferences.names("doc_id", ids[name]))[0].as_py() for name in error.documents),
    )
