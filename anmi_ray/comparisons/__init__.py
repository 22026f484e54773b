"""Which pairs to ask: one comparison graph per query over its rated candidates."""

from anmi_ray.comparisons.adaptive import Beliefs, Known, first_round, next_round, pairs_after, pairs_in_all
from anmi_ray.comparisons.compare import compare, imported
from anmi_ray.comparisons.graph import k_regular
from anmi_ray.comparisons.refine import PAIRS, ScoreLine, calibrated, moments, refined, scored
from anmi_ray.comparisons.sample import Salt, salt_of, some_of_each

__all__ = [
    "PAIRS",
    "Beliefs",
    "Known",
    "Salt",
    "ScoreLine",
    "calibrated",
    "compare",
    "first_round",
    "imported",
    "k_regular",
    "moments",
    "next_round",
    "pairs_after",
    "pairs_in_all",
    "refined",
    "salt_of",
    "scored",
    "some_of_each",
]
