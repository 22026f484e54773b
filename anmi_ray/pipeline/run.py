"""Carry out an experiment: compute what is missing of its path, reuse the rest, and keep the run's record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError, StoreError
from anmi_ray.core.logs import Span
from anmi_ray.pipeline import progress
from anmi_ray.pipeline.resolve import Resolved, resolve, todo
from anmi_ray.pipeline.stages import FIRST, LAST
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.store import Artifact, Flow, Store, add_flows, runs

_LOG = logging.getLogger(__name__)


def run(
    experiment: Experiment,
    reporter: Reporter | None = None,
    first: str = FIRST,
    last: str = LAST,
    content: str | None = None,
) -> dict[str, Any]:
    """Carry out the stages from `first` to `last` and return the run's record (also at `runs/<name>.json`).

    The record says what the name stands for now: these settings, the names of their stages, those that were carried
    out, and of the record before it every stage whose artifact is the same under these settings. So a shorter run of
    the same settings leaves the later stages known; with other settings those that would come out otherwise are no
    longer part of the run. Stages before `first` must be complete; `content` as in `resolve`. Raises AnmiError for
    whatever a user can mend.
    """
    store = Store(experiment.execution.root)
    resolved = resolve(experiment, content)
    record = run_record(store, experiment, resolved)
    names = list(resolved)
    path = names[: names.index(last) + 1]
    chosen = {name: resolved[name] for name in path[names.index(first) :]}
    for item in todo(store, chosen):
        item.stage.check(experiment)
    notices = [runs.buckets_kept(store, experiment.execution)]
    notices += progress.at_work(store) if experiment.judge.reading else ()
    with progress.told(store, experiment.name, path, reporter or Reporter()) as told, ExitStack() as session:
        for text in filter(None, notices):
            told.notice(text)
        ready = False
        for name in path:
            item = resolved[name]
            artifact = item.artifact(store)
            manifest = artifact.manifest()
            seconds: float | None = None
            if manifest is None and name not in chosen:
                raise StoreError(
                    f"--from {first} needs the artifact of stage {name}, which is not complete",
                    store.where(artifact.path),
                    f"run without --from, or with --from {name}",
                )
            inputs = _inputs(item, resolved, store)
            if manifest is None:
                told.stage(name, item.stage.does)
                if not ready:
                    _start(session, experiment, lambda: todo(store, chosen), told)
                    ready = True
                manifest, seconds = _carry_out(item, inputs, artifact, experiment, told)
            record["stages"][name] = {
                "fingerprint": item.fingerprint,
                "settings": dict(item.settings),
                "inputs": dict(item.inputs),
            }
            store.publish_json(f"runs/{experiment.name}.json", record)
            item.stage.publish(artifact, inputs, experiment.name)
            told.finished(name, seconds, [Flow(**flow) for flow in manifest["flows"]])
            if "splits" in manifest:
                _check_splits(manifest["splits"], chosen)
    return record


def _check_splits(splits: Mapping[str, int], chosen: Mapping[str, Resolved]) -> None:
    """Say before hours of work, not after, that there is nothing to train on."""
    for name, item in chosen.items():
        split = item.stage.split
        if split is not None and not splits.get(split.name):
            raise DataError(f"there is no {split.name} query", f"stage {name}", split.remedy)


def _start(
    session: ExitStack, experiment: Experiment, missing: Callable[[], list[Resolved]], told: progress.Everyone
) -> None:
    """Connect to Ray; on a cluster, see first that it can carry out what is to do."""
    session.enter_context(ray_session(experiment.execution))
    from anmi_ray.runtime.metrics import Meters

    told.add(Meters(experiment.name, told.at_work))
    if experiment.execution.address is not None:
        from anmi_ray.pipeline import preflight

        preflight.check(experiment, [item.stage for item in missing()], told.notice)


def _inputs(item: Resolved, resolved: Mapping[str, Resolved], store: Store) -> dict[str, Artifact]:
    """By role, what a stage reads, other runs' models among it."""
    read = {role: resolved[name].artifact(store) for role, name in item.stage.reads.items()}
    return read | runs.other_models(store, item.inputs)


def _carry_out(
    item: Resolved, inputs: Mapping[str, Artifact], artifact: Artifact, experiment: Experiment, reporter: Reporter
) -> tuple[dict[str, Any], float]:
    """Run one stage and complete its artifact; its manifest, and the seconds it took."""
    stage = item.stage
    context = Context(
        artifact.store,
        experiment.execution,
        artifact.store.buckets(experiment.execution.buckets),
        experiment.seed,
        reporter.progress,
        reporter.notice,
        reporter.measured,
        reporter.counted,
    )
    start = time.monotonic()
    with Span(_LOG, "stage", stage=stage.name) as span:
        facts = stage.run(artifact, inputs, stage.config_of(experiment), context)
        span.told(rows=[asdict(flow) for flow in add_flows(facts["flows"])])
    seconds = time.monotonic() - start
    artifact.store.publish_json(
        f"timings/{stage.name}-{item.fingerprint}.json", {"seconds": seconds, **environment.hardware()}
    )
    manifest = artifact.complete(
        facts.pop("flows"),
        version=stage.version,
        settings=dict(item.settings),
        inputs=dict(item.inputs),
        **facts,
    )
    return manifest, seconds


def run_record(store: Store, experiment: Experiment, resolved: Mapping[str, Resolved]) -> dict[str, Any]:
    """The run's record before its first stage: of the record that is there, the stages that are still the same.

    Raises ConfigError where the name belongs to a run over another corpus.
    """
    content = resolved[FIRST].content
    known = store.read_json(f"runs/{experiment.name}.json")
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
        "stages": {name: before[name] for name, item in resolved.items() if _same(before.get(name), item)},
    }


def _same(recorded: Mapping[str, Any] | None, item: Resolved) -> bool:
    """Whether a stage of a run's record is the artifact that these settings give."""
    return recorded is not None and recorded["fingerprint"] == item.fingerprint
