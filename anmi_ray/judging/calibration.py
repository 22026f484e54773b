"""Held-out calibration of a pairwise model: one temperature for its logit, or a monotone curve for its preferences.

Fitted on pairs that the model was not trained on, applied where it judges. Both keep what a preference must keep:
exchanging the two documents exchanges the answer, p(a, b) + p(b, a) = 1. There is no bias term for that reason.
A preference is for the second document here, as in the ensemble's score C. Letters: P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, root_scalar
from scipy.special import expit

from anmi_ray.core.errors import DataError, FitError

Reals = NDArray[np.float64]
_SHARPEST = 1e30  # inverse temperature at which a search ends


@dataclass(frozen=True)
class Temperature:
    """Logits are multiplied by `beta` = 1/T >= 0; 0 says that they know nothing."""

    beta: float

    def __call__(self, logits: ArrayLike) -> Reals:
        """Probabilities float[P] of the second document, of its logits float[P]."""
        return expit(self.beta * np.asarray(logits, dtype=np.float64))


def fit_temperature(logits: ArrayLike, scores: ArrayLike, most: float | None = None) -> Temperature:
    """The inverse temperature with the least mean cross-entropy against soft labels (Guo et al. 2017, Eq. 9).

    Both float[P]: the logit of the second document and its score C. The loss is convex in beta: its slope has one root.
    DataError for shapes or scores that do not fit; FitError where no finite temperature is best, because every pair is
    already on the right side, unless `most` is given, which is taken then.
    """
    logit_P = np.asarray(logits, dtype=np.float64)
    score_P = np.asarray(scores, dtype=np.float64)
    _check(logit_P, score_P)

    def slope(beta: float) -> float:
        return float(np.mean((expit(beta * logit_P) - score_P) * logit_P))

    if slope(0.0) >= 0.0:
        return Temperature(0.0)
    wrong = np.where(logit_P > 0.0, 1.0 - score_P, score_P)  # what a label holds on the side of the smaller logit
    if not (wrong * logit_P).any():
        if most is not None:
            return Temperature(most)
        raise FitError(
            "no finite temperature is best: every pair is on the right side, however sharp",
            "calibration",
            "calibrate on more held-out pairs, some of which the judges do not agree on",
        )
    high = 1.0
    while slope(high) < 0.0 and high < _SHARPEST:
        high *= 2.0
    if high >= _SHARPEST:
        return Temperature(high)
    found: Any = root_scalar(slope, bracket=(0.0, high), xtol=1e-15, rtol=1e-13)
    return Temperature(float(found.root))


def _check(logit_P: Reals, score_P: Reals) -> None:
    remedy = "give the logits of held-out pairs and as many labels"
    if logit_P.shape != score_P.shape or logit_P.ndim != 1:
        message = f"logits of shape {logit_P.shape}, labels of {score_P.shape}; both must be [P]"
        raise DataError(message, "calibration", remedy)
    if not len(logit_P):
        raise DataError("no pairs", "calibration", remedy)
    if not np.isfinite(logit_P).all():
        raise DataError("logits that are not finite", "calibration", remedy)
    if not ((score_P >= 0) & (score_P <= 1)).all():  # NaN is outside
        raise DataError("labels must be in [0, 1]", "calibration", remedy)


@dataclass(frozen=True)
class Isotonic:
    """A monotone curve through the knots (x, y), ½ <= x <= 1 and ½ <= y <= 1, mirrored below ½: f(1 − x) = 1 − f(x).

    Linear between knots, flat before the first and after the last; f(½) = ½.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    pairs: int

    def __call__(self, preference: ArrayLike) -> Reals:
        """Calibrated preferences float[P] of raw ones in [0, 1]."""
        raw = np.asarray(preference, dtype=np.float64)
        upper = np.interp(np.where(raw < 0.5, 1.0 - raw, raw), self.x, self.y)
        return np.where(raw == 0.5, 0.5, np.where(raw < 0.5, 1.0 - upper, upper))

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        return {"kind": "isotonic", "x": list(self.x), "y": list(self.y), "pairs": self.pairs}


def fit_isotonic(preference: ArrayLike, score: ArrayLike) -> Isotonic:
    """Least squares monotone fit of scores on preferences, both float[P] in [0, 1] (pool adjacent violators).

    Every pair counts in both orders, (p, c) and (1 − p, 1 − c), half each, which makes the curve symmetric. One more
    pair with p = 1 and c = ½ (and its mirror) keeps the ends off 0 and 1: n unanimous pairs at an end give
    (n + ½)/(n + 1). DataError for values that are not in [0, 1].
    """
    p = np.asarray(preference, dtype=np.float64)
    c = np.asarray(score, dtype=np.float64)
    within = [((values >= 0) & (values <= 1)).all() for values in (p, c)]
    if p.ndim != 1 or p.shape != c.shape or not len(p) or not all(within):
        raise DataError(
            f"preferences of shape {p.shape} and scores of {c.shape}; both must be [P] and in [0, 1]",
            "calibration",
            "give preferences and scores of held-out pairs",
        )
    # The folded half holds all of the information: its mirror image is fitted alike.
    over = p >= 0.5
    x = np.append(np.where(over, p, 1.0 - p), 1.0)
    y = np.append(np.where(over, c, 1.0 - c), 0.5)
    knots, place = np.unique(x.round(12), return_inverse=True)  # p and 1 − (1 − p) differ in the last bit
    count = np.bincount(place).astype(np.float64)
    mean = np.bincount(place, y) / count
    mean[knots == 0.5] = 0.5  # a half says nothing of either document
    fitted = np.maximum(isotonic_regression(mean, weights=count).x, 0.5)
    keep = np.ones(len(knots), dtype=bool)  # the inside of a flat run is on the line between its ends
    keep[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return Isotonic(tuple(knots[keep].tolist()), tuple(fitted[keep].tolist()), len(p))


def from_json(content: Mapping[str, Any]) -> Isotonic:
    """The curve that `to_json` gave; DataError for anything else."""
    try:
        if content.get("kind") == "isotonic":
            x, y = (tuple(float(value) for value in content[name]) for name in ("x", "y"))
            if len(x) == len(y) > 0 and x == tuple(sorted(x)) and y == tuple(sorted(y)):
                return Isotonic(x, y, int(content["pairs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a calibration: {error!r}", "calibration", "fit it again") from None
    raise DataError(
        "not a calibration: an unknown kind, or knots that are not ascending", "calibration", "fit it again"
    )
