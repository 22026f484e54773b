"""Strength from confidence inside a fit: what every game counts for, once what all queries share is known.

`linear`, `sqrt` and `squared` weigh a game by what its judge said; `information` and `learned` by what a first fit, in
which all games weigh the same, foretells of it. That first fit's shared numbers travel in `Globals.first`, so that a
bucket weighs its games as the sample was weighed. The formulas are in `strengths`.
Letters: P games.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import id_array
from anmi_ray.core.scale import Floats
from anmi_ray.rating import strengths
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.dispersion import foretold, leave_one_pair_out
from anmi_ray.rating.games import Games, bounded
from anmi_ray.rating.gaussian import gaps
from anmi_ray.rating.likelihood import moments
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.shared_parameters import (
    SAMPLE_DOCUMENTS,
    SAMPLE_QUERIES,
    Globals,
    globals_of,
    sample_queries,
)
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.rating.strengths import POWERS, Noise


def fit_globals(judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, config: RateConfig) -> Globals:
    """`shared_numbers` of the games of at most SAMPLE_QUERIES of the queries given."""
    chosen = sample_queries(pc.unique(comparisons["query_id"]).to_pylist(), SAMPLE_QUERIES)
    judgments, comparisons, candidates = (
        table.filter(pc.is_in(table["query_id"], value_set=id_array(chosen)))
        for table in (judgments, comparisons, candidates)
    )
    how = (config.inconsistent_strength, config.judge_offsets, config.judge_weights)
    games, _ = read_games(judgments, comparisons, candidates, *how)
    return shared_numbers(games, config)


def shared_numbers(games: Games, config: RateConfig, threads: int = 1) -> Globals:
    """What all queries share, estimated with `config.strength`: see `globals_of`, which takes games as they stand."""
    if config.strength == "unit":
        return globals_of(games, config, threads)
    if config.strength in POWERS:
        return globals_of(_by_consensus(games, POWERS[config.strength]), config, threads)
    games = bounded(games, SAMPLE_DOCUMENTS)
    first = globals_of(games, config, threads)
    noise = None
    if config.strength == "learned":
        noise = _noise(games, first, threads)
    given = replace(first, first=first, noise=noise)
    return replace(globals_of(weighed(games, given, config, threads), config, threads), first=first, noise=noise)


def weighed(games: Games, globals_: Globals, config: RateConfig, threads: int = 1) -> Games:
    """The games with the answers that each counts for under `config.strength`; the same games for `unit`."""
    if config.strength == "unit":
        return games
    if config.strength in POWERS:
        return _by_consensus(games, POWERS[config.strength])
    if globals_.first is None:
        raise AssertionError(f"strength {config.strength} needs the numbers of its first fit")
    target, latent = _first_fit(games, globals_.first, threads)
    p, chance = moments(target.likelihood, gaps(target, latent))
    if globals_.noise is None:
        return replace(games, answers=games.answers * strengths.information(p))
    variance = globals_.noise.variance(p, chance, games.answers, _own(games), globals_.model)
    alike = games.answers / globals_.first.dispersion  # games where all answers count alike: caps are relative to them
    return replace(games, answers=games.answers * strengths.games_worth(p, alike * variance))


def _by_consensus(games: Games, power: float) -> Games:
    return replace(games, answers=games.answers * strengths.by_consensus(games.w, _consensus(games), power))


def _consensus(games: Games) -> Floats:
    """E|C| of every game, float64[P]; |2w - 1|, its least value, where the judge did not say how likely a tie is."""
    least = np.abs(2.0 * games.w - 1.0)
    return least if games.tie is None else np.where(np.isnan(games.tie), least, 1.0 - games.tie)


def _own(games: Games) -> Floats:
    """What every game's own prediction says of its error, (E|C| - (2w-1)²) / 4; 0 where it does not."""
    if games.tie is None:
        return np.zeros(len(games.w))
    return np.where(np.isnan(games.tie), 0.0, strengths.unsure(games.w, _consensus(games)))


def _first_fit(games: Games, first: Globals, threads: int) -> tuple[Posterior, Floats]:
    target = first.posterior(games)
    return target, solve(target, threads=threads).latent


def _noise(games: Games, first: Globals, threads: int) -> Noise:
    """Fitted to how far preferences lie from what the other pairs foretell."""
    target, latent = _first_fit(games, first, threads)
    left = leave_one_pair_out(target, latent, components(games).component, threads)
    if not len(left.game):  # nothing foretells anything: as `unit`
        return Noise(first.dispersion, 0.0, 0.0, 0.0)
    mean, square, chance = np.zeros((3, len(left.game)))
    for weight, outcome, spread in foretold(target.likelihood, left):
        mean += weight * outcome
        square += weight * outcome * outcome
        chance += weight * spread
    known = np.maximum(square - mean * mean, 0.0)
    w = games.w[left.game]
    answers = games.answers[left.game]
    own = _own(games)[left.game]
    return strengths.fit_noise(np.square(w - mean), known, mean, chance, answers, own, first.model)
