"""Carrying stages out, and carrying out again those of whose complete artifacts a file is lost or damaged.

A file that is gone, or not of its length, is seen before a stage is passed by; one that is changed, where it is read.
It is removed, with what keeps its stage from making it again, and the stage makes what is missing: the same bytes, so
nothing that follows from it changes. What was bought stands in the answer log, which nothing here touches.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import DamagedError, StoreError, refuse
from anmi_ray.core.logs import Span
from anmi_ray.pipeline import progress
from anmi_ray.pipeline.resolve import Resolved, todo
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.store import Artifact, Flow, Store, add_flows, public_root, runs

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class Carrying:
    """The stages of one run, as it goes by. `chosen`: those that it may begin; others are only mended.

    begins: nothing of the run is under the root yet; a run that resumes keeps a root with few buckets.
    """

    experiment: Experiment
    resolved: Mapping[str, Resolved]
    chosen: Mapping[str, Resolved]
    store: Store
    told: progress.Everyone
    session: ExitStack
    begins: bool = False
    ready: bool = False

    def completed(self, name: str) -> tuple[dict[str, Any], float | None]:
        """The manifest of a stage, and the seconds that it took, None where it was complete.

        Raises StoreError where the stage is not complete and not chosen.
        """
        artifact = self.resolved[name].artifact(self.store)
        try:
            manifest = artifact.manifest()
            lost = [] if manifest is None else artifact.lost()
        except DamagedError as error:
            return self._mended(name, [self._file(artifact, error)])
        if lost:
            return self._mended(name, lost)
        if manifest is not None:
            return manifest, None
        if name not in self.chosen:
            first = next(iter(self.chosen))
            raise StoreError(
                f"--from {first} needs the artifact of stage {name}, which is not complete",
                self.store.where(artifact.path),
                f"run without --from, or with --from {name}",
            )
        return self._made(name)

    def show(self, name: str) -> None:
        """Have a complete artifact's files put where users look."""
        item = self.resolved[name]

        def publish() -> None:
            item.stage.publish(item.artifact(self.store), self._inputs(item), self.experiment.name)

        self._mending(name, publish)

    def _made(self, name: str) -> tuple[dict[str, Any], float]:
        """Carry a stage out: what is missing of its artifact; all of it where that leaves out what stood there."""
        item = self.resolved[name]
        artifact = item.artifact(self.store)
        before = self._listed(artifact)
        self.told.stage(name, item.stage.does)
        self._start()
        made = self._mending(name, lambda: self._carry_out(item))
        lost = sorted(before - artifact.listed().keys())
        if lost:
            self._clear(name, lost)
            made = self._mending(name, lambda: self._carry_out(item))
        return made

    def _clear(self, name: str, files: list[str]) -> None:
        """Have all of an artifact made anew, where these files cannot be made alone."""
        self.told.notice(f"{name}: {_named(files)} cannot be made alone: the whole stage is carried out again")
        self.store.remove(self.resolved[name].artifact(self.store).path)

    def _mended(self, name: str, damaged: list[str]) -> tuple[dict[str, Any], float]:
        """Carry out what makes these files of a stage's artifact again."""
        item = self.resolved[name]
        self.told.notice(f"{name}: {_named(damaged)} lost or damaged: made again, from the same inputs")
        item.artifact(self.store).take_back(damaged)
        refuse(item.stage.check(item.stage, self.experiment))
        return self._made(name)

    def _mending(self, name: str, work: Callable[[], T]) -> T:
        """What `work` for a stage returns; a damaged file that it meets is made again first, once.

        One of the stage's own, unfinished artifact is removed, and where it is missed then, all of that artifact.
        """
        tried = Counter[str | None]()
        while True:
            try:
                return work()
            except DamagedError as error:
                owner = self._owner(error)
                tried[error.place] += 1
                if owner is None or tried[error.place] > 2:
                    raise
                artifact = self.resolved[owner].artifact(self.store)
                file = self._file(artifact, error)
                if owner == name and artifact.manifest() is None:
                    artifact.take_back([file])
                    if tried[error.place] > 1:
                        self._clear(name, [file])
                    continue
                if tried[error.place] > 1:
                    raise
                manifest, seconds = self._mended(owner, [file])
                self.told.finished(owner, seconds, [Flow(**flow) for flow in manifest["flows"]])
                self.told.stage(name, self.resolved[name].stage.does)

    def _owner(self, error: DamagedError) -> str | None:
        """The stage of this run to whose artifact a damaged file belongs."""
        for name, item in self.resolved.items():
            if str(error.place).startswith(f"{self.store.where(item.artifact(self.store).path)}/"):
                return name
        return None

    def _file(self, artifact: Artifact, error: DamagedError) -> str:
        return str(error.place).removeprefix(f"{self.store.where(artifact.path)}/")

    def _listed(self, artifact: Artifact) -> set[str]:
        """What stood in an artifact when it was complete; nothing where that is not known."""
        try:
            return set(artifact.listed())
        except DamagedError:
            return set()

    def _start(self) -> None:
        """Connect to Ray, and see first that it can carry out what is to do."""
        if self.ready:
            return
        self.session.enter_context(ray_session(self.experiment.execution))
        from anmi_ray.runtime.metrics import Meters

        self.told.add(Meters(self.experiment.name, self.told.at_work))
        from anmi_ray.pipeline import preflight
        from anmi_ray.runtime.capacity import check_buckets

        preflight.check(self.experiment, [item.stage for item in todo(self.store, self.chosen)], self.told.notice)
        if self.begins:
            check_buckets(self.experiment.execution, runs.known_buckets(self.store), public_root(self.store.root))
        self.ready = True

    def _inputs(self, item: Resolved) -> dict[str, Artifact]:
        """By role, what a stage reads, what other runs have made among it."""
        read = {role: self.resolved[name].artifact(self.store) for role, name in item.stage.reads.items()}
        return read | runs.of_other_runs(self.store, item.inputs)

    def _carry_out(self, item: Resolved) -> tuple[dict[str, Any], float]:
        return carry_out(
            item, self._inputs(item), item.artifact(self.store), self.experiment, self.told, self.told.second
        )


def _named(files: list[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]}{more}"


def carry_out(
    item: Resolved,
    inputs: Mapping[str, Artifact],
    artifact: Artifact,
    experiment: Experiment,
    reporter: Reporter,
    second: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Any], float]:
    """Run one stage and complete its artifact; its manifest, and the seconds it took. second: as in Context."""
    from anmi_ray.runtime.capacity import cpus

    stage = item.stage
    execution = experiment.execution
    context = Context(
        artifact.store,
        execution,
        artifact.store.buckets(execution.buckets_on(0 if execution.address is None else cpus(execution))),
        experiment.seed,
        reporter.progress,
        reporter.notice,
        reporter.measured,
        reporter.counted,
        second,
    )
    start = time.monotonic()
    with Span(_LOG, "stage", stage=stage.name) as span:
        facts = stage.run(artifact, inputs, stage.config_of(experiment), context)
        span.told(rows=[asdict(flow) for flow in add_flows(facts["flows"])])
    seconds = time.monotonic() - start
    artifact.store.publish_json(
        f"timings/{stage.name}-{item.fingerprint}.json", {"seconds": seconds, **environment.hardware()}
    )
    artifact.list_files()
    manifest = artifact.complete(
        facts.pop("flows"),
        version=stage.version,
        settings=dict(item.settings),
        inputs=dict(item.inputs),
        **facts,
    )
    return manifest, seconds
