"""The Serve application: one deployment answers HTTP, another scores, in as many processes as are asked for.

Where a run is served, a third searches its documents.

`serve deploy` takes `anmi_ray.serving.app:build` as import path, and the settings of serving/settings.py as args.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from anmi_ray.api import reranking
from anmi_ray.core.errors import AnmiError, ConfigError, DamagedError, DataError, first_line
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.serving.found import About, FoundDocument
from anmi_ray.serving.gate import MOST_INSIDE, Gate
from anmi_ray.serving.queue import Computed, What
from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.scorer import ModelScorer
from anmi_ray.serving.service import BATCHES_EACH, RerankService
from anmi_ray.serving.settings import ServiceSettings, validated

_log = logging.getLogger("ray.serve")  # what Serve keeps of this process
_TRIES = 3  # of a batch whose process was lost
_GROW_S = 5.0  # of requests that wait, before one more process is started
_SHRINK_S = 120.0  # without, before one is ended: a start costs more than a pause


class Loading(NamedTuple):
    """A model that was loaded: the first of a service is number 0."""

    number: int
    model: str


@serve.deployment(max_ongoing_requests=8)
class ScoringReplica:
    """A process with the model."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._scorer = self._loaded(settings.model)
        self._loading = 0
        self._one_loads = asyncio.Lock()

    async def compute(self, what: What, queries: list[str], texts: list[str], wanted: Loading) -> Computed:
        """As ModelScorer, by the model of that loading, or of a later one."""
        async with self._one_loads:
            if self._loading < wanted.number:
                await self._load(wanted)
        scorer = self._scorer
        loading = self._loading
        return replace(await scorer.compute(what, queries, texts), loading=loading)

    def _loaded(self, place: str) -> ModelScorer:
        _, model = reranking.model_of(place, self._settings.root)
        return ModelScorer(model, self._settings)

    async def _load(self, wanted: Loading) -> None:
        """On a GPU, whose memory may not hold two, the model before ends first; AnmiError where none can be loaded."""
        loop = asyncio.get_running_loop()
        if self._settings.gpus:
            await loop.run_in_executor(None, self._scorer.close)
        try:
            self._scorer = await loop.run_in_executor(None, self._loaded, wanted.model)
        except AnmiError as error:  # it was whole when the service was told to load it
            if self._settings.gpus:
                raise
            _log.error("the model cannot be loaded anew, and the one before goes on: %s", error)
        self._loading = wanted.number


@serve.deployment(max_ongoing_requests=MOST_INSIDE)
class SearchReplica:
    """A process with a run's first stage. Why it does not open is told to whoever asks: trying again mends nothing."""

    def __init__(self, run: str, root: str, threads: int) -> None:
        from anmi_ray.serving.searcher import RunSearcher  # indexes: for this process alone

        self._opened: RunSearcher | AnmiError
        try:
            self._opened = RunSearcher(run, root, threads)
        except (ConfigError, DamagedError, DataError) as error:
            self._opened = error

    def __del__(self) -> None:
        """Serve's word for the end of a process: indexes that were fetched are not left on the disk."""
        if not isinstance(self._opened, AnmiError):
            self._opened.close()

    async def about(self) -> About | AnmiError:
        """As RunSearcher's."""
        return self._opened if isinstance(self._opened, AnmiError) else self._opened.about

    async def find(
        self, query: str, deepest: dict[str, int], vector_d: NDArray[np.float32] | None
    ) -> list[FoundDocument]:
        """As RunSearcher."""
        assert not isinstance(self._opened, AnmiError)
        return await self._opened.find(query, deepest, vector_d)


