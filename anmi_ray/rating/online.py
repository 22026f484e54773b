"""Ratings that follow games as they come: the Elo rule.

Elo is one pass of stochastic gradient ascent on the Bradley-Terry likelihood: cheap, and dependent on the order of
the games.
Letters: D documents, P games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.scale import ELO_PER_LOGIT, Floats
from anmi_ray.rating.links import compiled

_PLACE = "online ratings"


@dataclass(frozen=True)
class Elo:
    """Elo ratings of documents, the report's equations (26)-(28): a game between A and B moves them by ±K (S - E).

    ratings_elo float64[D], points, mean zero; games float64[D], the strength of all games played.
    `k`: the points at stake in a game of strength 1. `halved_after`: None keeps K constant; else every document has its
    own, K = k / (1 + games / halved_after), which falls as 1/games.

    With a constant K ratings never settle: they hover around the Bradley-Terry fit, √(173.7 K / 2)
    points away (37.3 at K = 16). With a
    falling one they converge to it, as 1/√games if k · halved_after / 173.7 · p (1 - p) λ₂ / degree > 1/2 (p: a typical
    win probability) and slower if not: 32 and 80 are enough at 8 comparisons a document.

    >>> Elo.start(2, k=32.0).update([0], [1], [1.0]).ratings_elo.tolist()
    [16.0, -16.0]
    """

    ratings_elo: Floats
    games: Floats
    k: float = 16.0
    halved_after: float | None = None

    @classmethod
    def start(cls, documents: int, k: float = 16.0, halved_after: float | None = None) -> Elo:
        """All ratings zero, no games."""
        if not (k > 0.0 and math.isfinite(k)):
            raise DataError(f"K must be a positive number of points, not {k}", _PLACE, "the usual are 16 to 32")
        if halved_after is not None and not halved_after > 0.0:
            raise DataError(f"halved_after must be above 0 games, not {halved_after}", _PLACE, "None keeps K constant")
        return cls(np.zeros(documents), np.zeros(documents), k, halved_after)

    def join(self, newcomers: int) -> Elo:
        """The same with documents added at the end, at rating 0: the mean of all, which no game moves."""
        ratings, games = (np.concatenate([values, np.zeros(newcomers)]) for values in (self.ratings_elo, self.games))
        return replace(self, ratings_elo=ratings, games=games)

    def update(self, first: ArrayLike, second: ArrayLike, w: ArrayLike, strength: ArrayLike = 1.0) -> Elo:
        """The state after P games, one after the other in this order.

        first, second: integers [P] in 0..D-1; w [P]: the preference for `first`, 0 to 1; strength [P] or one number:
        how many games it is worth, which multiplies K. Raises DataError on games that cannot be.
        """
        i = np.asarray(first, dtype=np.int64)
        j = np.asarray(second, dtype=np.int64)
        score = np.asarray(w, dtype=np.float64)
        m = np.broadcast_to(np.asarray(strength, dtype=np.float64), score.shape)
        _refuse_impossible(i, j, score, m, len(self.games))
        ratings = self.ratings_elo.copy()
        games = self.games.copy()
        decay = 0.0 if self.halved_after is None else 1.0 / self.halved_after
        _play(i, j, score, m, self.k, decay, ratings, games)
        return replace(self, ratings_elo=ratings - ratings.sum() / max(1, len(ratings)), games=games)


def _refuse_impossible(
    first: NDArray[np.int64], second: NDArray[np.int64], w: Floats, strength: Floats, documents: int
) -> None:
    checks = {
        f"documents are numbered 0 to {documents - 1}": (np.minimum(first, second) >= 0)
        & (np.maximum(first, second) < documents),
        "a document cannot meet itself": first != second,
        "w must be between 0 and 1": (w >= 0.0) & (w <= 1.0),
        "strength must be finite and not negative": (strength >= 0.0) & np.isfinite(strength),
    }
    for rule, holds in checks.items():
        if not holds.all():
            p = int(np.argmin(holds))
            game = f"game {p} is ({first[p]}, {second[p]}, w {w[p]}, strength {strength[p]})"
            raise DataError(f"{rule}, but {game}", _PLACE, "leave such games out")


@compiled
def _play(first, second, w, strength, k, decay, ratings, games):
    """Equation (27) game by game, in place, up to a shift of all ratings: it is not zero where two documents' K differ.

    One K for both would keep the sum, but weigh pairs by how much their documents play, and so end at another fit.
    """
    for p in range(len(first)):
        i = first[p]
        j = second[p]
        expected = 1.0 / (1.0 + math.exp((ratings[j] - ratings[i]) / ELO_PER_LOGIT))  # (26) as (28) writes it
        surprise = strength[p] * k * (w[p] - expected)
        ratings[i] += surprise / (1.0 + decay * games[i])
        ratings[j] -= surprise / (1.0 + decay * games[j])
        games[i] += strength[p]
        games[j] += strength[p]
