"""Choose the next pairs to judge: those whose answers are expected to reduce the objective's variance most.

Given a query's ratings as a Gaussian (mean, covariance Σ), an answer about documents i and j of information w turns Σ
into Σ - s u uᵀ, where u = Σ (e_i - e_j) and s = w / (1 + w (e_i - e_j)ᵀ u). The objective is a weighted sum of
variances of contrasts c, Σ_c ω_c cᵀ Σ c = tr(M Σ) with M = Σ_c ω_c c cᵀ, so a pair is worth s uᵀ M u. This is a greedy
A-optimal design (Kiefer 1974), in which each pair is chosen as if the previous ones had been answered.

| objective | contrasts | weight |
|---|---|---|
| all | each rating minus the mean rating | 1 |
| top | the same | P(among the best TOP) |
| negatives | every gap to an anchor | P(smaller than BAND), where it decides whether a document is a negative |

In rounds, the first is a cycle through a query's documents; the table of a round contains all pairs of earlier rounds
too, so the last one is the whole design.
Letters: n documents of a query, P pairs, A anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.comparisons.compare import compare, extended
from anmi_ray.comparisons.graph import Edges
from anmi_ray.config.compare import CompareConfig, Objective
from anmi_ray.core.identity import id_column, id_matrix
from anmi_ray.core.records import by_query
from anmi_ray.core.scale import Floats, Model, link, normal_cdf, normal_pdf, to_latent

TOP = 10  # documents in the top, as in nDCG@10
BAND = 450.0  # Elo points below an anchor beyond which a document is a negative regardless of its exact rating
CYCLE = 2  # degree of the first round: the sparsest graph that stays connected if any one pair has no answer
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


@dataclass(frozen=True)
class Beliefs:
    """Gaussian posterior of the latent ratings of a query's documents.

    mean: float64[n].
    covariance: float64[n, n].
    anchors: int64[A], documents from which gaps are measured.
    strength: games that the answers about one more pair count for.
    """

    mean: Floats
    covariance: Floats
    anchors: NDArray[np.int64]
    strength: float


def next_pairs(
    beliefs: Beliefs, asked: Edges, count: int, objective: Objective, model: Model, target: float = 0.0
) -> Edges:
    """Return the best `count` pairs not in `asked`, int64[P, 2] (i < j), best first; fewer if no others are left.

    Stops earlier once `error` is expected to reach `target` (latent units).
    """
    n = len(beliefs.mean)
    first, second = np.triu_indices(n, 1)
    m = objective_matrix(beliefs, objective, model)
    covariance = beliefs.covariance.copy()
    spread = covariance @ m @ covariance
    w = beliefs.strength * information(
        beliefs.mean[first] - beliefs.mean[second], _quadratic(covariance, first, second), model
    )
    taken = np.zeros(len(w), np.bool_)
    low, high = np.sort(asked, axis=1).T
    taken[low * (2 * n - low - 1) // 2 + high - low - 1] = True  # in the order of triu_indices
    left = int(np.count_nonzero(~taken))
    excess = float(np.sum(m * covariance)) - target**2 * _weight(m, objective)
    chosen: list[int] = []
    for _ in range(min(count, left)):
        if target and excess <= 0.0:
            break
        worth = w * _quadratic(spread, first, second) / (1.0 + w * _quadratic(covariance, first, second))
        worth[taken] = -1.0
        best = int(worth.argmax())
        excess -= float(worth[best])
        i, j = first[best], second[best]
        u = covariance[i] - covariance[j]
        s = w[best] / (1.0 + w[best] * (u[i] - u[j]))
        v = spread[i] - spread[j]  # Σ M u
        reduced = np.outer(u, v)
        spread -= s * (reduced + reduced.T) - s * s * float(v[i] - v[j]) * np.outer(u, u)
        covariance -= s * np.outer(u, u)
        taken[best] = True
        chosen.append(best)
    return np.stack([first[chosen], second[chosen]], axis=1).astype(np.int64)


def error(beliefs: Beliefs, objective: Objective, model: Model) -> float:
    """Return the root of the weighted mean variance of the objective's contrasts, in latent units."""
    m = objective_matrix(beliefs, objective, model)
    weight = _weight(m, objective)
    return float(np.sqrt(np.sum(m * beliefs.covariance) / weight)) if weight > 0.0 else 0.0


def _weight(m: Floats, objective: Objective) -> float:
    """Return Σ_c ω_c given M; all its contrasts have the same length."""
    return float(m.trace()) / (2.0 if objective == "negatives" else 1.0 - 1.0 / max(len(m), 2))


