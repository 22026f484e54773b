"""Rate or audit a user's preferences, given as a table or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.api import arguments
from anmi_ray.config.load import validate_as
from anmi_ray.config.rate import RateConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.tables import formats
from anmi_ray.tables.preferences import (
    ANSWERS,
    GAMES,
    PreferenceRows,
    Reading,
    check_preferences,
    read_preferences,
)
from anmi_ray.tables.rows import rows_of

if TYPE_CHECKING:
    from anmi_ray.judging import Imported
    from anmi_ray.rating import Globals
    from anmi_ray.rating.outcomes import Preferences

_NAMED = 3  # ids named in the summary
_UNITS = {"thurstone": "probit", "bradley-terry": "logit"}

# A file (.csv, .tsv, .jsonl, each also .gz or .zst, .parquet), an Arrow table, or what Arrow makes one of: columns by
# name, a data frame of pandas or Polars.
Source: TypeAlias = str | Path | pa.Table | Mapping[str, Any] | Any


@dataclass(frozen=True)
class Rated:
    """Rating, Fit and Gap tables in the ids of what was rated, and what stands behind them.

    ratings are sorted by query_id, rating_elo (descending) and doc_id; fits by query_id; gaps by query_id, anchor_id
    and doc_id. `shared` is what all queries share (prior, dispersion); `preferences` what was read and refused.
    `strangers` counts the rows of the anchors that name no rated document; None without anchors. `print` tells what was
    read, which model was fitted, and how that went.
    """

    ratings: pa.Table
    fits: pa.Table
    gaps: pa.Table
    shared: Globals
    preferences: Preferences
    strangers: int | None

    def __str__(self) -> str:
        return "\n".join([*self.preferences.said(), *self._counts(), *_model_lines(self.shared), *_fit_lines(self)])

    def _counts(self) -> Iterator[str]:
        read = self.preferences
        queries = "1 query" if self.fits.num_rows == 1 else f"{self.fits.num_rows:,} queries"
        yield f"rated          {queries}, {self.ratings.num_rows:,} documents, {len(read.outcomes.w):,} games"
        if read.failures:
            yield f"               {read.failures:,} rows with an error are failures and no games"
        if read.silent:
            only = "only failures or rows with games = 0"
            yield f"               {read.silent:,} documents have {only} and are not rated"
        if self.strangers is not None:
            yield f"anchors        {len(read.anchors):,} known positives; their prior: {self.shared.positive_how}"
        if self.strangers:
            yield f"               {self.strangers:,} of their rows name no rated document"


def _model_lines(shared: Globals) -> Iterator[str]:
    """What all queries share: the prior, ties and leanings where the model has them, the dispersion."""
    from anmi_ray.core.scale import to_elo
    from anmi_ray.rating.dispersion import DISPERSION_BOUNDS

    if shared.sigma0 is None:
        prior = "no prior (maximum likelihood)"
    else:
        elo = float(to_elo(shared.sigma0, shared.model))
        prior = f"prior sd {shared.sigma0:.3g} {_UNITS[shared.model]}, {elo:.0f} Elo points ({shared.sigma0_how})"
    yield f"model          {shared.model}, {prior}"
    if shared.ties != "half":
        yield f"ties           {shared.ties}, width {shared.tie_width:.3g}"
    for judge, leaning in sorted(shared.offsets.items(), key=lambda item: -abs(item[1]))[:_NAMED]:
        elo = float(to_elo(leaning, shared.model))
        yield f"leaning        judge {judge or '(unnamed)'}: {elo:+.0f} Elo points for the document shown first"
    if len(shared.offsets) > _NAMED:
        yield f"               and {len(shared.offsets) - _NAMED} judges who lean less"
    yield f"dispersion     {shared.dispersion:.3g} ({shared.dispersion_how})"
    note = "               note: "
    if shared.spreads is not None:
        low, *_, high = (float(to_elo(sd, shared.model)) for sd, _ in shared.spreads)
        yield f"{note}ratings are averaged over prior sds of {low:.0f} to {high:.0f} Elo points; --prior fixes one"
    if "bound" in shared.sigma0_how:
        yield f"{note}these games do not determine the prior's spread; give one with --prior, such as --prior 1"
    if not DISPERSION_BOUNDS[0] < shared.dispersion < DISPERSION_BOUNDS[1]:
        yield f"{note}the dispersion sits at a bound of its range; --dispersion 1 takes every game at its word"


def _fit_lines(rated: Rated) -> Iterator[str]:
    """How the queries' fits went."""
    fits = rated.fits
    modes = pc.sum(pc.equal(fits["estimate"], "mode")).as_py()
    estimate = "posterior modes" if modes == fits.num_rows else "posterior means"
    some = f"; modes in {modes:,} queries (see --fits)" if 0 < modes < fits.num_rows else ""
    yield f"estimate       {estimate}{some}"
    yield f"converged      {_which(fits, pc.invert(fits['converged']), 'not converged')}"
    yield f"connected      {_which(fits, pc.greater(fits['components'], 1), 'disconnected')}"
    yield f"std. error     median {np.median(rated.ratings['std_err_elo'].to_numpy()):.1f} Elo points"


