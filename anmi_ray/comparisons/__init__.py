"""Which pairs to ask: one comparison graph per query over its rated candidates."""

from anmi_ray.comparisons.compare import compare
from anmi_ray.comparisons.graph import edge_connectivity, k_regular, lambda2

__all__ = ["compare", "edge_connectivity", "k_regular", "lambda2"]
