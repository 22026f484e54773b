"""From judgments to ratings: Bradley-Terry and Thurstone fits with standard errors, one bucket of queries a call.

judgments -> pairs (games) -> globals (prior, dispersion; once) -> solver -> uncertainty, diagnostics -> tables.
"""

from anmi_ray.rating.beliefs import QueryBeliefs, Worth, beliefs, worth
from anmi_ray.rating.bucket import TOP_RATED, RateResult, compile_solver, rate, rate_games
from anmi_ray.rating.games import Games
from anmi_ray.rating.pairs import hide_positives, preferences
from anmi_ray.rating.rate_table import NamedRatings, rate_preferences
from anmi_ray.rating.shared_parameters import SAMPLE_QUERIES, Globals, fit_globals, globals_of, sample_queries

__all__ = [
    "SAMPLE_QUERIES",
    "TOP_RATED",
    "Games",
    "Globals",
    "NamedRatings",
    "QueryBeliefs",
    "RateResult",
    "Worth",
    "beliefs",
    "compile_solver",
    "fit_globals",
    "globals_of",
    "hide_positives",
    "preferences",
    "rate",
    "rate_games",
    "rate_preferences",
    "sample_queries",
    "worth",
]
