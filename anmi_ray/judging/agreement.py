"""How far judges agree: Krippendorff's α on preferences, and plain correlation of errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def pair_means(p_a: Reals) -> Reals:
    """One preference per comparison from both orders, float[C, 2] -> float[C]: their mean, the one answered, or NaN."""
    answered = ~np.isnan(p_a)
    count = answered.sum(axis=1)
    return np.where(count > 0, np.where(answered, p_a, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def krippendorff(values: Reals) -> float | None:
    """Krippendorff's α = 1 − D_o/D_e with squared differences (interval data), units in rows, NaN where not rated.

    Krippendorff (2004), Content Analysis, ch. 11. Units rated once do not count. None if nothing can be compared or
    all values are equal.

    >>> krippendorff(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]))
    1.0
    """
    values = values[(~np.isnan(values)).sum(axis=1) >= 2]
    rated = ~np.isnan(values)
    filled = np.where(rated, values, 0.0)
    size = rated.sum(axis=1)
    total = int(size.sum())
    if not total:
        return None
    # Sum over ordered pairs of a unit of (x_i - x_j)^2 is 2 m Σx² - 2 (Σx)².
    within = 2 * size * (filled**2).sum(axis=1) - 2 * filled.sum(axis=1) ** 2
    observed = float((within / (size - 1)).sum()) / total
    expected = float(2 * total * (filled**2).sum() - 2 * filled.sum() ** 2) / (total * (total - 1))
    return 1.0 - observed / expected if expected > 1e-15 else None


def correlation(a: Reals, b: Reals) -> float | None:
    """Pearson correlation over the rows where both are there; None if one of them does not vary."""
    there = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[there], b[there]
    if len(a) < 3 or a.std() < 1e-12 or b.std() < 1e-12:
        return None
    return float(np.corrcoef(a, b)[0, 1])
