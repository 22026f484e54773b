"""The report's Theorems 1, 2 and 3 and Proposition 1 in numbers: what gradients of InfoNCE do.

For the study `theorems`. Gradients are autograd's of the project's losses, on lists of real and of drawn similarities.
Letters: Q queries, B lists, K documents of a list with the positive first, N negatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from anmi_ray.core.identity import rng
from anmi_ray.training.losses import regression, weighted_infonce
from jobs.studies.harness import Table
from jobs.studies.theorem_ratings import Claim, Findings, Level

Reals = NDArray[np.float64]
TAU = 0.07
TAUS = (0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0, 5.0)
NEAR = 1.1  # the factor to either side of τ over which a local exponent is taken
COUNTS = (16, 256, 4096, 32768)  # negatives of Theorem 2
LISTS = 60  # and its lists
DIMENSIONS = 384  # of the shipped encoder
OFFSETS = (-0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2)  # of a planted false negative's similarity to the positive's
ALPHAS = (0.75, 0.4)  # the loss's shares of ranking below a tenth and above three tenths of false negatives
STEP = 1e-4  # of similarity, for slopes


@dataclass(frozen=True)
class Similarities:
    """Cosines float64[Q, 1 + N] of every query: its positive's, then its negatives', falling. And `second`, float64[Q]:
    that of another relevant document, NaN where there is none."""

    lists: Reals
    second: Reals

    @classmethod
    def of(cls, cosine_QD: Reals, relevant: Sequence[Sequence[int]]) -> Similarities:
        """From all cosines and every query's relevant documents; all lists get as many negatives as the shortest."""
        negatives = cosine_QD.shape[1] - max(map(len, relevant))
        rows = []
        for cosine_D, own in zip(cosine_QD, relevant, strict=True):
            others = np.sort(np.delete(cosine_D, own))[::-1]
            rows.append(np.append(cosine_D[own[0]], others[:negatives]))
        second = [
            cosine_D[own[1]] if len(own) > 1 else math.nan for cosine_D, own in zip(cosine_QD, relevant, strict=True)
        ]
        return cls(np.array(rows), np.array(second))


def pushes(score_BK: Reals, temperature: float) -> Reals:
    """Gradients float64[B, K] of every list's InfoNCE on its scores."""
    score = torch.tensor(score_BK, requires_grad=True)
    ones = torch.ones(score.shape, dtype=score.dtype)
    weighted_infonce(score, ones, ones.bool(), temperature).sum().backward()
    assert score.grad is not None
    return score.grad.numpy()


def infonce(score_BK: Reals, temperature: float) -> Reals:
    """Every list's InfoNCE, float64[B]."""
    score = torch.from_numpy(score_BK)
    ones = torch.ones(score.shape, dtype=score.dtype)
    return weighted_infonce(score, ones, ones.bool(), temperature).numpy()


def _powers(of: Level) -> Level:
    return Level(*(math.exp(value) for value in (of.mean, of.low, of.high)))


def hard_negatives(real: Similarities) -> Findings:
    """Theorem 1: the identity, its example, and the gaps that there are."""
    score_BK = rng("study", "theorems", "identity").uniform(-1.0, 1.0, (1000, 17))
    worst = 0.0
    for tau in (0.05, 0.07, 0.2, 1.0):
        off = np.log(pushes(score_BK, tau)[:, 1:]) - score_BK[:, 1:] / tau
        worst = max(worst, float(np.ptp(off, axis=1).max()))
    example = pushes(np.array([[0.9, 0.5, 0.2]]), 0.07)[0]
    ratio = float(example[1] / example[2])
    push_QN = pushes(real.lists, TAU)[:, 1:]
    negative_QN = real.lists[:, 1:]
    worths = {}
    gaps = {}
    ranks = {
        "first": slice(0, 1),
        "first ten": slice(0, 10),
        "eleventh to thirtieth": slice(10, 30),
        "hundredth": slice(99, 100),
    }
    for name, rank in ranks.items():
        gaps[name] = Level.of(negative_QN[:, rank].mean(axis=1) - negative_QN.mean(axis=1))
        worths[name] = _powers(Level.of(np.log(push_QN[:, rank].mean(axis=1) / push_QN.mean(axis=1))))
    rows = [(name, str(gaps[name]), str(worths[name])) for name in ranks]
    exact = "holds" if worst < 1e-9 else "fails"
    more = "holds" if ratio > 70 else "fails"
    refuted = (
        "the first ten are less than .3 above the mean one",
        "one of the first ten is worth less than 24 mean ones",
    )
    found = [
        Claim(
            "1, identity", "the ratio is exp(Δs/τ)", "a logarithm off by more than 10⁻⁹", f"at most {worst:.0e}", exact
        ),
        Claim("1, example", "τ = .07, Δs = .3: more than 70", "70 or less", f"{ratio:.1f}", more),
        Claim.judged("1, typical gap", ".3 is typical", refuted[0], gaps["first ten"], low=0.3),
        Claim.judged("1, dozens", "a hard one is worth dozens of easy ones", refuted[1], worths["first ten"], low=24.0),
    ]
    title = f"Theorem 1: a query's negatives by rank beside its mean negative, {len(negative_QN)} queries, τ = {TAU:g}"
    return found, [Table(title, ("rank", "gap Δs", "gradient in those of a mean negative"), rows)]


