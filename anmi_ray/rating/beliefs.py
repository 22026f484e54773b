"""A fit's ratings with all their covariances, query by query: what an adaptive design chooses the next pairs by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import Floats
from anmi_ray.rating.gaussian import laplace, propagate
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.shared_parameters import Globals
from anmi_ray.rating.solver import solve
from anmi_ray.rating.weighting import weighed


class QueryBeliefs(NamedTuple):
    """One query's posterior: doc_ids uint8[n, 16] sorted, mean float64[n], covariance float64[n, n], positive bool[n].

    strength: what the answers about one of its pairs count for on average, in games.
    """

    query_id: bytes
    doc_ids: NDArray[np.uint8]
    mean: Floats
    covariance: Floats
    positive: NDArray[np.bool_]
    strength: float


def beliefs(
    judgments: pa.Table, comparisons: pa.Table, candidates: pa.Table, globals_: Globals, config: RateConfig
) -> Iterator[QueryBeliefs]:
    """The posterior of every query of a bucket that has a game, as `rate` fits it. `config` must have a prior."""
    read = config.inconsistent_strength, config.judge_offsets, config.judge_weights
    games, _ = read_games(judgments, comparisons, candidates, *read)
    if not games.queries:
        return
    games = weighed(games, globals_, config)
    target = globals_.posterior(games)
    mode = solve(target).latent
    found = propagate(target, mode) if config.estimate == "mean" else laplace(target, mode)
    pair, _ = games.pairs()
    for q in range(games.queries):
        documents = slice(games.doc_start[q], games.doc_start[q + 1])
        played = slice(games.game_start[q], games.game_start[q + 1])
        first, second, weight = games.first[played], games.second[played], found.weight[played]
        precision = np.diag(target.prior_precision[documents])
        np.add.at(precision, (first, first), weight)
        np.add.at(precision, (second, second), weight)
        np.subtract.at(precision, (first, second), weight)
        np.subtract.at(precision, (second, first), weight)
        yield QueryBeliefs(
            games.query_ids[q].tobytes(),
            games.doc_ids[documents],
            found.mean[documents],
            np.linalg.inv(precision).astype(np.float64),
            games.positive[documents],
            float(target.m[played].sum()) / len(np.unique(pair[played])),
        )
