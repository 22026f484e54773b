"""Simulated games with known ratings: what estimators and intervals are tried on, and what fits are timed on.

Documents of a query have latent ratings N(0, sd²), and every judge of a pair votes for its first document with the
probability F(gap) of the model. Who meets whom is the caller's: a function that draws the pairs. One seed a query,
derived by hash: a query's games do not depend on how many there are.
Letters: Q queries, D documents (all queries together); of one query n documents, P pairs, J judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, Model, link
from anmi_ray.rating.games import Games, Longs, rank_ids

DrawPairs = Callable[[int, np.random.Generator], Longs]  # documents, generator -> pairs int64[P, 2]


@dataclass(frozen=True)
class Played:
    """One query's games: pairs int64[P, 2] of documents, w and answers float64[P] as in `Games`, latent float64[n]."""

    pairs: Longs
    w: Floats
    answers: Floats
    latent: Floats


def simulate(
    queries: int,
    documents: int,
    draw_pairs: DrawPairs,
    *,
    seed: tuple[str | int, ...],
    judges: int = 1,
    sd: float = 1.0,
    correlation: float | None = None,
    positives: bool = False,
) -> tuple[Games, Floats]:
    """Games of simulated queries under Thurstone's model and the true latent ratings float64[D]; `sd` is in probits.

    `correlation` as in `votes`, `positives` as in `bucket`; query q is drawn with the seed (*seed, q).
    """
    played = []
    for q in range(queries):
        generator = rng(*seed, q)
        pairs = draw_pairs(documents, generator)
        latent = generator.normal(0.0, sd, documents)
        played.append(play(pairs, latent, judges, "thurstone", generator, correlation))
    return bucket(played, positives)


def play(
    pairs: Longs,
    latent: Floats,
    judges: int,
    model: Model,
    generator: np.random.Generator,
    correlation: float | None = None,
    graded: bool = False,
) -> Played:
    """One game a pair: w is the mean of the judges' votes, and each of them counts as one answer."""
    said = votes(latent[pairs[:, 0]] - latent[pairs[:, 1]], judges, model, generator, correlation, graded)
    return Played(pairs, said.mean(axis=0), np.full(len(pairs), float(judges)), latent)


def votes(
    gap: Floats,
    judges: int,
    model: Model,
    generator: np.random.Generator,
    correlation: float | None = None,
    graded: bool = False,
) -> Floats:
    """Every judge's vote, float64[J, P], on pairs of gaps float64[P]: 1 with probability F(gap), or F(gap) if graded.

    With a `correlation` from 0 to 1, judges share part of what leads them astray: their votes follow normal noise that
    correlates so between any two of them on a pair (for Thurstone the noise of the model itself, for Bradley-Terry a
    Gaussian copula). None: independent votes, by one uniform each.
    """
    chance = link(gap, model)
    if graded:
        return np.tile(chance, (judges, 1))
    if correlation is None:
        noise = generator.random((judges, len(gap)))
    else:
        shared = generator.normal(size=(1, len(gap)))
        own = generator.normal(size=(judges, len(gap)))
        noise = link(-(math.sqrt(correlation) * shared + math.sqrt(1.0 - correlation) * own), "thurstone")
    return (noise < chance).astype(np.float64)


def bucket(played: Sequence[Played], positives: bool = False) -> tuple[Games, Floats]:
    """The queries as one bucket of games, and the latent ratings of its documents, float64[D].

    Ids are ranks. With `positives`, the best document of every query is its known positive.
    """
    played = [_by_first(one) for one in played]
    pairs = np.concatenate([one.pairs for one in played]).astype(np.int32)
    documents = np.array([len(one.latent) for one in played])
    best = np.concatenate([one.latent == one.latent.max() for one in played])
    games = Games(
        query_ids=rank_ids(np.arange(len(played))),
        doc_ids=rank_ids(np.arange(documents.sum())),
        doc_start=np.append(0, np.cumsum(documents)),
        game_start=np.append(0, np.cumsum([len(one.pairs) for one in played])),
        positive=best & positives,
        first=pairs[:, 0].copy(),
        second=pairs[:, 1].copy(),
        w=np.concatenate([one.w for one in played]),
        answers=np.concatenate([one.answers for one in played]),
    )
    return games, np.concatenate([one.latent for one in played])


def _by_first(one: Played) -> Played:
    order = np.argsort(one.pairs[:, 0], kind="stable")
    return replace(one, pairs=one.pairs[order], w=one.w[order], answers=one.answers[order])
