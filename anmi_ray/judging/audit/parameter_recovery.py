"""What a simulated judge's answers show of its settings: noise, position bias and tie width refitted from the truth.

The model is an ordered probit (Glenn & David 1960) of one answer: win, tie or loss of the first shown document at true
difference x, P(win) = Φ(a·x + b − t), P(loss) = Φ(−a·x − b − t). Then noise sd = 1/a, bias = b/a, tie width = t/a in
probits of the truth. It is exact for a judge without lapses whose total noise is normal; the audit shows where not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.judge import SharedNoiseConfig, SimulatedJudgeConfig
from anmi_ray.core.scale import normal_cdf, normal_pdf
from anmi_ray.judging.audit.agreement import Reals, pair_means
from anmi_ray.judging.audit.intervals import Z95, Interval
from anmi_ray.judging.kinds.simulated import total_noise_sd

FEW = 50  # answers below which nothing is fitted


@dataclass(frozen=True)
class Recovered:
    """Recovered values with 95 % intervals, and each comparison's residual (preference minus what the fit expects)."""

    values: dict[str, Interval]
    residual: Reals


def exact(judge: SimulatedJudgeConfig) -> bool:
    """Whether the refitted model is the judge's own: normal noise, no lapses. Else its values only resemble."""
    return judge.tail == "normal" and judge.lapse_rate == 0


def injected(judge: SimulatedJudgeConfig, shared: SharedNoiseConfig) -> dict[str, float]:
    """The settings that `fit` and the failure count recover, in probits of the truth."""
    return {
        "noise_sd": total_noise_sd(judge, shared),
        "position_bias": judge.position_bias,
        "tie_width": judge.tie_width,
        "failure_rate": judge.failure_rate,
    }


def fit(p_a: Reals, difference: Reals, query: NDArray[np.int64]) -> Recovered | None:
    """Fit p_a[C, 2] on the true difference[C] (doc_a − doc_b); None with too few answers, one outcome, or no maximum.

    Votes in {0, 1/2, 1}: the ordered probit; other preferences: a fractional probit without tie width, in which a soft
    readout Φ(x + noise) has mean Φ(x/√(1 + sd²)). Standard errors are robust, clustered by query (by comparison if
    there are fewer than 20 queries).
    """
    row, order = np.nonzero(~np.isnan(p_a))
    sign = np.where(order == 0, 1.0, -1.0)  # the first shown document is doc_a in order ab
    x = sign * difference[row]
    won = 0.5 + sign * (p_a[row, order] - 0.5)
    votes = bool(np.isin(won, (0.0, 0.5, 1.0)).all())
    if len(won) < FEW or won.std() < 1e-9 or x.std() < 1e-9:
        return None
    ties = votes and bool((won == 0.5).any())
    cluster = query[row] if len(np.unique(query)) >= 20 else row
    solved = _newton(x, won, ties, cluster)
    if solved is None:
        return None
    theta, covariance = solved
    expected = np.full(p_a.shape, np.nan)
    for side, way in ((0, 1.0), (1, -1.0)):
        win, loss = _shares(theta, way * difference)
        expected[:, side] = 0.5 + way * (win - loss) / 2
    residual = pair_means(np.where(np.isnan(p_a), np.nan, p_a - expected))
    return Recovered(_values(theta, covariance, soft=not votes, ties=ties), residual)


def _shares(theta: Reals, x: Reals) -> tuple[Reals, Reals]:
    """P(win), P(loss) of the first shown document at true difference x."""
    a, b, t = theta
    return normal_cdf(a * x + b - t), normal_cdf(-a * x - b - t)


