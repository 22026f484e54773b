"""Compiling what rating is compiled of, before there is anything to rate."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import ID_BYTES
from anmi_ray.rating.bucket import rate_games
from anmi_ray.rating.games import Games
from anmi_ray.rating.shared_parameters import globals_of


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
        inconsistent=np.zeros(2, np.bool_),
    )
    rate_games(games, globals_of(games, config), config)
