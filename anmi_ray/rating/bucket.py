"""The rate stage's body: one bucket's judgments in, its Rating, Fit, Gap and Reject tables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from anmi_ray.config.rate import RateConfig
from anmi_ray.core import records
from anmi_ray.core.arrays import Flags
from anmi_ray.core.identity import ID_BYTES, id_column
from anmi_ray.core.scale import Floats, Model, to_elo
from anmi_ray.rating import diagnostics
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import Gaussian, laplace, propagate
from anmi_ray.rating.graph import graph_facts
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.shared_parameters import Globals, globals_of
from anmi_ray.rating.solver import Posterior, Solution, solve
from anmi_ray.rating.uncertainty import Errors, GapAnchors, anchors, errors

# Documents from which gaps of a query without a known positive are measured: where a judge of 80 % compares, 97 % of
# those that rank and rating together take for relevant are among the best eight by rating alone, 78 % among four.
TOP_RATED = 8


class RateResult(NamedTuple):
    """Tables of one bucket, sorted by (query_id, doc_id); gaps by (query_id, anchor_id, doc_id)."""

    ratings: pa.Table
    fits: pa.Table
    gaps: pa.Table
    rejects: pa.Table


def rate(
    judgments: pa.Table,
    comparisons: pa.Table,
    candidates: pa.Table,
    globals_: Globals,
    config: RateConfig,
    confirmed: pa.Table | None = None,
) -> RateResult:
    """Rate every query of a bucket; see `rate_games`. Rejects are judgments and candidates that no game holds.

    confirmed: (query_id, doc_id) that gaps are measured from whatever they are rated, in queries without a known one.
    """
    tables = judgments, comparisons, candidates
    games, rejects = read_games(*tables, config.judge_offsets, config.judge_weights)
    pairs = None
    if config.judge_offsets:
        pairs, _ = read_games(*tables, weights=config.judge_weights)
    also = None
    if confirmed is not None:
        rated = {"query_id": games.query_ids[games.query_of_doc], "doc_id": games.doc_ids}
        also = records.find_rows(confirmed, {name: id_column(ids) for name, ids in rated.items()}) >= 0
    return rate_games(games, globals_, config, pairs=pairs, top=TOP_RATED, confirmed=also)._replace(rejects=rejects)


def rate_games(
    games: Games,
    globals_: Globals,
    config: RateConfig,
    threads: int = 1,
    pairs: Games | None = None,
    top: int = 1,
    confirmed: Flags | None = None,
) -> RateResult:
    """Rate every query: posterior means or modes, centred per component, with errors, gaps and diagnostics.

    Gaps go from every rated known positive to every other rated document of its query; in a query without one, from
    each of its `top` best ones and of those that are `confirmed` bool[D]. `pairs`: the answers with a game a pair where
    `games` are single answers; facts about fits are of these. FitError: plain maximum likelihood was asked for and a
    query has no finite maximum.
    """
    if not games.queries:
        return RateResult(records.RATING.empty(), records.FIT.empty(), records.GAP.empty(), records.REJECT.empty())
    solution, fitted = approximate(games, globals_, config, threads)
    target = fitted.posterior
    games = target.games
    parts = diagnostics.components(games)
    centred, to, uncertain = averaged(fitted, parts.component, globals_, config, (top, confirmed), threads)
    by_pair = target if pairs is None else globals_.posterior(pairs)
    return RateResult(
        _ratings(target, globals_.model, centred, parts.component, uncertain),
        _fits(fitted, by_pair, globals_.model, centred, parts, solution, threads),
        _gaps(games, globals_.model, to, uncertain),
        records.REJECT.empty(),
    )


def averaged(
    fitted: Gaussian,
    component: np.ndarray,
    globals_: Globals,
    config: RateConfig,
    anchored: tuple[int, Flags | None],
    threads: int,
) -> tuple[Floats, GapAnchors, Errors]:
    """Centred ratings float64[D], the documents that gaps are measured from, and the errors of both.

    Where the prior's sd is a default, these are the moments of the mixture over its possible values.
    """
    games = fitted.posterior.games
    spreads = globals_.spreads
    if spreads is None:
        centred = centre(games, component, fitted.mean)
        to = anchors(games, centred, *anchored)
        return centred, to, errors(fitted, component, to, threads)
    fits = [approximate(games, replace(globals_, sigma0=sd), config, threads)[1] for sd, _ in spreads]
    ratings = [centre(games, component, fit.mean) for fit in fits]

    def mean(values: Sequence[Floats]) -> Floats:  # term by term: a matrix product rounds by the number of documents
        return np.sum([weight * value for (_, weight), value in zip(spreads, values, strict=True)], axis=0)

    def spread(values: Sequence[Floats], std_err: Sequence[Floats]) -> Floats:
        middle = mean(values)
        return np.sqrt(mean([np.square(e) + np.square(v - middle) for v, e in zip(values, std_err, strict=True)]))

    centred = mean(ratings)
    to = anchors(games, centred, *anchored)
    all_errors = [errors(fit, component, to, threads) for fit in fits]
    gaps = [error.gap for error in all_errors]
    uncertain = all_errors[0]._replace(
        std_err=spread(ratings, [error.std_err for error in all_errors]),
        gap=mean(gaps),
        gap_se=spread(gaps, [error.gap_se for error in all_errors]),
    )
    return centred, to, uncertain


def approximate(games: Games, globals_: Globals, config: RateConfig, threads: int = 1) -> tuple[Solution, Gaussian]:
    """The modes of all queries, and the posterior's Gaussian approximation that `config.estimate` names."""
    target = globals_.posterior(games)
    solution = solve(target, threads=threads)
    mode = solution.latent
    return solution, propagate(target, mode, threads) if config.estimate == "mean" else laplace(target, mode)


