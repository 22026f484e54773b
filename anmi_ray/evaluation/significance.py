"""Paired tests and intervals over queries of the difference between two systems.

Shapes: Q queries, R rounds. Resampling runs in blocks of rounds, so memory does not grow with R x Q.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng

BLOCK = 1 << 20  # numbers drawn at once
LEVEL = 0.95  # confidence level of the intervals, as nearly all papers give them
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
EXACT_QUERIES = 16  # up to 2^16 sign patterns are enumerated whatever the rounds


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over queries, from n observations; None if unknown."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class SystemComparison:
    """One system under one measure: its mean, and its difference from the baseline on the same queries.

    difference, its interval, p, p_holm: None for the baseline.
    p, p_holm: of the paired randomisation test, and with Holm's correction over the systems.
    wins, ties, losses: numbers of queries.
    judged: share of its top documents with a label or a judge's answer, if counted.
    """

    system: str
    measure: str
    queries: int
    mean: float
    low: float
    high: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    wins: int = 0
    ties: int = 0
    losses: int = 0
    judged: float | None = None


def paired_randomisation(a: ArrayLike, b: ArrayLike, rounds: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value that a and b (Q values each, paired) are exchangeable: mean |Σ ±d| ≥ |Σ d|, d = a − b.

    Fisher's randomisation test (Smucker, Allan and Carterette 2007), exact up to 2^n = 2^16 or `rounds` sign patterns,
    n counting d ≠ 0; else (1 + hits) / (1 + rounds), which is never 0.

    >>> paired_randomisation([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    0.25
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    difference = difference[difference != 0]
    n = len(difference)
    if not n:
        return 1.0
    # Sums of the same numbers in another order differ in the last bits; without slack the observed pattern may miss.
    threshold = abs(float(difference.sum())) - 1e-12 * float(np.abs(difference).sum())
    if n <= max(EXACT_QUERIES, rounds.bit_length() - 1):  # the latter: 2^n <= rounds
        sums = np.zeros(1)  # Σ ±d for all 2^n patterns of signs, by doubling
        for value in difference:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= threshold))
    random = rng("paired-randomisation", seed)
    hits = 0
    for block in blocks(rounds, n):
        signs = np.where(random.random((block, n)) < 0.5, -1.0, 1.0)
        hits += int(np.count_nonzero(np.abs(signs @ difference) >= threshold))
    return (1 + hits) / (1 + rounds)


def bootstrap_interval(values: ArrayLike, seed: int = 0, rounds: int = 10_000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of `values` (Q queries drawn with replacement; Efron 1979).

    Equal `seed` and Q give equal samples. Raises DataError if a value is not finite.

    >>> bootstrap_interval([0.5, 0.5])
    (0.5, 0.5)
    """
    sample = np.asarray(values, dtype=np.float64)
    if not np.isfinite(sample).all():
        raise DataError("values that are not finite", "significance", "check the metrics")
    if sample.min() == sample.max():
        return float(sample[0]), float(sample[0])
    low, high = np.quantile(resampled_sums(sample, rounds, rng("bootstrap", seed)) / len(sample), ENDS)
    return float(low), float(high)


def resampled_sums(values: NDArray[np.float64], rounds: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Sums of bootstrap samples of `values` float[Q], float[R]."""
    n = len(values)
    return np.concatenate([values[random.integers(0, n, (block, n))].sum(axis=1) for block in blocks(rounds, n)])


def compare(
    metrics: pa.Table,
    baseline: str,
    systems: Sequence[str] | None,
    measure: str,
    rounds: int = 10_000,
    seed: int = 0,
    partial: Collection[str] = (),
) -> tuple[SystemComparison, ...]:
    """The baseline's row, then one per system (default: every other one in `metrics`, by name), over equal queries.

    Systems in `partial` may have only some of the baseline's queries, and are compared on those. Raises DataError if a
    system is missing or was not evaluated on the baseline's queries.
    """
    values = by_system(metrics, measure)
    others = [name for name in (sorted(values) if systems is None else systems) if name != baseline]
    for name in (baseline, *others):
        if name not in values:
            raise DataError(
                f"no {measure} of {name!r}; there are {', '.join(sorted(values)) or 'none'}",
                "metrics",
                "name an evaluated system as evaluate.baseline, or evaluate that one",
            )
    ids, reference = values[baseline]
    rows = [_row(baseline, measure, reference, None, rounds, seed)]
    for name in others:
        on = reference
        if name in partial and set(values[name][0]) <= set(ids):
            on = reference[np.isin(np.array(ids, dtype=object), np.array(values[name][0], dtype=object))]
        elif values[name][0] != ids:
            raise DataError(
                f"{name!r} and {baseline!r} were evaluated on different queries ({len(values[name][0])}, {len(ids)})",
                "metrics",
                "evaluate both on the same qrels",
            )
        rows.append(_row(name, measure, values[name][1], on, rounds, seed))
    p_holm = holm([row.p for row in rows if row.p is not None])
    return (rows[0], *(replace(row, p_holm=p) for row, p in zip(rows[1:], p_holm, strict=True)))


def by_system(metrics: pa.Table, measure: str) -> dict[str, tuple[list[bytes], NDArray[np.float64]]]:
    """{system: (query ids ascending, their values under `measure`)}."""
    rows = metrics.filter(pc.equal(metrics["measure"], measure)).sort_by([("query_id", "ascending")])
    systems = sorted(pc.unique(rows["system"]).to_pylist())
    parts = {system: rows.filter(pc.equal(rows["system"], system)) for system in systems}
    return {system: (part["query_id"].to_pylist(), part["value"].to_numpy()) for system, part in parts.items()}


def _row(
    system: str,
    measure: str,
    values: NDArray[np.float64],
    reference: NDArray[np.float64] | None,
    rounds: int,
    seed: int,
) -> SystemComparison:
    interval = bootstrap_interval(values, seed, rounds)
    row = SystemComparison(system, measure, len(values), float(np.mean(values)), *interval)
    if reference is None:
        return row
    difference = values - reference
    low, high = bootstrap_interval(difference, seed, rounds)
    return replace(
        row,
        difference=float(np.mean(difference)),
        difference_low=low,
        difference_high=high,
        p=paired_randomisation(values, reference, rounds, seed),
        wins=int(np.count_nonzero(difference > 0)),
        ties=int(np.count_nonzero(difference == 0)),
        losses=int(np.count_nonzero(difference < 0)),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values over their family (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p)
    running = 0.0
    for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, min(1.0, p[i] * (len(p) - step)))
        adjusted[i] = running
    return adjusted


def blocks(rounds: int, width: int) -> list[int]:
    """Sizes of blocks of rounds of about BLOCK numbers each."""
    size = max(1, BLOCK // max(1, width))
    full, rest = divmod(rounds, size)
    return [size] * full + ([rest] if rest else [])
