"""95 % intervals of shares clustered by query, and measures of agreement between judges.

A share is a ratio of sums over comparisons, in [0, 1]. With at least MIN_QUERIES queries, queries are resampled
(percentile bootstrap, Efron 1979; the same draws for every share); with fewer, the ratio is linearized over
comparisons. If all units are equal, the interval bounds the unseen share of different ones (Wilson).
Letters: C comparisons, Q queries, F shares, R rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Z95, wilson

MIN_QUERIES = 10
ROUNDS = 2000
_BLOCK = 1 << 20  # random numbers per block


@dataclass(frozen=True)
class Share:
    """part / whole with its 95 % interval; value is None if the whole is 0, the interval if it is too small."""

    value: float | None
    interval: list[float] | None
    whole: float


@dataclass(frozen=True)
class Queries:
    """The query of each comparison, int64[C] in 0..count-1."""

    of: NDArray[np.int64]
    count: int

    def sums(self, values: Reals) -> Reals:
        """Return sums per query, float[Q], of values[C]."""
        return np.bincount(self.of, values, self.count).astype(np.float64)

    def shares(self, figures: Mapping[str, tuple[Reals, Reals]]) -> dict[str, Share]:
        """Return shares with intervals of (part[C], whole[C]), 0 <= part <= whole."""
        return self._shares({name: (self.sums(p), self.sums(w), (p, w)) for name, (p, w) in figures.items()})

    def share_of_sums(self, part: Reals, whole: Reals) -> Share:
        """Return the share of part[Q] and whole[Q] by query; no interval below MIN_QUERIES."""
        return self._shares({"": (part, whole, None)})[""]

    def _shares(self, figures: Mapping[str, tuple[Reals, Reals, tuple[Reals, Reals] | None]]) -> dict[str, Share]:
        many = [name for name, (_, whole, _) in figures.items() if np.count_nonzero(whole) >= MIN_QUERIES]
        drawn = dict(zip(many, self._drawn([figures[name][:2] for name in many]), strict=True))
        found: dict[str, Share] = {}
        for name, (part, whole, pairs) in figures.items():
            total = float(whole.sum())
            if not total:
                found[name] = Share(None, None, 0.0)
                continue
            value = float(part.sum()) / total
            ends = drawn.get(name) or (linearised(*pairs) if pairs else None)
            units = (part, whole) if name in drawn or pairs is None else pairs
            counted = units[1] > 0
            if ends is not None and np.ptp(units[0][counted] / units[1][counted]) < 1e-12:
                # all units are alike: the unseen share of others may have any ratio
                others = wilson(0.0, int(np.count_nonzero(counted)))[1]
                ends = value * (1 - others), value * (1 - others) + others
            found[name] = Share(value, None if ends is None else np.clip(ends, 0.0, 1.0).tolist(), total)
        return found

    def _drawn(self, figures: list[tuple[Reals, Reals]]) -> list[tuple[float, float]]:
        if not figures:
            return []
        sums = self.resampled(np.stack([column for pair in figures for column in pair], axis=1))
        parts = sums[:, 0::2]
        wholes = sums[:, 1::2]
        ratios = np.full(parts.shape, np.nan)  # a round may draw only queries without the figure
        np.divide(parts, wholes, out=ratios, where=wholes > 0)
        low, high = np.nanquantile(ratios, [0.025, 0.975], axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def resampled(self, sums: Reals) -> Reals:
        """Return sums float[R, F] over resampled queries, of sums[Q, F] per query; deterministic."""
        random = rng("judge-audit", self.count)
        found = []
        block = max(1, _BLOCK // self.count)
        for start in range(0, ROUNDS, block):
            rounds = min(block, ROUNDS - start)
            drawn = random.integers(0, self.count, (rounds, self.count)) + self.count * np.arange(rounds)[:, None]
            times = np.bincount(drawn.ravel(), minlength=rounds * self.count).reshape(rounds, self.count)
            found.append(times @ sums)
        return np.concatenate(found)


def linearised(part: Reals, whole: Reals) -> tuple[float, float] | None:
    """Return the delta-method interval of Σ part / Σ whole over units with a whole; None for fewer than two."""
    part = part[whole > 0]
    whole = whole[whole > 0]
    if len(part) < 2:
        return None
    value = float(part.sum() / whole.sum())
    spread = np.sqrt(len(part) / (len(part) - 1) * np.square(part - value * whole).sum())
    slack = Z95 * float(spread / whole.sum())
    return value - slack, value + slack


Reals = NDArray[np.float64]


def pair_means(p_a: Reals) -> Reals:
    """Return the mean preference over answered orders, float[..., 2] -> float[...], or NaN."""
    answered = ~np.isnan(p_a)
    count = answered.sum(axis=-1)
    return np.where(count > 0, np.where(answered, p_a, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)


def krippendorff(values: Reals) -> float | None:
    """Return Krippendorff's α = 1 − D_o/D_e with squared differences (interval data), units in rows, NaN if not rated.

    Krippendorff (2004), Content Analysis, ch. 11. Units rated once do not count. None if nothing can be compared or
    all values are equal.

    >>> krippendorff(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]))
    1.0
    """
    alpha = float(alpha_of(alpha_terms(values).sum(axis=0)))
    return None if np.isnan(alpha) else alpha


def alpha_terms(values: Reals) -> Reals:
    """Return each unit's terms of the sums in α: float[C, 4] of values[C, J]; zeros if rated once."""
    rated = ~np.isnan(values)
    size = rated.sum(axis=1)
    filled = np.where(rated, values, 0.0)
    total = filled.sum(axis=1)
    squares = (filled**2).sum(axis=1)
    # Sum over ordered pairs of a unit of (x_i - x_j)^2 is 2 m Σx² - 2 (Σx)².
    within = (2 * size * squares - 2 * total**2) / np.maximum(size - 1, 1)
    return np.where((size >= 2)[:, None], np.stack([within, size, squares, total], axis=1), 0.0)


def alpha_of(sums: Reals) -> Reals:
    """Return α of sums float[..., 4] over units; NaN if nothing can be compared or all values are equal."""
    within, total, squares, plain = np.moveaxis(sums, -1, 0)
    some = np.maximum(total, 2.0)
    expected = (2 * total * squares - 2 * plain**2) / (some * (some - 1))
    return np.where(expected > 1e-15, 1.0 - within / some / np.maximum(expected, 1e-15), np.nan)


def correlation(a: Reals, b: Reals) -> float | None:
    """Return the Pearson correlation over rows with both values; None if one is constant."""
    there = ~np.isnan(a) & ~np.isnan(b)
    a = a[there]
    b = b[there]
    if len(a) < 3 or a.std() < 1e-12 or b.std() < 1e-12:
        return None
    return float(np.corrcoef(a, b)[0, 1])