def _which(fits: pa.Table, bad: pa.ChunkedArray, word: str) -> str:
    count = pc.sum(bad).as_py() or 0
    if not count:
        return "every query"
    ids = fits["query_id"].filter(bad).slice(0, _NAMED).to_pylist()
    return f"{count:,} of {fits.num_rows:,} queries {word} ({', '.join(ids)}{', ...' if count > len(ids) else ''})"


def rate(
    preferences: Source,
    anchors: Source | None = None,
    *,
    one_query: bool = False,
    max_reject_fraction: float = 0.1,
    rejects: str | Path | None = None,
    threads: int = 0,
    columns: Mapping[str, str] | None = None,
    **settings: Any,
) -> Rated:
    """Rate documents from pairwise preferences, with standard errors.

    Columns: query_id, doc_a, doc_b, preference (of doc_a, 0 to 1), and, if there are, games and judge, as of
    `anmi rate`. `anchors` (query_id, doc_id) are known positives, to which gaps are measured. `one_query`: there is no
    query_id. `rejects`: a file for the rows that cannot be used. `threads`: 0 takes all cores. `columns` says what
    columns are called that have other names, as {"query_id": "qid", "preference": "better"}. `settings` are those of
    the group `rate`. Raises ConfigError for a setting, DataError where a column is missing or more than
    `max_reject_fraction` of the rows cannot be used, FitError where there is no finite maximum.

    >>> table = {"query_id": ["q", "q"], "doc_a": ["x", "y"], "doc_b": ["y", "z"], "preference": [0.9, 0.8]}
    >>> rated = anmi_ray.rate(table, prior=1.0)
    >>> rated.ratings["doc_id"].to_pylist()
    ['x', 'y', 'z']
    >>> rated.gaps.column_names
    ['query_id', 'anchor_id', 'doc_id', 'gap_elo', 'gap_se_elo', 'anchor_kind']
    """
    config = validate_as(RateConfig, settings, "anmi_ray.rate", "docs/reference/settings.md lists them, group rate")
    return rate_with(config, preferences, anchors, one_query, max_reject_fraction, rejects, threads, columns)


def rate_with(
    config: RateConfig,
    preferences: Source,
    anchors: Source | None,
    one_query: bool,
    max_reject_fraction: float,
    rejects: str | Path | None,
    threads: int,
    columns: Mapping[str, str] | None = None,
) -> Rated:
    """`rate` under settings that are validated."""
    from anmi_ray.rating.outcomes import ANCHOR_TEXTS, outcomes_of, with_anchors
    from anmi_ray.rating.rate_table import rate_read

    arguments.share(max_reject_fraction, "max_reject_fraction")
    arguments.threads(threads)
    read = outcomes_of(_read(preferences, GAMES, one_query, columns))
    _check_rejects(read, rejects, max_reject_fraction)
    strangers = None
    if anchors is not None:
        known = formats.read_rows(Path(anchors), ANCHOR_TEXTS) if isinstance(anchors, (str, Path)) else rows_of(anchors)
        read, strangers = with_anchors(read, known, one_query)
    named = rate_read(read, config, threads or environment.cores())
    return Rated(named.ratings, named.fits, named.gaps, named.globals_, named.preferences, strangers)


