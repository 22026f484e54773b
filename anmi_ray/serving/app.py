"""The Serve application: one deployment answers HTTP, another scores, in as many processes as are asked for.

`serve deploy` takes `anmi_ray.serving.app:build` as import path, and the settings of serving/settings.py as args.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from anmi_ray.api import reranking
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.serving.gate import MOST_INSIDE, Gate
from anmi_ray.serving.queue import Computed, What
from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.scorer import ModelScorer
from anmi_ray.serving.service import RerankService
from anmi_ray.serving.settings import ServiceSettings, validated

_TRIES = 3  # of a batch whose process was lost


@serve.deployment(max_ongoing_requests=8)
class ScoringReplica:
    """A process with the model."""

    def __init__(self, settings: ServiceSettings) -> None:
        _, model = reranking.model_of(settings.model, settings.root)
        self._scorer = ModelScorer(model, settings.threads_each)

    async def compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        """As ModelScorer."""
        return await self._scorer.compute(what, queries, texts)


@serve.deployment(max_ongoing_requests=2 * MOST_INSIDE)
@serve.ingress()
class Front:
    """The process that answers HTTP and forms batches for the scorers."""

    def __init__(self, settings: ServiceSettings, scorer: DeploymentHandle, calibrated: Relevance | None) -> None:
        self._scorer = scorer
        self._service = RerankService(settings, self._compute, calibrated)

    def __serve_build_asgi_app__(self) -> Gate:
        return self._service.app

    async def _compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        """Ask a scorer; one that was lost is replaced, and another is asked."""
        for _ in range(_TRIES):
            try:
                return await self._scorer.compute.remote(what, queries, texts)
            except RayActorError:
                continue
        raise RefusalError(503, "the processes that score were lost, and are started anew", 5)

    async def drain(self) -> int:
        """Take no more requests; how many have no answer yet."""
        self._service.app.draining = True
        return self._service.app.inside


def build(args: dict[str, Any]) -> Application:
    """The application of these settings. Raises ConfigError, DataError where the model's relevance.json is damaged."""
    settings = validated(args)
    return application(settings, reranking.calibration_of(settings.model, settings.root))


def application(settings: ServiceSettings, calibrated: Relevance | None) -> Application:
    """The application, with what the model's scores are worth as probabilities."""
    settings = settings.model_copy(update={"threads": settings.threads_each})
    scorer = ScoringReplica.options(
        num_replicas=settings.replicas, ray_actor_options={"num_cpus": settings.threads_each}
    )
    front = Front.options(
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return front.bind(settings, scorer.bind(settings), calibrated)
