"""EM for one-dimensional mixtures: Gaussians by maximum likelihood, Betas by weighted moments.

Letters: K components, N values, B points (the values themselves, or bin means if there are many).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy import special

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import rng

EXACT = 2_000  # most values that are used without binning
BINS = 100  # bins per interquartile range; the variance within a bin is then about 1e-5 of the total
NARROWEST = 0.05  # minimum sd of a component relative to all values, so that none collapses onto equal values
STEPS = 2000
TOLERANCE = 1e-8  # nats per value; EM stops when a step gains less
SETTLED = 1e-4  # nats per value; moment steps have converged if the last changes less
# steps per start, starts continued to convergence, random starts
_SHORT = 40
_FINALISTS = 2
_DRAWN = 4
_TINY = np.finfo(np.float64).tiny


class WeightedPoints(NamedTuple):
    """B ascending points and the number of values at each."""

    value: Reals
    mass: Reals


class Gaussians(NamedTuple):
    """A mixture of K Gaussians: weights (sum 1), means and variances."""

    weight: Reals
    mean: Reals
    variance: Reals

    def log_joint(self, x: Reals) -> Reals:
        """Return log π_k + log N(x; μ_k, σ²_k), float64[K, B]."""
        weight, mean, variance = (part[:, None] for part in self)
        return np.log(weight) - 0.5 * (np.log(2.0 * math.pi * variance) + (x - mean) ** 2 / variance)


class Betas(NamedTuple):
    """A mixture of K Betas: weights (sum 1), α and β."""

    weight: Reals
    alpha: Reals
    beta: Reals

    def log_joint(self, u: Reals) -> Reals:
        """Return log π_k + log Beta(u; α_k, β_k), float64[K, B], for u in (0, 1)."""
        weight, alpha, beta = (part[:, None] for part in self)
        density = (alpha - 1.0) * np.log(u) + (beta - 1.0) * np.log1p(-u) - special.betaln(alpha, beta)
        return np.log(weight) + density


PartsT = TypeVar("PartsT", Gaussians, Betas, covariant=True)


class EmFit(NamedTuple, Generic[PartsT]):
    """A fit; `trace` is the log-likelihood per value before each step and after the last."""

    parts: PartsT
    trace: tuple[float, ...]
    converged: bool


def points(values: Reals) -> WeightedPoints:
    """Return sorted values as points; more than EXACT values are binned into means and counts."""
    values = np.sort(values)
    if len(values) <= EXACT:
        return WeightedPoints(values, np.ones(len(values)))
    low, high = np.quantile(values, [0.25, 0.75])
    width = (high - low or values[-1] - values[0]) / BINS
    bin_ = np.floor((values - values[0]) / width)
    first = np.flatnonzero(np.r_[True, bin_[1:] != bin_[:-1]])
    count = np.diff(np.r_[first, len(values)]).astype(np.float64)
    return WeightedPoints(np.add.reduceat(values, first) / count, count)


def responsibilities(log_joint: Reals) -> tuple[Reals, Reals]:
    """Return P(component | value), float64[K, B], and the log density, float64[B]."""
    largest = log_joint.max(axis=0)
    share = np.exp(log_joint - largest)
    total = share.sum(axis=0)
    return share / total, largest + np.log(total)


def gaussian_step(at: WeightedPoints, parts: Gaussians, floor: float) -> tuple[Gaussians, float]:
    """Run one EM step with variances of at least `floor`; also return the log-likelihood per value before it.

    The floor constrains the M step's maximization, so no step lowers the likelihood.
    """
    share, density = responsibilities(parts.log_joint(at.value))
    share *= at.mass
    size = np.maximum(share.sum(axis=1), _TINY)
    mean = share @ at.value / size
    variance = (share * (at.value - mean[:, None]) ** 2).sum(axis=1) / size
    total = float(at.mass.sum())
    return Gaussians(size / total, mean, np.maximum(variance, floor)), float(density @ at.mass) / total


def gaussian_em(at: WeightedPoints, start: Gaussians, floor: float, steps: int = STEPS) -> EmFit[Gaussians]:
    """Run EM from `start` until a step gains less than TOLERANCE, for at most `steps` steps."""
    parts = start
    trace = []
    while True:
        following, value = gaussian_step(at, parts, floor)
        trace.append(value)
        settled = len(trace) > 1 and value - trace[-2] < TOLERANCE
        if settled or len(trace) > steps:
            return EmFit(parts, tuple(trace), settled)
        parts = following


def gaussians(at: WeightedPoints, most: int) -> list[EmFit[Gaussians]]:
    """Return the best fits of 1, 2, ... `most` Gaussians, each from several starts that depend on the points alone.

    Values should have an sd near 1, since the tolerance is absolute.
    """
    total = at.mass.sum()
    mean = float(at.value @ at.mass / total)
    spread = float((at.value - mean) ** 2 @ at.mass / total)
    floor = NARROWEST**2 * spread
    fits = [gaussian_em(at, Gaussians(np.ones(1), np.array([mean]), np.array([spread])), floor)]
    for k in range(2, most + 1):
        tries = [gaussian_em(at, start, floor, _SHORT) for start in _starts(at, k, fits[-1].parts, floor)]
        tries.sort(key=lambda fitted: -fitted.trace[-1])  # stable: ties go to the earlier start
        ends = [gaussian_em(at, attempt.parts, floor) for attempt in tries[:_FINALISTS]]
        fits.append(max(ends, key=lambda fitted: fitted.trace[-1]))
    return fits


def _starts(at: WeightedPoints, k: int, fewer: Gaussians, floor: float) -> Iterator[Gaussians]:
    """Yield starts: quantile groups (equal, small first, small last), splits of each of k − 1 components, k-means++."""
    below = (np.cumsum(at.mass) - 0.5 * at.mass) / at.mass.sum()
    equal = np.arange(1, k) / k
    small = np.append(0.05, 0.05 + 0.95 * np.arange(1, k - 1) / (k - 1))
    for edges in (equal, small, 1.0 - small[::-1]):
        yield _grouped(at, np.searchsorted(edges, below), k, floor)
    for i in range(k - 1):
        weight, mean, variance = (part[np.insert(np.arange(k - 1), i, i)] for part in fewer)
        apart = 0.6 * math.sqrt(variance[i])  # halves of .8 sd at this distance preserve mean and variance
        weight[i : i + 2] /= 2.0
        variance[i : i + 2] = np.maximum(0.64 * variance[i], floor)
        mean[i : i + 2] += (-apart, apart)
        yield Gaussians(weight, mean, variance)
    for draw in range(_DRAWN):
        centres = _plus_plus(at, k, rng("mixture", k, draw))
        yield _grouped(at, np.abs(at.value[:, None] - centres).argmin(axis=1), k, floor)


def _grouped(at: WeightedPoints, group: Ints, k: int, floor: float) -> Gaussians:
    """Return weights, means and variances of K groups of points; an empty group gets a small weight at 0."""
    count = np.bincount(group, at.mass, k)
    total = at.mass.sum()
    weight = np.maximum(count, 1e-3 * total)
    mean = np.bincount(group, at.mass * at.value, k) / np.maximum(count, 1.0)
    variance = np.bincount(group, at.mass * (at.value - mean[group]) ** 2, k) / np.maximum(count, 1.0)
    return Gaussians(weight / weight.sum(), mean, np.maximum(variance, floor))


def _plus_plus(at: WeightedPoints, k: int, generator: np.random.Generator) -> Reals:
    """Draw K centers with probability proportional to the squared distance from those before (k-means++)."""
    chance = at.mass
    centres = np.empty(0)
    for luck in generator.random(k):
        reached = np.cumsum(chance)
        drawn = at.value[min(int(np.searchsorted(reached, luck * reached[-1])), len(at.value) - 1)]
        centres = np.append(centres, drawn)
        chance = at.mass * ((at.value[:, None] - centres) ** 2).min(axis=1)
    return np.sort(centres)


def beta_moments(at: WeightedPoints, share: Reals, floor: float) -> tuple[float, float]:
    """Return α and β of the Beta with the points' mean m and variance v ≥ floor under weights `share`.

    α = m (m (1 − m)/v − 1), β = α (1 − m)/m.
    """
    size = max(float(share @ at.mass), float(_TINY))
    mean = float((share * at.value) @ at.mass) / size
    variance = max(float((share * (at.value - mean) ** 2) @ at.mass) / size, floor)
    alpha = float(mean * (mean * (1.0 - mean) / variance - 1.0))
    return alpha, alpha * (1.0 - mean) / mean


def betas(at: WeightedPoints, steps: int) -> list[EmFit[Betas]]:
    """Fit one Beta by moments, and two as in ProGCL (Xia et al. 2022): a fixed start and `steps` of EM by moments.

    Component 0 starts at Beta(1, 2) with weight .95 and models documents unlike the anchor; component 1, Beta(2, 1),
    keeps β ≥ 1.01 so that its density vanishes at u = 1. Moment steps may lower the likelihood, and may end in a flat
    component 1 if its values pile up near u = 1.
    """
    ones = np.ones(len(at.value))
    total = at.mass.sum()
    mean = float(at.value @ at.mass / total)
    floor = NARROWEST**2 * float((at.value - mean) ** 2 @ at.mass / total)
    alpha, beta = beta_moments(at, ones, floor)
    parts = Betas(np.ones(1), np.array([alpha]), np.array([beta]))
    value = float(parts.log_joint(at.value)[0] @ at.mass / total)
    single = EmFit(parts, (value,), True)
    parts = Betas(np.array([0.95, 0.05]), np.array([1.0, 2.0]), np.array([2.0, 1.0]))
    trace = []
    for _ in range(steps):
        share, density = responsibilities(parts.log_joint(at.value))
        trace.append(float(density @ at.mass / total))
        (a0, b0), (a1, b1) = (beta_moments(at, weights, floor) for weights in share)
        weight = np.maximum(share @ at.mass / total, _TINY)
        parts = Betas(weight / weight.sum(), np.array([a0, a1]), np.array([b0, max(b1, 1.01)]))
    trace.append(float(responsibilities(parts.log_joint(at.value))[1] @ at.mass / total))
    return [single, EmFit(parts, tuple(trace), abs(trace[-1] - trace[-2]) < SETTLED)]
