"""Simulated queries with planted false negatives, rated by our own pipeline: what rules of mining are tried on.

A world is a query's true ratings and the games about them. `near` = None: ratings N(0, sd²), and the best document is
the known positive. `near` = m ≥ 0: the positive and m unlabelled documents are drawn alike, each as the maximum of n
draws would be; those m are planted false negatives, and the positive may well be the least of them. With m = 0 this is
what the ratings' priors say, and in every second query some document is better than the positive. With `apart` a
quarter of the documents are N(apart, .25²), the positive among them, the others N(0, .35²).
Everything that a rule sees is estimated from the games: prior, dispersion, ratings, gaps and their errors.
Letters: Q queries, n documents of each, N = Q (n - 1) documents beside their positive, in order of query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core.arrays import Flags, Ints, Reals, rank_within
from anmi_ray.core.identity import mix_ids, rng
from anmi_ray.core.scale import normal_quantile, to_elo
from anmi_ray.mining import mixture
from anmi_ray.mining.compose import SAMPLE, weights_of
from anmi_ray.mining.denoise import borderline
from anmi_ray.mining.negatives import LEAST_SD, Common, Negatives
from anmi_ray.rating.bucket import centre
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games, rank_ids
from anmi_ray.rating.gaussian import propagate
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.solver import solve
from anmi_ray.rating.uncertainty import anchors, errors
from jobs.studies.simulated_games import Played, bucket, play, votes

DOCUMENTS = 100
LIKENESS = 0.5  # correlation of the retriever's scores with the true ratings, inside a query
SIMILARITY = (0.65, 0.06)  # mean and sd of a dense retriever's similarities among what it retrieved
FALSE_GAP = 100.0  # points: a true gap below it is a false negative


@dataclass(frozen=True)
class World:
    """Degree k of the graph, judges a pair, planted documents a query (`near`); sd of the truth, `apart` in probits."""

    degree: int = 8
    judges: int = 3
    near: int | None = None
    sd: float = 1.0
    apart: float | None = field(default=None, repr=False)  # a world is seeded by how it is written


@dataclass(frozen=True)
class Mined:
    """What rules see of a world, and what is true of it, float64[N] or bool[N] each."""

    queries: int
    negatives: Negatives
    true_gap: Reals  # points
    planted: Flags
    fresh: Reals  # preference for the positive in one more game with the same judges

    @property
    def false(self) -> Flags:
        """False negatives: a true gap below FALSE_GAP, or planted as relevant."""
        return (self.true_gap < FALSE_GAP) | self.planted


def played(world: World, queries: int, seed: int, documents: int = DOCUMENTS) -> tuple[Games, Reals, Flags]:
    """Games, true ratings in probits and which documents are relevant (the known positive is one of them)."""
    rows: list[Played] = []
    relevant = np.zeros((queries, documents), np.bool_)
    positive = np.zeros_like(relevant)
    for q in range(queries):
        generator = rng("negatives", seed, world.degree, world.judges, str(world.near), str(world.sd), q)
        pairs = k_regular(documents, world.degree, generator)
        latent = generator.normal(0.0, world.sd, documents)
        if world.apart is not None:
            chosen = generator.permutation(documents)[: documents // 4]
            latent *= 0.35
            latent[chosen] = generator.normal(world.apart, 0.25, len(chosen))
        elif world.near is not None:
            chosen = generator.permutation(documents)[: world.near + 1]
            latent[chosen] = world.sd * normal_quantile(generator.random(len(chosen)) ** (1.0 / documents))
        else:
            chosen = np.array([latent.argmax()])
        relevant[q, chosen] = True
        positive[q, chosen[0]] = True
        rows.append(play(pairs, latent, world.judges, "thurstone", generator, 0.0))
    games, truth = bucket(rows)
    return replace(games, positive=positive.ravel()), truth, relevant.ravel()


def mined(world: World, queries: int, seed: int = 0, documents: int = DOCUMENTS, threads: int = 1) -> Mined:
    """The world's queries as rules see them, rated with the pipeline's defaults."""
    games, truth, relevant = played(world, queries, seed, documents)
    target = globals_of(games, RateConfig(), threads).posterior(games)
    approximation = propagate(target, solve(target, threads=threads).latent, threads)
    parts = components(games).component
    result = errors(approximation, parts, anchors(games, approximation.mean), threads)
    rating = to_elo(centre(games, parts, approximation.mean), "thurstone")
    anchor = result.gap_anchor
    doc = result.gap_doc
    query = games.query_of_doc[doc]
    generator = rng("negatives beside", seed, str(world))
    score, rank = _retrieved(truth, games.query_of_doc, generator)
    gap = truth[anchor] - truth[doc]
    quarters = np.quantile(rating.reshape(queries, documents), [0.25, 0.75], axis=1)
    spread = np.maximum((quarters[1] - quarters[0]) / 1.349, LEAST_SD)
    return Mined(
        queries,
        Negatives(
            example=query,
            draw_ids=mix_ids(rank_ids(query), rank_ids(doc)),
            gap=to_elo(result.gap, "thurstone"),
            gap_se=to_elo(result.gap_se, "thurstone"),
            is_positive=np.zeros(len(doc), np.bool_),
            anchor_rating=rating[anchor],
            spread=spread[query],
            rank=rank[doc].astype(np.float64),
            score=score[doc],
            anchor_score=score[anchor],
            direct=_met(games, anchor, doc),
            relevance=np.full(len(doc), np.nan),
        ),
        to_elo(gap, "thurstone"),
        relevant[doc],
        votes(gap, world.judges, "thurstone", generator).mean(axis=0),
    )


def _met(games: Games, anchor: Ints, doc: Ints) -> Reals:
    """For each gap the preference for its anchor in the game that the two have played, NaN without one."""
    first, second = games.global_ends()
    size = len(games.doc_ids)
    known = np.concatenate([first * size + second, second * size + first])
    preference = np.concatenate([games.w, 1.0 - games.w])
    order = np.argsort(known)
    wanted = anchor * size + doc
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, preference[order][at], np.nan)


def _retrieved(truth: Reals, query: Ints, generator: np.random.Generator) -> tuple[Reals, Ints]:
    """Similarities that correlate by LIKENESS with the true ratings of a query's documents, and ranks from 1."""
    size = np.bincount(query)
    mean = np.bincount(query, truth) / size
    sd = np.sqrt(np.bincount(query, (truth - mean[query]) ** 2) / size)
    noise = generator.normal(size=len(truth))
    seen = LIKENESS * (truth - mean[query]) / sd[query] + math.sqrt(1.0 - LIKENESS**2) * noise
    return SIMILARITY[0] + SIMILARITY[1] * seen, 1 + rank_within(query, -seen)


@dataclass(frozen=True)
class Taken:
    """What a rule takes: rows [M] of the N, their places in its order from 0, and the weights that it gives."""

    row: Ints
    place: Ints
    weight: Reals


def in_order(world: Mined, config: MineConfig, seed: int = 0) -> Taken:
    """All that a composition allows, in the order in which its sampler would take them.

    Documents that it wants validated are judged once more, unless they have met the positive already.
    """
    seen = world.negatives
    if config.validation is not None:
        asked = np.isnan(seen.direct) & borderline(seen.gap, config.validation)
        seen = replace(seen, direct=np.where(asked, world.fresh, seen.direct))
    weigh = config.weigh
    fitted = mixture.fit(seen.gap, weigh) if isinstance(weigh, BetaMixture | GaussianMixture) else None
    common = Common(config, seed, fitted)
    weight = weights_of(seen, common).weight
    priority = SAMPLE[config.sample.rule](seen, weight, config.sample, common)
    row = np.flatnonzero(weight > 0)
    place = rank_within(seen.example[row], -priority[row], seen.gap[row])
    row = row[np.lexsort((place, seen.example[row]))]
    return Taken(row, rank_within(seen.example[row]), weight[row])
