"""How far judges agree: Krippendorff's α on preferences, and plain correlation of errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def pair_means(p_a: Reals) -> Reals:
    """One preference per comparison, float[..., 2] (orders) -> float[...]: the mean, the one answered, or NaN."""
    answered = ~np.isnan(p_a)
    count = answered.sum(axis=-1)
    return np.where(count > 0, np.where(answered, p_a, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)


def krippendorff(values: Reals) -> float | None:
    """Krippendorff's α = 1 − D_o/D_e with squared differences (interval data), units in rows, NaN where not rated.

    Krippendorff (2004), Content Analysis, ch. 11. Units rated once do not count. None if nothing can be compared or
    all values are equal.

    >>> krippendorff(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]))
    1.0
    """
    alpha = float(alpha_of(alpha_terms(values).sum(axis=0)))
    return None if np.isnan(alpha) else alpha


def alpha_terms(values: Reals) -> Reals:
    """What each unit adds to the sums that α is made of: float[C, 4] of values[C, J]; zeros where rated once."""
    rated = ~np.isnan(values)
    size = rated.sum(axis=1)
    filled = np.where(rated, values, 0.0)
    total = filled.sum(axis=1)
    squares = (filled**2).sum(axis=1)
    # Sum over ordered pairs of a unit of (x_i - x_j)^2 is 2 m Σx² - 2 (Σx)².
    within = (2 * size * squares - 2 * total**2) / np.maximum(size - 1, 1)
    return np.where((size >= 2)[:, None], np.stack([within, size, squares, total], axis=1), 0.0)


def alpha_of(sums: Reals) -> Reals:
    """α of sums float[..., 4] over units; NaN where nothing can be compared or all values are equal."""
    within, total, squares, plain = np.moveaxis(sums, -1, 0)
    some = np.maximum(total, 2.0)
    expected = (2 * total * squares - 2 * plain**2) / (some * (some - 1))
    return np.where(expected > 1e-15, 1.0 - within / some / np.maximum(expected, 1e-15), np.nan)


def correlation(a: Reals, b: Reals) -> float | None:
    """Pearson correlation over the rows where both are there; None if one of them does not vary."""
    there = ~np.isnan(a) & ~np.isnan(b)
    a = a[there]
    b = b[there]
    if len(a) < 3 or a.std() < 1e-12 or b.std() < 1e-12:
        return None
    return float(np.corrcoef(a, b)[0, 1])
