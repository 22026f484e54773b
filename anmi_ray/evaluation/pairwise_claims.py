"""What is claimed of distilled pairwise judges, as tests on stored predictions, each with a verdict.

Random labels teach the line y = ½; binary and ternary targets teach the same line; E|C| tells ties from pairs that are
hard for the model; the triangle moves from checkpoint to checkpoint. Letters: P pairs, B buckets, R rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anmi_ray.evaluation.pairwise import Pairs, buckets, folded, kinds
from anmi_ray.evaluation.pairwise_measures import (
    BUCKETS,
    NOTHING,
    Draws,
    bootstrap,
    bucket_values,
    by_query,
    line,
    percentiles,
    ratio,
)
from anmi_ray.evaluation.significance import Estimate

Reals = NDArray[np.float64]
Verdict = Literal["holds", "fails", "cannot tell"]
MARGIN = 0.05  # lines closer than this, in score, are called the same


@dataclass(frozen=True)
class Claim:
    """A sentence, the number that decides it with its 95 % interval over queries, and what was found.

    `rule` says from which interval the sentence holds, and from which it fails; between them nobody can tell.
    """

    sentence: str
    measured: str
    value: Estimate
    rule: str
    verdict: Verdict


def flat_line(pairs: Pairs, margin: float = MARGIN, draws: Draws | None = None) -> Claim:
    """Trained on random labels, a model predicts ½ everywhere: root mean square of μ − ½ (½/√3 for random guesses)."""
    found = bootstrap(pairs, np.stack([(pairs.mean_P - 0.5) ** 2, np.ones(len(pairs))], axis=1), _root, draws)
    return Claim(
        "Trained on random labels, the model predicts y = ½",
        "root mean square of μ − ½",
        found,
        f"holds up to {margin:g}, fails above",
        _below(found, margin),
    )


def same_line(model: Pairs, other: Pairs, margin: float = MARGIN, draws: Draws | None = None) -> Claim:
    """Both targets teach the same curve of Figure 7: the root mean square difference of μ by rank of sureness.

    Both models' folded predictions are ranked each by its own |μ − ½|, as the figure does, and the means of
    equal-population buckets are compared, with paired resampling.
    """
    draws = draws or Draws(model.queries)
    parts = []
    for pairs in (model, other):
        sure = np.abs(pairs.mean_P - 0.5)
        parts.append(bucket_values(sure, sure, buckets(-sure, BUCKETS), BUCKETS))
    found = bootstrap(model, np.concatenate(parts, axis=1), _curve_difference, draws)
    return Claim(
        "Binary and ternary targets teach the same line",
        "root mean square difference of the predicted curves",
        found,
        f"holds up to {margin:g}, fails above",
        _below(found, margin),
    )


def _curve_difference(sums: Reals) -> Reals:
    half = sums.shape[-1] // 2
    n, predicted = (sums[..., k::4] for k in (0, 1))
    mean = predicted / np.maximum(n, 1)
    return np.sqrt(np.mean((mean[..., : half // 4] - mean[..., half // 4 :]) ** 2, axis=-1))


def _root(sums: Reals) -> Reals:
    return np.sqrt(ratio(sums))


def _below(found: Estimate, margin: float) -> Verdict:
    if found.low is None or found.high is None:
        return "cannot tell"
    return "holds" if found.high <= margin else "fails" if found.low > margin else "cannot tell"


def same_slope(model: Pairs, other: Pairs, margin: float = MARGIN, draws: Draws | None = None) -> Claim:
    """Both targets are calibrated alike: the other's calibration slope less the model's, paired."""
    draws = draws or Draws(model.queries)
    sums = []
    for pairs in (model, other):
        values = bucket_values(pairs.mean_P, pairs.score_P, buckets(pairs.mean_P, BUCKETS), BUCKETS)
        sums.append(by_query(pairs, values))
    value = float(line(sums[1].sum(axis=0))[0] - line(sums[0].sum(axis=0))[0])
    found = NOTHING
    verdict = "cannot tell"
    if np.isfinite(value):
        low, high = percentiles(line(draws.sums(sums[1]))[:, 0] - line(draws.sums(sums[0]))[:, 0])
        found = Estimate(value, low, high, len(model))
        if low is not None and high is not None:
            verdict = "holds" if -margin <= low and high <= margin else verdict
            verdict = "fails" if low > margin or high < -margin else verdict
    return Claim(
        "Binary and ternary targets are calibrated alike",
        "difference of the calibration slopes",
        found,
        f"holds within ±{margin:g}, fails outside",
        verdict,
    )


def tells_ties(pairs: Pairs, count: int = BUCKETS, draws: Draws | None = None) -> Claim:
    """Figure 9: at equal μ, E|C| is higher where the judges agree than where they are even.

    The concordance of E|C| over all (consensus, even) pairs of predictions in the same one of `count` buckets of
    folded μ: the chance that the consensus has the higher E|C|, ties counted half. ½ says that E|C| knows nothing that
    μ does not. A consensus at the same μ as a tie is a pair that was too hard for the model.
    """
    fold = folded(pairs)
    kind = kinds(fold.score_P)
    bucket = buckets(fold.mean_P, count)
    sets = [
        (np.flatnonzero((bucket == b) & np.isin(kind, (0, 4))), np.flatnonzero((bucket == b) & (kind == 2)))
        for b in range(count)
    ]
    order = [(agreed, tied, _order(fold.decided_P[agreed], fold.decided_P[tied])) for agreed, tied in sets]
    order = [one for one in order if one[2].size]
    found = NOTHING
    if order and pairs.two_dimensional:
        value = sum(float(won.sum()) for _, _, won in order) / sum(won.size for _, _, won in order)
        drawn = [_concordance(counts[:, pairs.query_P], order) for counts in (draws or Draws(pairs.queries)).blocks()]
        found = Estimate(value, *percentiles(np.concatenate(drawn)), sum(len(a) + len(t) for a, t, _ in order))
    verdict: Verdict = "cannot tell"
    if found.low is not None and found.high is not None:
        verdict = "holds" if found.low > 0.5 else "fails" if found.high <= 0.55 else "cannot tell"
    return Claim(
        "E|C| tells ties from hard pairs of the same μ",
        "chance that of a pair with consensus and an even one the first has the higher E|C|",
        found,
        "holds above 0.5, fails up to 0.55",
        verdict,
    )


def _order(agreed: Reals, tied: Reals) -> Reals:
    """1 where the agreed is higher, ½ where they are equal (to 1e-9), else 0."""
    gap = agreed[:, None] - tied[None, :]
    return np.where(np.abs(gap) < 1e-9, 0.5, (gap > 0).astype(np.float64))


def _concordance(weight_RP: Reals, order: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], Reals]]) -> Reals:
    """The concordance of every resample, NaN where it has no such pairs."""
    won = np.zeros(len(weight_RP))
    all_ = np.zeros(len(weight_RP))
    for agreed, tied, matrix in order:
        one = weight_RP[:, agreed]
        two = weight_RP[:, tied]
        won += ((one @ matrix) * two).sum(axis=1)
        all_ += one.sum(axis=1) * two.sum(axis=1)
    return ratio(np.stack([won, all_], axis=-1))


@dataclass(frozen=True)
class Movement:
    """How the points moved since the checkpoint before: mean absolute change of μ and of P(tie), and of mean P(tie)."""

    step: int
    mean: float
    tie: float
    drift: float


def movement(checkpoints: Sequence[tuple[int, Pairs]]) -> tuple[Movement, ...]:
    """The movement between consecutive checkpoints (step, predictions of the same pairs)."""
    return tuple(
        Movement(
            step,
            float(np.mean(np.abs(now.mean_P - before.mean_P))),
            float(np.mean(np.abs(now.tie_P - before.tie_P))),
            float(np.mean(now.tie_P) - np.mean(before.tie_P)),
        )
        for (_, before), (step, now) in pairwise(checkpoints)
    )


def still_moving(checkpoints: Sequence[tuple[int, Pairs]], margin: float = 0.02, draws: Draws | None = None) -> Claim:
    """The triangle never converges: between the last two checkpoints P(tie) still moves, by more than `margin`."""
    found = NOTHING
    if len(checkpoints) > 1:
        (_, before), (_, now) = checkpoints[-2:]
        change = np.stack([np.abs(now.tie_P - before.tie_P), np.ones(len(now))], axis=1)
        found = bootstrap(now, change, ratio, draws)
    verdict: Verdict = "cannot tell"
    if found.low is not None and found.high is not None:
        verdict = "holds" if found.low > margin else "fails" if found.high <= margin else "cannot tell"
    return Claim(
        "The triangle still moves at the last checkpoint",
        "mean absolute change of P(tie) since the one before",
        found,
        f"holds above {margin:g}, fails up to it",
        verdict,
    )
