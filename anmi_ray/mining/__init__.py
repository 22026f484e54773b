"""Negatives: from gaps and their errors to weighted examples."""

from anmi_ray.mining.borderline import Borderline, borderline, mixture_gaps, possible_negatives, verdicts
from anmi_ray.mining.compose import Beside, mine, weights
from anmi_ray.mining.negatives import Negatives
from anmi_ray.mining.summary import summary

__all__ = [
    "Beside",
    "Borderline",
    "Negatives",
    "borderline",
    "mine",
    "mixture_gaps",
    "possible_negatives",
    "summary",
    "verdicts",
    "weights",
]
