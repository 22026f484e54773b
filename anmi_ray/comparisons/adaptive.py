"""Which pairs to ask about next: those whose answers are expected to make most more certain of what is wanted.

Given a query's ratings as a Gaussian (mean, covariance Σ), an answer about documents i and j of information w turns Σ
into Σ - s u uᵀ, where u = Σ (e_i - e_j) and s = w / (1 + w (e_i - e_j)ᵀ u). What is wanted is a weighted sum of
variances of contrasts c, Σ_c ω_c cᵀ Σ c = tr(M Σ) with M = Σ_c ω_c c cᵀ, so a pair is worth s uᵀ M u: A-optimal design
(Kiefer 1974), one pair after another, each as if the last had been answered.

| objective | contrasts | weight |
|---|---|---|
| all | every rating less the mean of all | 1 |
| top | the same | P(among the best TOP) |
| negatives | every gap to an anchor | P(smaller than BAND), where it decides whether a document is a negative |

Letters: n documents of a query, P pairs, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.comparisons.graph import Edges
from anmi_ray.config.compare import Objective
from anmi_ray.core.scale import Floats, Model, link, normal_cdf, normal_pdf, to_latent

TOP = 10  # documents that count as the top: what nDCG@10 reads
BAND = 450.0  # points below an anchor from which a document is a negative whatever its exact rating
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


@dataclass(frozen=True)
class Beliefs:
    """What is known of a query's documents: mean float64[n] and covariance float64[n, n] of their latent ratings.

    anchors int[A]: documents from which gaps are measured. strength: what one more pair's answers count for, in games.
    """

    mean: Floats
    covariance: Floats
    anchors: NDArray[np.int64]
    strength: float


def next_pairs(
    beliefs: Beliefs, asked: Edges, count: int, objective: Objective, model: Model, target: float = 0.0
) -> Edges:
    """The `count` pairs worth asking next, int64[P, 2] (i < j), best first; fewer where all others are in `asked`.

    None is chosen beyond those by which the error (`error`) is expected to come down to `target`, in latent units.
    """
    first, second = np.triu_indices(len(beliefs.mean), 1)
    m = wanted(beliefs, objective, model)
    covariance = beliefs.covariance.copy()
    spread = covariance @ m @ covariance
    w = beliefs.strength * information(
        beliefs.mean[first] - beliefs.mean[second], _of_gaps(covariance, first, second), model
    )
    taken = np.zeros(len(w), np.bool_)
    taken[_number(asked, len(beliefs.mean))] = True
    left = int(np.count_nonzero(~taken))
    too_much = float(np.sum(m * covariance)) - target**2 * _weight(m, objective)
    chosen: list[int] = []
    for _ in range(min(count, left)):
        if target and too_much <= 0.0:
            break
        worth = w * _of_gaps(spread, first, second) / (1.0 + w * _of_gaps(covariance, first, second))
        worth[taken] = -1.0
        best = int(worth.argmax())
        too_much -= float(worth[best])
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
    """The standard error of what is wanted, in latent units: root of the weighted mean of the contrasts' variances."""
    m = wanted(beliefs, objective, model)
    weight = _weight(m, objective)
    return float(np.sqrt(np.sum(m * beliefs.covariance) / weight)) if weight > 0.0 else 0.0


def _weight(m: Floats, objective: Objective) -> float:
    """Σ_c ω_c of M, whose contrasts are all of one length."""
    return float(m.trace()) / (2.0 if objective == "negatives" else 1.0 - 1.0 / max(len(m), 2))


def wanted(beliefs: Beliefs, objective: Objective, model: Model) -> Floats:
    """M of the module's text, float64[n, n]."""
    mean, covariance = beliefs.mean, beliefs.covariance
    n = len(mean)
    if objective == "negatives":
        found = np.zeros((n, n))
        for anchor in beliefs.anchors.tolist():
            gap = mean[anchor] - mean
            variance = covariance[anchor, anchor] + covariance.diagonal() - 2.0 * covariance[anchor]
            weight = normal_cdf((to_latent(BAND, model) - gap) / np.sqrt(np.maximum(variance, 1e-12)))
            contrast = -np.eye(n)
            contrast[anchor] += 1.0
            found += (contrast * weight) @ contrast.T
        return found
    weight = np.ones(n)
    if objective == "top" and n > TOP:
        order = np.sort(mean)[::-1]
        edge = 0.5 * (order[TOP - 1] + order[TOP])
        weight = normal_cdf((mean - edge) / np.sqrt(covariance.diagonal()))
    contrast = np.eye(n) - 1.0 / n
    return (contrast * weight) @ contrast.T


def information(mean: Floats, variance: Floats, model: Model) -> Floats:
    """Fisher information of one game about a gap N(mean, variance), float64[P]: the mean of f² / (F (1 - F))."""
    x = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
    p = np.clip(link(x, model), 1e-12, 1.0 - 1e-12)
    density = normal_pdf(x) if model == "thurstone" else p * (1.0 - p)
    return np.square(density) / (p * (1.0 - p)) @ (_WEIGHTS / _WEIGHTS.sum())


def _of_gaps(form: Floats, first: NDArray[np.intp], second: NDArray[np.intp]) -> Floats:
    """(e_i - e_j)ᵀ form (e_i - e_j) of every pair."""
    diagonal = form.diagonal()
    return np.maximum(diagonal[first] + diagonal[second] - 2.0 * form[first, second], 0.0)


def _number(pairs: Edges, n: int) -> NDArray[np.int64]:
    """The places of pairs int64[P, 2] among all pairs of n documents in the order of triu_indices."""
    i, j = np.minimum(pairs[:, 0], pairs[:, 1]), np.maximum(pairs[:, 0], pairs[:, 1])
    return i * (2 * n - i - 1) // 2 + j - i - 1
