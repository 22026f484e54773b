"""Negatives: from gaps and their errors to weighted examples."""

from anmi_ray.mining.borderline import Borderline, borderline, mixture_gaps, verdicts
from anmi_ray.mining.compose import RuleInputs, mine, pooled, weights
from anmi_ray.mining.negatives import Negatives
from anmi_ray.mining.summary import summary

__all__ = [
    "Borderline",
    "Negatives",
    "RuleInputs",
    "borderline",
    "mine",
    "mixture_gaps",
    "pooled",
    "summary",
    "verdicts",
    "weights",
]