def _scores(theta: Reals, x: Reals, won: Reals, ties: bool) -> tuple[float, Reals]:
    """Log-likelihood, and its gradient per answer float[N, 3] over (a, b, t)."""
    a, b, t = theta
    up, down = a * x + b - t, -a * x - b - t
    win, loss = normal_cdf(up), normal_cdf(down)
    floor = 1e-300
    on_win, on_loss = normal_pdf(up) / np.maximum(win, floor), normal_pdf(down) / np.maximum(loss, floor)
    if not ties:  # fractional probit: t stays 0 and win + loss = 1
        value = won * np.log(np.maximum(win, floor)) + (1 - won) * np.log(np.maximum(loss, floor))
        slope = won * on_win - (1 - won) * on_loss
        return float(value.sum()), np.stack([slope * x, slope, np.zeros_like(x)], axis=1)
    tie = np.maximum(1 - win - loss, floor)
    pick = [won == 1, won == 0]
    value = np.log(np.maximum(np.select(pick, [win, loss], tie), floor))
    slope = np.select(pick, [on_win, -on_loss], (normal_pdf(down) - normal_pdf(up)) / tie)
    width = np.select(pick, [-on_win, -on_loss], (normal_pdf(up) + normal_pdf(down)) / tie)
    return float(value.sum()), np.stack([slope * x, slope, width], axis=1)


def _newton(x: Reals, won: Reals, ties: bool, cluster: NDArray[np.int64]) -> tuple[Reals, Reals] | None:
    """Maximum likelihood (a, b, t) by Newton steps, halved until they climb; robust covariance."""
    theta = np.array([1.0 / max(x.std(), 0.1), 0.0, 0.2 if ties else 0.0])
    free = slice(0, 3 if ties else 2)
    value, score = _scores(theta, x, won, ties)
    for _ in range(200):
        gradient = score[:, free].sum(axis=0)
        information = _curvature(theta, x, won, ties)[free, free]
        if np.linalg.eigvalsh(information)[0] <= 0:  # far from the maximum: outer products are never indefinite
            information = score[:, free].T @ score[:, free] + 1e-9 * np.eye(len(gradient))
        step = np.linalg.solve(information, gradient)
        if gradient @ step < 1e-9:
            break
        scale = 1.0
        while scale > 1e-6:
            trial = theta.copy()
            trial[free] += scale * step
            if not ties or trial[2] > 0:
                trial_value, trial_score = _scores(trial, x, won, ties)
                if trial_value > value:
                    break
            scale /= 2
        else:
            break
        theta, value, score = trial, trial_value, trial_score
    if theta[0] <= 0 or theta[0] * x.std() > 1e3:
        return None  # the answers do not follow the truth, or follow it without any noise
    bread = np.linalg.pinv(_curvature(theta, x, won, ties)[free, free])
    sums = np.stack([np.bincount(np.unique(cluster, return_inverse=True)[1], column) for column in score[:, free].T])
    covariance = np.zeros((3, 3))
    covariance[free, free] = bread @ (sums @ sums.T) @ bread
    return theta, covariance


def _curvature(theta: Reals, x: Reals, won: Reals, ties: bool) -> Reals:
    """Observed information, by central differences of the gradient."""
    step = 1e-5
    columns = []
    for axis in range(3):
        shift = step * np.eye(3)[axis]
        columns.append(
            (_scores(theta - shift, x, won, ties)[1].sum(axis=0) - _scores(theta + shift, x, won, ties)[1].sum(axis=0))
            / (2 * step)
        )
    information = np.array(columns)
    return (information + information.T) / 2


def _values(theta: Reals, covariance: Reals, soft: bool, ties: bool) -> dict[str, Interval]:
    """Noise sd, bias and tie width with 95 % intervals by the delta method."""
    a, b, t = theta
    noise, slope = 1 / a, -1 / a**2
    if soft:  # the readout adds a variance of one to what it averages over
        noise = np.sqrt(max(1 / a**2 - 1, 1e-12))
        slope = -1 / (a**3 * noise)
    parts = {
        "noise_sd": (noise, np.array([slope, 0.0, 0.0])),
        "position_bias": (b / a, np.array([-b / a**2, 1 / a, 0.0])),
    }
    if ties:
        parts["tie_width"] = (t / a, np.array([-t / a**2, 0.0, 1 / a]))
    result: dict[str, Interval] = {}
    for name, (value, gradient) in parts.items():
        slack = Z95 * float(np.sqrt(gradient @ covariance @ gradient))
        result[name] = (float(value), float(value - slack), float(value + slack))
    return result
