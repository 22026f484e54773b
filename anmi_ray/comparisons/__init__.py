"""Which pairs to ask: one comparison graph per query over its rated candidates."""

from anmi_ray.comparisons.adaptive import Beliefs, Known, first_round, next_round, pairs_after, pairs_in_all
from anmi_ray.comparisons.compare import compare, imported
from anmi_ray.comparisons.graph import k_regular

__all__ = [
    "Beliefs",
    "Known",
    "compare",
    "first_round",
    "imported",
    "k_regular",
    "next_round",
    "pairs_after",
    "pairs_in_all",
]
