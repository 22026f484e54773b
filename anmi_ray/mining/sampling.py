"""Which of the weighted negatives an example takes: a priority per document, the largest first."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.identity import uniforms
from anmi_ray.mining.negatives import Negatives, Reals


def top(negatives: Negatives, weights: Reals, config: MineConfig, seed: int) -> Reals:
    """The weight itself: the largest first (ties go to the smaller gap)."""
    del negatives, config, seed
    return weights


def weighted(negatives: Negatives, weights: Reals, config: MineConfig, seed: int) -> Reals:
    """log w + Gumbel noise hashed from (example, document): the top k are k draws by weight without replacement.

    (Gumbel top-k; Efraimidis & Spirakis 2006.)
    """
    del config
    gumbel = -np.log(-np.log(uniforms(negatives.draw_ids, "mine", seed, "gumbel")))
    return np.log(np.maximum(weights, np.finfo(np.float64).tiny)) + gumbel
