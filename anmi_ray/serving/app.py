"""The Ray Serve application: `Front` answers HTTP, `ScoringReplica` scores, `SearchReplica` searches a run's documents.

`serve deploy` takes `anmi_ray.serving.app:build` as import path, and the settings of serving/settings.py as args.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from anmi_ray.api import reranking
from anmi_ray.core.errors import AnmiError, ConfigError, DamagedError, DataError, first_line
from anmi_ray.serving.gate import MAX_INSIDE
from anmi_ray.serving.scorer import ModelScorer
from anmi_ray.serving.service import BATCHES_EACH, RerankService
from anmi_ray.serving.settings import ServiceSettings, validated
from anmi_ray.serving.wire import RefusalError

_TRIES = 3  # attempts per batch if processes are lost
_MAX_SEARCHES = 64  # running and waiting
_UPSCALE_S = 5.0  # of waiting requests, before one more process is started
_DOWNSCALE_S = 120.0  # without, before one is stopped

ScoringReplica = serve.deployment(name="ScoringReplica", max_ongoing_requests=8)(ModelScorer)


@serve.deployment(max_ongoing_requests=_MAX_SEARCHES // 2, max_queued_requests=_MAX_SEARCHES // 2)
class SearchReplica:
    """A process with a run's first stage. Errors are returned, or Serve would restart it forever."""

    def __init__(self, run: str, root: str, threads: int) -> None:
        from anmi_ray.serving.searcher import RunSearcher  # indexes: for this process alone

        self._front: DeploymentHandle | None = None
        try:
            self._searcher: RunSearcher | AnmiError = RunSearcher(run, root, threads)
        except (ConfigError, DamagedError, DataError) as error:
            self._searcher = error

    def __del__(self) -> None:
        """Remove fetched indexes from the disk at the end of the process."""
        if not isinstance(self._searcher, AnmiError):
            self._searcher.close()

    async def notes(self) -> list[str] | AnmiError:
        """Indexes that were rebuilt at the start."""
        return self._searcher if isinstance(self._searcher, AnmiError) else self._searcher.notes

    async def systems(self) -> dict[str, Any] | RefusalError:
        """The answer of GET /v1/systems."""
        if isinstance(self._searcher, AnmiError):
            return RefusalError(503, f"the run's first stage cannot be searched: {first_line(self._searcher)}")
        return self._searcher.systems

    async def search(self, body: Any) -> dict[str, Any] | RefusalError:
        """The answer of POST /v1/search."""
        if isinstance(self._searcher, AnmiError):
            return RefusalError(503, f"the run's first stage cannot be searched: {first_line(self._searcher)}")
        if self._front is None:  # does not exist yet when this process starts
            self._front = serve.get_deployment_handle("Front", serve.get_replica_context().app_name)
        try:
            return await self._searcher.search(body, partial(_call, self._front.scores))
        except RefusalError as refusal:
            return refusal


@serve.deployment(max_ongoing_requests=2 * MAX_INSIDE)
@serve.ingress()
class Front:
    """The process that answers HTTP and forms batches."""

    def __init__(
        self, settings: ServiceSettings, scorer: DeploymentHandle, searcher: DeploymentHandle | None = None
    ) -> None:
        search = None if searcher is None else (partial(_call, searcher.systems), partial(_call, searcher.search))
        self._service = RerankService(settings, partial(_call, scorer.compute), search)

    def __serve_build_asgi_app__(self) -> Any:
        return self._service.asgi

    async def scores(self, query: str, texts: list[str]) -> Any:
        """Scores for the search process; a RefusalError is returned."""
        try:
            return await self._service.scores(query, texts)
        except RefusalError as refusal:
            return refusal

    async def drain(self) -> int:
        """Refuse new requests; return the number of unanswered ones."""
        self._service.app.draining = True
        return self._service.app.inside


async def _call(method: Any, *given: Any) -> Any:
    """Call a method of a deployment, again if a process is lost. Raises RefusalError."""
    for _ in range(_TRIES):
        try:
            found = await method.remote(*given)
        except RayActorError:
            continue
        except BackPressureError:
            raise RefusalError(429, "too many requests wait already", 1) from None
        except RayTaskError as error:
            if not isinstance(error.cause, AnmiError):
                raise
            raise RefusalError(503, f"the model cannot be computed: {first_line(error.cause)}", 5) from None
        if isinstance(found, RefusalError):
            raise found
        return found
    raise RefusalError(503, "the processes that score or search were lost and are restarting", 5)


def build(args: dict[str, Any]) -> Application:
    """The application of these settings. Raises ConfigError."""
    settings = validated({"threads": 1, **args})  # replicas run on other machines, whose cores are not known here
    return application(settings, settings.model if reranking.names_run(settings.model) else None)


def application(settings: ServiceSettings, run: str | None) -> Application:
    """The application of these settings. `run`: under the settings' root, whose first stage is searched.

    Deployed over another, Serve starts new processes and stops old ones once these are ready; on a GPU, where memory
    may not hold two models, old ones stop first. If a new one fails to start, the old ones stay.
    """
    settings = settings.model_copy(update={"threads": settings.threads_each})
    count: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.most > settings.replicas:  # a range, scaled by the waiting batches
        autoscaling = {
            "min_replicas": settings.replicas,
            "max_replicas": settings.most,
            "target_ongoing_requests": BATCHES_EACH,
            "upscale_delay_s": _UPSCALE_S,
            "downscale_delay_s": _DOWNSCALE_S,
        }
        count = {"autoscaling_config": autoscaling}
    scorer = ScoringReplica.options(
        **count,
        ray_actor_options={"num_cpus": settings.threads_each, "num_gpus": settings.gpus},
        max_surge_percent=0 if settings.gpus else 100,
    )
    alone = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}, "max_surge_percent": 100}
    front = Front.options(**alone, graceful_shutdown_timeout_s=settings.timeout_s, graceful_shutdown_wait_loop_s=0.2)
    search = SearchReplica.options(**alone)
    searcher = None if run is None else search.bind(run, settings.root, settings.threads_each)
    return front.bind(settings, scorer.bind(settings), searcher)
