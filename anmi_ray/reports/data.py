"""What the report of a run is made from, and report.json, which holds all its numbers; `run` makes the page of it.

What is None or empty is said to be missing in its section.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.evaluation.fusion import WeightSweep
from anmi_ray.evaluation.headline import Headline
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports.page import a_key_a_line, plain
from anmi_ray.reports.rounds import Rounds

FORMAT = 1  # version of report.json
Json = Mapping[str, Any]


@dataclass(frozen=True)
class TruthSample:
    """A sample of whole queries whose latent relevance is known because their judges were simulated, in Elo points.

    Aligned arrays [N]: `query` numbers the query of each document; truth and ratings may have any mean per query.
    """

    query: NDArray[np.int64]
    truth_elo: NDArray[np.float64]
    rating_elo: NDArray[np.float64]


@dataclass(frozen=True)
class GapSample:
    """Gaps from the anchor in Elo points by category of the negative, and the bands that name them.

    gaps: of all rated candidates.
    bands: name, low, high (None is an open end) and weight of the negatives in it.
    spread_elo: mean over queries of the ratings' standard deviation, without which points mean little.
    chosen: gaps of the candidates that became negatives with a weight above 0.
    """

    gaps: Mapping[str, NDArray[np.float64]]
    bands: Sequence[Json]
    spread_elo: float | None = None
    chosen: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportData:
    """Everything that the report says; the groups are JSON values as they are in report.json.

    collection: name, documents, queries by split, qrels, rejects (place, reason, rows), labelled queries by split,
        left_out.
    comparisons: a row per system and measure, by labels.
    system, baseline, measure: what the headline compares.
    simulated: True if any judge behind the ratings was simulated.
    serving: what reranking takes (`stages.report.serving`).
    judges, panel: audited values (`audits.judge_audits`, `audits.panel_values`); spent: sentences.
    distilled: what a distilled judge learned from, saved, and its held-out values and reliability curve.
    fits, mining: counts and rates (`audits.fit_facts`, `audits.mining_facts`).
    example: one train query with some of its candidates in the order in which they are shown.
    training: rows of the training log: step, loss, ranking, regression, learning_rate, alpha, dev and further numbers.
    stages: stage, seconds, reused, flows (rows_in = rows_out + rejected).
    queries: text, measure before and after, and the top documents of both systems.
    judged: what judges measured, query by query in judged_metrics.
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
    rounds: Rounds | None = None
    fits: Json | None = None
    truth: TruthSample | None = None
    example: Json | None = None
    gaps: GapSample | None = None
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


@dataclass(frozen=True)
class Agreement:
    """How well ratings recover the truth: means over queries of Kendall's τ-b and of Pearson's r, and the pooled RMSE.

    The RMSE is after centring both on each query's mean, in Elo points; queries with a constant side have no τ, r.
    """

    queries: int
    documents: int
    kendall_tau: float | None
    pearson_r: float | None
    rmse_elo: float


def centred(sample: TruthSample) -> TruthSample:
    """The sample with truth and rating at mean zero in every query."""
    _, group = np.unique(sample.query, return_inverse=True)
    size = np.bincount(group)
    truth = sample.truth_elo - (np.bincount(group, sample.truth_elo) / size)[group]
    rating = sample.rating_elo - (np.bincount(group, sample.rating_elo) / size)[group]
    return TruthSample(sample.query, truth, rating)


def agreement(sample: TruthSample) -> Agreement | None:
    """Agreement of ratings with the truth, per query; None for an empty sample."""
    if not len(sample.query):
        return None
    from scipy.stats import kendalltau

    middle = centred(sample)
    taus: list[float] = []
    pearsons: list[float] = []
    queries = np.unique(sample.query)
    for query in queries:
        rows = sample.query == query
        truth = middle.truth_elo[rows]
        rating = middle.rating_elo[rows]
        if np.ptp(truth) > 0 and np.ptp(rating) > 0:
            tau: Any = kendalltau(truth, rating)  # a result type of its own that scipy leaves untyped
            taus.append(float(tau.statistic))
            pearsons.append(float(truth @ rating / math.sqrt(float((truth @ truth) * (rating @ rating)))))
    error = middle.rating_elo - middle.truth_elo
    return Agreement(
        len(queries),
        len(error),
        float(np.mean(taus)) if taus else None,
        float(np.mean(pearsons)) if pearsons else None,
        float(np.sqrt(np.mean(error**2))),
    )


def headline_row(data: ReportData) -> SystemComparison | None:
    """The headline's comparison, or None if the system or the measure is missing."""
    wanted = (data.system, data.measure)
    return next((row for row in data.comparisons if (row.system, row.measure) == wanted and row.p is not None), None)


def to_json(data: ReportData) -> str:
    """report.json: every number of the report; NaN is null, ids are hexadecimal, one key of the top a line."""
    content: dict[str, Any] = {"format": FORMAT}
    for item in dataclasses.fields(data):
        content[item.name] = plain(getattr(data, item.name))
    content["metrics"] = _metrics(data.metrics)
    content["judged_metrics"] = None if data.judged_metrics is None else _metrics(data.judged_metrics)
    content["agreement"] = plain(agreement(data.truth)) if data.truth is not None else None
    return a_key_a_line(content)


def _metrics(metrics: pa.Table) -> dict[str, Any]:
    """Columns instead of rows: the queries once, then a list of values per measure and system."""
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
