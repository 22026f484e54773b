"""After a search: the best settings and the default trained again with fresh seeds, and compared on test.

The best of many on dev is partly the luckiest on dev; what it is worth is measured on queries that the search never
saw, by trainings that it never chose among.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anmi_ray.config.experiment import Experiment
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.pipeline import run as path
from anmi_ray.pipeline.per_query import per_query
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import RERANK
from anmi_ray.reports.campaign import RepeatData, RepeatRow, Trial
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, our_errors, windowed
from anmi_ray.tuning.campaign import MEASURE, Campaign

BEST = "best"
DEFAULT = "default"
START = "hybrid"
PAIRS = ((BEST, DEFAULT), (BEST, START), (DEFAULT, START))


def repeat(campaign: Campaign, best: Trial, reporter: Reporter) -> RepeatData | None:
    """Train, rerank and measure on test; None where the campaign wants no repeats. Needs a started Ray.

    What was trained before is reused, so a call after a crash goes on.
    """
    seeds = campaign.repeat_seeds()
    if not seeds:
        return None
    wanted: dict[tuple[str, int], Experiment] = {}
    for k, seed in enumerate(seeds):
        for name, settings in ((BEST, campaign.settings(best.params)), (DEFAULT, {})):
            number = f"{best.number:03d}" if name == BEST else ""
            wanted[name, k] = campaign.experiment(settings, campaign.run_name(f"{name}{number}-s{k}"), seed=seed)
    records = _carried_out(campaign, wanted, reporter)
    values = {
        name: [per_query(wanted[name, k], records[name, k], MEASURE) for k in range(len(seeds))]
        for name in (BEST, DEFAULT)
    }
    values[START] = [per_query(wanted[DEFAULT, 0], records[DEFAULT, 0], MEASURE, START)]
    queries = sorted(values[START][0])
    means = {name: np.array([[row[query] for query in queries] for row in rows]) for name, rows in values.items()}
    contrasts = family([contrast(a, b, [means[a] - means[b]], seed=campaign.config.seed) for a, b in PAIRS])
    rows = tuple(RepeatRow(name, tuple(row.mean(1).tolist())) for name, row in means.items())
    return RepeatData(tuple(seeds), len(queries), rows, contrasts)


def _carried_out(
    campaign: Campaign, wanted: Mapping[tuple[str, int], Experiment], reporter: Reporter
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the records of all runs, `max_concurrent` at once; of equal ones one is run."""
    reporter.stage("repeats", f"train the best and the default with {len(wanted) // 2} fresh seeds, measure on test")
    execution = campaign.base.execution.model_copy(update={"window": campaign.config.max_concurrent})
    context = Context(
        campaign.store, execution, campaign.store.buckets(execution.buckets), campaign.base.seed, reporter.progress
    )
    same = {key: resolve(one, campaign.content)[RERANK].fingerprint for key, one in wanted.items()}
    runs = {same[key]: one for key, one in wanted.items()}
    names = list(runs)
    calls = ((i, _run, (runs[name], campaign.content)) for i, name in enumerate(names))
    records: dict[str, dict[str, Any]] = {}
    with our_errors("repeats"):
        for i, record in windowed(context, calls, cores=0.0, what="training"):
            records[names[i]] = record
            reporter.progress(len(records), len(runs), "trainings")
    return {key: records[name] for key, name in same.items()}


def _run(experiment: Experiment, content: str) -> dict[str, Any]:
    """Run it up to rerank, in a process of its own."""
    return path.run(experiment, last=RERANK, content=content)
