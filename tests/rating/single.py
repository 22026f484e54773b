"""One query's games from plain arrays, for tests of the numerical parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anmi_ray.identity import rng
from anmi_ray.rating.games import Games
from anmi_ray.scale import Floats, Model, link
from tests.rating.tournaments import pair_graph


def single(documents: int, first: ArrayLike, second: ArrayLike, w: ArrayLike, answers: ArrayLike = 1.0) -> Games:
    """Games of one query, sorted by `first`; `answers` broadcasts."""
    order = np.argsort(np.asarray(first), kind="stable")
    first, second, w = (np.asarray(column)[order] for column in (first, second, w))
    answers = np.broadcast_to(np.asarray(answers, np.float64), w.shape)[order]
    return Games(
        query_ids=np.zeros((1, 16), np.uint8),
        doc_ids=np.arange(documents * 16, dtype=np.int64).astype(np.uint8).reshape(documents, 16),
        doc_start=np.array([0, documents]),
        game_start=np.array([0, len(w)]),
        positive=np.zeros(documents, np.bool_),
        first=first.astype(np.int32),
        second=second.astype(np.int32),
        w=w.astype(np.float64),
        answers=answers,
        inconsistent=np.zeros(len(w), np.bool_),
    )


def planted(documents: int, k: int, judges: int, model: Model, seed: int, sd: float = 1.0) -> tuple[Games, Floats]:
    """A simulated query: (games, true latent ratings)."""
    generator = rng("planted", seed)
    pairs = np.array(pair_graph(documents, k, generator))
    latent = generator.normal(0.0, sd, documents)
    p = link(latent[pairs[:, 0]] - latent[pairs[:, 1]], model)
    w = (generator.random((judges, len(pairs))) < p).mean(axis=0)
    return single(documents, pairs[:, 0], pairs[:, 1], w, float(judges)), latent
