"""Rate or audit a user's preferences, given as a table or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

_NAMED = 3  # ids in the summary
_UNITS = {"thurstone": "probit", "bradley-terry": "logit"}

# A file (.csv, .tsv, .jsonl, each also .gz or .zst, .parquet), an Arrow table, columns by name, or a data frame.
Source: TypeAlias = str | Path | pa.Table | Mapping[str, Any] | Any


@dataclass(frozen=True)
class Rated:
    """Ratings of documents, by the ids of what was rated; `print` shows a summary.

    ratings: sorted by query_id, rating_elo (descending) and doc_id
    fits: a row per query, sorted by query_id
    gaps: sorted by query_id, anchor_id and doc_id
    shared: parameters that all queries share (prior, dispersion)
    preferences: what was read and rejected
    strangers: rows of the anchors that name no rated document; None without anchors
    """

    ratings: pa.Table
    fits: pa.Table
    gaps: pa.Table
    shared: Globals
    preferences: Preferences
    strangers: int | None

    def __str__(self) -> str:
        return "\n".join([*self.preferences.said(), *self._counts(), *_model_lines(self.shared), *self._fits()])

    def _counts(self) -> Iterator[str]:
        read = self.preferences
        queries = "1 query" if self.fits.num_rows == 1 else f"{self.fits.num_rows:,} queries"
        yield f"rated          {queries}, {self.ratings.num_rows:,} documents, {len(read.outcomes.w):,} games"
        if read.failures:
            yield f"               {read.failures:,} rows with an error are failures, not games"
        if read.silent:
            yield f"               {read.silent:,} documents have only failures or rows with games = 0: not rated"
        if self.strangers is not None:
            yield f"anchors        {len(read.anchors):,} known positives; their prior: {self.shared.positive_how}"
        if self.strangers:
            yield f"               {self.strangers:,} of their rows name no rated document"

    def _fits(self) -> Iterator[str]:
        fits = self.fits
        modes = pc.sum(pc.equal(fits["estimate"], "mode")).as_py()
        estimate = "posterior modes" if modes == fits.num_rows else "posterior means"
        some = f"; modes in {modes:,} queries (see --fits)" if 0 < modes < fits.num_rows else ""
        yield f"estimate       {estimate}{some}"
        for name, bad, word in (
            ("converged", pc.invert(fits["converged"]), "not converged"),
            ("connected", pc.greater(fits["components"], 1), "disconnected"),
        ):
            ids = fits["query_id"].filter(bad).to_pylist()
            some = f"{', '.join(ids[:_NAMED])}{', ...' if len(ids) > _NAMED else ''}"
            count = f"{len(ids):,} of {fits.num_rows:,} queries {word} ({some})" if ids else "every query"
            yield f"{name}      {count}"
        yield f"std. error     median {np.median(self.ratings['std_err_elo'].to_numpy()):.1f} Elo points"


def _model_lines(shared: Globals) -> Iterator[str]:
    """Yield the parameters that all queries share: prior, ties and judges' offsets if fitted, dispersion."""
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
        yield f"offset         judge {judge or '(unnamed)'}: {elo:+.0f} Elo points for the document shown first"
    if len(shared.offsets) > _NAMED:
        yield f"               and {len(shared.offsets) - _NAMED} judges with smaller offsets"
    yield f"dispersion     {shared.dispersion:.3g} ({shared.dispersion_how})"
    note = "               note: "
    if shared.spreads is not None:
        low, *_, high = (float(to_elo(sd, shared.model)) for sd, _ in shared.spreads)
        yield f"{note}ratings are averaged over prior sds of {low:.0f} to {high:.0f} Elo points; --prior fixes one"
    if "bound" in shared.sigma0_how:
        yield f"{note}the prior's spread cannot be estimated from these games; set it, such as --prior 1"
    if not DISPERSION_BOUNDS[0] < shared.dispersion < DISPERSION_BOUNDS[1]:
        yield f"{note}the dispersion is at a bound of its range; --dispersion 1 treats every game as independent"


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

    preferences: columns query_id, doc_a, doc_b, preference (for doc_a, 0 to 1), and optionally games and judge, as in
        `anmi rate`
    anchors: known positives (query_id, doc_id), from which gaps are measured
    one_query: ignore query_id
    rejects: file for unusable rows
    threads: 0 uses all cores
    columns: names of columns that differ, such as {"query_id": "qid", "preference": "better"}
    settings: of the group `rate`

    Raise ConfigError for an invalid setting, DataError if a column is missing or more than `max_reject_fraction` of the
    rows are unusable, FitError if there is no finite maximum.

    >>> table = {"query_id": ["q", "q"], "doc_a": ["x", "y"], "doc_b": ["y", "z"], "preference": [0.9, 0.8]}
    >>> rated = anmi_ray.rate(table, prior=1.0)
    >>> rated.ratings["doc_id"].to_pylist()
    ['x', 'y', 'z']
    >>> rated.gaps.column_names
    ['query_id', 'anchor_id', 'doc_id', 'gap_elo', 'gap_se_elo', 'anchor_kind']
    """
    from anmi_ray.rating.outcomes import ANCHOR_TEXTS, outcomes_of, with_anchors
    from anmi_ray.rating.rate_table import rate_read

    config = validate_as(RateConfig, settings, "rate", "docs/reference/settings.md lists the group rate")
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
    """Figures of an audit (`judges` by name, `panel`, `source`), and what was read and rejected."""

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
    """Measure how reliable each judge is: failures, ties, position and length bias, cycles, agreement, accuracy.

    answers: columns query_id, doc_a, doc_b, preference (for doc_a, 0 to 1), and optionally judge, order, error, round,
        length_a and length_b, as in `anmi audit`
    grades: file of known grades (TREC qrels, or BEIR's .tsv), for accuracy
    rejects, columns: as for `rate`
    say: receives a message if malformed grades are left out

    Raise ConfigError or DataError for user errors.

    >>> table = {"query_id": ["q", "q"], "doc_a": ["x", "x"], "doc_b": ["y", "y"], "order": ["ab", "ba"],
    ...          "judge": ["me", "me"], "preference": [0.9, 0.2]}
    >>> anmi_ray.audit(table).figures["judges"]["me"]["order_inconsistent_rate"]
    1.0
    """
    from anmi_ray.corpus import lookup
    from anmi_ray.judging import audit as measured
    from anmi_ray.judging import read_judgments
    from anmi_ray.rating.graph import count_triads

    read = read_judgments(_read(answers, ANSWERS, columns=columns))
    _check_rejects(read, rejects, max_reject_fraction)
    if not read.judgments.num_rows:
        raise DataError("no answer to audit", read.place, "give rows that compare two documents")
    qrels = None if grades is None else lookup.read_qrels(Path(grades), say)
    lengths = None if np.isnan(read.log_length).all() else read.log_length
    rows = {"read": read.rows, "rejected": {reason: count for reason, (count, _) in read.reasons().items()}}
    figures: dict[str, Any] = {
        "source": {"file": read.place, "rows": rows},
        **measured(read.judgments, read.comparisons, grades=qrels, log_length=lengths, triads=count_triads),
    }
    if grades is not None and not figures["panel"]["graded"]["comparisons"]:
        remedy = "give grades of the compared documents, with the query and document ids of the answers"
        raise DataError("no compared pair is graded", str(grades), remedy)
    return Audited(figures, read)


def _read(
    source: Source, reading: Reading, one_query: bool = False, columns: Mapping[str, str] | None = None
) -> PreferenceRows:
    """Return the rows of a file, or of anything from which Arrow makes a table."""
    named = columns or {}
    if unknown := set(named).difference(reading.columns):
        what = f"unknown column {min(unknown)}; expected {', '.join(reading.columns)}"
        raise ConfigError(what, "columns", "give a mapping such as {'query_id': 'qid'}")
    if isinstance(source, (str, Path)):
        return read_preferences(Path(source), reading, one_query, named)
    return check_preferences(rows_of(source).renamed(named), reading, one_query)


def _check_rejects(read: Preferences | Imported, rejects: str | Path | None, max_fraction: float) -> None:
    """Write the rejected rows, and raise DataError if there are too many."""
    if rejects is not None:
        formats.write_table(read.rejects, Path(rejects))
    read.refuse_rejects(max_fraction)