def centre(games: Games, component: np.ndarray, latent: Floats) -> Floats:
    """Ratings with mean zero in every connected component: likelihood says nothing about a component's level."""
    label = games.doc_start[:-1][games.query_of_doc] + component  # distinct per query: count ≤ documents
    total = np.bincount(label, latent, len(latent))
    size = np.bincount(label, minlength=len(latent))
    return latent - total[label] / size[label]


def _ratings(target: Posterior, model: Model, centred: Floats, component: np.ndarray, uncertain: Errors) -> pa.Table:
    games = target.games
    m = target.m
    first, second = games.global_ends()
    n = len(games.doc_ids)
    return records.RATING.table(
        {
            "query_id": games.query_ids[games.query_of_doc],
            "doc_id": games.doc_ids,
            "rating_elo": to_elo(centred, model),
            "std_err_elo": to_elo(uncertain.std_err, model),
            "latent": centred,
            "games": np.bincount(first, m, n) + np.bincount(second, m, n),
            "component": component,
        }
    )


def _fits(
    fitted: Gaussian,
    target: Posterior,
    model: Model,
    centred: Floats,
    parts: diagnostics.Components,
    solution: Solution,
    threads: int,
) -> pa.Table:
    games = target.games
    graph = graph_facts(games, target.m, threads)
    return records.FIT.table(
        {
            "query_id": games.query_ids,
            "documents": games.documents.astype(np.int32),
            "comparisons": games.games.astype(np.int32),
            "iterations": solution.iterations,
            "gradient_norm": solution.gradient_norm,
            "converged": solution.converged,
            "estimate": np.where(fitted.propagated, "mean", "mode"),
            "components": parts.count.astype(np.int32),
            **graph._asdict(),
            "cycle_rate": pa.array(graph.cycle_rate, from_pandas=True),  # NaN (without a triad) becomes null
            "deviance": diagnostics.deviance(target, solution.latent),
            "spread_elo": to_elo(diagnostics.spread(games, centred), model),
            "equal_ratings_p": diagnostics.equal_ratings_p(target, parts.count, threads),
        }
    )


def _gaps(games: Games, model: Model, to: GapAnchors, uncertain: Errors) -> pa.Table:
    query = games.query_of_doc[uncertain.gap_anchor]
    kinds = pa.DictionaryArray.from_arrays(pa.array(np.where(to.known[query], 0, 1)), ["known", "top-rated"])
    return records.GAP.table(
        {
            "query_id": games.query_ids[query],
            "anchor_id": games.doc_ids[uncertain.gap_anchor],
            "doc_id": games.doc_ids[uncertain.gap_doc],
            "gap_elo": to_elo(uncertain.gap, model),
            "gap_se_elo": to_elo(uncertain.gap_se, model),
            "anchor_kind": kinds.dictionary_decode(),
        }
    )


def compile_solver(config: RateConfig) -> None:
    """Fit the shared parameters to two documents that met twice, and rate them."""
    games = Games(
        query_ids=np.zeros((1, ID_BYTES), np.uint8),
        doc_ids=np.arange(2 * ID_BYTES, dtype=np.uint8).reshape(2, ID_BYTES),
        doc_start=np.array([0, 2]),
        game_start=np.array([0, 2]),
        positive=np.zeros(2, np.bool_),
        first=np.zeros(2, np.int32),
        second=np.ones(2, np.int32),
        w=np.array([0.25, 0.75]),
        answers=np.ones(2),
    )
    rate_games(games, globals_of(games, config), config)
