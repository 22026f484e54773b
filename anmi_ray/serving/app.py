"""The Serve application: one deployment answers HTTP, another scores, in as many processes as are asked for.

Where a run is served, a third searches its documents.

`serve deploy` takes `anmi_ray.serving.app:build` as import path, and the settings of serving/settings.py as args.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from anmi_ray.api import reranking
from anmi_ray.core.errors import AnmiError, ConfigError, DamagedError, DataError, first_line
from anmi_ray.serving.found import About, FoundDocument
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
        self, settings: ServiceSettings, scorer: DeploymentHandle, searcher: DeploymentHandle | None = None
    ) -> None:
        self._scorer = scorer
        self._first = None if searcher is None else _First(searcher)
        self._service = RerankService(settings, self._compute, self._first)

    def __serve_build_asgi_app__(self) -> Gate:
        return self._service.app

    async def _compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        return await _asked(partial(self._scorer.compute.remote, what, queries, texts))

    async def opened(self) -> About | AnmiError | None:
        """What can be searched once it can, or why not; None where a model alone is served."""
        return None if self._first is None else await self._first.opened()

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
    raise RefusalError(503, "the processes that score or search were lost, and are started anew", 5)


def build(args: dict[str, Any]) -> Application:
    """The application of these settings. Raises ConfigError."""
    settings = validated(args)
    run = settings.model if reranking.names_run(settings.model) else None
    return application(settings, run)


def application(settings: ServiceSettings, run: str | None) -> Application:
    """The application of these settings; `run`: the one under their root whose first stage is searched."""
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
    if run is None:
        return front.bind(settings, scorer.bind(settings))
    searcher = SearchReplica.options(num_replicas=1, ray_actor_options={"num_cpus": 0})
    return front.bind(settings, scorer.bind(settings), searcher.bind(run, settings.root, settings.threads_each))
