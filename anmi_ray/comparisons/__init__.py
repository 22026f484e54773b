"""Which pairs to ask: one comparison graph per query over its rated candidates."""

from anmi_ray.comparisons.compare import compare
from anmi_ray.comparisons.graph import k_regular
from anmi_ray.comparisons.imported import imported

__all__ = ["compare", "imported", "k_regular"]
