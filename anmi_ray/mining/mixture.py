"""Mixtures of gaps over all queries: which component a document belongs to says whether it is a false negative."""

from __future__ import annotations

from dataclasses import dataclass

from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.mining.negatives import Common, Negatives, Reals, Ruled


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture."""


def fit(gaps: Reals, settings: BetaMixture | GaussianMixture) -> Mixture:
    """Fit a mixture to the gaps of a sample of queries."""
    raise NotImplementedError


def weigh(negatives: Negatives, settings: BetaMixture | GaussianMixture, common: Common) -> Ruled:
    """P(true negative) times information."""
    raise NotImplementedError
