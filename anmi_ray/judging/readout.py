"""Readouts: how a perceived difference becomes a preference in [0, 1]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.judge import Readout
from anmi_ray.config.prompt import PromptReadout
from anmi_ray.scale import normal_cdf


def preference(difference: NDArray[np.float64], readout: Readout, tie_width: float = 0.0) -> NDArray[np.float64]:
    """Preference for a document perceived `difference` probits above the other; within `tie_width` it is 1/2.

    sign: 0, 1/2 or 1 (zELO); soft: Φ(difference), that is (1 + s)/2 of the signed preference s = 2Φ − 1.
    """
    signed = np.where(difference > 0, 1.0, 0.0) if readout == "sign" else normal_cdf(difference)
    tied = (np.abs(difference) < tie_width) | (difference == 0)
    return np.where(tied, 0.5, signed)


def vote(p_first: NDArray[np.float64], readout: PromptReadout) -> NDArray[np.float64]:
    """What preferences p_first float[N] count as: sign 0, 1/2 or 1 (zELO); soft and logprob themselves.

    >>> vote(np.array([0.4, 0.5, 0.7]), "sign")
    array([0. , 0.5, 1. ])
    """
    return 0.5 + 0.5 * np.sign(p_first - 0.5) if readout == "sign" else p_first
