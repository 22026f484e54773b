"""Negatives: from gaps and their errors to weighted examples."""

from anmi_ray.mining.compose import Beside, mine, weights
from anmi_ray.mining.summary import summary

__all__ = ["Beside", "mine", "summary", "weights"]