def variations(score_BK: Reals, temperature: float) -> Reals:
    """float64[B]: coefficient of variation of the gradients on a list's negatives."""
    push_BN = pushes(score_BK, temperature)[:, 1:]
    return push_BN.std(axis=1) / push_BN.mean(axis=1)


def variation(real: Similarities) -> Findings:
    """Proposition 1: the local exponent of the coefficient of variation in 1/τ."""
    random = rng("study", "theorems", "variation")
    drawn = random.permuted(real.lists[:, 1:], axis=1)[:, :16]
    lists = {
        "normal, sd .1, 16": random.normal(0.0, 0.1, (400, 17)),
        "normal, sd .1, 256": random.normal(0.0, 0.1, (400, 257)),
        "first 16": real.lists[:, :17],
        "16 at random": np.hstack([real.lists[:, :1], drawn]),
        "first hundred": real.lists[:, :101],
    }
    rows = []
    exponents: dict[tuple[str, float], Level] = {}
    for tau in TAUS:
        cells = []
        for name, score_BK in lists.items():
            up, down = (variations(score_BK, tau * factor) for factor in (1 / NEAR, NEAR))
            exponents[name, tau] = Level.of(np.log(up / down) / (2 * math.log(NEAR)))
            cells.append(f"{variations(score_BK, tau).mean():.2f}, {exponents[name, tau]}")
        rows.append((f"{tau:g}", *cells))
    shown = ((1.0, "first hundred"), (TAU, "first hundred"), (TAU, "16 at random"), (0.01, "first 16"))
    refuted = "its exponent in 1/τ is not .9 to 1.1"
    found = [
        Claim.judged(f"P1, τ = {tau:g}, {name}", "the variation goes as 1/τ", refuted, exponents[name, tau], 0.9, 1.1)
        for tau, name in shown
    ]
    least = min(exponents.values(), key=lambda one: one.low)
    found.append(Claim.judged("P1, direction", "it rises as τ falls", "an exponent below 0", least, low=0.0))
    title = "Proposition 1: coefficient of variation of the negatives' gradients, and its local exponent in 1/τ"
    return found, [Table(title, ("τ", *lists), rows)]


def _lists(real: Similarities, source: str, tau: float, count: int) -> tuple[Reals, Reals]:
    """LISTS lists of one positive and `count` negatives, and every query's log E[exp(s⁻/τ)], float64[B].

    On the `sphere` negatives are uniform, whose mean is known: 0F1(; d/2; 1/(4τ²)). Real ones are drawn with
    replacement from the query's own.
    """
    random = rng("study", "theorems", "decomposition", source, str(tau), count)
    if source == "sphere":
        half = (DIMENSIONS - 1) / 2
        negative_BN = 2.0 * random.beta(half, half, (LISTS, count)) - 1.0
        mean = float(np.asarray(special.hyp0f1(DIMENSIONS / 2, 0.25 / tau**2)))
        return np.hstack([np.full((LISTS, 1), 0.5), negative_BN]), np.full(LISTS, math.log(mean))
    chosen = real.lists[:LISTS]
    every = chosen[:, 1:]
    drawn = random.integers(every.shape[1], size=(len(every), count))
    log_mean_B = np.asarray(special.logsumexp(every / tau, axis=1), np.float64) - math.log(every.shape[1])
    return np.hstack([chosen[:, :1], np.take_along_axis(every, drawn, 1)]), log_mean_B