@dataclass(frozen=True)
class Audited:
    """Figures of an audit (`judges` by name, `panel`, `source`), and what was read and refused."""

    figures: Mapping[str, Any]
    answers: Imported


def audit(
    answers: Source,
    *,
    grades: str | Path | None = None,
    max_reject_fraction: float = 0.1,
    rejects: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> Audited:
    """Say how far to trust each judge: failures, ties, position and length bias, cycles, agreement, accuracy.

    Columns: query_id, doc_a, doc_b, preference (of doc_a, 0 to 1), and, if there are, judge, order, error, round,
    length_a and length_b, as of `anmi audit`. `grades` is a file of known grades (TREC qrels, or BEIR's .tsv), for the
    accuracy; `rejects` a file for the rows that cannot be used; `columns` as of `rate`; `say` receives a message if
    grades are left out as malformed. Raises ConfigError or DataError for what can be mended.

    >>> table = {"query_id": ["q", "q"], "doc_a": ["x", "x"], "doc_b": ["y", "y"], "order": ["ab", "ba"],
    ...          "judge": ["me", "me"], "preference": [0.9, 0.2]}
    >>> anmi_ray.audit(table).figures["judges"]["me"]["order_inconsistent_rate"]
    1.0
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.judging import audit as measured
    from anmi_ray.judging import read_judgments
    from anmi_ray.rating.graph import count_triads

    arguments.share(max_reject_fraction, "max_reject_fraction")
    read = read_judgments(_read(answers, ANSWERS, columns=columns))
    _check_rejects(read, rejects, max_reject_fraction)
    if not read.judgments.num_rows:
        raise DataError("holds no answer to audit", read.place, "give rows in which two documents are compared")
    qrels = None if grades is None else lookup.read_qrels(Path(grades), say)
    lengths = None if np.isnan(read.log_length).all() else read.log_length
    rows = {"read": read.rows, "rejected": {reason: count for reason, (count, _) in read.reasons().items()}}
    figures: dict[str, Any] = {
        "source": {"file": read.place, "rows": rows},
        **measured(read.judgments, read.comparisons, grades=qrels, log_length=lengths, triads=count_triads),
    }
    if grades is not None and not figures["panel"]["graded"]["comparisons"]:
        remedy = "give grades of the compared documents, with query and document ids as they stand in the answers"
        raise DataError("grades no pair that was compared", str(grades), remedy)
    return Audited(figures, read)


def _read(
    source: Source, reading: Reading, one_query: bool = False, columns: Mapping[str, str] | None = None
) -> PreferenceRows:
    """The rows of a file, or of anything that Arrow makes a table of."""
    named = {} if columns is None else columns
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in (*named, *named.values())):
        raise ConfigError(f"{named!r} is no mapping of names", "columns", 'write {"query_id": "qid"}')
    if unknown := set(named).difference(reading.columns):
        raise ConfigError(f"there is no column {min(unknown)}", "columns", f"name {', '.join(reading.columns)}")
    if isinstance(source, (str, Path)):
        return read_preferences(Path(source), reading, one_query, named)
    return check_preferences(rows_of(source).renamed(named), reading, one_query)


def _check_rejects(read: Preferences | Imported, rejects: str | Path | None, max_fraction: float) -> None:
    """Write the rows that were refused, and raise DataError where they are too many."""
    if rejects is not None:
        formats.write_table(read.rejects, Path(rejects))
    read.refuse_rejects(max_fraction)
