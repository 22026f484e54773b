"""From judgments to ratings: Bradley-Terry and Thurstone fits with standard errors, one bucket of queries a call.

judgments -> pairs (games) -> globals (prior, dispersion; once) -> solver -> uncertainty, diagnostics -> tables.
"""

from anmi_ray.rating.globals import Globals, fit_globals, sample_queries
from anmi_ray.rating.tables import RateResult, rate

__all__ = ["Globals", "RateResult", "fit_globals", "rate", "sample_queries"]
