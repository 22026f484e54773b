"""Negatives: from gaps and their errors to weighted examples."""

from anmi_ray.mining.anchors import measured
from anmi_ray.mining.borderline import Borderline, borderline, mixture_gaps, shortlist, verdicts
from anmi_ray.mining.compose import RuleInputs, mine, pooled
from anmi_ray.mining.negatives import Negatives
from anmi_ray.mining.summary import summary

__all__ = [
    "Borderline",
    "Negatives",
    "RuleInputs",
    "borderline",
    "measured",
    "mine",
    "mixture_gaps",
    "pooled",
    "shortlist",
    "summary",
    "verdicts",
]
