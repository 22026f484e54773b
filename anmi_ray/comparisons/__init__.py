"""Which pairs to ask: one comparison graph per query over its rated candidates."""

from anmi_ray.comparisons.compare import compare
from anmi_ray.comparisons.graph import k_regular

__all__ = ["compare", "k_regular"]
