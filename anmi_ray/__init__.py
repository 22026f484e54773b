"""anmi_ray: rerankers trained from pairwise preferences instead of labels.

What a notebook needs is here: `load`, `change` and `run` an experiment, `plan` it, read its tables (`Run`), `rate` and
`audit` preferences of your own, `rerank` texts. `anmi_ray.pipeline.stages`, the list of stages, is where to start
reading.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anmi_ray.api import AnmiError, Run, audit, change, load, plan, rate, rerank, run

__version__ = "0.1.0"
__all__ = ["AnmiError", "Run", "audit", "change", "load", "plan", "rate", "rerank", "run"]

if not TYPE_CHECKING:  # else a type checker would take every name for one of ours

    def __getattr__(name):
        """A name of `__all__`, imported when it is asked for: every worker imports this package, few need them."""
        if name not in __all__:
            raise AttributeError(f"module 'anmi_ray' has no attribute {name!r}")
        from anmi_ray import api

        return getattr(api, name)

    def __dir__():
        return [*globals(), *__all__]
