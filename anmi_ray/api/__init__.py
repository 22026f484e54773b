"""The actions of commands and notebooks, one function each. They print nothing and raise AnmiError for user errors.

Modules here import numbers, models and Ray inside their functions. `import anmi_ray` hands these names on.
"""

from anmi_ray.api.experiments import change, load, plan, run
from anmi_ray.api.preferences import audit, rate
from anmi_ray.api.reranking import rerank
from anmi_ray.api.runs import Run
from anmi_ray.core.errors import AnmiError

__all__ = ["AnmiError", "Run", "audit", "change", "load", "plan", "rate", "rerank", "run"]
