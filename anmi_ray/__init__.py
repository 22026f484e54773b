"""anmi_ray: rerankers trained from pairwise preferences instead of labels.

`anmi_ray.pipeline.stages` is the place to start reading: the main path, one line a stage.
"""

__version__ = "0.1.0"