class _First:
    """The first stage for the process that answers HTTP."""

    def __init__(self, searcher: DeploymentHandle) -> None:
        self._searcher = searcher
        self._about: About | None = None

    async def opened(self) -> About | AnmiError:
        """What can be searched, or why nothing can."""
        return await _asked(self._searcher.about.remote)

    async def about(self) -> About:
        """As `opened`; RefusalError for what keeps it from opening."""
        if self._about is None:
            found = await self.opened()
            if isinstance(found, AnmiError):
                raise RefusalError(503, f"the run's first stage cannot be searched: {first_line(found)}")
            self._about = found
        return self._about

    async def find(
        self, query: str, deepest: dict[str, int], vector_d: NDArray[np.float32] | None
    ) -> list[FoundDocument]:
        """As RunSearcher."""
        return await _asked(partial(self._searcher.find.remote, query, deepest, vector_d))


@serve.deployment(max_ongoing_requests=2 * MOST_INSIDE)
@serve.ingress()
class Front:
    """The process that answers HTTP and forms batches for the scorers."""

    def __init__(
        self,
        settings: ServiceSettings,
        calibrated: Relevance | None,
        scorer: DeploymentHandle,
        searcher: DeploymentHandle | None = None,
    ) -> None:
        self._scorer = scorer
        self._first = None if searcher is None else _First(searcher)
        self._service = RerankService(settings, self._compute, calibrated, self._first)
        self._wanted = Loading(0, settings.model)

    def __serve_build_asgi_app__(self) -> Gate:
        return self._service.app

    async def _compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        return await _asked(partial(self._scorer.compute.remote, what, queries, texts, self._wanted))

    async def opened(self) -> About | AnmiError | None:
        """What can be searched once it can, or why not; None where a model alone is served."""
        return None if self._first is None else await self._first.opened()

    async def load(self, model: str, calibrated: Relevance | None) -> None:
        """Compute batches from now on by the model that lies there now."""
        self._service.loaded(calibrated)
        self._wanted = Loading(self._wanted.number + 1, model)

    async def drain(self) -> int:
        """Take no more requests; how many have no answer yet."""
        self._service.app.draining = True
        return self._service.app.inside


async def _asked(remote: Callable[[], Any]) -> Any:
    """What a process answers; one that was lost is replaced, and another is asked."""
    for _ in range(_TRIES):
        try:
            return await remote()
        except RayActorError:
            continue
        except RayTaskError as error:
            if not isinstance(error.cause, AnmiError):
                raise
            raise RefusalError(503, f"the model cannot be computed: {first_line(error.cause)}", 5) from None
    raise RefusalError(503, "the processes that score or search were lost, and are started anew", 5)


def build(args: dict[str, Any]) -> Application:
    """The application of these settings. Raises ConfigError, DataError where the model's relevance.json is damaged."""
    settings = validated(args)
    run = settings.model if reranking.names_run(settings.model) else None
    return application(settings, reranking.calibration_of(settings.model, settings.root), run)


def application(settings: ServiceSettings, calibrated: Relevance | None, run: str | None) -> Application:
    """The application of these settings.

    `calibrated`: what the model's scores are worth as probabilities. `run`: the one under the settings' root whose
    first stage is searched.
    """
    settings = settings.model_copy(update={"threads": settings.threads_each})
    takes = {"num_cpus": settings.threads_each, "num_gpus": settings.gpus}
    scorer = ScoringReplica.options(**_count(settings), ray_actor_options=takes)
    front = Front.options(
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
    )
    if run is None:
        return front.bind(settings, calibrated, scorer.bind(settings))
    searcher = SearchReplica.options(num_replicas=1, ray_actor_options={"num_cpus": 0})
    searching = searcher.bind(run, settings.root, settings.threads_each)
    return front.bind(settings, calibrated, scorer.bind(settings), searching)


def _count(settings: ServiceSettings) -> dict[str, Any]:
    """How many processes score: as many as were asked for, or between two numbers, by the batches that wait."""
    if settings.most == settings.replicas:
        return {"num_replicas": settings.replicas}
    autoscaling = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.most,
        "target_ongoing_requests": BATCHES_EACH,
        "upscale_delay_s": _GROW_S,
        "downscale_delay_s": _SHRINK_S,
    }
    return {"autoscaling_config": autoscaling}
