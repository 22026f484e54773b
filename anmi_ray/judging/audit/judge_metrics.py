"""Metrics of one judge: failures, ties, position and length bias, cycles, accuracy, with intervals.

Everything is counted per comparison first, so that intervals account for queries. Letters: C comparisons, Q
queries; p_a is float[C, 2], orders ab and ba, NaN where the judge failed or was not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.scale import normal_quantile
from anmi_ray.judging.audit.intervals import Queries, Reals, Share, pair_means

Longs = NDArray[np.int64]
# query[P] in 0..Q-1, first[P] and second[P] documents, preference for first[P] -> triads and cyclic ones, [≤ Q]
Triads = Callable[[Longs, Longs, Longs, Reals], tuple[Longs, Longs]]


@dataclass(frozen=True)
class World:
    """Facts about the comparisons.

    a, b: int64[C], numbers of the documents.
    difference: float[C], relevance of doc_a minus doc_b (true latent in probits, or grade), NaN if unknown; None: none
        is known.
    log_length: float[C], ln(length of doc_a / of doc_b), NaN if unknown.
    """

    queries: Queries
    a: Longs
    b: Longs
    difference: Reals | None = None
    log_length: Reals | None = None
    triads: Triads | None = None


def figures(p_a: Reals, failed: Reals, world: World, leaning: float | None = None) -> dict[str, object]:
    """Return JSON metrics of one judge; failed[C] counts its failures. `leaning`: see `panel_audit.audit`.

    Shares are under their names, their 95 % intervals in `intervals`, and their denominators in `counts`.
    """
    answered = _total(~np.isnan(p_a))
    parts = {"failure_rate": (failed, answered + failed), "tie_rate": (_total(p_a == 0.5), answered)} | _orders(p_a)
    if leaning is not None and not parts["first"][1].any():
        parts["first"] = _shown_first(p_a)
    if world.difference is not None:
        parts |= _accuracy(p_a, world.difference)
    longer = None if world.log_length is None else _longer(p_a, world.log_length)
    if longer is not None:
        parts["longer"] = longer
        if world.difference is not None:
            same = world.difference == 0
            parts["longer_equal"] = longer[0] * same, longer[1] * same
    shares = world.queries.shares(parts)
    if world.triads is not None:
        shares["cycle_rate"] = _cycles(p_a, world, world.triads)
    report: dict[str, object] = {"position_bias": _position_bias(p_a, shares.pop("first"), leaning)}
    if longer is not None:
        report["length_bias"] = _length_bias(p_a, shares.pop("longer"), shares.pop("longer_equal", None))
    report |= {name: share.value for name, share in shares.items()}
    report["intervals"] = {name: share.interval for name, share in shares.items()}
    report["counts"] = {name: round(share.whole) for name, share in shares.items()}
    return report


def _orders(p_a: Reals) -> dict[str, tuple[Reals, Reals]]:
    """Over comparisons answered in both orders: mean preference for the first shown (true gaps cancel), verdicts that
    differ, and flips, which contradict each other."""
    told = ~np.isnan(p_a).any(axis=1)
    both = np.asarray(told, np.float64)
    signs = np.sign(p_a - 0.5)
    return {
        "first": (np.where(told, (p_a[:, 0] + 1.0 - p_a[:, 1]) / 2.0, 0.0), both),
        "flip_rate": ((signs[:, 0] * signs[:, 1] < 0).astype(float), both),
        "order_inconsistent_rate": ((told & (signs[:, 0] != signs[:, 1])).astype(float), both),
    }


def _shown_first(p_a: Reals) -> tuple[Reals, Reals]:
    """Return the preference for the first shown over single answers; orders drawn by hash are independent of gaps."""
    told = ~np.isnan(p_a)
    toward = np.where(told, p_a, 0.0)
    return toward[:, 0] + np.where(told[:, 1], 1.0 - toward[:, 1], 0.0), _total(told)


def _accuracy(p_a: Reals, difference: Reals) -> dict[str, tuple[Reals, Reals]]:
    """Return the share of decided answers, and of decided means over both orders, for the better document."""
    better = np.where(np.isnan(difference), 0.0, np.sign(difference))
    votes = np.sign(p_a - 0.5)
    mean = np.sign(pair_means(p_a) - 0.5)
    sides = (np.abs(votes) > 0) & (better != 0)[:, None]  # NaN takes none
    side = (np.abs(mean) > 0) & (better != 0)
    return {
        "accuracy": (_total(sides & (votes == better[:, None])), _total(sides)),
        "accuracy_both_orders": ((side & (mean == better)).astype(float), side.astype(float)),
    }


def _total(flags: NDArray[np.bool_]) -> Reals:
    return flags.sum(axis=1).astype(np.float64)


def _longer(p_a: Reals, log_length: Reals) -> tuple[Reals, Reals]:
    """Return which comparisons of unequal lengths were decided for the longer document, and which were decided.

    Only those in both orders count if there are any: position bias cancels.
    """
    both = ~np.isnan(p_a).any(axis=1)
    usable = np.where(both | ~both.any(), pair_means(p_a), np.nan)
    lean = np.sign(usable - 0.5) * np.sign(log_length)
    return (lean > 0).astype(float), (np.abs(lean) > 0).astype(float)


def _position_bias(p_a: Reals, first: Share, leaning: float | None) -> dict[str, object]:
    """Return the mean preference for the first shown minus 1/2, also in probits (shrunk by the spread of gaps).

    fitted: the estimate by a fit of all answers in probits, if no pair has both orders; not shrunk.
    """
    bias: dict[str, object] = {"pairs": round(first.whole), "probability": None, "interval": None, "probit": None}
    if first.value is not None and first.interval is not None:
        bias |= {"probability": first.value - 0.5, "interval": [end - 0.5 for end in first.interval]}
        if 0 < first.value < 1:
            ends = [float(normal_quantile(end)) for end in first.interval]
            bias["probit"] = float(normal_quantile(first.value))
            bias["probit_interval"] = [end if np.isfinite(end) else None for end in ends]
    if leaning is not None:
        bias["fitted"] = leaning
    signs = np.sign(p_a - 0.5)
    unlike = ~np.isnan(p_a).any(axis=1) & (signs[:, 0] != signs[:, 1])
    lean = p_a[unlike, 0] - p_a[unlike, 1]  # above 0: each order for what it showed first
    return bias | {"first_preferred": int((lean > 0).sum()), "second_preferred": int((lean < 0).sum())}


def _length_bias(p_a: Reals, longer: Share, equal: Share | None) -> dict[str, object]:
    """Return how often the longer document won."""
    both = bool((~np.isnan(p_a).any(axis=1)).any())
    found: dict[str, object] = {"both_orders": both, "pairs": round(longer.whole), "longer": longer.value}
    found["interval"] = longer.interval
    if equal is not None:
        found["equal_grades"] = {"pairs": round(equal.whole), "longer": equal.value, "interval": equal.interval}
    return found


def _cycles(p_a: Reals, world: World, triads: Triads) -> Share:
    """Return the share of cyclic triads among those of decided pairs."""
    mean = pair_means(p_a)
    told = ~np.isnan(mean)
    judged, cyclic = np.zeros((2, world.queries.count))
    if told.any():
        found = triads(world.queries.of[told], world.a[told], world.b[told], mean[told])
        judged[: len(found[0])], cyclic[: len(found[1])] = found
    return world.queries.share_of_sums(cyclic, judged)