def objective_matrix(beliefs: Beliefs, objective: Objective, model: Model) -> Floats:
    """Return the matrix M of the module docstring, float64[n, n]."""
    mean, covariance = beliefs.mean, beliefs.covariance
    n = len(mean)
    if objective == "negatives":
        m = np.zeros((n, n))
        for anchor in beliefs.anchors.tolist():
            gap = mean[anchor] - mean
            variance = covariance[anchor, anchor] + covariance.diagonal() - 2.0 * covariance[anchor]
            weight = normal_cdf((to_latent(BAND, model) - gap) / np.sqrt(np.maximum(variance, 1e-12)))
            contrast = -np.eye(n)
            contrast[anchor] += 1.0
            m += (contrast * weight) @ contrast.T
        return m
    weight = np.ones(n)
    if objective == "top" and n > TOP:
        order = np.sort(mean)[::-1]
        edge = 0.5 * (order[TOP - 1] + order[TOP])
        weight = normal_cdf((mean - edge) / np.sqrt(covariance.diagonal()))
    contrast = np.eye(n) - 1.0 / n
    return (contrast * weight) @ contrast.T


def information(mean: Floats, variance: Floats, model: Model) -> Floats:
    """Return the Fisher information of a game about a gap N(mean, variance), E[f² / (F (1 - F))], float64[P]."""
    x = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
    p = np.clip(link(x, model), 1e-12, 1.0 - 1e-12)
    density = normal_pdf(x) if model == "thurstone" else p * (1.0 - p)
    return np.square(density) / (p * (1.0 - p)) @ (_WEIGHTS / _WEIGHTS.sum())


def _quadratic(form: Floats, first: NDArray[np.intp], second: NDArray[np.intp]) -> Floats:
    """Return (e_i - e_j)ᵀ form (e_i - e_j) for every pair."""
    diagonal = form.diagonal()
    return np.maximum(diagonal[first] + diagonal[second] - 2.0 * form[first, second], 0.0)


class Known(NamedTuple):
    """A query's rated documents (uint8[n, 16], sorted) and the posterior of their ratings."""

    doc_ids: NDArray[np.uint8]
    beliefs: Beliefs


def first_round(candidates: pa.Table, config: CompareConfig, seed: int) -> tuple[pa.Table, pa.Table]:
    """Return the first round's Comparisons and the Rejects."""
    return compare(candidates, config.model_copy(update={"degree": CYCLE}), seed)


def next_round(
    before: pa.Table, known: Mapping[bytes, Known], config: CompareConfig, round_: int, model: Model
) -> pa.Table:
    """Return the Comparisons `before` plus those of round `round_` (1, 2, ...), sorted by (query_id, doc_a, doc_b).

    A query gets no more pairs if none of its pairs was answered, or if its target error is reached.
    """
    target = float(to_latent(config.target_error or 0.0, model))
    added: list[tuple[bytes, NDArray[np.uint8]]] = []
    for query, pairs in by_query(before):
        if query not in known:
            continue
        doc_ids, beliefs = known[query]
        more = pairs_after(_documents(pairs), config, round_) - pairs.num_rows
        chosen = next_pairs(beliefs, among(doc_ids, pairs), more, config.objective, model, target)
        added.append((query, doc_ids[chosen]))
    return extended(before, added, config.design, round_)


def pairs_after(documents: int, config: CompareConfig, round_: int) -> int:
    """Return a query's number of pairs after `round_` (0, 1, ...): a cycle, then equal parts per round.

    With a target error there may be fewer.

    >>> [pairs_after(100, CompareConfig(design="adaptive", degree=4, rounds=5), r) for r in range(5)]
    [100, 125, 150, 175, 200]
    """
    every = documents * (documents - 1) // 2
    first = min(documents * CYCLE // 2, every)
    total = max(first, min(documents * config.degree // 2, every))
    return first + (total - first) * round_ // (config.rounds - 1)


def pairs_in_all(first: pa.Table, config: CompareConfig) -> int:
    """Return the largest possible number of pairs after the last round, given the first round's Comparisons."""
    return sum(pairs_after(_documents(pairs), config, config.rounds - 1) for _, pairs in by_query(first))


def _documents(pairs: pa.Table) -> int:
    """Return the number of documents in a query's Comparisons."""
    return len(np.unique(np.concatenate([id_matrix(pairs[end]) for end in ("doc_a", "doc_b")]), axis=0))


def among(doc_ids: NDArray[np.uint8], pairs: pa.Table) -> Edges:
    """Return the pairs of which both documents are rated, as indices into `doc_ids`, int64[P, 2]."""
    places = [
        pc.fill_null(pc.index_in(pairs[end], value_set=id_column(doc_ids)), -1).to_numpy() for end in ("doc_a", "doc_b")
    ]
    indices = np.stack(places, axis=1).astype(np.int64)
    return indices[(indices >= 0).all(axis=1)]
