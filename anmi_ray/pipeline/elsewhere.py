"""`evaluate.also`: the model of a complete run, measured on other collections, each in a run of its own.

These runs are carried out after everything else, and nothing is chosen by what they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate_record
from anmi_ray.config.paths import LocalPath, as_written
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.corpus.catalogue import datasets_under
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.resolve import resolve, todo
from anmi_ray.pipeline.stages import EVALUATE, FIRST, RERANK
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import ray_session
from anmi_ray.store import Store

PLACE = "evaluate.also"
_BY_LABELS = {"also": (), "judged": "none", "judge": None, "baseline": None, "fusion": False}
_TEST_ALONE = {
    **{f"max_{split}_queries": 0 for split in ("train", "dev")},
    "dev_fraction": 0.0,
    "unlabelled": "leave-out",
}


def carry_out(experiment: Experiment, reporter: Reporter | None = None) -> list[str]:
    """Measure the model on every collection; returns the names of the runs that did.

    A collection that cannot be had is skipped with a notice that says why. Raises other AnmiErrors.
    """
    reporter = reporter or Reporter()
    done: list[str] = []
    with ExitStack() as session:
        for collection in experiment.evaluate.also:
            with _skipped(as_written(collection), reporter):
                for one in runs_over(experiment, collection):
                    with _skipped(one.corpus.name, reporter):
                        _measure(one, reporter, session)
                        done.append(one.name)
    return done


@contextmanager
def _skipped(collection: str, reporter: Reporter) -> Iterator[None]:
    """Say in one line that a collection cannot be had, and go on."""
    try:
        yield
    except (ConfigError, DataError) as error:
        reporter.notice(f"{PLACE}: {collection} is skipped: {' '.join(str(error).split())}")


def _measure(experiment: Experiment, reporter: Reporter, session: ExitStack) -> None:
    """Carry out one run, in the Ray of those before it."""
    resolved = resolve(experiment)
    reporter.notice(f"{PLACE}: {experiment.corpus.name}, in the run {experiment.name}")
    if todo(Store(experiment.execution.root), resolved):
        session.enter_context(ray_session(experiment.execution))
    main.run(experiment, reporter, last=EVALUATE, content=resolved[FIRST].content)


def runs_over(experiment: Experiment, collection: str) -> Iterator[Experiment]:
    """The settings of the runs that measure an experiment's model on a collection, one of each data set in it.

    Raises ConfigError for a collection that nobody knows.
    """
    if isinstance(collection, LocalPath) or "://" in collection:
        yield _over(experiment, {"reader": "beir", "path": collection, "labels": ["test"]}, Path(collection).name)
        return
    for name in datasets_under(collection, PLACE):
        yield _over(experiment, {"reader": "ir_datasets", "datasets": {"test": [name]}}, name)


def _over(experiment: Experiment, corpus: dict[str, Any], called: str) -> Experiment:
    content = experiment.model_dump(exclude_unset=True)
    name = f"{experiment.name}-on-{re.sub(r'[^A-Za-z0-9._-]+', '-', called)}"
    measured = {key: value for key, value in content.get(EVALUATE, {}).items() if key != "partners"}
    changed = {
        "name": name,
        "trained_by": experiment.name,
        "refines": None,
        "corpus": {**corpus, **_TEST_ALONE},
        RERANK: {**content.get(RERANK, {}), "peers": ()},
        EVALUATE: {**measured, **_BY_LABELS},
    }
    return validate_record({**content, **changed}, PLACE)
