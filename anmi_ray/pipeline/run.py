"""Carry out an experiment: compute what is missing of its path, reuse the rest, and keep the run's record."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError, refuse
from anmi_ray.corpus.counts import of_manifest
from anmi_ray.pipeline import progress, requirements
from anmi_ray.pipeline.carrying import StageRunner
from anmi_ray.pipeline.resolve import Resolved, resolve, todo
from anmi_ray.pipeline.stages import FIRST, LAST, names_of, stages_of
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.stage import Stage
from anmi_ray.store import Flow, Store, runs

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
    """Carry out the stages from `first` to `last` and return the run's record (also at `runs/<name>.json`).

    The record says what the name stands for now: these settings, the names of their stages, those that were carried
    out, and of the record before it every stage whose artifact is the same under these settings. So a shorter run of
    the same settings leaves the later stages known; with other settings those that would come out otherwise are no
    longer part of the run. Stages before `first` must be complete; `content` as in `resolve`; `wait`: for the
    end of runs that other processes carry out under the root; `offline`: judges' servers are not looked for before it
    starts. Raises AnmiError for whatever a user can mend.
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
            except AnmiError:  # so that `anmi audit` finds what the stage has published
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
    """Raise before Ray starts, and before anything is paid, what keeps these stages from ending well."""
    found = [*requirements.of_machine(experiment, stages, offline)]
    if any(stage.name == FIRST for stage in stages):
        found += requirements.of_what_is_read(
            experiment, lambda counts: requirements.of_collection(experiment, stages, counts)
        )
    refuse(found)


def run_record(store: Store, experiment: Experiment, resolved: Mapping[str, Resolved]) -> dict[str, Any]:
    """The run's record before its first stage: of the record that is there, the stages that are still the same.

    Raises ConfigError where the name belongs to a run over another corpus.
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
        "stages": {name: before[name] for name, item in resolved.items() if _same(before.get(name), item)},
    }


def _same(recorded: Mapping[str, Any] | None, item: Resolved) -> bool:
    """Whether a stage of a run's record is the artifact that these settings give."""
    return recorded is not None and recorded["fingerprint"] == item.fingerprint
