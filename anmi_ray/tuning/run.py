"""A tuning campaign: the shared stages, the search, the repeats on test, and the page.

The best of many on dev is partly the luckiest, so the best and the default settings are trained again with fresh seeds
and compared on test queries, which the search did not use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from anmi_ray.config.evaluate import FIRST_STAGE
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, caught, refuse
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.core.logs import Span
from anmi_ray.core.records import QREL, RUN
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline import run as path
from anmi_ray.pipeline.resolve import resolve, todo
from anmi_ray.pipeline.stages import FIRST, INGEST, RERANK, RETRIEVE
from anmi_ray.reports.campaign import CampaignData, RepeatData, RepeatRow, Trial, to_html, to_json
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, our_errors, ray_session, windowed
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.store import Artifact, Store
from anmi_ray.store.files import with_checksum
from anmi_ray.tuning import driver, study
from anmi_ray.tuning.campaign import MEASURE, Campaign, alone, best

_LOG = logging.getLogger(__name__)
BEST = "best"
DEFAULT = "default"
START = "hybrid"
PAIRS = ((BEST, DEFAULT), (BEST, START), (DEFAULT, START))


@dataclass(frozen=True)
class Finished:
    """A finished campaign: its trials, the best on dev, the repeats on test, and files by name."""

    trials: Sequence[Trial]
    best: Trial
    repeats: RepeatData | None
    files: Mapping[str, str]


def run(campaign: Campaign, reporter: Reporter, ended: driver.Ended, retry_failed: bool = False) -> Finished:
    """Run or continue a campaign (also after kill -9) and write its report; `ended` gets each trial as it ends.

    Raises AnmiError for user mistakes.
    """
    _check(campaign)
    study.check_space(campaign)
    with (
        Span(_LOG, "campaign", campaign=campaign.config.name),
        alone(campaign.store, f"campaign-{campaign.fingerprint}"),
        ray_session(campaign.base.execution),
    ):
        driver.share(campaign, reporter)
        kept = study.Trials(campaign)
        if retry_failed:
            kept.retry_failed()
        reporter.stage("tune", f"{campaign.config.trials} trials, {campaign.config.max_concurrent} at once")
        trials = driver.search(campaign, kept, reporter, ended)
        winner = best(trials)
        if winner is None:
            raise _no_model(campaign, trials)
        repeats = repeat(campaign, winner, reporter)
        driver.forget_checkpoints(campaign, trials)
        return Finished(trials, winner, repeats, write(campaign, trials, winner, repeats, kept.importances()))


def _check(campaign: Campaign) -> None:
    """Check requirements before Ray starts and before anything is paid."""
    stages = [item.stage for item in todo(campaign.store, campaign.resolved)]
    found = [*caught(study.check_installed), *requirements.of_machine(campaign.base, stages)]
    if any(stage.name == FIRST for stage in stages):
        found += requirements.of_what_is_read(campaign.base, lambda counts: driver.without_labels(campaign, counts))
    refuse(found)


def _no_model(campaign: Campaign, trials: Sequence[Trial]) -> ConfigError:
    """No trial has ended with a model."""
    failed = [trial for trial in trials if trial.status == "failed"]
    first = f"; trial {failed[0].number}: {failed[0].message}" if failed else ""
    return ConfigError(
        f"none of {len(trials)} trials has trained a model, {len(failed)} failed{first}",
        f"campaign {campaign.config.name}",
        "fix the causes, then run again with --retry-failed",
    )


def repeat(campaign: Campaign, best: Trial, reporter: Reporter) -> RepeatData | None:
    """Train, rerank and measure on test, reusing earlier trainings; None without repeats. Needs a started Ray."""
    config = campaign.config
    if not config.repeats:
        return None
    seeds = [derived_seed("repeat", config.seed, k) % 2**31 for k in range(config.repeats)]
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
    contrasts = family([contrast(a, b, [means[a] - means[b]], seed=config.seed) for a, b in PAIRS])
    rows = tuple(RepeatRow(name, tuple(row.mean(1).tolist())) for name, row in means.items())
    return RepeatData(tuple(seeds), len(queries), rows, contrasts)


def _carried_out(
    campaign: Campaign, wanted: Mapping[tuple[str, int], Experiment], reporter: Reporter
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the records of all runs, `max_concurrent` at once; equal ones are run once."""
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
    """Run it up to rerank."""
    return path.run(experiment, last=RERANK, content=content)


def per_query(one: Experiment, record: Mapping[str, Any], measure: str, system: str = SYSTEM) -> dict[str, float]:
    """Return a measure of one system of a run by test query, in hexadecimal; 0 for a query without a ranking.

    record: of the run, complete up to rerank, or up to retrieve for systems of the first stage.
    """
    store = Store(one.execution.root)
    stages = {name: Artifact(store, name, stage["fingerprint"]) for name, stage in record["stages"].items()}
    made = stages[RETRIEVE if system in FIRST_STAGE else RERANK]
    runs = []
    qrels = []
    for bucket in range(store.buckets(one.execution.buckets)):
        asked = queries_of(stages[INGEST], bucket, "test")
        rows = made.read_part("runs", bucket, RUN)
        runs.append(of_queries(rows.filter(pc.equal(rows["system"], system)), asked))
        qrels.append(of_queries(stages[INGEST].read_part("qrels", bucket, QREL), asked))
    rows = measures.evaluate(pa.concat_tables(runs), pa.concat_tables(qrels), [measure], [system])
    return {row["query_id"].hex(): row["value"] for row in rows.to_pylist()}


def write(
    campaign: Campaign,
    trials: Sequence[Trial],
    best: Trial,
    repeats: RepeatData | None,
    importances: Mapping[str, float],
) -> dict[str, str]:
    """Publish campaign.html, campaign.json and best.yaml in the campaign's report; return their places by name."""
    base = campaign.base
    machine = environment.describe()
    data = CampaignData(
        name=campaign.config.name,
        collection=base.corpus.name,
        measure=MEASURE,
        fingerprint=campaign.fingerprint,
        wanted=campaign.config.trials,
        trials=tuple(trials),
        best=best.number,
        importances=importances,
        repeats=repeats,
        simulated=base.simulated is not None,
        environment={name: str(machine[name]) for name in ("git", "processor", "cores")},
    )
    content = {
        "campaign.html": to_html(data),
        "campaign.json": with_checksum(to_json(data)),
        "best.yaml": _settings(campaign, best),
    }
    folder = f"reports/{campaign.config.name}"
    for name, text in content.items():
        campaign.store.publish(f"{folder}/{name}", text.encode())
    return {name: campaign.store.where(f"{folder}/{name}") for name in content}


def _settings(campaign: Campaign, best: Trial) -> str:
    """The experiment with the best trial's settings, without `execution`, as YAML."""
    content = campaign.written(campaign.settings(best.params), f"{campaign.config.name}-best")
    content.pop("execution", None)
    head = (
        f"# The best of campaign {campaign.config.name} on dev: trial {best.number}, dev {MEASURE} {best.dev:.4f}.\n"
        "# Under the campaign's root (--root) `anmi run` of this file finds its model trained.\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
