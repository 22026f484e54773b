"""The Serve application: one deployment answers HTTP, another scores, in as many processes as are asked for.

Where a run is served, a third searches its documents.

`serve deploy` takes `anmi_ray.serving.app:build` as import path, and the settings of serving/settings.py as args.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from anmi_ray.api import reranking
from anmi_ray.core.errors import AnmiError, ConfigError, DamagedError, DataError, first_line
from anmi_ray.serving import model_version
from anmi_ray.serving.found import About, FoundDocument, QueryVector
from anmi_ray.serving.gate import MOST_INSIDE, Gate
from anmi_ray.serving.model_version import ModelVersion
from anmi_ray.serving.queue import Computed, What
from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.scorer import ModelScorer
from anmi_ray.serving.service import BATCHES_EACH, RerankService
from anmi_ray.serving.settings import ServiceSettings, validated

if TYPE_CHECKING:
    from anmi_ray.serving.searcher import RunSearcher

_log = logging.getLogger("ray.serve")  # what Serve keeps of this process
_TRIES = 3  # of a batch whose process was lost
_RETRY_S = 30.0  # before a model that could not be loaded is tried again
_GROW_S = 5.0  # of requests that wait, before one more process is started
_SHRINK_S = 120.0  # without, before one is ended: a start costs more than a pause


@serve.deployment(max_ongoing_requests=8)
class ScoringReplica:
    """A process with the model; another is loaded beside it, and then takes its place."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._read_at = time.time()
        self._scorer = ModelScorer(model_version.current(settings), settings)
        self._loading: asyncio.Task[AnmiError | None] | None = None
        self._failed: ModelVersion | None = None
        self._retry_at = 0.0

    async def compute(
        self, what: What, queries: list[str], texts: list[str], wanted: ModelVersion | None, waits: bool
    ) -> Computed:
        """As ModelScorer. `wanted` is loaded where it is not here; the batch `waits` for it, on a GPU in any case."""
        loading = self._begun(wanted)
        if loading is not None and (waits or self._settings.gpus):
            error = await asyncio.shield(loading)
            if error is not None and self._settings.gpus:
                raise error
        return await self._scorer.compute(what, queries, texts)

    async def load(self, wanted: ModelVersion) -> None:
        """Have that model, or one that was read later. Raises AnmiError where it cannot be loaded."""
        while (loading := self._begun(wanted)) is not None:
            error = await asyncio.shield(loading)
            if error is not None:
                raise error

    def _begun(self, wanted: ModelVersion | None) -> asyncio.Task[AnmiError | None] | None:
        """The loading that is under way; it begins here where another model is wanted. None where none is needed."""
        if self._loading is not None and not self._loading.done():
            return self._loading
        known = [one for one in (wanted, self._failed) if one is not None]
        newest = max(known, key=lambda one: one.asked_at, default=None)
        if newest is None or newest.asked_at <= self._scorer.model.asked_at:
            return None
        if newest.asked_at <= self._read_at:
            self._scorer.model = self._dated(newest)
            return None
        if newest == self._failed and not self._settings.gpus and time.monotonic() < self._retry_at:
            return None
        self._loading = asyncio.create_task(self._load(newest))
        return self._loading

    def _dated(self, wanted: ModelVersion) -> ModelVersion:
        """The model that is here, which was read after `wanted` was asked for: it is the same, or a newer one."""
        model = self._scorer.model
        return replace(model, asked_at=wanted.asked_at if model.place == wanted.place else self._read_at)

    async def _load(self, wanted: ModelVersion) -> AnmiError | None:
        """Put it in the place of the model before; where it cannot be loaded that one goes on, and the error is told.

        On a GPU, whose memory may not hold two, the one before ends first.
        """
        loop = asyncio.get_running_loop()
        self._failed = wanted  # until it is here
        self._retry_at = time.monotonic() + _RETRY_S
        if self._settings.gpus:
            await loop.run_in_executor(None, self._scorer.close)
        read_at = time.time()
        try:
            scorer = await loop.run_in_executor(None, ModelScorer, wanted, self._settings)
        except AnmiError as error:
            _log.error("the model cannot be loaded anew: %s", error)
            return error
        self._scorer = scorer
        self._read_at = read_at
        self._failed = None
        return None


