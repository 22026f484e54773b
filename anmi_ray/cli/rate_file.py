"""`anmi rate`: a file of preferences in, files of ratings, fits, gaps and rejects, a picture and a summary out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from anmi_ray.config.rate import RateConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.scale import to_elo
from anmi_ray.rating.dispersion import DISPERSION_BOUNDS
from anmi_ray.rating.outcomes import ANCHOR_TEXTS, Preferences, outcomes_of, with_anchors
from anmi_ray.rating.rate_table import NamedRatings, rate_read
from anmi_ray.rating.shared_parameters import Globals
from anmi_ray.tables import formats
from anmi_ray.tables.preferences import GAMES, read_preferences

if TYPE_CHECKING:
    from anmi_ray.reports.pictures import RatedList

PLOTTED = 3  # queries in a picture, unless one is asked for
_NAMED = 3  # ids named in the summary
_UNITS = {"thurstone": "probit", "bradley-terry": "logit"}
_COMMAND = "command line"


@dataclass(frozen=True)
class ModelOptions:
    """What is typed about the model; words or numbers as text."""

    model: str = "thurstone"
    prior: str = "empirical-bayes"
    ties: str = "half"
    tie_width: str = "fitted"
    lapse: str = "none"
    judge_offsets: bool = False
    dispersion: str = "pooled"
    estimate: str = "mean"
    strength: str = "unit"


@dataclass(frozen=True)
class Outputs:
    """Files to write."""

    out: Path
    fits: Path | None = None
    gaps: Path | None = None
    rejects: Path | None = None
    plot: Path | None = None


def rate_file(
    file: Path,
    options: ModelOptions,
    outputs: Outputs,
    anchors: Path | None = None,
    plot_query: str | None = None,
    one_query: bool = False,
    max_reject_fraction: float = 0.1,
    threads: int = 0,
) -> Iterator[str]:
    """Rate a file's documents and write what was asked for; yields the summary's lines.

    Raises ConfigError, DataError, FitError or StoreError; nothing but the rejects is written then.
    """
    config = _config(options)
    formats.check_outputs(vars(outputs), [path for path in (file, anchors) if path is not None])
    read = outcomes_of(read_preferences(file, GAMES, one_query))
    if outputs.rejects is not None:
        formats.write_table(read.rejects, outputs.rejects)
    read.refuse_rejects(max_reject_fraction)
    unrated = 0
    if anchors is not None:
        read, unrated = with_anchors(read, formats.read_rows(anchors, ANCHOR_TEXTS), one_query)
    if plot_query is not None:
        _check_query(plot_query, read)
    result = rate_read(read, config, threads or environment.cores())
    tables = ((outputs.out, result.ratings), (outputs.fits, result.fits), (outputs.gaps, result.gaps))
    for path, table in tables:
        if path is not None:
            formats.write_table(table, path)
    yield from _summary(result, config, unrated if anchors is not None else None)
    if outputs.plot is not None:
        drawn = [plot_query] if plot_query is not None else _first_queries(result)
        _plot(result, drawn, outputs.plot)
    yield from _written(result, outputs, plot_query)


def _config(options: ModelOptions) -> RateConfig:
    """The settings that the options stand for. ConfigError where a value is none that may be."""
    given: dict[str, Any] = {
        "model": options.model,
        "prior": _word_or_number("prior", options.prior, {"none": None, "empirical-bayes": "empirical-bayes"}),
        "dispersion": _word_or_number("dispersion", options.dispersion, {"pooled": "pooled", "pearson": "pearson"}),
        "ties": options.ties,
        "tie_width": _word_or_number("tie-width", options.tie_width, {"fitted": "fitted"}),
        "lapse": _word_or_number("lapse", options.lapse, {"none": 0.0, "fitted": "fitted"}),
        "judge_offsets": options.judge_offsets,
        "estimate": options.estimate,
        "strength": options.strength,
    }
    try:
        return RateConfig(**given)
    except ValidationError as error:
        detail = error.errors(include_url=False)[-1]  # of a choice of forms the last is the number's
        what = str(detail["msg"]).removeprefix("Value error, ")
        if detail["loc"]:
            what = f"--{str(detail['loc'][0]).replace('_', '-')} {detail.get('input')}: {what}"
        raise ConfigError(what, _COMMAND, "anmi rate --help says what is allowed") from None


def _word_or_number(option: str, text: str, words: dict[str, Any]) -> Any:
    if text in words:
        return words[text]
    try:
        return float(text)
    except ValueError:
        allowed = " or ".join([*words, "a number"])
        near = difflib.get_close_matches(text, words, n=1, cutoff=0.6)
        remedy = f"did you mean --{option} {near[0]}?" if near else "anmi rate --help says what each means"
        raise ConfigError(f"--{option} must be {allowed}, not '{text}'", _COMMAND, remedy) from None


def _check_query(name: str, read: Preferences) -> None:
    known = read.queries.take(pa.array(np.unique(read.outcomes.query)))
    if pc.is_in(pa.array([name]), value_set=known)[0].as_py():
        return
    near = difflib.get_close_matches(name, known.slice(0, 1000).to_pylist(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"the first is {known[0].as_py()}" if len(known) else "mend the file"
    raise ConfigError(f"--plot-query {name}: no such query is rated", read.place, hint)


def _summary(result: NamedRatings, config: RateConfig, unrated: int | None) -> Iterator[str]:
    read, shared, ratings, fits = result.preferences, result.globals_, result.ratings, result.fits
    yield from read.said()
    games = len(read.outcomes.w)
    queries = "1 query" if fits.num_rows == 1 else f"{fits.num_rows:,} queries"
    yield f"rated          {queries}, {ratings.num_rows:,} documents, {games:,} games"
    if read.failures:
        yield f"               {read.failures:,} rows with an error are failures and no games"
    if read.silent:
        yield f"               {read.silent:,} documents have only failures or rows with games = 0 and are not rated"
    if unrated is not None:
        yield f"anchors        {len(read.anchors):,} known positives; their prior: {shared.positive_how}"
        if unrated:
            yield f"               {unrated:,} of their rows name no rated document"
    yield f"model          {config.model}, {_prior(result)}"
    yield from _habits(shared)
    yield f"dispersion     {shared.dispersion:.3g} ({shared.dispersion_how})"
    yield from (f"               {note}" for note in _notes(result))
    yield f"estimate       {_estimate(fits)}"
    yield f"converged      {_which(fits, pc.invert(fits['converged']), 'not converged')}"
    yield f"connected      {_which(fits, pc.greater(fits['components'], 1), 'disconnected')}"
    yield f"std. error     median {np.median(ratings['std_err_elo'].to_numpy()):.1f} Elo points"


def _estimate(fits: pa.Table) -> str:
    modes = pc.sum(pc.equal(fits["estimate"], "mode")).as_py()
    if not modes:
        return "posterior means"
    return "posterior modes" if modes == fits.num_rows else f"posterior means; modes in {modes:,} queries (see --fits)"


def _prior(result: NamedRatings) -> str:
    shared = result.globals_
    if shared.sigma0 is None:
        return "no prior (maximum likelihood)"
    elo = float(to_elo(shared.sigma0, shared.model))
    return f"prior sd {shared.sigma0:.3g} {_UNITS[shared.model]}, {elo:.0f} Elo points ({shared.sigma0_how})"


def _habits(shared: Globals) -> Iterator[str]:
    """Tie width, lapse rate and leanings, where the model has them."""
    if shared.ties != "half":
        yield f"ties           {shared.ties}, width {shared.tie_width:.3g}"
    if shared.lapse_how != "none":
        yield f"lapse          {shared.lapse:.3g} of all answers are a coin's ({shared.lapse_how})"
    for judge, leaning in sorted(shared.offsets.items(), key=lambda item: -abs(item[1]))[:_NAMED]:
        elo = float(to_elo(leaning, shared.model))
        yield f"leaning        judge {judge or '(unnamed)'}: {elo:+.0f} Elo points for the document shown first"
    if len(shared.offsets) > _NAMED:
        yield f"               and {len(shared.offsets) - _NAMED} judges who lean less"


def _notes(result: NamedRatings) -> Iterator[str]:
    """What a reader of the numbers should know about how they came to be."""
    shared = result.globals_
    if "bound" in shared.sigma0_how:
        yield "note: these games do not determine the prior's spread; give one with --prior, such as --prior 1"
    if not DISPERSION_BOUNDS[0] < shared.dispersion < DISPERSION_BOUNDS[1]:
        yield "note: the dispersion sits at a bound of its range; --dispersion 1 takes every game at its word"


def _which(fits: pa.Table, bad: pa.ChunkedArray, word: str) -> str:
    count = pc.sum(bad).as_py() or 0
    if not count:
        return "every query"
    ids = fits["query_id"].filter(bad).slice(0, _NAMED).to_pylist()
    return f"{count:,} of {fits.num_rows:,} queries {word} ({', '.join(ids)}{', ...' if count > len(ids) else ''})"


def _first_queries(result: NamedRatings) -> list[str]:
    return result.fits["query_id"].slice(0, PLOTTED).to_pylist()


def _plot(result: NamedRatings, queries: list[str], path: Path) -> None:
    from anmi_ray.reports import pictures  # Altair is slow to import: only where something is drawn

    drawn = [pictures.ratings(_rated_list(result, query)) for query in queries]
    total = result.fits.num_rows
    note = "Best first. An interval is about the rating itself; the error of a difference stands in the gaps (--gaps)."
    if len(queries) < total:
        note = f"{len(queries)} of {total:,} queries. {note}"
    heading = f"Ratings of {Path(result.preferences.place).name}"
    formats.write_text(pictures.content(drawn, path.suffix, heading, note), path)


def _rated_list(result: NamedRatings, query: str) -> RatedList:
    from anmi_ray.reports.pictures import RatedList

    rows = result.ratings.filter(pc.equal(result.ratings["query_id"], query))
    gaps = result.gaps.filter(
        pc.and_(pc.equal(result.gaps["query_id"], query), pc.equal(result.gaps["anchor_kind"], "known"))
    )
    return RatedList(
        query,
        rows["doc_id"].to_pylist(),
        rows["rating_elo"].to_numpy(),
        rows["std_err_elo"].to_numpy(),
        pc.is_in(rows["doc_id"], value_set=pc.unique(gaps["anchor_id"])).to_numpy(),
        rows["component"].to_numpy(),
    )


def _written(result: NamedRatings, outputs: Outputs, plot_query: str | None) -> Iterator[str]:
    for option, path in vars(outputs).items():
        if path is None:
            continue
        name = "ratings" if option == "out" else option
        also = ""
        if option == "plot" and plot_query is None and result.fits.num_rows > PLOTTED:
            shown = ", ".join(_first_queries(result))
            also = f" (queries {shown} of {result.fits.num_rows:,}; another with --plot-query)"
        yield f"{name:14} -> {path}{also}"
