"""How many games a preference is worth, from what is known of its error.

A preference p of a pair with strength m adds m [p log F(x) + (1-p) log F(-x)] to the log-likelihood of the gap x, whose
expected information is m f(x)² / (p (1-p)), f = F'. A p that is F(x) up to an error of variance v gives F⁻¹(p) the
variance v / f² (delta method: v small beside the bend of F), hence the information f² / v. The two agree at

    m = p (1-p) / v                                                                      (1)

games; as it must be, the mean of m independent yes/no votes has v = p (1-p) / m. Where v comes from:

    v = (t - (2p-1)²) / (4J)  +  (f(F⁻¹(p)) σ_x)²  +  σ_p²                               (2)

J judges that each say win, tie or loss (1, 1/2, 0) and do not tie with probability t: their independent chances; then
what all of them share, either on the latent scale or on that of preferences. More judges buy the first part alone.

A prediction of what judges will say, p = E[(1+C)/2] with C in [-1, 1] their score, has the error
v = (E[C²] - (2p-1)²) / 4 if it is calibrated. E|C| bounds it, E|C|² ≤ E[C²] ≤ E|C|, so (1) is about

    m = (1 - d²) / (E|C| - d²),  d = 2p - 1,                                             (3)

which is (2) with J = 1 and t = E|C|: a prediction that is sure that somebody wins, E|C| = 1, is worth one game
whatever p is, and m *falls* as E|C| grows. What `E|C|` measures beyond |d| is that the model cannot tell who wins.
Limits: (1) is first order; a calibrated prediction is drawn towards what is common, so gaps come out too small, which
no strength mends; and p is itself noisy: put into its own v, it gives much weight to whatever happens to look sure.
Hence the two-step form, p̂ = F(ê_i - ê_j) from a fit in which all pairs weigh the same.

The answer to which of them to use (docs/results/strengths.md, in simulation with known truth and
against assessors' grades): none for votes. For a distilled model's predictions a noise per pair, `learned`, takes 3 to
6 % off the rating error (9 % where the model is too sure) and adds at most 1 % elsewhere, means over worlds; powers of
E|C| take 2 % off at best and add 4 to 22 % where predictions carry noise that they do not tell; (2) from the pair's own
p and E|C| adds 17 to 25 % there. Real preferences have told none of them apart from `unit` but the two-step form, which
did harm on single verdicts.

All strengths are symmetric under swapping a pair's documents and finite. Multiplying all of them by a number changes
no rating where the dispersion is pooled, because it is multiplied as well: strengths are compared by their shape.
Letters: P pairs, J judges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from anmi_ray.core.scale import Floats, Model, link_inverse, normal_pdf
from anmi_ray.rating.dispersion import DISPERSION_BOUNDS

POWERS: dict[str, float] = {"linear": 1.0, "sqrt": 0.5, "squared": 2.0}  # of E|C|
LEAST, MOST = DISPERSION_BOUNDS  # games that one answer may count for
_TAIL = 1e-3  # preferences are held this far from 0 and 1, where (1) is 0/0


def unsure(p_P: ArrayLike, decided_P: ArrayLike = 1.0) -> Floats:
    """Variance (t - (2p-1)²) / 4 of one judge's outcome (1, 1/2, 0), float64[P]; t = P(no tie), at least |2p-1|.

    >>> unsure([0.5, 0.5, 0.75, 1.0], [1.0, 0.2, 1.0, 1.0]).round(4).tolist()
    [0.25, 0.05, 0.1875, 0.0]
    """
    difference = 2.0 * np.asarray(p_P, np.float64) - 1.0
    decided = np.clip(np.asarray(decided_P, np.float64), np.abs(difference), 1.0)
    return 0.25 * (decided - np.square(difference))


def density(p_P: ArrayLike, model: Model) -> Floats:
    """f(F⁻¹(p)), the slope of the win curve where it is p; 0 at 0 and 1."""
    p = np.asarray(p_P, np.float64)
    return p * (1.0 - p) if model == "bradley-terry" else normal_pdf(link_inverse(p, model))


def games_worth(p_P: ArrayLike, variance_P: ArrayLike) -> Floats:
    """Equation (1), p (1-p) / v as float64[P], between LEAST and MOST.

    Preferences nearer to 0 or 1 than .001 are taken as that near: a sure one of no known error is worth MOST games.

    >>> games_worth([0.5, 0.5, 0.8, 1.0], [0.25, 0.125, 0.16, 0.0]).round(3).tolist()
    [1.0, 2.0, 1.0, 50.0]
    """
    p = np.clip(np.asarray(p_P, np.float64), _TAIL, 1.0 - _TAIL)
    one = p * (1.0 - p)
    return np.clip(one / np.maximum(np.asarray(variance_P, np.float64), one / MOST), LEAST, MOST)


def by_consensus(p_P: ArrayLike, consensus_P: ArrayLike, power: float) -> Floats:
    """E|C|^power, the shapes that the note proposes, float64[P] from LEAST to 1; E|C| is at least |2p-1|."""
    least = np.abs(2.0 * np.asarray(p_P, np.float64) - 1.0)
    return np.maximum(np.clip(np.asarray(consensus_P, np.float64), least, 1.0) ** power, LEAST)


def information(p_P: ArrayLike) -> Floats:
    """Strength of a preference whose error has the same variance at every pair, p (1-p) / σ_p² with σ_p = 1/2.

    p is the two-step form's: from a fit, not the pair's own. 1 at an even pair, down to LEAST.
    """
    p = np.asarray(p_P, np.float64)
    return np.maximum(4.0 * p * (1.0 - p), LEAST)


class Noise(NamedTuple):
    """v = votes · (one answer's variance) / answers + latent · f² + preference + own · (t - (2p-1)²) / 4, all ≥ 0.

    The first three are (2) at the fit's p̂, the last is (3) at the pair's own prediction, where it came with E|C|.
    """

    votes: float
    latent: float
    preference: float
    own: float

    def variance(self, p_P: Floats, chance_P: Floats, answers_P: Floats, own_P: Floats, model: Model) -> Floats:
        """v of every pair, float64[P]; see `fit_noise`."""
        return _parts(p_P, chance_P, answers_P, own_P, model) @ np.array(self)


def _parts(p: Floats, chance: Floats, answers: Floats, own: Floats, model: Model) -> Floats:
    return np.stack([chance / answers, np.square(density(p, model)), np.ones_like(p), own], axis=1)


def fit_noise(
    square_P: Floats,
    known_P: Floats,
    p_P: Floats,
    chance_P: Floats,
    answers_P: Floats,
    own_P: Floats,
    model: Model,
) -> Noise:
    """The Noise under which squared errors of predicted preferences are likeliest, as those of Gaussians.

    square: (w - p)² with p foretold from other pairs; known: how much of it the prediction's own error explains;
    chance: variance of one answer at p; own: (t - (2p-1)²) / 4 of the pair's own prediction, 0 where it is not told.
    Minimises Σ log s + square / s, s = known + v: right in the mean whatever the errors' distribution. Repeated answers
    of a pair are not needed, and would not show what they share.
    """
    parts = _parts(p_P, chance_P, answers_P, own_P, model)
    size = parts.mean(axis=0)
    used = size > 0.0
    unit = parts[:, used] / size[used]  # every part's coefficient then is its mean share of the variance
    floor = 1e-6 * float(np.mean(square_P)) + 1e-12

    def loss(share: Floats) -> tuple[float, Floats]:
        s = known_P + unit @ share + floor
        return float(np.mean(np.log(s) + square_P / s)), unit.T @ ((1.0 - square_P / s) / s) / len(s)

    start = np.full(unit.shape[1], max(float(np.mean(square_P - known_P)), floor) / unit.shape[1])
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start))
    share = np.zeros(len(size))
    share[used] = found.x / size[used]
    return Noise(*share.tolist())