@serve.deployment(max_ongoing_requests=MOST_INSIDE)
class SearchReplica:
    """A process with a run's first stage. Why it does not open is told to whoever asks: trying again mends nothing."""

    def __init__(self, run: str, root: str, threads: int) -> None:
        self._open = partial(_opened, run, root, threads)
        self._opened = self._open()

    def __del__(self) -> None:
        """Serve's word for the end of a process: indexes that were fetched are not left on the disk."""
        if not isinstance(self._opened, AnmiError):
            self._opened.close()

    async def about(self) -> About | AnmiError:
        """As RunSearcher's."""
        return self._opened if isinstance(self._opened, AnmiError) else self._opened.about

    async def reopen(self) -> About | AnmiError:
        """Open the run as it is now; what was open answers until then, and goes on where this does not open."""
        loop = asyncio.get_running_loop()
        opened = await loop.run_in_executor(None, self._open)
        if isinstance(opened, AnmiError):
            return opened
        before = self._opened
        self._opened = opened
        if not isinstance(before, AnmiError):
            await loop.run_in_executor(None, before.close)
        return opened.about

    async def find(self, query: str, deepest: dict[str, int], vector: QueryVector | None) -> list[FoundDocument]:
        """As RunSearcher."""
        assert not isinstance(self._opened, AnmiError)
        return await self._opened.find(query, deepest, vector)


def _opened(run: str, root: str, threads: int) -> RunSearcher | AnmiError:
    """A run's first stage, or what keeps it from opening."""
    from anmi_ray.serving.searcher import RunSearcher  # indexes: for this process alone

    try:
        return RunSearcher(run, root, threads)
    except (ConfigError, DamagedError, DataError) as error:
        return error


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

    async def reopen(self) -> About | AnmiError:
        """As SearchReplica."""
        found = await _asked(self._searcher.reopen.remote)
        self._about = None
        return found

    async def find(self, query: str, deepest: dict[str, int], vector: QueryVector | None) -> list[FoundDocument]:
        """As RunSearcher."""
        return await _asked(partial(self._searcher.find.remote, query, deepest, vector))


@serve.deployment(max_ongoing_requests=2 * MOST_INSIDE)
@serve.ingress()
class Front:
    """The process that answers HTTP and forms batches for the scorers."""

    def __init__(
        self,
        settings: ServiceSettings,
        model: ModelVersion | None,
        scorer: DeploymentHandle,
        searcher: DeploymentHandle | None = None,
    ) -> None:
        self._scorer = scorer
        self._first = None if searcher is None else _First(searcher)
        self._service = RerankService(settings, self._compute, self._first)
        self._wanted = model  # if this process was lost and starts anew, answers say what was loaded since
        self._is_there = False  # `wanted`, in one process at least: the others must not answer by the one before

    def __serve_build_asgi_app__(self) -> Gate:
        return self._service.app

    async def _compute(self, what: What, queries: list[str], texts: list[str]) -> Computed:
        asked = partial(self._scorer.compute.remote, what, queries, texts, self._wanted, self._is_there)
        found: Computed = await _asked(asked)
        if self._wanted is None or found.model.asked_at >= self._wanted.asked_at:
            self._wanted = found.model
            self._is_there = True
        return found

    async def opened(self) -> About | AnmiError | None:
        """What can be searched once it can, or why not; None where a model alone is served."""
        return None if self._first is None else await self._first.opened()

    async def load(self, model: ModelVersion) -> str:
        """Compute batches from now on by that model. Why it cannot be loaded, empty where it is."""
        self._wanted = model
        self._is_there = False
        try:
            await _asked(partial(self._scorer.load.remote, model))
        except RefusalError as refusal:
            return refusal.message
        self._is_there = True
        return ""

    async def reopen(self) -> About | AnmiError:
        """Search the run as it is now. What can be searched, or why what was open goes on."""
        assert self._first is not None
        return await self._first.reopen()

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
            if isinstance(error.cause, RefusalError):
                raise error.cause from None
            if not isinstance(error.cause, AnmiError):
                raise
            raise RefusalError(503, f"the model cannot be computed: {first_line(error.cause)}", 5) from None
    raise RefusalError(503, "the processes that score or search were lost, and are started anew", 5)


def build(args: dict[str, Any]) -> Application:
    """The application of these settings. Raises ConfigError."""
    settings = validated({"threads": 1, **args})  # replicas run on other machines, whose cores are not known here
    return application(settings, None, settings.model if reranking.names_run(settings.model) else None)


def application(settings: ServiceSettings, model: ModelVersion | None, run: str | None) -> Application:
    """The application of these settings.

    `model`: what lay there when it was asked for; None where no other is ever to be loaded. `run`: the one under the
    settings' root whose first stage is searched.
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
        return front.bind(settings, model, scorer.bind(settings))
    searcher = SearchReplica.options(num_replicas=1, ray_actor_options={"num_cpus": 0})
    searching = searcher.bind(run, settings.root, settings.threads_each)
    return front.bind(settings, model, scorer.bind(settings), searching)


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
