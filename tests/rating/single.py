"""One query's games from plain arrays, for tests of the numerical parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.solver import Posterior
from jobs.studies.simulated_games import Played, bucket, play
from tests.rating.tournaments import pair_graph


def single(documents: int, first: ArrayLike, second: ArrayLike, w: ArrayLike, answers: ArrayLike = 1.0) -> Games:
    """Games of one query, sorted by `first`; `answers` broadcasts."""
    pairs, w = np.stack([first, second], axis=1), np.asarray(w, np.float64)
    return bucket([Played(pairs, w, np.broadcast_to(answers, w.shape).astype(np.float64), np.zeros(documents))])[0]


def of_edges(documents: int, edges: ArrayLike, w: ArrayLike | None = None) -> Games:
    """One query's games on these pairs [P, 2]; all ties if not told."""
    first, second = np.array(edges, dtype=np.int32).T
    return single(documents, first, second, np.full(len(first), 0.5) if w is None else w)


def target(games: Games, like: Likelihood | Model, precision: float = 0.0, mean: Floats | float = 0.0) -> Posterior:
    """The posterior under one prior for all documents; without a precision plain maximum likelihood."""
    documents = len(games.doc_ids)
    like = like if isinstance(like, Likelihood) else Likelihood.of(like)
    return Posterior(games, like, games.answers, np.zeros(documents) + mean, np.full(documents, precision))


def planted(documents: int, k: int, judges: int, model: Model, seed: int, sd: float = 1.0) -> tuple[Games, Floats]:
    """A simulated query: (games, true latent ratings)."""
    generator = rng("planted", seed)
    pairs = np.array(pair_graph(documents, k, generator))
    return bucket([play(pairs, generator.normal(0.0, sd, documents), judges, model, generator)])
