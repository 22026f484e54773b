"""Run the stages of one run: compute those that are not complete, reuse the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import StoreError
from anmi_ray.core.logs import Span
from anmi_ray.pipeline import progress
from anmi_ray.pipeline.resolve import Resolved, todo
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.store import Artifact, Store, add_flows, public_root, runs

_LOG = logging.getLogger(__name__)


@dataclass
class StageRunner:
    """The stages of one run.

    chosen: the stages that may be computed; all others must be complete.
    begins: nothing of the run is under the root yet; a run that resumes keeps a root with few buckets.
    ready: Ray is connected and was checked.
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

        Raises StoreError where the stage is not complete and not chosen, DamagedError where a file is missing or cut.
        """
        artifact = self.resolved[name].artifact(self.store)
        manifest = artifact.manifest()
        if manifest is not None:
            artifact.check_files()
            return manifest, None
        if name not in self.chosen:
            first = next(iter(self.chosen))
            raise StoreError(
                f"--from {first} needs the artifact of stage {name}, which is not complete",
                self.store.where(artifact.path),
                f"run without --from, or with --from {name}",
            )
        self.told.stage(name, self.resolved[name].stage.does)
        self._start()
        return self._compute(self.resolved[name], artifact)

    def publish(self, name: str) -> None:
        """Copy a complete artifact's files to where users look."""
        item = self.resolved[name]
        item.stage.publish(item.artifact(self.store), self._inputs(item), self.experiment.name)

    def _start(self) -> None:
        """Connect to Ray, and check that it can run what is to do."""
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
        """By role, the artifacts that a stage reads, those of other runs included."""
        read = {role: self.resolved[name].artifact(self.store) for role, name in item.stage.reads.items()}
        return read | runs.of_other_runs(self.store, item.inputs)

    def _compute(self, item: Resolved, artifact: Artifact) -> tuple[dict[str, Any], float]:
        """Run one stage and complete its artifact; its manifest, and the seconds it took."""
        from anmi_ray.runtime.capacity import cpus

        stage, execution = item.stage, self.experiment.execution
        context = Context(
            self.store,
            execution,
            self.store.buckets(execution.buckets_on(0 if execution.address is None else cpus(execution))),
            self.experiment.seed,
            self.told.progress,
            self.told.notice,
            self.told.measured,
            self.told.counted,
            self.told.second,
        )
        start = time.monotonic()
        with Span(_LOG, "stage", stage=stage.name) as span:
            facts = stage.run(artifact, self._inputs(item), stage.config_of(self.experiment), context)
            span.told(rows=[asdict(flow) for flow in add_flows(facts["flows"])])
        seconds = time.monotonic() - start
        timing = {"seconds": seconds, **environment.hardware()}
        self.store.publish_json(f"timings/{stage.name}-{item.fingerprint}.json", timing)
        artifact.list_files()
        manifest = artifact.complete(
            facts.pop("flows"),
            version=stage.version,
            settings=dict(item.settings),
            inputs=dict(item.inputs),
            **facts,
        )
        return manifest, seconds
