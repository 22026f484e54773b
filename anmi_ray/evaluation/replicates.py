"""Differences between systems trained with several seeds: intervals over queries, and over queries and seeds.

A paired test over queries is about the trained models only; training again uses other seeds, so `contrast` gives both.
Collections are strata, with their own queries and trainings. Shapes: S seeds, Q queries of a collection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.significance import ENDS, holm, paired_randomisation, resampled_sums

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Contrast:
    """Difference of a system from a reference, seeds averaged per query; queries of all strata count alike.

    low, high, p: over queries (bootstrap and sign flips within the strata), for the trained models.
    wide_low, wide_high, wide_p: over queries and seeds, for such trainings in general; None below two seeds.
    query_sd, seed_sd: of the per-query differences, and of the mean differences over the seeds; roots of the variances
        averaged over the strata by their queries.
    p_holm, wide_p_holm: corrected over a family.
    """

    system: str
    reference: str
    queries: int
    seeds: int
    difference: float
    low: float
    high: float
    p: float
    query_sd: float
    seed_sd: float | None = None
    wide_low: float | None = None
    wide_high: float | None = None
    wide_p: float | None = None
    p_holm: float = 1.0
    wide_p_holm: float | None = None

    def __str__(self) -> str:
        return f"{self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    def verdict(self, level: float = 0.05) -> str:
        """real: both corrected p-values are below `level`; these models: only that over queries; else not significant.

        With one seed, the best verdict is: these models.
        """
        if self.p_holm >= level:
            return "not significant"
        return "real" if self.wide_p_holm is not None and self.wide_p_holm < level else "these models"


def contrast(
    system: str, reference: str, differences: Sequence[Reals], rounds: int = 10_000, seed: int = 0
) -> Contrast:
    """Compare by `differences`, float64[S, Q] per stratum: system minus reference, the same queries and seeds.

    Raises DataError if a stratum has no seed or fewer than two queries, or a difference is not finite.
    """
    for rows in differences:
        if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 2 or not np.isfinite(rows).all():
            raise DataError(
                f"differences of shape {rows.shape}, or not finite", f"{system} - {reference}", "measure all queries"
            )
    means = [rows.mean(0) for rows in differences]
    every = np.concatenate(means)
    low, high = stratified_interval(means, rounds, seed)
    result = Contrast(
        system,
        reference,
        len(every),
        min(len(rows) for rows in differences),
        float(every.mean()),
        low,
        high,
        paired_randomisation(every, np.zeros(len(every)), rounds, seed),
        _root_mean([float(mean.var(ddof=1)) for mean in means], differences),
    )
    if result.seeds < 2:
        return result
    error, freedom = crossed_error(differences)
    slack = float(special.stdtrit(freedom, ENDS[1])) * error
    return replace(
        result,
        seed_sd=_root_mean([float(rows.mean(1).var(ddof=1)) for rows in differences], differences),
        wide_low=result.difference - slack,
        wide_high=result.difference + slack,
        wide_p=2 * float(special.stdtr(freedom, -abs(result.difference) / error)) if error else float(not every.mean()),
    )


def family(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    """The contrasts with Holm's correction, separately for each kind of p-value."""
    narrow = holm([one.p for one in contrasts])
    wide = holm([1.0 if one.wide_p is None else one.wide_p for one in contrasts])
    return tuple(
        replace(one, p_holm=p, wide_p_holm=None if one.wide_p is None else q)
        for one, p, q in zip(contrasts, narrow, wide, strict=True)
    )


def markdown(contrasts: Iterable[Contrast]) -> str:
    """A table with a row per contrast."""
    rows = [
        "| | difference, 95 % over queries | p, Holm | 95 % over queries and seeds | p, Holm | sd of queries "
        "| sd of seeds | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in contrasts:
        wide = ["", "", ""]
        if one.wide_low is not None:
            wide = [f"[{one.wide_low:+.4f}, {one.wide_high:+.4f}]", f"{one.wide_p_holm:.3f}", f"{one.seed_sd:.4f}"]
        name = f"{one.system} − {one.reference}"
        cells = (name, one, f"{one.p_holm:.4f}", *wide[:2], f"{one.query_sd:.3f}", wide[2], one.verdict())
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def stratified_interval(strata: Sequence[Reals], rounds: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of all values, queries drawn within their stratum."""
    total = np.zeros(rounds)
    for number, values in enumerate(strata):
        total += resampled_sums(values, rounds, rng("stratified-bootstrap", seed, number))
    low, high = np.quantile(total / sum(map(len, strata)), ENDS)
    return float(low), float(high)


def crossed_error(strata: Sequence[Reals]) -> tuple[float, float]:
    """Standard error of the mean of all values, and its degrees of freedom, with seeds and queries both random.

    Per stratum float64[S >= 2, Q]: value = mean + seed + query + rest, so that the mean's variance is
    (MS_seeds + MS_queries - MS_rest)/(SQ), without MS_rest if it exceeds MS_seeds; degrees of freedom by Satterthwaite
    (1946). Resampling three seeds would show only 2/3 of their variance.
    """
    total = sum(rows.shape[1] for rows in strata)
    variance = below = 0.0
    for rows in strata:
        seeds, queries = rows.shape
        by_seed = rows.mean(1)
        by_query = rows.mean(0)
        mean = rows.mean()
        rest = rows - by_seed[:, None] - by_query + mean
        of_seeds = queries * float(by_seed.var(ddof=1))
        of_queries = seeds * float(by_query.var(ddof=1))
        of_rest = float(np.square(rest).sum()) / ((seeds - 1) * (queries - 1))
        share = (queries / total) ** 2 / rows.size
        parts = [(of_queries, queries - 1)]
        if of_seeds > of_rest:
            parts += [(of_seeds, seeds - 1), (-of_rest, (seeds - 1) * (queries - 1))]
        variance += share * sum(part for part, _ in parts)
        below += sum((share * part) ** 2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / below if below else math.inf


def smallest_difference(
    sds: Mapping[str, float], queries: Mapping[str, int], comparisons: int = 1, level: float = 0.05, power: float = 0.8
) -> float:
    """The difference of means that a paired test detects with probability `power`, queries pooled over collections.

    `sds`: standard deviations of per-query differences by collection. Two-sided, at level/comparisons,
    Holm's strictest step. (z_{1 - level/(2m)} + z_power) · sqrt(Σ n sd²)/Σ n, the normal approximation.

    >>> round(smallest_difference({"a": 0.15}, {"a": 568}, 9), 4)
    0.0227
    """
    total = sum(queries[name] for name in sds)
    variance = sum(queries[name] * sd * sd for name, sd in sds.items())
    return _detected(comparisons, level, power) * math.sqrt(variance) / total


def queries_needed(sd: float, difference: float, level: float = 0.05, power: float = 0.8) -> int:
    """How many queries a paired test needs to detect `difference`, which is not 0, with probability `power`.

    `sd`: standard deviation of the per-query differences. The inverse of `smallest_difference` for one collection.

    >>> queries_needed(0.15, 0.0227)
    343
    """
    return math.ceil((_detected(1, level, power) * sd / difference) ** 2)


def _detected(comparisons: int, level: float, power: float) -> float:
    """Standard errors that a difference has to be of: z_{1 - level/(2m)} + z_power."""
    return float(special.ndtri(power) - special.ndtri(level / (2 * comparisons)))


def _root_mean(variances: Iterable[float], strata: Sequence[Reals]) -> float:
    return math.sqrt(np.average(list(variances), weights=[rows.shape[1] for rows in strata]))