def decomposition(real: Similarities) -> Findings:
    """Theorem 2: InfoNCE less the two terms as they are written, and less them with 1/τ and log K."""
    rows = []
    written: dict[tuple[float, int], Level] = {}
    corrected: dict[tuple[float, int], Level] = {}
    for source in ("sphere", "real"):  # claims are of the last
        for tau in (1.0, 0.2, TAU):
            for count in COUNTS:
                score_BK, log_mean_B = _lists(real, source, tau, count)
                positive_B = score_BK[:, 0]
                loss_B = infonce(score_BK, tau)
                pooled = float(np.logaddexp.reduce(log_mean_B)) - math.log(len(log_mean_B))
                written[tau, count] = Level.of(loss_B - (pooled - positive_B))
                corrected[tau, count] = Level.of(loss_B - math.log(count) - (log_mean_B - positive_B / tau))
                off = str(written[tau, count]), str(corrected[tau, count])
                pull = Level.of(-pushes(score_BK, tau)[:, 0])
                rows.append(
                    (source, f"{tau:g}", f"{count:,}", f"{loss_B.mean():.2f}", *off, str(pull), f"{1 / tau:.1f}")
                )
    most = COUNTS[-1]
    as_written = "L = L_align + L_uniform", "off by more than .05"
    mended = "L − log K → L_align/τ + L_uniform", "off by more than .05"
    found = [
        *(
            Claim.judged(f"2, τ = {tau:g}, K = {most:,}", *as_written, written[tau, most], -0.05, 0.05)
            for tau in (1.0, TAU)
        ),
        *(
            Claim.judged(f"2, mended, τ = {tau:g}, K = {count:,}", *mended, corrected[tau, count], -0.05, 0.05)
            for tau, count in ((1.0, 16), (1.0, most), (TAU, 16), (TAU, most))
        ),
    ]
    columns = ("vectors", "τ", "K", "InfoNCE", "less the sum as written", "less the sum with 1/τ and log K",
               "pull on s⁺ (1 as written)", "with 1/τ")  # fmt: skip
    return found, [Table("Theorem 2: InfoNCE of lists of K negatives beside its two terms", columns, rows)]


def hybrid(score_BK: Reals, alpha: float, slope: float, shift: float, wanted_K: Reals) -> Reals:
    """Gradients float64[B, K] of α InfoNCE + (1 − α) regression of slope · s + shift on the targets."""
    score = torch.tensor(score_BK, requires_grad=True)
    ones = torch.ones(score.shape, dtype=score.dtype)
    target = torch.from_numpy(wanted_K).expand_as(score)
    first = weighted_infonce(score, ones, ones.bool(), TAU)
    second = regression(slope * score + shift, target, ones.bool(), ones)
    (alpha * first + (1.0 - alpha) * second).sum().backward()
    assert score.grad is not None
    return score.grad.numpy()


def false_negatives(real: Similarities) -> Findings:
    """Theorem 3: the gradient on a false negative, planted beside the first 15 negatives, and on real ones.

    The regression knows its rating: two spreads above the negatives, as the positive's. Its map is the straight line
    that takes the mean similarities of both there.
    """
    hard = real.lists[:, :16]
    middle = float(hard[:, 1:].mean())
    slope = 2.0 / (float(hard[:, 0].mean()) - middle)
    wanted = np.array([2.0, *np.zeros(15), 2.0])
    places = {f"{offset:+g}": hard[:, 0] + offset for offset in OFFSETS} | {"real": real.second}
    rows = []
    exponents: dict[str, Level] = {}
    beside: dict[str, Level] = {}
    for name, place_Q in places.items():
        there = np.isfinite(place_Q)

        def with_false(shift: float, lists: Reals = hard[there], false_B: Reals = place_Q[there]) -> Reals:
            return np.hstack([lists, false_B[:, None] + shift])

        push = pushes(with_false(0.0), TAU)
        up, down = (pushes(with_false(sign * STEP), TAU)[:, -1] for sign in (1.0, -1.0))
        exponents[name] = Level.of(np.log(up / down) * TAU / (2.0 * STEP))
        beside[name] = _powers(Level.of(np.log(push[:, -1] / push[:, 1:-1].mean(axis=1))))
        left = []
        for alpha in ALPHAS:
            both = hybrid(with_false(0.0), alpha, slope, -slope * middle, wanted)[:, -1]
            left.append(f"{TAU * both.mean():+.3f}")
        rows.append(
            (name, str(there.sum()), str(Level.of(TAU * push[:, -1])), str(exponents[name]), str(beside[name]), *left)
        )
    said = "damage goes as exp(s_fn/τ)", "the gradient's exponent is below .9"
    where = {"far below the positive (−.4)": "-0.4", "level with the positive": "+0", "real ones": "real"}
    found = [Claim.judged(f"3, {name}", *said, exponents[place], low=0.9) for name, place in where.items()]
    said = "a false negative does most damage", "a real one's gradient is below that of a hard one"
    found.append(Claim.judged("3, beside hard negatives", *said, beside["real"], low=1.0))
    columns = ("s_fn − s⁺", "lists", "gradient · τ", "its exponent in exp(s_fn/τ)", "beside a hard negative's",
               *(f"hybrid's · τ, α = {alpha:g}" for alpha in ALPHAS))  # fmt: skip
    return found, [Table("Theorem 3: gradient on a false negative beside 15 negatives", columns, rows)]
