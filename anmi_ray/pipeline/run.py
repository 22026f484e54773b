"""Run an experiment: compute the stages of its path that are not complete, reuse the others, and keep its record."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError, StoreError, refuse
from anmi_ray.core.logs import Span
from anmi_ray.corpus.counts import of_manifest
from anmi_ray.pipeline import progress, requirements
from anmi_ray.pipeline.resolve import Resolved, resolve, todo
from anmi_ray.pipeline.stages import FIRST, LAST, names_of, stages_of
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.store import Artifact, Flow, Store, add_flows, public_root, runs

_LOG = logging.getLogger(__name__)


def run(
    experiment: Experiment,
    reporter: Reporter | None = None,
    first: str = FIRST,
    last: str = LAST,
    content: str | None = None,
    wait: bool = False,
    offline: bool = False,
) -> dict[str, Any]:
    """Run the stages from `first` to `last` and return the run's record (also at `runs/<name>.json`).

    The record has the settings, the names of their stages, and the artifacts that were made now, or before with the
    same fingerprint.

    first, content: stages before `first` must be complete; `content` as in `resolve`.
    wait: wait until no other process is running a run under the root.
    offline: do not contact judges' servers before the start.
    Raises AnmiError for user errors.
    """
    store = Store(experiment.execution.root)
    reporter = reporter or Reporter()
    if wait:
        progress.wait(store, reporter.notice)
    names = list(names_of(experiment))
    path = names[: names.index(last) + 1]
    stages = stages_of(experiment)[names.index(first) : len(path)]
    with requirements.all_named(experiment, stages, offline):
        resolved = resolve(experiment, content)
        record = run_record(store, experiment, resolved)
    chosen = {stage.name: resolved[stage.name] for stage in stages}
    unfinished = todo(store, chosen)
    _check(experiment, [item.stage for item in unfinished], offline)
    notices = [runs.buckets_kept(store, experiment.execution)]
    notices += progress.at_work(store) if experiment.judge.reading else ()
    with progress.told(store, experiment.name, path, reporter) as told, ExitStack() as session:
        for text in filter(None, notices):
            told.notice(text)
        runner = StageRunner(experiment, resolved, chosen, store, told, session, begins=not record["stages"])
        for name in path:
            item = resolved[name]
            try:
                manifest, seconds = runner.completed(name)
            except AnmiError:  # `anmi audit` reads what the stage has published
                failed = {"failed": {name: {"fingerprint": item.fingerprint}}}
                store.publish_json(f"runs/{experiment.name}.json", record | failed)
                raise
            record["stages"][name] = {
                "fingerprint": item.fingerprint,
                "settings": dict(item.settings),
                "inputs": dict(item.inputs),
            }
            store.publish_json(f"runs/{experiment.name}.json", record)
            runner.publish(name)
            told.finished(name, seconds, [Flow(**flow) for flow in manifest["flows"]])
            if name == FIRST:
                counts = of_manifest(manifest)
                for text in (f"queries: {counts.in_words}", *counts.notices(experiment)) if unfinished else ():
                    told.notice(text)
                refuse(requirements.of_collection(experiment, stages, counts))
    return record


def _check(experiment: Experiment, stages: Sequence[Stage], offline: bool) -> None:
    """Raise AnmiError for what would stop these stages later, before Ray starts and before anything is paid."""
    found = [*requirements.of_machine(experiment, stages, offline)]
    if any(stage.name == FIRST for stage in stages):
        found += requirements.of_what_is_read(
            experiment, lambda counts: requirements.of_collection(experiment, stages, counts)
        )
    refuse(found)


def run_record(store: Store, experiment: Experiment, resolved: Mapping[str, Resolved]) -> dict[str, Any]:
    """Return the run's record before its first stage: the present record's stages that are still the same.

    Raises ConfigError if the name belongs to a run over another corpus.
    """
    content = resolved[FIRST].content
    known = runs.recorded(store, experiment.name)
    if known is not None and known.get("corpus") != content:
        raise ConfigError(
            f"the name belongs to a run over another corpus ({known.get('corpus_name')})",
            f"run {experiment.name}",
            "give this run another name (name=…), or another root (--root)",
        )
    before = (known or {}).get("stages", {})
    return {
        "name": experiment.name,
        "corpus": content,
        "corpus_name": experiment.corpus.name,
        "config": experiment.model_dump(mode="json", exclude={"execution"}),
        "environment": environment.describe(),
        "path": list(resolved),
        "stages": {
            name: before[name]
            for name, item in resolved.items()
            if name in before and before[name]["fingerprint"] == item.fingerprint
        },
    }


@dataclass
class StageRunner:
    """The stages of one run.

    chosen: the stages that may be computed; all others must be complete.
    begins: the run has no artifact yet; a run that resumes keeps a root with few buckets.
    ready: Ray is connected and checked.
    """

    experiment: Experiment
    resolved: Mapping[str, Resolved]
    chosen: Mapping[str, Resolved]
    store: Store
    told: progress.Reporters
    session: ExitStack
    begins: bool = False
    ready: bool = False

    def completed(self, name: str) -> tuple[dict[str, Any], float | None]:
        """Return the manifest of a stage and its seconds; None if it was complete.

        Raises StoreError if the stage is neither complete nor chosen, DamagedError if a file is missing or cut.
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
        """Connect to Ray, and check that it can run the missing stages."""
        if self.ready:
            return
        self.session.enter_context(ray_session(self.experiment.execution))
        from anmi_ray.runtime.metrics import Meters

        self.told.all.append(Meters(self.experiment.name, self.told.current))
        from anmi_ray.pipeline import preflight
        from anmi_ray.runtime.capacity import check_buckets

        preflight.check(self.experiment, [item.stage for item in todo(self.store, self.chosen)], self.told.notice)
        if self.begins:
            check_buckets(self.experiment.execution, runs.known_buckets(self.store), public_root(self.store.root))
        self.ready = True

    def _inputs(self, item: Resolved) -> dict[str, Artifact]:
        """Return the artifacts that a stage reads by role, including those of other runs."""
        read = {role: self.resolved[name].artifact(self.store) for role, name in item.stage.reads.items()}
        return read | runs.of_other_runs(self.store, item.inputs)

    def _compute(self, item: Resolved, artifact: Artifact) -> tuple[dict[str, Any], float]:
        """Run one stage and complete its artifact; return its manifest and seconds."""
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
            self.told.second(),
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
