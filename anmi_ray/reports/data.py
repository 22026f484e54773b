"""Data of a run's report, and report.json, which holds all its numbers; `run` renders the page from it.

Sections whose data are None or empty say that they are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from anmi_ray.evaluation.fusion import WeightSweep
from anmi_ray.evaluation.headline import Headline
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports.page import a_key_a_line, plain

FORMAT = 1  # version of report.json
Json = Mapping[str, Any]


def uniform_pairs(rounds: Sequence[Json]) -> float | None:
    """Extrapolate pairs per query from the first round, whose graph is uniform.

    rounds: as in `ReportData`. Answers add to the prior's precision about in proportion to their pairs:
    1/error² = 1/prior² + c pairs.

    >>> rounds = [{"pairs": 100.0, "top_std_err_elo": 200.0}, {"pairs": 150.0, "top_std_err_elo": 100.0}]
    >>> uniform_pairs([{**one, "prior_elo": None} for one in rounds])
    400.0
    """
    before, after = (
        one["top_std_err_elo"] ** -2 - (one["prior_elo"] ** -2 if one["prior_elo"] else 0.0)
        if one["top_std_err_elo"]
        else 0.0
        for one in (rounds[0], rounds[-1])
    )
    return rounds[0]["pairs"] * after / before if before > 0 and after > 0 else None


@dataclass(frozen=True)
class ReportData:
    """Contents of report.json, with its keys.

    collection: name, documents, queries by split, qrels, rejects (place, reason, rows), labelled queries by split,
        left_out.
    comparisons: a row per system and measure, by labels.
    system, baseline, measure: of the headline.
    simulated: True if any judge behind the ratings was simulated.
    serving: cost of reranking (`stages.report.figures`).
    judges, panel: audited values (`audits.judge_audits`, `audits.panel_values`).
    spent: the judges' calls, tokens and dollars, a sentence each.
    distilled: what a distilled judge learned from and saved, its held-out values, and its reliability curve.
    fits, mining: counts and rates (`audits.fit_facts`, `audits.mining_facts`).
    rounds: of an adaptive design (`stages.report.figures.design_rounds`).
    truth: latent relevance, known from simulated judges, and ratings of N documents of whole queries: query int[N], its
        number; truth_elo and rating_elo float[N], in Elo points, of any mean per query.
    example: a train query with some of its candidates, as shown.
    gaps: from the anchor in Elo points, by category of the negative: gaps of all rated candidates, chosen of those that
        became negatives with a positive weight; bands (name, low, high, weight; None: open); spread_elo, the mean over
        queries of the ratings' standard deviation.
    training: rows of the training log.
    stages: stage, seconds, reused, flows (rows_in = rows_out + rejected).
    queries: text, measure before and after, and the top documents of both systems.
    judged, judged_metrics: what judges measured, in total and query by query.
    """

    run: str
    collection: Json
    metrics: pa.Table
    comparisons: tuple[SystemComparison, ...]
    system: str
    baseline: str
    measure: str
    simulated: bool
    config_yaml: str
    level: float = 0.95
    first: Headline | None = None
    serving: Json | None = None
    fusion: WeightSweep | None = None
    judges: Sequence[Json] = ()
    panel: Sequence[Json] = ()
    spent: tuple[str, ...] = ()
    distilled: Json | None = None
    rounds: Json | None = None
    fits: Json | None = None
    truth: Json | None = None
    example: Json | None = None
    gaps: Json | None = None
    mining: Json | None = None
    training: Sequence[Mapping[str, float | None]] = ()
    stages: Sequence[Json] = ()
    queries: Sequence[Json] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    relevance: Relevance | None = None
    judged: ByJudges | None = None
    judged_metrics: pa.Table | None = None


def judges_alone(data: ReportData) -> bool:
    """True if judges measured and no label did."""
    return not data.metrics.num_rows and data.judged is not None and bool(data.judged.comparisons)


def shown(data: ReportData) -> ReportData:
    """The data for the page: measured by judges in the absence of labels."""
    if data.judged is None or data.judged_metrics is None or not judges_alone(data):
        return data
    found = data.judged
    return replace(data, metrics=data.judged_metrics, comparisons=found.comparisons, measure=found.measure)


def extremes(
    metrics: pa.Table, measure: str, system: str, baseline: str, each: int = 3
) -> tuple[list[bytes], list[bytes]]:
    """Ids of the queries with the largest gains and the largest losses of `system`, at most `each`; ties by id."""
    values = by_system(metrics, measure)
    ids, after = values[system]
    difference = after - values[baseline][1]
    order = sorted(range(len(ids)), key=lambda i: (-difference[i], ids[i]))
    gains = [ids[i] for i in order if difference[i] > 0][:each]
    losses = [ids[i] for i in reversed(order) if difference[i] < 0][:each]
    return gains, losses


def agreement(sample: Json) -> dict[str, float | None] | None:
    """How well ratings recover the truth; None for an empty sample.

    kendall_tau (τ-b), pearson_r: means over queries, without those with a constant side.
    rmse_elo: pooled, in Elo points, after centring both on each query's mean.
    """
    if not len(sample["query"]):
        return None
    from scipy.stats import kendalltau

    taus: list[float] = []
    pearsons: list[float] = []
    queries, group = np.unique(sample["query"], return_inverse=True)
    size = np.bincount(group)
    all_truth, all_ratings = (
        sample[name] - (np.bincount(group, sample[name]) / size)[group] for name in ("truth_elo", "rating_elo")
    )
    for number in range(len(queries)):
        truth, rating = all_truth[group == number], all_ratings[group == number]
        if np.ptp(truth) > 0 and np.ptp(rating) > 0:
            tau: Any = kendalltau(truth, rating)  # untyped in scipy
            taus.append(float(tau.statistic))
            pearsons.append(float(truth @ rating / math.sqrt(float((truth @ truth) * (rating @ rating)))))
    error = all_ratings - all_truth
    return {
        "queries": len(queries),
        "documents": len(error),
        "kendall_tau": float(np.mean(taus)) if taus else None,
        "pearson_r": float(np.mean(pearsons)) if pearsons else None,
        "rmse_elo": float(np.sqrt(np.mean(error**2))),
    }


def headline_row(data: ReportData) -> SystemComparison | None:
    """The headline's comparison; None if the system or the measure is missing."""
    wanted = (data.system, data.measure)
    return next((row for row in data.comparisons if (row.system, row.measure) == wanted and row.p is not None), None)


def to_json(data: ReportData) -> str:
    """report.json: NaN is null, ids are hexadecimal, one top-level key per line."""
    content = {"format": FORMAT, **plain(data), "metrics": _metrics(data.metrics)}
    content["judged_metrics"] = None if data.judged_metrics is None else _metrics(data.judged_metrics)
    content["agreement"] = plain(agreement(data.truth)) if data.truth is not None else None
    return a_key_a_line(content)


def _metrics(metrics: pa.Table) -> dict[str, Any]:
    """The query ids once, then a list of values per measure and system."""
    measures = list(dict.fromkeys(metrics["measure"].to_pylist()))
    values = {measure: by_system(metrics, measure) for measure in measures}
    queries = sorted(set(metrics["query_id"].to_pylist()))
    return {
        "query_id": [query.hex() for query in queries],
        "values": {
            measure: {
                system: [value.get(query) for query in queries]  # null where a peer failed
                for system, (ids, column) in systems.items()
                for value in [dict(zip(ids, column.tolist(), strict=True))]
            }
            for measure, systems in values.items()
        },
    }
